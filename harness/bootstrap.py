"""Make the virtual environment that everything else runs in; the Makefile runs this before any dependency exists.

    .venv/                    the environment: dependencies only, Podium itself runs from the checkout
      podium.json             which Python it was made from, and whether it keeps that Python's packages
      podium-constraints.txt  the pins handed to pip: constraints.txt, less what is kept
      .podium-ready           everything `make eval` needs is installed: a hash of what was asked
      .podium-ready-dev       likewise for `make test` and `make lint`
      .podium-ready-offline   likewise for `make setup-offline`

A stamp is written last, so an interrupted installation is resumed: packages that are not whole on disk are installed
again, the others stay. The lock is on the checkout's folder and is inherited by pip: no two installations meet in one
environment, not even when the first one's parent was killed.

Packages are *kept*, never replaced, when the chosen Python's torch sees a GPU (a ROCm or CUDA container) or when that
Python already has every pin. Otherwise the pins are installed. pip's own configuration decides from where.

Standard library only, and no syntax newer than Python 3.6: an old Python must get far enough to say that it is old.
"""

import contextlib
import csv
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

OLDEST_PYTHON = (3, 11)  # pyproject.toml, requires-python
OLDEST = {"torch": (2, 11), "triton": (3, 6)}  # pyproject.toml, dependencies

EXIT_INFRASTRUCTURE = 30
EXIT_INTERRUPTED = 130

# Measured on x86-64 Linux with torch 2.13's CPU build: 1.9 GB installed, its wheels beside it while pip works.
GB = 10**9
ROOM_FOR_TORCH = 3 * GB
ROOM_FOR_CUDA_TORCH = 9 * GB  # 6 GB installed, 3 GB of wheels
ROOM_FOR_THE_REST = GB // 2
ROOM_FOR_COMPILERS = GB  # ziglang 0.4 GB, NVRTC 0.2 GB, and their wheels

TEMPORARY = "podium-tmp-"
LARGE_DOWNLOAD_MB = 10  # smaller ones are not worth a line
SILENCE_S = 20  # after this long without a word from pip, say that it still works
LAST_LINES = 12  # of a failed command's output

AGAIN = "run the same command again"
DISK_FULL = f"the disk is full: torch takes 2 GB, its CUDA build 6 GB and 3 GB while unpacking. Make room and {AGAIN}."
PIP_FAILURES = [  # what pip's output means, first match first
    (r"No space left on device|Disk quota exceeded", DISK_FULL),
    (r"Read-only file system|Permission denied", "pip may not write there: work in a copy of the checkout you own."),
    (
        r"ResolutionImpossible",
        "the pins conflict with your pip configuration (PIP_CONSTRAINT?) or with each other: see pip's words above.",
    ),
    (
        r"No matching distribution|Could not find a version|Connection|Temporary failure|Max retries|timed out|HTTP",
        "pip cannot find or fetch the packages (its words are above): is there a network? Connect, or point"
        f" PIP_INDEX_URL or PIP_FIND_LINKS at a place that has them, and {AGAIN}.",
    ),
]

# Run by the Python that may have torch: what does it have, and does its torch see a GPU?
PROBE = r"""
import importlib.util, json, sysconfig
from importlib import metadata
versions = {d.metadata["Name"]: d.version for d in reversed(list(metadata.distributions())) if d.metadata["Name"]}
modules, gpu = {}, False
for name in ("torch", "triton"):
    if importlib.util.find_spec(name):
        try:
            module = __import__(name)
            modules[name] = str(module.__version__)
            gpu = gpu or name == "torch" and bool(module.cuda.is_available())
        except Exception:
            pass
sites = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
print("\n" + json.dumps({"versions": versions, "modules": modules, "gpu": gpu, "sites": sites}))
"""


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do, in one or two sentences."""


class Found(NamedTuple):
    """What a Python has."""

    versions: Dict[str, str]  # of every distribution, by its normalised name
    modules: Dict[str, str]  # of "torch" and "triton", those that can be imported
    gpu: bool  # its torch sees one
    sites: List[str]  # its site-packages folders


def main(words: List[str]) -> int:
    """`install` makes .venv ready for eval; --dev for test and lint as well, --offline for compiling inline HIP."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        require_new_python(sys.version_info[:2])
        install(root, [word[2:] for word in words if word.startswith("--")])
    except SetupError as error:
        say(str(error))
        return EXIT_INFRASTRUCTURE
    except OSError as error:
        say(explain_os_error(error, root))
        return EXIT_INFRASTRUCTURE
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return EXIT_INTERRUPTED
    return 0


