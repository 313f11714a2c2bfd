"""Create the virtual environment that everything else runs in. The Makefile runs this before any dependency exists.

    .venv/                    the environment: dependencies only, Podium itself runs from the checkout
      podium.json             what it was made from; "unfinished" until pip has ended
      podium-constraints.txt  the pins for pip: constraints.txt without the kept packages
      .podium-ready           everything `make eval` needs is installed: a hash of the requirements
      .podium-ready-dev       likewise for `make test` and `make lint`
      .podium-ready-offline   likewise for `make setup-offline`
      .podium-ready-server    likewise for `make serve`

A stamp is written last. An environment that is unfinished or was made from another Python is created again. A working
environment that the user created by hand is filled and never removed. pip's own configuration decides where packages
come from. Without one, and without an NVIDIA GPU, torch is PyTorch's build for CPUs (`torch_build`).

The code uses only the standard library and no syntax newer than Python 3.6, so that an old Python gets far enough to
say that it is too old.
"""

import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Callable, Dict, Iterator, List, Tuple

if not __package__:  # run as a folder, which is first on the path then: replace it by the checkout
    sys.dont_write_bytecode = True  # the checkout may belong to another user, and byte code of an old Python is useless
    sys.path[0] = os.path.abspath(os.path.join(__file__, "../../.."))

from harness.bootstrap.bytecode import Compilers
from harness.bootstrap.packages import (
    OLDEST_PYTHON,
    Found,
    ask_around,
    name_of,
    pinned,
    probe,
    read_pins,
    read_requirements,
    what_to_keep,
)
from harness.bootstrap.torch_build import CHOICE, FOR_CPUS, chosen, is_for_cpus

EXIT_INFRASTRUCTURE = 30
EXIT_INTERRUPTED = 130

UNFINISHED = '"unfinished"'
AGAIN = "run the same command again"
LOOK_S = 0.3
PIP_FAILED = (
    "pip failed; its output is above. Is there a network? Connect, or point PIP_INDEX_URL or PIP_FIND_LINKS at a place"
    " that has the packages. Is the disk full? Downloads and .venv take 3 GB, with torch's CUDA build 9 GB."
    f" Then {AGAIN}."
)
NO_CPU_TORCH = (
    f"pip could not get torch for CPUs from {FOR_CPUS}; its output is above. Is there a network? Connect, or point"
    f" PIP_INDEX_URL or PIP_FIND_LINKS at a place with it. {CHOICE}=cuda takes the build for CUDA: 3 GB to download."
    f" Then {AGAIN}."
)


class SetupError(Exception):
    """The environment cannot be created. The message gives the reason and the remedy in one or two sentences."""


def main(words: List[str]) -> int:
    """Run `install`, which makes .venv ready for eval; with --dev also for test and lint; likewise --offline and
    --server."""
    root = os.path.abspath(os.path.join(__file__, "../../.."))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        require_new_python(sys.version_info[:2])
        install(root, [word[2:] for word in words if word.startswith("--")])
    except SetupError as error:
        say(str(error))
        return EXIT_INFRASTRUCTURE
    except OSError as error:
        say(f"cannot write {error.filename or root} ({error.strerror}): work in a copy that you own and that has room.")
        return EXIT_INFRASTRUCTURE
    except KeyboardInterrupt:
        say(f"interrupted: {AGAIN}")
        return EXIT_INTERRUPTED
    return 0


def say(line: str) -> None:
    print(f"podium: {line}", file=sys.stderr, flush=True)


def require_new_python(version: Tuple[int, ...]) -> None:
    if version < OLDEST_PYTHON:
        newer = [name for name in ("python3.14", "python3.13", "python3.12", "python3.11") if runs([name, "-c", ""])]
        remedy = f"make PYTHON={newer[0]} TARGET" if newer else "install one, then make PYTHON=/path/to/python3 TARGET"
        here, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST_PYTHON))
        raise SetupError(f"Podium needs Python {oldest} or newer, but {sys.executable} is {here}: {remedy}.")


def install(root: str, extras: List[str]) -> None:
    """Make `root`/.venv ready, with the `extras` of pyproject.toml. Do nothing if it is ready already.

    Raises SetupError and OSError.
    """
    venv = os.path.realpath(os.path.join(root, ".venv"))
    base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    if os.path.realpath(sys.prefix) == venv:  # the environment is activated, and cannot recreate itself
        os.execv(base, [base, "-I", *sys.argv])
    with locked(root):
        stamps = [os.path.join(venv, ".podium-ready")]
        stamps += [f"{stamps[0]}-{extra}" for extra in extras]
        wanted = wanted_hash(root)
        if works(venv) and all(read(stamp) == wanted for stamp in stamps):
            with contextlib.suppress(OSError):  # a read-only environment is ready, too
                for stamp in stamps:  # make them newer than pyproject.toml and constraints.txt
                    os.utime(stamp)
            return
        fill(root, venv, base, extras)
        for stamp in stamps:
            write(stamp, wanted)


