"""The index's database. It opens whatever the state of its file, and is updated from the run files.

    folders, files   the read files, each with a stamp        faults      files that are no runs, and why
    runs             one Entry per run                        standings   which run stands for a submission
    cases            each run's figures, case by case         revisions   a text per board, new when a run changes

Opening it looks once at all run files (`scan`), or at the named ones. A file whose stamp differs from the stored one is
read again. Its stored facts stay valid only if its content is the same. A file that is not a run is left alone and
reported. So is a second file with another file's id, unless it is a copy: the published one is read, or within a tier
the first by path. If the cache cannot be written (a read-only `results`), a copy in memory is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.errors import InfrastructureError
from harness.model import Case, ClockOwner, Verdict
from harness.records import run_file, scan
from harness.records.entry import CaseFigures, Entry, figures_of, of_run, standing

INDEX_VERSION = 17
"""Raise it when the tables or their contents change. An index of another version is discarded and rebuilt."""

COPY = ""
"""The fault text of a file that is a copy of another file with its id: nothing is reported. It is read when the other
one is removed."""

SET_LATER = ("runs", "older", "older_source", "widened")
COLUMNS = tuple(field.name for field in fields(Entry) if field.name not in SET_LATER)
GROUP = ("problem", "device", "revision", "problem_sha256", "submission")
_TABLES = f"""
CREATE TABLE IF NOT EXISTS folders (path TEXT PRIMARY KEY, stamp TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs ({", ".join(COLUMNS)}, PRIMARY KEY (path));
CREATE TABLE IF NOT EXISTS faults (path TEXT PRIMARY KEY, fault TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS standings ({", ".join(GROUP)}, path, runs, PRIMARY KEY ({", ".join(GROUP)}));
CREATE TABLE IF NOT EXISTS cases (path TEXT PRIMARY KEY, cases TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS revisions (problem, device, revision TEXT NOT NULL, PRIMARY KEY (problem, device));
CREATE INDEX IF NOT EXISTS ids ON runs (id);
CREATE INDEX IF NOT EXISTS groups ON runs ({", ".join(GROUP)}, started_at);
PRAGMA user_version = {INDEX_VERSION};
"""
_WITHIN = "path >= ? || '/' AND path < ? || '0'"  # '0' follows '/'


class Tables:
    """The tables over the runs in `results`. Raises InfrastructureError."""

    def __init__(self, results: Path, only: Collection[str] | None = None) -> None:
        self._results = results
        path = results / "index.sqlite"
        for attempt in (_open_file, _open_anew, _open_copy, _open_in_memory):
            try:
                self._database = attempt(path)
            except (sqlite3.Error, OSError):
                continue
            try:
                if only is None or not self._knows(only):
                    self._refresh()
                else:
                    self._take_in(only)
                return
            except sqlite3.Error:
                self._database.close()
        raise InfrastructureError(f"no index over {results} can be made, not even in memory")

    def close(self) -> None:
        self._database.close()

    def rows(self, query: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        try:
            return self._database.execute(query, parameters).fetchall()
        except sqlite3.Error:
            # The file was damaged after it was opened. Rebuild the index in memory from the run files, which are the
            # truth.
            self._database.close()
            self._database = _open_in_memory(self._results)
            self._refresh()
            return self._database.execute(query, parameters).fetchall()

    def _refresh(self) -> None:
        if self._stale(scan.folders(self._results)) == (set(), {}):
            return
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            # Look again under the lock, so that an older look does not undo another process's update.
            gone, stale = self._stale(scan.folders(self._results))
            touched: set[tuple[object, ...]] = set()
            for path in gone:
                self._database.execute("DELETE FROM folders WHERE path = ?", (path,))
                touched |= self._forget(self._known_in(path).keys() | self._faults_in(path))
            for path, folder in stale.items():
                touched |= self._forget_gone(path, folder)
            for path, folder in sorted(stale.items(), key=lambda each: _place(f"{each[0]}/")):
                touched |= self._read_folder(path, folder)
            for path, folder in stale.items():
                # A fault is read again each time: the file may only have been unreadable for a moment.
                stamp = scan.IN_DOUBT if self._faults_in(path) else folder.stamp
                self._database.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", (path, stamp))
            self._settle_all(touched)

    def _knows(self, names: Collection[str]) -> bool:
        """True if all other files and these files' folders were read before. False for an index that was just
        created."""
        known = {path for (path,) in self._database.execute("SELECT path FROM folders")}
        return bool(known) and {name.rpartition("/")[0] for name in names} <= known

    def _take_in(self, names: Collection[str]) -> None:
        """Read these files, and unread files with the same ids. Their folders are in doubt afterwards: other files in
        them may have changed since the last full look."""
        if not names:
            return
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            touched: set[tuple[object, ...]] = set()
            ids = {name.rpartition("/")[2] for name in names}
            faults = {path for (path,) in self._database.execute("SELECT path FROM faults")}
            for name in sorted({*names, *(path for path in faults if path.rpartition("/")[2] in ids)}, key=_place):
                path, folder = self._results / name, name.rpartition("/")[0]
                self._database.execute("UPDATE folders SET stamp = ? WHERE path = ?", (scan.IN_DOUBT, folder))
                if not path.exists():
                    touched |= self._forget({name})
                    continue
                seen = self._database.execute("SELECT sha256 FROM files WHERE path = ?", (name,)).fetchone()
                self._database.execute("DELETE FROM faults WHERE path = ?", (name,))
                touched |= self._read_file(name, scan.stamp(path), seen[0] if seen else "")
            self._settle_all(touched)

    def _settle_all(self, groups: set[tuple[object, ...]]) -> None:
        for group in groups:
            self._settle(group)
        for problem, device in {group[:2] for group in groups}:
            row = (problem, device, secrets.token_hex(8))
            self._database.execute("INSERT OR REPLACE INTO revisions VALUES (?, ?, ?)", row)

    def _stale(self, found: Mapping[str, scan.Folder]) -> tuple[set[str], dict[str, scan.Folder]]:
        """Two sets of folders: those that no longer exist, and those of `found` with files that changed since they were
        read."""
        known = dict(self._database.execute("SELECT path, stamp FROM folders"))
        stale = {path for path, f in found.items() if f.stamp == scan.IN_DOUBT or f.stamp != known.get(path)}
        return known.keys() - found.keys(), {path: found[path] for path in stale}

    def _forget_gone(self, path: str, folder: scan.Folder) -> set[tuple[object, ...]]:
        """Forget the files that are no longer in a folder. Returns the affected groups of runs."""
        present = {f"{path}/{name}" for name in folder.stamps}
        return self._forget((self._known_in(path).keys() | self._faults_in(path)) - present)

    def _read_folder(self, path: str, folder: scan.Folder) -> set[tuple[object, ...]]:
        """Read the new and changed files of a folder. Returns the affected groups of runs."""
        present, known = {f"{path}/{name}": stamp for name, stamp in folder.stamps.items()}, self._known_in(path)
        touched: set[tuple[object, ...]] = set()
        if folder.unreadable:
            self._database.execute("INSERT INTO faults VALUES (?, ?)", (f"{path}/", folder.unreadable))
        for name, stamp in sorted(present.items()):
            seen_stamp, seen_sha256 = known.get(name, (scan.IN_DOUBT, ""))
            if stamp == scan.IN_DOUBT or stamp != seen_stamp:
                touched |= self._read_file(name, stamp, seen_sha256)
        return touched

    def _read_file(self, name: str, stamp: str, seen_sha256: str) -> set[tuple[object, ...]]:
        """Read a run file, unless its content was read before. Returns the affected groups of runs."""
        path = self._results / name
        try:
            text = run_file.read(path)
            sha256 = hashlib.sha256(text).hexdigest()
            if sha256 == seen_sha256:
                self._database.execute("UPDATE files SET stamp = ? WHERE path = ?", (stamp, name))
                return set()
            run = run_file.parse(path, text)
            entry = of_run(name, run)
            others = self._of_id(run.id) - {name}
            if first := min(others, key=_place, default=None):
                if _place(first) < _place(name):
                    return self._fail(name, COPY if sha256 == self._sha256_of(first) else _second(first))
        except ValueError as error:
            return self._fail(name, str(error))
        touched: set[tuple[object, ...]] = set()
        for other in others:
            touched |= self._fail(other, COPY if sha256 == self._sha256_of(other) else _second(name))
            folder = other.rpartition("/")[0]
            self._database.execute("UPDATE folders SET stamp = ? WHERE path = ?", (scan.IN_DOUBT, folder))
        touched |= self._forget({name})
        self._database.execute("INSERT INTO files VALUES (?, ?, ?)", (name, stamp, sha256))
        row = [getattr(entry, column) for column in COLUMNS]
        self._database.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", row)
        if run.measurements:
            self._database.execute("INSERT INTO cases VALUES (?, ?)", (name, _cases_text(figures_of(run))))
        return touched | {tuple(getattr(entry, column) for column in GROUP)}

    def _fail(self, name: str, fault: str) -> set[tuple[object, ...]]:
        """Record a file as a fault. Returns the affected groups of runs."""
        touched = self._forget({name})
        self._database.execute("INSERT INTO faults VALUES (?, ?)", (name, fault))
        return touched

    def _of_id(self, run_id: str) -> set[str]:
        """The files that were read as the run with this id: one or none."""
        return {path for (path,) in self._database.execute("SELECT path FROM runs WHERE id = ?", (run_id,))}

    def _sha256_of(self, name: str) -> str | None:
        """The sha256 of the content of a file that was read as a run."""
        found = self._database.execute("SELECT sha256 FROM files WHERE path = ?", (name,)).fetchone()
        return found and found[0]

    def _settle(self, group: tuple[object, ...]) -> None:
        """Choose again which run stands for the submission of `group`."""
        where = " AND ".join(f"{column} = ?" for column in GROUP)
        rows = self._database.execute(f"SELECT {', '.join(COLUMNS)}, 1 FROM runs WHERE {where}", group)
        runs = [entry_of(row) for row in rows]
        self._database.execute(f"DELETE FROM standings WHERE {where}", group)
        if runs:
            chosen = standing(runs)
            row = (*group, chosen.path, chosen.runs)
            self._database.execute(f"INSERT INTO standings VALUES ({', '.join('?' * len(row))})", row)

    def _known_in(self, folder: str) -> dict[str, tuple[str, str]]:
        """The runs of a folder, by path: the stamp and the sha256 of the file when it was read."""
        rows = self._database.execute(f"SELECT path, stamp, sha256 FROM files WHERE {_WITHIN}", (folder, folder))
        return {path: (stamp, sha256) for path, stamp, sha256 in rows}

    def _faults_in(self, folder: str) -> set[str]:
        return {
            path for (path,) in self._database.execute(f"SELECT path FROM faults WHERE {_WITHIN}", (folder, folder))
        }

    def _forget(self, paths: set[str]) -> set[tuple[object, ...]]:
        touched: set[tuple[object, ...]] = set()
        for path in paths:
            touched.update(self._database.execute(f"SELECT {', '.join(GROUP)} FROM runs WHERE path = ?", (path,)))
            for table in ("runs", "files", "faults", "cases"):
                self._database.execute(f"DELETE FROM {table} WHERE path = ?", (path,))
        return touched


def _place(path: str) -> tuple[int, str]:
    """The order in which files are read. The first file of an id counts."""
    return scan.TIERS.index(path.partition("/")[0]), path


def _second(first: str) -> str:
    return f"has the id of results/{first}, which is read instead"


def entry_of(row: Sequence[Any]) -> Entry:
    """The Entry in a row that holds COLUMNS and the number of runs that it stands for."""
    values = dict(zip(COLUMNS, row, strict=False))
    made = {"verdict": Verdict(values["verdict"]), "clock": ClockOwner(values["clock"]), "runs": row[-1]}
    return Entry(**{**values, **made})


def _cases_text(figures: Sequence[CaseFigures]) -> str:
    return json.dumps(
        [(f.case.parameters, f.latency_ns, f.low_ns, f.high_ns, f.floor_ns, f.format, f.labels) for f in figures]
    )


def cases_of(text: str) -> tuple[CaseFigures, ...]:
    """The figures in a row of `cases`. They were validated before they were stored."""
    return tuple(
        CaseFigures(
            Case.model_construct(parameters=parameters), latency_ns, low_ns, high_ns, floor_ns, format, tuple(labels)
        )
        for parameters, latency_ns, low_ns, high_ns, floor_ns, format, labels in json.loads(text)
    )


def _open_file(path: Path) -> sqlite3.Connection:
    """The index at `path`. Raises sqlite3.Error if it is damaged, of another version, or not writable."""
    database = sqlite3.connect(path, timeout=60)
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, INDEX_VERSION):
            raise sqlite3.DatabaseError(f"an index of version {version}")
        if version == 0:
            database.executescript(_TABLES)
        for table in ("folders", "files", "runs", "faults", "standings", "cases", "revisions"):
            database.execute(f"SELECT * FROM {table} LIMIT 0")
        database.execute(f"PRAGMA user_version = {INDEX_VERSION}")  # raises if the file cannot be written
    except sqlite3.Error:
        database.close()
        raise
    return database


def _open_anew(path: Path) -> sqlite3.Connection:
    """A new index in place of one that is damaged or of another version. Raises if it cannot be replaced."""
    path.unlink(missing_ok=True)
    return _open_file(path)


def _open_copy(path: Path) -> sqlite3.Connection:
    """A copy in memory of an index that can only be read."""
    memory = sqlite3.connect(":memory:")
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True)) as file:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if version != INDEX_VERSION:
            raise sqlite3.DatabaseError(f"an index of version {version}")
        file.backup(memory)
    return memory


def _open_in_memory(path: Path) -> sqlite3.Connection:
    """An empty index that lasts as long as this process."""
    memory = sqlite3.connect(":memory:")
    memory.executescript(_TABLES)
    return memory
