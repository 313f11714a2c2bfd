"""The virtual environment on disk: made, cleared of what is only partly there, and filled by pip."""

import csv
import glob
import json
import os
import re
import shutil
import sys
import tempfile
from typing import Any, Dict, List

from harness.bootstrap.command import AGAIN, SetupError, run, runs, say
from harness.bootstrap.packages import OLDEST_PYTHON, Found, name_of, pinned

# Measured on x86-64 Linux with torch 2.13's CPU build: 1.9 GB installed, its wheels beside it while pip works.
GB = 10**9
ROOM_FOR_TORCH = 3 * GB
ROOM_FOR_CUDA_TORCH = 9 * GB  # 6 GB installed, 3 GB of wheels
ROOM_FOR_THE_REST = GB // 2
ROOM_FOR_COMPILERS = GB  # ziglang 0.4 GB, NVRTC 0.2 GB, and their wheels

TEMPORARY = "podium-tmp-"
LARGE_DOWNLOAD_MB = 10  # smaller ones are not worth a line


def venv_python(venv: str) -> str:
    return os.path.join(venv, "bin", "python")


def works(venv: str) -> bool:
    test = f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON} or sys.prefix == sys.base_prefix)"
    return os.path.exists(os.path.join(venv, "pyvenv.cfg")) and runs([venv_python(venv), "-I", "-c", test])


def prepare_venv(venv: str, record: Dict[str, Any], found: Found) -> None:
    """An environment made as `record` says, without pip yet; one that was made otherwise is made anew."""
    record_path = os.path.join(venv, "podium.json")
    if os.path.isdir(venv) and os.listdir(venv):
        ours = os.path.exists(record_path)
        if not ours and not os.path.exists(os.path.join(venv, "pyvenv.cfg")):
            raise SetupError(f"{venv} is no virtual environment: move it away and {AGAIN}.")
        if ours and works(venv) and read_json(record_path) == record:
            return
        say("making .venv anew: it does not fit the Python that is here")
        shutil.rmtree(venv)
    require_venv_modules()
    say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
    os.makedirs(venv, exist_ok=True)
    with open(record_path, "w") as file:
        json.dump(record, file)
    command = [sys.executable, "-I", "-m", "venv", "--without-pip", "--prompt", "podium"]
    run(command + (["--system-site-packages"] if record["keeps"] else []) + [venv], "venv failed")
    if record["keeps"] and sys.prefix != sys.base_prefix:
        # --system-site-packages reaches the base Python only: name the environment that torch was found in as well.
        with open(os.path.join(site_packages(venv), "podium-kept.pth"), "w") as file:
            file.writelines(f"import site; site.addsitedir({site!r})\n" for site in found.sites)


def require_venv_modules() -> None:
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        remedy = f"on Debian and Ubuntu `apt install python3-venv`, then {AGAIN}"
        raise SetupError(f"{sys.executable} has no venv or no ensurepip module: {remedy}.") from None


def read_json(path: str) -> Any:
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def site_packages(venv: str) -> str:
    return glob.glob(os.path.join(glob.escape(venv), "lib", "python3*", "site-packages"))[0]


def require_room(venv: str, kept: bool) -> None:
    has_torch = kept or os.path.isdir(os.path.join(site_packages(venv), "torch"))
    require_free(venv, ROOM_FOR_THE_REST if has_torch else ROOM_FOR_TORCH, "the packages")


def require_free(folder: str, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        room = f"{what} need {needed / GB:.1f} GB, {folder} has {free / GB:.1f} GB free"
        raise SetupError(f"too little disk space: {room}. Make room and {AGAIN}.")


def discard_partial(venv: str) -> None:
    """Forget packages whose files are not all there, so that pip installs them again."""
    folder = site_packages(venv)
    for leftover in glob.glob(os.path.join(glob.escape(venv), TEMPORARY + "*")):
        shutil.rmtree(leftover)
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        if entry.startswith("~"):  # pip's name for what it was taking away
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        elif entry.endswith(".dist-info") and not is_whole(folder, path):
            say(f"{entry[: -len('.dist-info')]} is only partly there: it is installed again")
            shutil.rmtree(path)


def is_whole(folder: str, dist_info: str) -> bool:
    """Every file that the package's RECORD names is there, with the size it names."""
    try:
        with open(os.path.join(dist_info, "RECORD"), newline="") as file:
            rows = [(name, size) for name, _, size in csv.reader(file) if not name.endswith(".pyc")]
        return all(os.stat(os.path.join(folder, name)).st_size == int(size or -1) or not size for name, size in rows)
    except (OSError, ValueError):
        return False


def ensure_pip(venv: str) -> None:
    if not glob.glob(os.path.join(glob.escape(site_packages(venv)), "pip-*.dist-info")):
        require_venv_modules()
        run([venv_python(venv), "-I", "-m", "ensurepip", "--default-pip"], "ensurepip failed")


def pip_install(venv: str, asked: List[str], pins: Dict[str, str]) -> None:
    # What is asked for carries its pin itself: pip calls a constraint that is nowhere to be had a conflict.
    requirements = [pinned(requirement, pins) for requirement in asked]
    pins = {name: version for name, version in pins.items() if name not in map(name_of, asked)}
    constraints = os.path.join(venv, "podium-constraints.txt")
    with open(constraints, "w") as file:
        file.writelines(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    command = [venv_python(venv), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--constraint", constraints, *requirements]
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=venv) as temporary:  # /tmp is often too small for torch
        run(command, "pip failed", lambda line: narrate_pip(line, venv), {"TMPDIR": temporary})


def narrate_pip(line: str, venv: str) -> None:
    """Say what is worth saying of pip's output; stop it where the CUDA build turns up and cannot fit."""
    fetch = re.match(r"\s*(?:Downloading|Using cached) (\S+?)-(\d[^-]*)-\S+\.whl \(([\d.]+) ([MG]B)\)", line)
    if fetch and (fetch.group(4) == "GB" or float(fetch.group(3)) >= LARGE_DOWNLOAD_MB):
        say("  fetching {} {} ({} {})".format(*fetch.groups()))
    elif line.startswith("Installing collected packages: "):
        say(f"  unpacking {line.count(',') + 1} packages")
    elif line.startswith("Collecting nvidia-"):
        require_free(venv, ROOM_FOR_CUDA_TORCH, "the packages with torch's CUDA build")
