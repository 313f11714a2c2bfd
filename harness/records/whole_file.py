"""Writes files so that a reader sees all or nothing, even if the writer is killed or the disk is full."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

HEAD_BYTES = 1 << 16
"""The number of first bytes by which the kind of a file is recognized."""


def may_replace(path: Path, is_ours: Callable[[bytes], bool]) -> bool:
    """True if writing to `path` loses nothing: there is no file, it is empty, or `is_ours` recognizes its head as the
    kind to be written. A path that is not a regular file, such as /dev/stdout, holds nothing."""
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return True
        with path.open("rb") as file:
            return is_ours(file.read(HEAD_BYTES))
    except OSError:
        return False


def write(path: Path, content: bytes) -> None:
    """Write a temporary file in the same directory and rename it. The directory is created if needed. Raises OSError.

    A symbolic link stays, and its target is written. A replaced file keeps its permissions. A path that is not a
    regular file, such as /dev/stdout, is written directly.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
