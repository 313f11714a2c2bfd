"""The index's database: opened, whatever state its file is in, and brought up to date with the run files.

    folders      where runs lie, and when each was changed        faults      files that are no runs, and why
    runs         an Entry a run                                   standings   which run stands for a submission

A directory of runs is looked through again only when its modification time says that it changed; then only files not
seen before are read. Where the file cannot be written (a read-only `results`), its content is used from memory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.errors import InfrastructureError
from harness.model import ClockOwner, Run, Verdict
from harness.records.entry import Entry, of_run, standing

INDEX_VERSION = 6
"""Raise it when the tables change; an index of another version is thrown away and built anew."""

_SETTLED_NS = 2_000_000_000
"""A directory changed this recently may change again within one tick of its file system's clock: look again."""

COLUMNS = tuple(field.name for field in fields(Entry) if field.name not in ("runs", "older", "older_source"))
GROUP = ("problem", "device", "revision", "problem_sha256", "submission")
_TABLES = f"""
CREATE TABLE IF NOT EXISTS folders (path TEXT PRIMARY KEY, modified_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS runs ({", ".join(COLUMNS)}, PRIMARY KEY (path));
CREATE TABLE IF NOT EXISTS faults (path TEXT PRIMARY KEY, fault TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS standings ({", ".join(GROUP)}, path, runs, PRIMARY KEY ({", ".join(GROUP)}));
CREATE INDEX IF NOT EXISTS groups ON runs ({", ".join(GROUP)}, started_at);
PRAGMA user_version = {INDEX_VERSION};
"""


class Tables:
    """The tables over `results`/TIER/PROBLEM/DEVICE, for each of `tiers`. `load` reads a run file or raises ValueError.

    Raises InfrastructureError.
    """

    def __init__(self, results: Path, tiers: Sequence[str], load: Callable[[Path], Run]) -> None:
        self._results, self._tiers, self._load = results, tiers, load
        path = results / "index.sqlite"
        for attempt in (_open_file, _open_anew, _open_copy, _open_in_memory):
            try:
                self._database = attempt(path)
            except (sqlite3.Error, OSError):
                continue
            try:
                self._refresh()
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
            # The file was spoilt after it was opened. The runs are the truth, and in memory nobody spoils it.
            self._database.close()
            self._database = _open_in_memory(self._results)
            self._refresh()
            return self._database.execute(query, parameters).fetchall()

    def _refresh(self) -> None:
        known = dict(self._database.execute("SELECT path, modified_ns FROM folders"))
        found = _run_folders(self._results, self._tiers)
        stale = {path: modified_ns for path, modified_ns in found.items() if known.get(path) != modified_ns}
        gone = known.keys() - found.keys()
        if not stale and not gone:
            return
        with self._database:
            touched: set[tuple[object, ...]] = set()
            for path in gone:
                self._database.execute("DELETE FROM folders WHERE path = ?", (path,))
                touched |= self._forget(self._files_in(path))
            for path, modified_ns in stale.items():
                touched |= self._read_folder(path)
                settled = time.time_ns() - modified_ns > _SETTLED_NS and not self._faults_in(path)
                row = (path, modified_ns if settled else 0)
                self._database.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", row)
            for group in touched:
                self._settle(group)

    def _read_folder(self, path: str) -> set[tuple[object, ...]]:
        """Take in what is new in a folder and forget what is gone; the groups of submissions that this touches."""
        unreadable = None
        try:
            names = os.listdir(self._results / path)
        except FileNotFoundError:  # removed this moment
            names = []
        except OSError as error:
            names, unreadable = [], f"cannot be read: {error.strerror}"
        present = {f"{path}/{name}" for name in names if name.endswith(".json") and not name.startswith(".")}
        # What was a fault is read again: it may have been mended, or only have been unreadable for a moment.
        known = self._files_in(path) - self._faults_in(path)
        touched = self._forget(known - present)
        self._forget(self._faults_in(path))
        if unreadable:
            self._database.execute("INSERT OR REPLACE INTO faults VALUES (?, ?)", (f"{path}/", unreadable))
        for name in sorted(present - known):
            try:
                entry = of_run(name, self._load(self._results / name))
            except ValueError as error:
                self._database.execute("INSERT OR REPLACE INTO faults VALUES (?, ?)", (name, str(error)))
                continue
            row = [getattr(entry, column) for column in COLUMNS]
            self._database.execute(f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(row))})", row)
            touched.add(tuple(getattr(entry, column) for column in GROUP))
        return touched

    def _settle(self, group: tuple[object, ...]) -> None:
        """Work out anew which run stands for the submission of `group`."""
        where = " AND ".join(f"{column} = ?" for column in GROUP)
        rows = self._database.execute(f"SELECT {', '.join(COLUMNS)}, 1 FROM runs WHERE {where}", group)
        runs = [entry_of(row) for row in rows]
        self._database.execute(f"DELETE FROM standings WHERE {where}", group)
        if runs:
            chosen = standing(runs)
            row = (*group, chosen.path, chosen.runs)
            self._database.execute(f"INSERT INTO standings VALUES ({', '.join('?' * len(row))})", row)

    def _files_in(self, folder: str) -> set[str]:
        return self._paths_in("runs", folder) | self._faults_in(folder)

    def _faults_in(self, folder: str) -> set[str]:
        return self._paths_in("faults", folder)

    def _paths_in(self, table: str, folder: str) -> set[str]:
        query = f"SELECT path FROM {table} WHERE path >= ? || '/' AND path < ? || '0'"  # '0' follows '/'
        return {path for (path,) in self._database.execute(query, (folder, folder))}

    def _forget(self, paths: set[str]) -> set[tuple[object, ...]]:
        touched: set[tuple[object, ...]] = set()
        for path in paths:
            touched.update(self._database.execute(f"SELECT {', '.join(GROUP)} FROM runs WHERE path = ?", (path,)))
            for table in ("runs", "faults"):
                self._database.execute(f"DELETE FROM {table} WHERE path = ?", (path,))
        return touched


