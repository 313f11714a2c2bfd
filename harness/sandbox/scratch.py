"""The directory of one evaluation, in $TMPDIR:

podium-XXXXXXXX/
  lock             locked while the judge lives
  submission.py    the submission as it was read; the worker may not write to it
  work/            the worker's: its home, its caches, its temporary files
  work/shm/        what it sees as /dev/shm, where it is in a mount namespace
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "podium-"


@contextlib.contextmanager
def scratch(source: bytes, uid: int | None = None) -> Iterator[Path]:
    """A fresh directory holding the submission `source`, its work/ owned by `uid`; gone afterwards.

    What judges that were killed have left is removed first. Raises OSError.
    """
    remove_abandoned()
    folder, lock = _locked_folder()
    try:
        (folder / "submission.py").write_bytes(source)
        (folder / "submission.py").chmod(0o444)
        for path in (folder / "work", folder / "work" / "shm"):
            path.mkdir(mode=0o700)
            if uid is not None:
                os.chown(path, uid, uid)
        folder.chmod(0o711)  # another user's worker must get through
        yield folder
    finally:
        remove(folder)
        os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    """A new directory and its lock, held."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)  # another judge found it before it was locked, and took it for abandoned


def remove_abandoned() -> None:
    """Remove the directories of this user's judges that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its judge lives
                remove(folder)
            finally:
                os.close(lock)


def remove(folder: Path) -> None:
    """Remove `folder`, however deep and whatever permissions the worker took from its own directories.

    By the system's tools: a thousand directories within each other are too many for Python's own before 3.13. In a
    session of their own, so that an impatient Ctrl-C does not end them.
    """
    for command in ["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]:
        subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, start_new_session=True)
        if not folder.exists():
            return
