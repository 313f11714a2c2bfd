"""Temporary directories, removed after use. Those of killed processes are removed when the next one is made.

Each is $TMPDIR/podium-XXXXXXXX and holds a file `lock`, which is locked while its process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "podium-"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a fresh directory and remove it afterwards. Directories of killed processes are removed first. Raises
    OSError."""
    remove_abandoned()
    folder, lock = None, None
    try:  # Ctrl-C may come at any moment, so the directory's name is known before there is one
        while lock is None:
            folder = Path(tempfile.gettempdir()) / f"{PREFIX}{secrets.token_hex(4)}"
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                folder = None
                continue
            lock = _locked(folder)
        assert folder is not None
        yield folder
    finally:
        if folder is not None:
            remove(folder)
        if lock is not None:
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """The descriptor of the directory's lock, which is held. None if another process has removed the directory before
    it was locked, as if abandoned."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if os.fstat(lock).st_nlink:
        return lock
    os.close(lock)
    return None


def remove_abandoned() -> None:
    """Remove the directories of this user's dead processes."""
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
    """Remove `folder`, however deep it is and whatever permissions a worker has removed from its directories.

    The system's tools do it: before 3.13, Python's own fail at a thousand nested directories. They run in a session of
    their own, so that an impatient Ctrl-C does not end them.
    """
    for command in ["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]:
        subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, start_new_session=True)
        if not folder.exists():
            return
