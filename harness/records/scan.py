"""One look at the folders of runs: which files are there, and whether each is still the version that was read.

A file's stamp is its size and the times at which its content and its inode last changed (mtime and ctime). No program
can set ctime back, so an edit that keeps size and date is seen too. A stamp of the last moment proves nothing: the file
may change again within one tick of the file system's clock. Such a file is in doubt, and its content decides.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PUBLISHED = "published"
TIERS = (PUBLISHED, "local")

SETTLED_NS = 2_000_000_000
"""A file changed more recently is in doubt. A tick lasts two seconds on FAT, and 10 ms on most other file systems."""

IN_DOUBT = ""
"""A stamp that never equals the stored one: the file or folder is read again."""


@dataclass(frozen=True)
class Folder:
    """A folder of runs: its files' stamps by name. `unreadable`: the reason why they are unknown, if so."""

    stamps: dict[str, str]
    unreadable: str | None = None

    @cached_property
    def stamp(self) -> str:
        """The stamp of all its files together. IN_DOUBT if one of them is in doubt."""
        if self.unreadable or IN_DOUBT in self.stamps.values():
            return IN_DOUBT
        every = "\n".join(f"{name}/{stamp}" for name, stamp in self.stamps.items())
        return hashlib.sha256(every.encode(errors="surrogateescape")).hexdigest()


def names(folder: Path) -> dict[str, int]:
    """The run files of a folder with their inode numbers. A replaced file has another number. The files themselves are
    not read. Empty if the folder cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries if _is_run(entry.name)}
    return {}


def stamp(path: Path) -> str:
    """The stamp of one file. IN_DOUBT if it is missing."""
    return _stamp(path, time.time_ns() - SETTLED_NS)


def folders(results: Path) -> dict[str, Folder]:
    """The folders that hold runs, by their path relative to `results`."""
    found = {}
    for path in (path for tier in TIERS for path in sorted((results / tier).glob("*/*"))):
        with contextlib.suppress(OSError):  # in a place that we may not read
            if path.is_dir() and path.name != "sources":
                found[str(path.relative_to(results))] = _folder(path)
    return found


def _folder(path: Path) -> Folder:
    try:
        with os.scandir(path) as entries:
            named = [entry for entry in entries if _is_run(entry.name)]
            settled_ns = time.time_ns() - SETTLED_NS
            return Folder({entry.name: _stamp(entry, settled_ns) for entry in named})
    except FileNotFoundError:  # removed this moment
        return Folder({})
    except OSError as error:
        return Folder({}, f"cannot be read: {error.strerror}")


def _is_run(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def _stamp(entry: os.DirEntry[str] | Path, settled_ns: int) -> str:
    try:
        status = entry.stat()
    except OSError:  # removed this moment, or a link that leads nowhere
        return IN_DOUBT
    if max(status.st_mtime_ns, status.st_ctime_ns) > settled_ns:
        return IN_DOUBT
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
