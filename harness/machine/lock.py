"""One lock for each card of the machine, and one for its processors: timings taken side by side are worthless.

    hold(device, narrate, limit_s) ─► FOLDER/podium-<card>.lock, locked with flock(2) until the block ends

What is timed holds the lock of its device; what computes on a GPU without being timed holds it as well (`hold_if_gpu`).
The kernel gives the lock back when its holder ends, however it ends.

Covered: all users of a machine together, root among them; eight cards of one model, which eight evaluations use at
once; the same card under two numbers (CUDA_VISIBLE_DEVICES); any $TMPDIR; links and pipes laid in the file's place.
Not covered: containers that share no directory of locks; a user who takes the lock and keeps it (his process is named);
a lock file that is removed while somebody holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.errors import InfrastructureError
from harness.machine import device as devices
from harness.machine import lock_note
from harness.model import Device

FOLDERS = (Path("/run/lock"), Path("/tmp"))
"""The first in which every user may make files is that of all of them: no user's own settings decide. /dev/shm is none,
for systemd empties it of a user's files when he logs out (RemoveIPC, logind.conf(5))."""

POLL_S = 0.2
"""How often it is tried for somebody who has something else to look at while he waits."""

LONGEST_COMMAND = 80
"""Characters of another evaluation's command that are shown."""

_OPEN_TO_ALL = stat.S_ISVTX | stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Narrate = Callable[[str], None]
Expect = Callable[[float], None]
"""Told by the holder for how many seconds more it is likely to hold the lock."""


class _Held:
    """What this process holds of one card: the thread that does, and how often it has asked for it."""

    def __init__(self) -> None:
        self.thread = threading.RLock()
        self.depth = 0


_held: dict[str, _Held] = {}


@contextlib.contextmanager
def hold(
    device: Device,
    narrate: Narrate = lambda line: None,
    limit_s: float | None = None,
    waiting: Callable[[], None] | None = None,
) -> Iterator[Expect]:
    """Hold the lock of `device`, waiting for whoever has it; a thread that has it already goes on at once. `limit_s`:
    the most seconds for which it is held, which whoever waits is told. `waiting` is called again and again while
    another process has it, and ends the wait by an exception; who gives one lets others who wait go first. The block
    gets an `Expect`; one that is ignored where the thread has the lock already, for what else that does is not known.

    Raises InfrastructureError where the lock cannot be taken.
    """
    card = re.sub(r"[^A-Za-z0-9.-]", "-", devices.card(device))
    held = _held.setdefault(card, _Held())
    if not held.thread.acquire(blocking=False):
        narrate(f"another evaluation of this process has {device.name}: waiting for it to finish")
        held.thread.acquire()
    try:
        path = None if held.depth else _folder() / f"podium-{card}.lock"
        held_already = contextlib.nullcontext(unheard)
        with held_already if path is None else _locked(path, device, narrate, limit_s, waiting) as expect:
            held.depth += 1
            try:
                yield expect
            finally:
                held.depth -= 1
    finally:
        held.thread.release()


def hold_if_gpu(
    device: Device,
    narrate: Narrate = lambda line: None,
    limit_s: float | None = None,
    waiting: Callable[[], None] | None = None,
) -> contextlib.AbstractContextManager[Expect]:
    """Hold the lock of a GPU: whatever computes there disturbs what is timed there. On a CPU only timing needs it."""
    return contextlib.nullcontext(unheard) if device.kind == "cpu" else hold(device, narrate, limit_s, waiting)


@contextlib.contextmanager
def hold_to_time(
    outer: Expect,
    device: Device,
    narrate: Narrate = lambda line: None,
    limit_s: float | None = None,
    waiting: Callable[[], None] | None = None,
) -> Iterator[Expect]:
    """`hold`, within what `hold_if_gpu` gave `outer` to: whichever of the two took the lock has the note, on a GPU the
    outer one. So the `Expect` of this one tells both."""
    with hold(device, narrate, limit_s, waiting) as own:

        def expect(seconds: float) -> None:
            own(seconds)
            outer(seconds)

        yield expect


