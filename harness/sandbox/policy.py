"""The policy: what a worker may read, write and use. The judge makes it, and the worker applies it to itself."""

from __future__ import annotations

import json
import os
import site
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import command

ROOT = command.ROOT

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/nix/store", "/proc", "/sys")
_SETTINGS = (  # in /etc: files for linkers, compilers and the C library; no keys, no passwords
    "ld.so.cache ld.so.conf ld.so.conf.d alternatives passwd group nsswitch.conf localtime locale.alias os-release "
    "python3 clang OpenCL ssl/certs ssl/openssl.cnf"
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_HARNESS = ("__init__.py", "command.py")
_HARNESS_FOLDERS = (
    *("worker", "wire", "interpreter", "hip", "chips", "compile", "sandbox", "model", "emulator", "emulated"),
)

MAX_FILE_BYTES = 8 << 30
"""The most bytes of a file that a submission writes. Compilers need far less."""

MAX_FILES = 16_384
"""The most files and directories in the work directory. Compilers' caches take hundreds."""

MAX_DISK_BYTES = 16 << 30
"""The most bytes of all files of a submission together."""

MAX_OPEN_FILES = 1 << 16


@dataclass(frozen=True)
class Policy:
    """The rights of a worker. Paths are absolute.

    `read` and `write`: files, and directories with everything below. `listed`: directories whose names may be read.
    `work`: the current directory. `uid`: the worker's own user id, or None for the judge's. `search`: it must pass
    through directories that are closed to others. `exposed`: the worker's user id gives access to the judge's processes
    and files; then it may signal neither `judge_pids` (the judge, its process group and its fork servers) nor their
    groups.
    """

    work: str
    read: tuple[str, ...]
    listed: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    landlock: bool
    seccomp: bool
    uid: int | None
    groups: tuple[int, ...]
    search: bool
    exposed: bool
    judge_pids: tuple[int, ...]
    max_tasks: int
    max_data_bytes: int

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Policy:
        fields: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        return cls(**values)


def readable(hidden: Iterable[Path]) -> tuple[str, ...]:
    """The interpreter, its packages, the system's libraries and compilers, and the parts of the harness that a worker
    imports.

    Nothing in the directories `hidden` is readable, except the interpreter's own files and the harness's modules. If
    the harness is installed among other packages, the other packages are readable.
    """
    secret = {Path(path).resolve() for path in (ROOT / "harness" if command.installed() else ROOT, *hidden)}
    names = [*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS.split())]
    names += [*filter(_holds_packages, sys.path), *site.getsitepackages()]
    names += filter(_holds_packages, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for variable in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "ROCM_HOME"):
        names += os.environ.get(variable, "").split(os.pathsep)
    names += [folder for name in os.environ.get("PATH", "").split(os.pathsep) for folder in _installation(name)]
    public = [part for name in names if _may_be_shown(name) for part in _without(Path(name), secret)]
    needed = [sys.prefix, sys.base_prefix, *(name for name in sys.path if Path(name).name.endswith("-packages"))]
    own = [str(part) for name in needed for part in _without(Path(name), _beneath(name, secret))]
    own += [str(ROOT / "harness" / name) for name in (*_HARNESS, *_HARNESS_FOLDERS)]
    return tuple(_outermost([*map(str, public), *own]))


def device_nodes(gpu_nodes: Sequence[str]) -> tuple[str, ...]:
    return (*_DEVICES, *(node for node in gpu_nodes if os.path.exists(node)))


def is_closed_to_others(path: str) -> bool:
    """Whether a directory above `path` is closed to other users, such as that of an interpreter in /root."""
    return any(not parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).resolve().parents)


def listed() -> tuple[str, ...]:
    """Directories in which Python and the GPU runtimes look for names. For an installed harness also those between the
    interpreter's own directory and the harness, which are only partly readable."""
    above = [folder for folder in (ROOT, *ROOT.parents) if _is_the_interpreters(folder)] if command.installed() else []
    return (str(ROOT / "harness"), *dict.fromkeys(map(str, [ROOT, *above] if command.installed() else [])), "/dev")


def _is_the_interpreters(folder: Path) -> bool:
    return any(folder.is_relative_to(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix))


def _holds_packages(name: str) -> bool:
    """Whether an entry of sys.path is more than the current directory, which `python3 -m` puts there."""
    return Path(name).name.endswith("-packages") or Path(name).resolve() != Path.cwd()


def _beneath(name: str, secret: set[Path]) -> set[Path]:
    """The secret directories inside the one called `name`. That `name` itself lies inside a secret one does not hide
    it."""
    real = Path(name).resolve()
    return {hidden for hidden in secret if hidden.is_relative_to(real) and hidden != real}


def _installation(programs: str) -> tuple[str, ...]:
    """A directory of programs and, unless it is in a home, the installation around it."""
    path = Path(programs)
    in_a_home = any(path.is_relative_to(home) for home in (Path.home(), "/root", "/home"))
    return (programs, str(path.parent)) if path.name == "bin" and not in_a_home else (programs,)


def _may_be_shown(name: str) -> bool:
    """Whether an entry of a search path may be readable. Not readable are relative entries (the judge's directory),
    the root and homes, which hold no libraries, and /tmp: its files come and go, and bubblewrap cannot mount a missing
    one."""
    if not os.path.isabs(name) or not os.path.exists(name) or Path(name) in (Path("/"), Path("/root"), Path.home()):
        return False
    return not os.stat(name).st_mode & stat.S_ISVTX


def _without(path: Path, secret: set[Path]) -> Iterator[Path]:
    """`path`, or if a secret directory lies below it, the parts of it that contain none."""
    real = path.resolve()
    if any(real.is_relative_to(hidden) for hidden in secret):
        return
    if not any(hidden.is_relative_to(real) for hidden in secret):
        yield path
        return
    for part in sorted(real.iterdir()):
        if not (part.is_symlink() and _leads_elsewhere(part)):
            yield from _without(part, secret)


def _leads_elsewhere(link: Path) -> bool:
    """Whether a link leads out of the readable places, to other people's files."""
    shown = (*_SYSTEM, *(os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)))
    return not any(link.resolve().is_relative_to(folder) for folder in shown)


def _outermost(names: Iterable[str]) -> Iterator[str]:
    """`names` and their resolved paths, sorted, without those below another. A path below a link is covered by the
    link: a directory in the link's place would replace it."""
    kept: list[str] = []
    for name in sorted({os.path.normpath(name) for name in names} | {os.path.realpath(name) for name in names}):
        inside = any(name.startswith(f"{outer}/") for outer in kept)
        if os.path.exists(name) and not inside:
            kept.append(name)
    yield from kept
