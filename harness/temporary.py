"""Temporary directories that are gone afterwards, and if their process is killed, as soon as another is made.

Each is $TMPDIR/podium-XXXXXXXX and holds a file `lock`, which is locked while its process lives.
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
def temporary_folder() -> Iterator[Path]:
    """A fresh directory; gone afterwards. What killed processes have left is removed first. Raises OSError."""
    remove_abandoned()
    folder, lock = _locked_folder()
    try:
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
        os.close(lock)  # another process found it before it was locked, and took it for abandoned


def remove_abandoned() -> None:
    """Remove the directories of this user's processes that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its process lives
                remove(folder)
            finally:
                os.close(lock)


def remove(folder: Path) -> None:
    """Remove `folder`, however deep and whatever permissions a worker took from its own directories.

    By the system's tools: a thousand directories within each other are too many for Python's own before 3.13. In a
    session of their own, so that an impatient Ctrl-C does not end them.
    """
    for command in ["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]:
        subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, start_new_session=True)
        if not folder.exists():
            return
