"""Which run files have come, gone or been replaced since the last look, from the folders' lists of names alone.

A look at every file costs a call each: with 100,000 of them seconds of a processor. A list of names with their numbers
in the file system costs a hundredth of that. It does not show a file that was written to in its place, nor one that was
removed and made anew with the same number: a look at all files finds those later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from harness.records import scan

SHARE = 0.1
"""Of the time, what looks at all files may take at most."""

SHORT_S = 0.2
"""A look at all files that takes no longer is had every time."""


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
        """Whether all files are to be looked at now."""
        return time.monotonic() >= self._whole_due_s

    def looked_at_all(self, took_s: float) -> None:
        """A look at all files took so long: the next one has to wait accordingly."""
        self._whole_due_s = 0.0 if took_s < SHORT_S else time.monotonic() + took_s * (1 / SHARE - 1)

    def folders(self) -> dict[str, int]:
        """When each folder of runs was last changed: a run that is stored, replaced or removed changes its folder."""
        found = {}
        for tier in scan.TIERS:
            for path in (self._results / tier).glob("*/*"):
                if path.name != "sources":
                    with contextlib.suppress(OSError):  # removed this moment
                        found[str(path)] = path.stat().st_mtime_ns
        return found

    def changed(self, folders: Mapping[str, int]) -> set[str]:
        """The files, relative to `results`, that are other ones than when `taken_in` was called last. `folders`: when
        each was last changed, in nanoseconds, by its path."""
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
        """What was `changed` is known."""
        self._changed.clear()

    def _path(self, folder: str, name: str) -> str:
        return str((Path(folder) / name).relative_to(self._results))
