"""The note that a lock's holder leaves for those who wait: when it must end at the latest, and when it is likely to
end. The lock file itself cannot be written.

    FOLDER/podium-<card>.lock.<uid>     {"pid": 4012, "start": 88123, "until_s": 5230.5, "likely_s": 3470.0}

`until_s` and `likely_s` are times of CLOCK_MONOTONIC, which all processes of the machine share and which is never set.
`start` is the process's start time in ticks. It tells a holder from an ended process with the same id that left its
note behind. Each user has his own file, because in a sticky directory nobody may replace another user's.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.progress import about

MAX_BYTES = 1000
LONGEST_S = 30 * 24 * 3600.0
"""A note with a longer time is ignored."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def left_beside(lock: Path, limit_s: float | None) -> Iterator[Callable[[float], None]]:
    """Within the block, a note says that this process holds `lock` for at most `limit_s` from now on. Without a limit
    there is no note. The block gets a function that takes the likely number of seconds left.

    A note that cannot be written is skipped: nothing depends on it.
    """
    name = _name(lock, os.geteuid())
    until_s = time.monotonic() + limit_s if limit_s is not None else None
    written = until_s is not None and _write(name, {"until_s": until_s})

    def expect(seconds: float) -> None:
        if written:
            _write(name, {"until_s": until_s, "likely_s": time.monotonic() + seconds})

    try:
        yield expect
    finally:
        if written:
            with contextlib.suppress(OSError):
                name.unlink()


def left_s(lock: Path, pid: int) -> float | None:
    """The most seconds for which the process `pid` still holds `lock`, if its own note says so."""
    return _seconds(lock, pid, "until_s")


def likely_s(lock: Path, pid: int) -> float | None:
    """The seconds for which it is likely to hold it, if its note says so."""
    return _seconds(lock, pid, "likely_s")


def _seconds(lock: Path, pid: int, key: str) -> float | None:
    try:
        uid = _user(pid)
        said = json.loads(_read(_name(lock, uid), uid))
        if (said["pid"], said["start"]) != (pid, started(pid)):
            return None
        left = float(said[key]) - time.monotonic()
    except (OSError, ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return None  # the note is missing, another process's, an older Podium's, or broken
    return left if math.isfinite(left) and 0 < left <= LONGEST_S else None


def words(seconds: float, likely: float | None = None) -> str:
    """`at most about 27 min more`, rounded up. With `likely`: `about 40 s more, at most about 27 min`."""
    many = f"{math.ceil(seconds)} s" if seconds <= 90 else f"{math.ceil(seconds / 60)} min"
    if likely is not None and likely < seconds:
        return f"{about(likely)} more, at most about {many}"
    return f"at most about {many} more"


def started(pid: int) -> int:
    """The start time of a process, in ticks since boot. Raises OSError, ValueError, IndexError."""
    # proc_pid_stat(5): starttime is field 22; two fields come before the end of the name.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _name(lock: Path, uid: int) -> Path:
    return lock.with_name(f"{lock.name}.{uid}")


def _user(pid: int) -> int:
    """The process's effective user. Raises OSError, ValueError, IndexError."""
    # proc_pid_status(5). The owner of /proc/PID would not do: it is root for a process that is not dumpable.
    return int(Path(f"/proc/{pid}/status").read_text().partition("\nUid:")[2].split()[1])


def _write(name: Path, said_s: dict[str, Any]) -> bool:
    try:
        said = json.dumps({"pid": os.getpid(), "start": started(os.getpid()), **said_s})
        made, new = tempfile.mkstemp(prefix=f"{name.name}.", dir=name.parent)
    except (OSError, ValueError, IndexError):
        return False
    try:
        with open(made, "w") as file:
            file.write(said)
            os.fchmod(made, 0o444)
        os.replace(new, name)
    except OSError:
        os.unlink(new)
        return False
    return True


def _read(name: Path, uid: int) -> bytes:
    """Read a note. Raises OSError, also if it is not a regular file of that user."""
    note = os.open(name, _FLAGS)
    try:
        found = os.fstat(note)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            raise OSError(0, "it is not a file of the holder")
        return os.read(note, MAX_BYTES)
    finally:
        os.close(note)
