"""Read the files that a confined process has left in its work directory, after its death. None of them is trusted.

Only regular files count: no link, no pipe, no file with a second name. Their number and size are limited.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_FILES = 10_000
MAX_FILE_BYTES = 64 << 20
MAX_BYTES = 1 << 30
"""Limit on all files together. Triton's stages of a kernel are 1 MiB or less; an autotuner has some hundreds of
kernels."""

_PLAIN_NAME = re.compile(r"[\w=+,-][\w=+,.-]{0,250}")


def text(folder: Path, name: str, max_bytes: int) -> str:
    """The file's text; "" if it is missing, no regular file, or too large."""
    return (_content(folder / name, max_bytes) or b"").decode(errors="replace")


def copy(work: Path, name: str, destination: Path) -> None:
    """Copy the files in the directory `name` of `work` (`emit/gfx942`) to `destination`.

    Files without a plain name or over the limits are left out. Raises OSError if `destination` cannot be written.
    """
    files = size = 0
    for path in _in_directory(work, Path(name)):
        content = _content(path, min(MAX_FILE_BYTES, MAX_BYTES - size))
        if content is None:
            continue
        files, size = files + 1, size + len(content)
        if files > MAX_FILES:
            return
        destination.mkdir(parents=True, exist_ok=True)
        (destination / path.name).write_bytes(content)


def _in_directory(work: Path, name: Path) -> Iterator[Path]:
    """The entries of work/name that have plain names; none if a part of `name` is a link."""
    folder = work
    with contextlib.suppress(OSError):
        for part in name.parts:
            folder = folder / part
            if not stat.S_ISDIR(folder.lstat().st_mode):
                return
        yield from (folder / entry for entry in sorted(os.listdir(folder)) if _PLAIN_NAME.fullmatch(entry))


def _content(path: Path, max_bytes: int) -> bytes | None:
    """The contents; None for anything but a regular file with one name and at most `max_bytes` bytes."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > max_bytes:
            return None
        with os.fdopen(file, "rb", closefd=False) as opened:
            return opened.read(max_bytes)
    finally:
        os.close(file)
