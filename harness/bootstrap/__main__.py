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
import errno
import fcntl
import hashlib
import os
import signal
import sys
import time
from typing import Iterator, List, Tuple

if not __package__:  # run as a folder, which heads the path then: put the checkout in its place
    sys.dont_write_bytecode = True  # the checkout may be another's, and an old Python's is of no use
    sys.path[0] = os.path.abspath(os.path.join(__file__, "../../.."))

from harness.bootstrap.command import DISK_FULL, SetupError, runs, say
from harness.bootstrap.packages import OLDEST_PYTHON, ask_around, probe, read_pins, read_requirements, what_to_keep
from harness.bootstrap.virtualenv import (
    ROOM_FOR_COMPILERS,
    discard_partial,
    ensure_pip,
    pip_install,
    prepare_venv,
    require_free,
    require_room,
    venv_python,
    works,
)

EXIT_INFRASTRUCTURE = 30
EXIT_INTERRUPTED = 130


def main(words: List[str]) -> int:
    """`install` makes .venv ready for eval; --dev for test and lint as well, --offline for compiling inline HIP."""
    root = os.path.abspath(os.path.join(__file__, "../../.."))
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


def base_python() -> str:
    """The interpreter behind an activated environment: leaving that environment is no reason to install again."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
