"""What a confined process leaves in its work directory, read by who trusts none of it, once the process is dead.

Regular files alone count: no link, no pipe, nothing with a second name; at most so many and so large ones.
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
"""Of all files together. What Triton's stages make of a kernel is 1 MiB or less, and an autotuner has some hundreds."""

_PLAIN_NAME = re.compile(r"[\w=+,-][\w=+,.-]{0,250}")


def text(folder: Path, name: str, max_bytes: int) -> str:
    """The file's text; "" if it is missing, no regular file, or larger."""
    return (_content(folder / name, max_bytes) or b"").decode(errors="replace")


def copy(work: Path, name: str, destination: Path) -> None:
    """Copy the files in the directory `name` of `work` (`emit/gfx942`) to `destination`.

    What has no plain name, and what is over the limits, is left. Raises OSError if `destination` cannot be written.
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
    """What is in work/name, as far as its names are plain; nothing where a part of `name` is a link."""
    folder = work
    with contextlib.suppress(OSError):
        for part in name.parts:
            folder = folder / part
            if not stat.S_ISDIR(folder.lstat().st_mode):
                return
        yield from (folder / entry for entry in sorted(os.listdir(folder)) if _PLAIN_NAME.fullmatch(entry))


def _content(path: Path, max_bytes: int) -> bytes | None:
    """None for what is no regular file of one name, and for one of more bytes."""
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