def unheard(seconds: float) -> None:
    """Where no note is this holder's alone."""


@contextlib.contextmanager
def _locked(
    path: Path, device: Device, narrate: Narrate, limit_s: float | None, waiting: Callable[[], None] | None
) -> Iterator[Expect]:
    try:
        lock = _take(path, device, narrate, waiting)
    except OSError as error:
        raise InfrastructureError(
            f"the lock {path} cannot be taken: {error.strerror}", "ask its owner, or root, to remove it"
        ) from None
    try:
        with lock_note.left_beside(path, limit_s) as expect:
            yield expect
    finally:
        os.close(lock)


def _take(path: Path, device: Device, narrate: Narrate, waiting: Callable[[], None] | None) -> int:
    """A descriptor that holds the lock on `path`. Raises OSError, and what `waiting` does."""
    while True:
        lock = _open(path)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = _holder(lock)
                whose = f"another evaluation ({_described(pid)})" if pid else "another evaluation"
                left_s, likely_s = (lock_note.left_s(path, pid), lock_note.likely_s(path, pid)) if pid else (None, None)
                more = f", {lock_note.words(left_s, likely_s)}" if left_s is not None else ""
                narrate(f"{whose} has {device.name}: waiting for it to finish{more}")
                while waiting is not None and not _free(lock):
                    waiting()
                    time.sleep(POLL_S)
                fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_still(path, lock):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # it was removed while we waited: who comes now locks another file


def _free(lock: int) -> bool:
    """Whether the lock could be taken; then it has been."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    """The lock file, made where it is missing: for all to read, which is enough to lock it, and for nobody to write.

    Opened without O_CREAT: in a directory like this the kernel refuses that to everyone but the file's owner, be it
    root (fs.protected_regular, proc_sys_fs(5)). Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        return _opened(path)
    made, new = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        os.fchmod(made, 0o444)  # before it has its name: nobody finds it closed
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    finally:
        os.close(made)
        os.unlink(new)
    return _opened(path)


def _opened(path: Path) -> int:
    lock = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise OSError(0, "it is no ordinary file")
    return lock


def _is_still(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(lock))
    except FileNotFoundError:
        return False


def _folder() -> Path:
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            # Who may is asked of the mode: of what only root may, root and others would choose differently.
            if folder.stat().st_mode & _OPEN_TO_ALL == _OPEN_TO_ALL and os.access(folder, os.W_OK):
                return folder
    listed = " or ".join(map(str, FOLDERS))
    raise InfrastructureError(
        f"the device's lock needs a folder in which every user can make files: {listed}", "chmod 1777 /tmp"
    )


def _described(pid: int) -> str:
    """`process 4012, eval mla mine.py, running for 95 s`: whom to ask, as far as /proc tells."""
    said = [f"process {pid}"]
    with contextlib.suppress(OSError, StopIteration):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        verb = next(i for i, word in enumerate(words, 1) if word == "harness" or word.endswith("/podium"))
        doing = " ".join(words[verb:]).strip()
        said.append(doing if len(doing) <= LONGEST_COMMAND else f"{doing[:LONGEST_COMMAND]}\N{HORIZONTAL ELLIPSIS}")
    with contextlib.suppress(OSError, ValueError, IndexError):
        started = lock_note.started(pid) / os.sysconf("SC_CLK_TCK")
        said.append(f"running for {float(Path('/proc/uptime').read_text().split()[0]) - started:.0f} s")
    return ", ".join(said)


def _holder(lock: int) -> int | None:
    """The process that has locked the file, where /proc tells (proc_locks(5)): it writes 0 for another container's."""
    file = os.fstat(lock)
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    return next((int(row[4]) for row in rows if row[1:2] == ["FLOCK"] and row[5] == place and int(row[4]) > 0), None)
