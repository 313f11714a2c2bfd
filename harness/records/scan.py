"""One look at the folders of runs: which files lie there, and whether each is still the one that was read.

A file that was not touched keeps its stamp: size, and when its content and its description last changed. The last of
these no program can set back, so an edit that keeps size and date is seen too. A stamp of a moment ago proves nothing:
the file may change again within one tick of its file system's clock. Such a file is in doubt, and its content decides.
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
"""A file touched more recently is in doubt: a tick lasts two seconds on FAT, 10 ms on most others."""

IN_DOUBT = ""
"""The stamp that no file and no folder has twice."""


@dataclass(frozen=True)
class Folder:
    """A folder of runs: the stamps of its files by name. `unreadable` says why they are not known, if so."""

    stamps: dict[str, str]
    unreadable: str | None = None

    @cached_property
    def stamp(self) -> str:
        """Of all its files together; IN_DOUBT if one of them is."""
        if self.unreadable or IN_DOUBT in self.stamps.values():
            return IN_DOUBT
        every = "\n".join(f"{name}/{stamp}" for name, stamp in self.stamps.items())
        return hashlib.sha256(every.encode(errors="surrogateescape")).hexdigest()


def names(folder: Path) -> dict[str, int]:
    """The run files of a folder with their numbers in the file system: another one for a file that was put in the place
    of one. It costs no look at the files. Empty for a folder that cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries if _is_run(entry.name)}
    return {}


def stamp(path: Path) -> str:
    """Of one file; IN_DOUBT where it is not there."""
    return _stamp(path, time.time_ns() - SETTLED_NS)


def folders(results: Path) -> dict[str, Folder]:
    """The folders that hold runs, by their path relative to `results`."""
    found = {}
    for path in (path for tier in TIERS for path in sorted((results / tier).glob("*/*"))):
        with contextlib.suppress(OSError):  # in a place that is closed to us
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
