"""Files that a reader sees whole or not at all, even if the writer is killed or the disk is full."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

HEAD_BYTES = 1 << 16
"""By so many bytes, its first, a file is known."""


def may_replace(path: Path, is_ours: Callable[[bytes], bool]) -> bool:
    """Whether nothing is lost by writing to `path`: no file is there, an empty one, or one whose head `is_ours`, of the
    kind that is to be written. What is no file, such as /dev/stdout, holds nothing."""
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return True
        with path.open("rb") as file:
            return is_ours(file.read(HEAD_BYTES))
    except OSError:
        return False


def write(path: Path, content: bytes) -> None:
    """Write by way of a temporary file in the same directory, which is made if need be. Raises OSError.

    A link stays one, and what it leads to is written. A file that is replaced keeps its permissions. What is no file,
    such as /dev/stdout, is written as it is.
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