def install(root: str, extras: List[str]) -> None:
    """Make `root`/.venv ready, with the `extras` of pyproject.toml, or leave it alone if it is.

    Raises SetupError, OSError.
    """
    venv = os.path.realpath(os.path.join(root, ".venv"))
    if os.path.realpath(sys.prefix) == venv:  # it is activated, and cannot be remade from within
        os.execv(base_python(), [base_python(), "-I", *sys.argv])
    with locked(root):
        started = time.monotonic()
        wanted = wanted_hash(root)
        if all(is_ready(venv, wanted, stage) for stage in ["", *extras]):
            with contextlib.suppress(OSError):  # ready, if read-only
                stamp(venv, wanted, extras)  # newer than pyproject.toml and constraints.txt again
            return
        made_by_hand = works(venv) and not os.path.exists(os.path.join(venv, "podium.json"))
        source = venv_python(venv) if made_by_hand else sys.executable
        say(f"checking which packages {source} already has")
        found = probe(source)
        pins = read_pins(os.path.join(root, "constraints.txt"))
        runtime, optional = read_requirements(os.path.join(root, "pyproject.toml"))
        asked = sum((optional[extra] for extra in extras), runtime)
        kept = what_to_keep(found, pins, runtime)
        if kept:
            say(f"keeping {kept}")
            asked, pins = ask_around(asked, pins, found)
        if not made_by_hand:
            prepare_venv(venv, {"python": source if kept else base_python(), "keeps": bool(kept)}, found)
        require_room(venv, bool(kept))
        if "offline" in extras:
            require_free(venv, ROOM_FOR_COMPILERS, "the compilers")
        discard_partial(venv)
        ensure_pip(venv)
        say(f"installing {len(asked)} packages and what they need, with pip")
        pip_install(venv, asked, pins)
        stamp(venv, wanted, extras)
        say(f"ready in {time.monotonic() - started:.0f} s")


def say(line: str) -> None:
    print(f"podium: {line}", file=sys.stderr, flush=True)


def require_new_python(version: Tuple[int, ...]) -> None:
    if version < OLDEST_PYTHON:
        newer = [name for name in ("python3.14", "python3.13", "python3.12", "python3.11") if runs([name, "-c", ""])]
        remedy = f"make PYTHON={newer[0]} TARGET" if newer else "install one, then make PYTHON=/path/to/python3 TARGET"
        here, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST_PYTHON))
        raise SetupError(f"Podium needs Python {oldest} or newer, but {sys.executable} is {here}: {remedy}.")


def explain_os_error(error: OSError, root: str) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DISK_FULL
    return f"cannot write {error.filename or root} ({error.strerror}): work in a copy of the checkout that you own."


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """One at a time. Children inherit the lock, and the kernel frees it with the last process that holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another installation is at work in {folder}: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def wanted_hash(root: str) -> str:
    """Of all that decides what is in the environment; an edit that changes nothing costs no installation."""
    digest = hashlib.sha256(os.path.abspath(sys.executable).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(root, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def stamp_path(venv: str, extra: str) -> str:
    return os.path.join(venv, ".podium-ready-" + extra if extra else ".podium-ready")


def is_ready(venv: str, wanted: str, extra: str) -> bool:
    try:
        with open(stamp_path(venv, extra)) as file:
            return file.read() == wanted and works(venv)
    except OSError:
        return False


def stamp(venv: str, wanted: str, extras: List[str]) -> None:
    for stage in ["", *extras]:
        path = stamp_path(venv, stage)
        with open(path + ".new", "w") as file:
            file.write(wanted)
        os.replace(path + ".new", path)


def venv_python(venv: str) -> str:
    return os.path.join(venv, "bin", "python")


def works(venv: str) -> bool:
    test = f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON} or sys.prefix == sys.base_prefix)"
    return os.path.exists(os.path.join(venv, "pyvenv.cfg")) and runs([venv_python(venv), "-I", "-c", test])


def runs(command: List[str]) -> bool:
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def base_python() -> str:
    """The interpreter behind an activated environment: leaving that environment is no reason to install again."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def probe(python: str) -> Found:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    answer = subprocess.run([python, "-c", PROBE], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        found = Found(**json.loads(answer.stdout.decode().splitlines()[-1]))
    except (IndexError, ValueError):  # its torch took it down: as good as none
        return Found({}, {}, False, [])
    return found._replace(versions={normalised(name): version for name, version in found.versions.items()})


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    return normalised(re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0])