def fill(root: str, venv: str, base: str, extras: List[str]) -> None:
    """Install the requirements of pyproject.toml and constraints.txt in `venv`. `base`: the Python behind this one."""
    try:
        chosen(os.environ)
    except ValueError as error:
        raise SetupError(f"{error}.") from None
    record = os.path.join(venv, "podium.json")
    made_by_hand = works(venv) and not os.path.exists(record)
    source = venv_python(venv) if made_by_hand else sys.executable
    found = probe(source)
    pins = read_pins(os.path.join(root, "constraints.txt"))
    runtime, optional = read_requirements(os.path.join(root, "pyproject.toml"))
    asked = sum((optional[extra] for extra in extras), runtime)
    kept = what_to_keep(found, pins, runtime)
    if kept:
        say(f"keeping {kept}")
        asked, pins = ask_around(asked, pins, found)
    made_of = json.dumps({"python": source if kept else base, "keeps": bool(kept)})
    if not made_by_hand:
        if not works(venv) or read(record) != made_of:
            make(venv, bool(kept), found)
        write(record, UNFINISHED)
    code, failed = pip_install(venv, asked, pins)
    if code >= 0 and not made_by_hand:  # pip ended by itself, so its packages are complete
        write(record, made_of)
    if code != 0:
        raise SetupError(failed)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold a lock, so that one installation runs at a time. pip inherits the lock, and the kernel frees it with the
    last process that holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another installation is at work in {folder}: waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass  # the file system has no locks
    try:
        yield
    finally:
        os.close(descriptor)


def wanted_hash(root: str) -> str:
    """Return a hash of everything that determines the environment. A new time stamp alone causes no installation."""
    digest = hashlib.sha256(os.path.abspath(sys.executable).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update(read(os.path.join(root, name)).encode())
    return digest.hexdigest()


def venv_python(venv: str) -> str:
    return os.path.join(venv, "bin", "python")


def works(venv: str) -> bool:
    test = f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON} or sys.prefix == sys.base_prefix)"
    return os.path.exists(os.path.join(venv, "pyvenv.cfg")) and runs([venv_python(venv), "-I", "-c", test])


def make(venv: str, keeps: bool, found: Found) -> None:
    """Create an empty environment in place of the old one. With `keeps` it also sees the packages of this Python."""
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        remedy = f"on Debian and Ubuntu `apt install python3-venv`, then {AGAIN}"
        raise SetupError(f"{sys.executable} has no venv or no ensurepip module: {remedy}.")
    if os.path.isdir(venv) and os.listdir(venv):
        if not any(os.path.exists(os.path.join(venv, name)) for name in ("podium.json", "pyvenv.cfg")):
            raise SetupError(f"{venv} is not a virtual environment: move it away and {AGAIN}.")
        shutil.rmtree(venv)
    say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
    os.makedirs(venv, exist_ok=True)
    write(os.path.join(venv, "podium.json"), UNFINISHED)
    command = [sys.executable, "-I", "-m", "venv", "--without-pip", "--prompt", "podium"]
    if run(command + (["--system-site-packages"] if keeps else []) + [venv]) != 0:
        raise SetupError("venv failed; its output is above.")
    if keeps and sys.prefix != sys.base_prefix:
        # --system-site-packages reaches only the base Python. So also name the environment in which torch was found.
        (packages,) = glob.glob(os.path.join(glob.escape(venv), "lib", "python3*", "site-packages"))
        lines = "".join(f"import site; site.addsitedir({site!r})\n" for site in found.sites)
        write(os.path.join(packages, "podium-kept.pth"), lines)


def pip_install(venv: str, asked: List[str], pins: Dict[str, str]) -> Tuple[int, str]:
    """Run pip. Return its exit code, which is negative if it was killed, and what to say if it is not 0."""
    pip = [venv_python(venv), "-I", "-m", "pip"]
    if not runs([*pip, "--version"]):
        run([venv_python(venv), "-I", "-m", "ensurepip"])
    constraints, temporary = os.path.join(venv, "podium-constraints.txt"), os.path.join(venv, "tmp")
    # Requirements carry their own pins. pip would report a constraint on an unavailable version as a conflict.
    others = sorted(pins.keys() - set(map(name_of, asked)))
    write(constraints, "".join(f"{name}=={pins[name]}\n" for name in others))
    os.makedirs(temporary, exist_ok=True)
    command = [*pip, "install", "--no-input", "--no-compile", "--disable-pip-version-check"]
    wanted = [pinned(requirement, pins) for requirement in asked]
    variables = {"PIP_USER": "0", "TMPDIR": temporary}  # /tmp is often too small for torch
    torch = [requirement for requirement in wanted if name_of(requirement) == "torch"]
    for_cpus = bool(torch) and is_for_cpus(pip, os.environ)
    with Compilers(venv, venv_python(venv)) as compilers:
        if for_cpus:
            say(f"installing torch for CPUs, from {FOR_CPUS} ({CHOICE}=cuda: for CUDA)")
            # Its index has other packages, too, which come from where pip always takes them.
            code = run([*command, "--no-deps", "--index-url", FOR_CPUS, *torch], compilers.look, **variables)
            if code != 0:
                return code, NO_CPU_TORCH
        say(f"installing {len(asked)} packages and what they need, with pip")
        code = run([*command, "--constraint", constraints, *wanted], compilers.look, **variables)
        if code == 0:
            say("compiling what was installed to byte code")
        return code, PIP_FAILED


def run(command: List[str], look: Callable[[], None] = lambda: None, **variables: str) -> int:
    """Run `command` and return its exit code. It prints on stderr, inherits the lock, and is killed with this process.
    `look` is called every LOOK_S meanwhile, and once at the end."""
    environment = dict(os.environ, **variables)
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, close_fds=False
    ) as process:
        try:
            while process.returncode is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
                look()
        except BaseException:
            process.kill()
            raise
    return process.returncode


def runs(command: List[str]) -> bool:
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def read(path: str) -> str:
    """Return the text of a file, or "" if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Write all of `text` or nothing, because make trusts a stamp."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
