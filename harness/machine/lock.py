"""One lock for each card of the machine, and one for its processors. Timings taken at the same time on one device are
worthless.

    hold(device, narrate, limit_s) ─► FOLDER/podium-<card>.lock, locked with flock(2) until the block ends

Timed work holds the lock of its device. Untimed work on a GPU holds it too (`hold_if_gpu`). The kernel releases the
lock when its holder ends, in whatever way.

Covered: all users of a machine together, including root; eight cards of one model, which eight evaluations use at once;
the same card under two numbers (CUDA_VISIBLE_DEVICES); any $TMPDIR; links and pipes put in the file's place. Not
covered: containers that share no directory of locks; a user who takes the lock and keeps it (messages name his
process); a lock file that is removed while it is held.
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
"""Everyone uses the first of these in which every user may create files. No user's settings can change the choice.
/dev/shm is not listed: systemd deletes a user's files there when he logs out (RemoveIPC, logind.conf(5))."""

POLL_S = 0.2
"""The interval between tries for a caller that has other work while it waits."""

LONGEST_COMMAND = 80
"""The most characters shown of another evaluation's command."""

_OPEN_TO_ALL = stat.S_ISVTX | stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Narrate = Callable[[str], None]
Expect = Callable[[float], None]
"""The holder calls it with the number of seconds for which it is likely to hold the lock from now on."""


class _Held:
    """This process's hold on one card: a lock between its threads, and how often the holding thread has asked."""

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
    """Hold the lock of `device`, and wait for another holder. A thread that holds it already continues at once.
    `limit_s`: the most seconds for which it is held; waiters are shown it. `waiting` is called repeatedly while another
    process holds the lock; it ends the wait by raising an exception. A caller with `waiting` polls, so callers without
    it get the lock first.

    The block gets an `Expect`. It does nothing if the thread held the lock already, because the outer block's remaining
    work is unknown. Raises InfrastructureError if the lock cannot be taken.
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
    """Hold the lock of a GPU, because any work there disturbs what is timed there. Do nothing on a CPU, where only
    timing needs the lock."""
    return contextlib.nullcontext(unheard) if device.kind == "cpu" else hold(device, narrate, limit_s, waiting)


@contextlib.contextmanager
def hold_to_time(
    outer: Expect,
    device: Device,
    narrate: Narrate = lambda line: None,
    limit_s: float | None = None,
    waiting: Callable[[], None] | None = None,
) -> Iterator[Expect]:
    """`hold`, inside a block of `hold_if_gpu` that gave `outer`. Only the block that took the lock owns the note: on a
    GPU the outer one. So this block's `Expect` informs both."""
    with hold(device, narrate, limit_s, waiting) as own:

        def expect(seconds: float) -> None:
            own(seconds)
            outer(seconds)

        yield expect


def unheard(seconds: float) -> None:
    """The `Expect` of a block that owns no note: it does nothing."""


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
    """A file descriptor that holds the lock on `path`. Raises OSError, and what `waiting` raises."""
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
        os.close(lock)  # it was removed while we waited: newcomers lock another file


def _free(lock: int) -> bool:
    """Try to take the lock. True if it was free; it is then taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    """Open the lock file, and create it if it is missing. All may read it, which is enough to lock it. Nobody may
    write.

    It is opened without O_CREAT. In a sticky directory the kernel refuses O_CREAT to everyone but the file's owner,
    even to root (fs.protected_regular, proc_sys_fs(5)). Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        return _opened(path)
    made, new = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        os.fchmod(made, 0o444)  # before it gets its name, so nobody finds it unreadable
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
        raise OSError(0, "it is not a regular file")
    return lock


def _is_still(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(lock))
    except FileNotFoundError:
        return False


def _folder() -> Path:
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            # The mode decides, not access(2) alone: root may write where others may not, and would choose another
            # folder.
            if folder.stat().st_mode & _OPEN_TO_ALL == _OPEN_TO_ALL and os.access(folder, os.W_OK):
                return folder
    listed = " or ".join(map(str, FOLDERS))
    raise InfrastructureError(
        f"the device's lock needs a folder in which every user can make files: {listed}", "chmod 1777 /tmp"
    )


def _described(pid: int) -> str:
    """The evaluation to ask for the lock, as far as /proc tells: `process 4012, eval mla mine.py, running for 95 s`."""
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
    """The process that has locked the file, if /proc tells (proc_locks(5)). For another container's process it shows
    0."""
    file = os.fstat(lock)
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    return next((int(row[4]) for row in rows if row[1:2] == ["FLOCK"] and row[5] == place and int(row[4]) > 0), None)