def read_pins(path: str) -> Dict[str, str]:
    """Of constraints.txt: normalised name -> version."""
    with open(path) as file:
        pins = [line.split("#")[0].split("==") for line in file if "==" in line]
    return {name_of(name): version.strip() for name, version in pins}


def read_requirements(path: str) -> Tuple[List[str], Dict[str, List[str]]]:
    """Of pyproject.toml: the dependencies, and each extra's."""
    import tomllib  # new in Python 3.11

    with open(path, "rb") as file:
        project = tomllib.load(file)["project"]
    return project["dependencies"], project["optional-dependencies"]


def what_to_keep(found: Found, pins: Dict[str, str], requirements: List[str]) -> str:
    """What is kept and why, or "" to install the pins."""
    if found.gpu:
        names = " and ".join(f"{module} {version}" for module, version in sorted(found.modules.items()))
        return f"the {names} that are here, with what is beside them: this torch sees a GPU"
    here = {name: found.versions.get(name, "").split("+")[0] for name in map(name_of, requirements)}
    if all(version and version == pins.get(name) for name, version in here.items()):
        return "the packages that are here: they are the pinned ones"
    return ""


def ask_around(asked: List[str], pins: Dict[str, str], found: Found) -> Tuple[List[str], Dict[str, str]]:
    """`asked` and `pins` such that pip keeps what is here: torch and triton always, the rest where its range allows."""
    for module, version in sorted(found.modules.items()):
        if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < OLDEST[module]:
            oldest = ".".join(map(str, OLDEST[module]))
            say(f"warning: {module} {version} is older than {oldest}, the oldest that is supported")
    # By module, not by distribution: ROCm's triton has other names, and a torch built from source is 2.11.0a0 to pip.
    asked = [requirement for requirement in asked if name_of(requirement) not in found.modules]
    pins = {name: version for name, version in pins.items() if name not in found.versions and name not in found.modules}
    pins.update({name: found.versions[name] for name in found.modules if name in found.versions})
    return asked, pins


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


def pinned(requirement: str, pins: Dict[str, str]) -> str:
    """`torch>=2.11; marker` as `torch==2.13.0; marker`, or as it is if it has no pin."""
    name, marker = name_of(requirement), requirement.partition(";")[2]
    return f"{name}=={pins[name]}" + (f";{marker}" if marker else "") if name in pins else requirement


def narrate_pip(line: str, venv: str) -> None:
    """Say what is worth saying of pip's output; stop it where the CUDA build turns up and cannot fit."""
    fetch = re.match(r"\s*(?:Downloading|Using cached) (\S+?)-(\d[^-]*)-\S+\.whl \(([\d.]+) ([MG]B)\)", line)
    if fetch and (fetch.group(4) == "GB" or float(fetch.group(3)) >= LARGE_DOWNLOAD_MB):
        say("  fetching {} {} ({} {})".format(*fetch.groups()))
    elif line.startswith("Installing collected packages: "):
        say(f"  unpacking {line.count(',') + 1} packages")
    elif line.startswith("Collecting nvidia-"):
        require_free(venv, ROOM_FOR_CUDA_TORCH, "the packages with torch's CUDA build")


def run(
    command: List[str],
    failure: str,
    narrate: Callable[[str], None] = lambda line: None,
    variables: Optional[Dict[str, str]] = None,
) -> None:
    """Run `command`, each line of its output through `narrate`; if it fails show the last ones and raise SetupError."""
    hidden = ("PYTHONHOME", "PYTHONPATH")  # what they make importable is not in the environment
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment.update(variables or {}, PYTHONUNBUFFERED="1", PIP_USER="0")
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=False,  # the lock
    )
    output = []
    try:
        for line in lines_of(process):
            output.append(line)
            narrate(line)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code != 0:
        telling = [line for line in output if line.strip() and "is ignored" not in line]
        print(*(f"    {line}" for line in telling[-LAST_LINES:]), sep="\n", file=sys.stderr)
        meaning = [sentence for pattern, sentence in PIP_FAILURES if re.search(pattern, "\n".join(telling))]
        raise SetupError(meaning[0] if meaning else f"{failure} with exit code {code}: its words are above.")


def lines_of(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """The process's output by the line; says so when it has been silent for a while."""
    assert process.stdout
    pending, silent_s = b"", 0
    while True:
        if not select.select([process.stdout], [], [], SILENCE_S)[0]:
            silent_s += SILENCE_S
            say(f"  still at work ({silent_s} s since the last news)")
            continue
        chunk = os.read(process.stdout.fileno(), 65536)
        *lines, pending = (pending + (chunk or b"\n")).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        silent_s = 0
        if not chunk:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
