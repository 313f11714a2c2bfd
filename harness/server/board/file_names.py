"""Find run files that were added, removed or replaced since the last look, by listing folders.

Examining every file costs a system call each: seconds of processor time for 100,000 files. Listing names with their
inode numbers costs a hundredth. The listing misses a file that was rewritten in place, or that was removed and created
again with the same inode number. A look at all files finds these later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from harness.records import scan

SHARE = 0.1
"""The largest fraction of time spent on looks at all files."""

SHORT_S = 0.2
"""If a look at all files takes no longer than this, it is repeated every time."""


class FileNames:
    """The names of the run files under `results`, folder by folder."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._names: dict[str, dict[str, int]] = {}
        self._looked_ns: dict[str, int] = {}
        self._changed: set[str] = set()
        self._whole_due_s = 0.0

    @property
    def whole_is_due(self) -> bool:
        """Whether to examine all files now."""
        return time.monotonic() >= self._whole_due_s

    def looked_at_all(self, took_s: float) -> None:
        """Record the duration of a look at all files, which determines when the next one is due."""
        self._whole_due_s = 0.0 if took_s < SHORT_S else time.monotonic() + took_s * (1 / SHARE - 1)

    def folders(self) -> dict[str, int]:
        """Return when each folder of runs last changed. Storing, replacing or removing a run changes its folder."""
        found = {}
        for tier in scan.TIERS:
            for path in (self._results / tier).glob("*/*"):
                if path.name != "sources":
                    with contextlib.suppress(OSError):  # just removed
                        found[str(path)] = path.stat().st_mtime_ns
        return found

    def changed(self, folders: Mapping[str, int]) -> set[str]:
        """Return the files that changed since the last call of `taken_in`, relative to `results`. `folders`: when each
        folder last changed, in nanoseconds, by path."""
        found = self._changed
        for gone in self._names.keys() - folders.keys():
            found |= {self._path(gone, name) for name in self._names.pop(gone)}
            self._looked_ns.pop(gone)
        for folder, touched_ns in folders.items():
            if touched_ns < self._looked_ns.get(folder, 0) - scan.SETTLED_NS:
                continue
            self._looked_ns[folder] = time.time_ns()
            before, now = self._names.get(folder, {}), scan.names(Path(folder))
            self._names[folder] = now
            found |= {self._path(folder, name) for name, _ in before.items() ^ now.items()}
        return set(found)

    def taken_in(self) -> None:
        """Forget the files that `changed` has returned."""
        self._changed.clear()

    def _path(self, folder: str, name: str) -> str:
        return str((Path(folder) / name).relative_to(self._results))