def _run_folders(results: Path, tiers: Sequence[str]) -> dict[str, int]:
    """The folders that hold runs, relative to `results`, with when each was changed (ns)."""
    found = {}
    for folder in (folder for tier in tiers for folder in sorted((results / tier).glob("*/*"))):
        with contextlib.suppress(OSError):  # removed this moment, or in a place that is closed to us
            status = folder.stat()
            if stat.S_ISDIR(status.st_mode) and folder.name != "sources":
                found[str(folder.relative_to(results))] = status.st_mtime_ns
    return found


def entry_of(row: Sequence[Any]) -> Entry:
    """The Entry in a row of COLUMNS and how many runs it stands for."""
    values = dict(zip(COLUMNS, row, strict=False))
    made = {"verdict": Verdict(values["verdict"]), "clock": ClockOwner(values["clock"]), "runs": row[-1]}
    return Entry(**{**values, **made})


def _open_file(path: Path) -> sqlite3.Connection:
    """The index at `path`. Raises sqlite3.Error if it is damaged, of another version, or cannot be written."""
    database = sqlite3.connect(path, timeout=60)
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, INDEX_VERSION):
            raise sqlite3.DatabaseError(f"an index of version {version}")
        if version == 0:
            database.executescript(_TABLES)
        for table in ("folders", "runs", "faults", "standings"):
            database.execute(f"SELECT * FROM {table} LIMIT 0")
        database.execute(f"PRAGMA user_version = {INDEX_VERSION}")  # raises where the file cannot be written
    except sqlite3.Error:
        database.close()
        raise
    return database


def _open_anew(path: Path) -> sqlite3.Connection:
    """A new index in place of one that is damaged or of another version. Raises where it cannot be replaced."""
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
