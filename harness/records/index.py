"""A SQLite cache over the run files, so that a board over many runs is read in a moment.

Whoever opens it looks once at all run files (`scan`). Those whose stamp is not the one that they were read with are
read again, and what was known of them holds only if their content is still the same. A file that is no run is left
alone and reported. Where the cache cannot be written (a read-only `results`), its content is used from memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from harness.errors import InfrastructureError
from harness.model import ClockOwner, Problem, Unranked, Verdict
from harness.records import run_file, scan
from harness.records.entry import Entry, of_present, of_run, standing

INDEX_VERSION = 8
"""Raise it when the tables change; an index of another version is thrown away and built anew."""

_COLUMNS = tuple(field.name for field in fields(Entry) if field.name not in ("runs", "older", "older_source"))
_GROUP = ("problem", "device", "revision", "problem_sha256", "submission")
_TABLES = f"""
CREATE TABLE IF NOT EXISTS folders (path TEXT PRIMARY KEY, stamp TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs ({", ".join(_COLUMNS)}, PRIMARY KEY (path));
CREATE TABLE IF NOT EXISTS faults (path TEXT PRIMARY KEY, fault TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS standings ({", ".join(_GROUP)}, path, runs, PRIMARY KEY ({", ".join(_GROUP)}));
CREATE INDEX IF NOT EXISTS groups ON runs ({", ".join(_GROUP)}, started_at);
PRAGMA user_version = {INDEX_VERSION};
"""
_WITHIN = "path >= ? || '/' AND path < ? || '0'"  # '0' follows '/'


class Index:
    """Opened, brought up to date, and closed by `with`."""

    def __init__(self, results: Path) -> None:
        self._results = results
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def paths(self) -> dict[str, str]:
        """Every run's file, relative to `results`, by the run's id."""
        return dict(self._rows("SELECT id, path FROM runs"))

    def submissions(self) -> set[str]:
        """The names of all that were judged."""
        return {name for (name,) in self._rows("SELECT DISTINCT submission FROM runs")}

    def runs(self) -> list[Entry]:
        """Every run, the latest last; of each, `runs` is 1."""
        return [_entry(row) for row in self._rows(f"SELECT {', '.join(_COLUMNS)}, 1 FROM runs ORDER BY started_at, id")]

    def latest(self, submission: str) -> dict[str, str]:
        """By problem the id of the latest run of the latest source that this submission's name had there. Of a source's
        runs a first look counts only if there is no other, and a reproduction only if there is nothing else."""
        query = f"""SELECT problem, id, sha256, unranked IS '{Unranked.QUICK}' AND verdict = 'accepted' FROM runs
                    WHERE submission = ? ORDER BY unranked IS '{Unranked.REPRODUCED}', started_at DESC, id DESC"""
        by_problem: dict[str, list[tuple[str, str, bool]]] = {}
        for problem, run_id, sha256, quick in self._rows(query, (submission,)):
            by_problem.setdefault(problem, []).append((run_id, sha256, quick))
        found = {}
        for problem, runs in by_problem.items():
            of_source = [(quick, run_id) for run_id, sha256, quick in runs if sha256 == runs[0][1]]
            found[problem] = min(of_source, key=lambda each: each[0])[1]
        return found

    def devices(self, problem: str) -> dict[str, str]:
        """The devices with runs of `problem`: their names by their folders."""
        query = (
            "SELECT device, MAX(device_name) FROM standings JOIN runs USING (path, device) WHERE standings.problem = ?"
        )
        return dict(self._rows(f"{query} GROUP BY device", (problem,)))

    def standings(self, problem: Problem, device: str) -> list[Entry]:
        """One run a submission, see `standing`: of the problem's present files or, where they never judged it, the
        latest of an older revision."""
        columns = ", ".join(f"runs.{column}" for column in _COLUMNS)
        query = f"""SELECT {columns}, standings.runs FROM standings JOIN runs USING (path)
                    WHERE standings.problem = ? AND standings.device = ? ORDER BY runs.started_at, runs.id"""
        entries = [of_present(_entry(row), problem) for row in self._rows(query, (problem.name, device))]
        chosen = {entry.submission: entry for entry in entries}
        return list((chosen | {entry.submission: entry for entry in entries if not entry.older}).values())

    def judged(
        self, problem: Problem, device: str, quick: bool, unsandboxed: bool = True, worker_timed: bool = False
    ) -> set[str]:
        """The sha256 of every source that the problem's present files gave a verdict here; quick runs count only if
        `quick`, those unranked for want of a sandbox only if `unsandboxed`, those that the worker timed only if
        `worker_timed`, those on a noisy, unstable or crowded machine and reproductions never."""
        disturbed = (Unranked.NOISY, Unranked.UNSTABLE, Unranked.VOIDED, Unranked.CROWDED)
        query = f"""SELECT DISTINCT sha256 FROM runs
                    WHERE problem = ? AND device = ? AND revision = ? AND problem_sha256 = ?
                    AND (verdict != 'infrastructure_error' OR unranked IS '{Unranked.UNJUDGED}')
                    AND (unranked NOT IN ({", ".join(f"'{reason}'" for reason in disturbed)}) OR unranked IS NULL
                         OR verdict != 'accepted')
                    AND unranked IS NOT '{Unranked.REPRODUCED}'
                    AND (? OR unranked IS NOT '{Unranked.QUICK}' OR verdict != 'accepted')
                    AND (? OR unranked IS NOT '{Unranked.UNSANDBOXED}' OR verdict != 'accepted')
                    AND (? OR clock != '{ClockOwner.WORKER}' OR score_ns IS NULL OR verdict != 'accepted')"""
        of_board = (problem.name, device, problem.revision, problem.sha256)
        found = self._rows(query, (*of_board, quick, unsandboxed, worker_timed))
        return {str(sha256) for (sha256,) in found}

    def entry(self, run_id: str) -> Entry | None:
        """A run by its id."""
        rows = self._rows(f"SELECT {', '.join(_COLUMNS)}, 1 FROM runs WHERE id = ? LIMIT 1", (run_id,))
        return _entry(rows[0]) if rows else None

    def best_before(self, entry: Entry) -> Entry | None:
        """The fastest ranked run of its board and its clock that began before `entry`, of sources never found wrong."""
        wrong = [verdict.value for verdict in Verdict if verdict.disqualifies]
        board = " AND ".join(f"{column} = :{column}" for column in _GROUP[:-1])
        query = f"""SELECT {", ".join(_COLUMNS)}, 1 FROM runs
                    WHERE {board} AND clock = :clock
                    AND verdict = 'accepted' AND unranked IS NULL AND score_ns IS NOT NULL
                    AND started_at < :started_at AND sha256 NOT IN
                        (SELECT sha256 FROM runs WHERE {board}
                         AND verdict IN ({", ".join(f"'{value}'" for value in wrong)}))
                    ORDER BY score_ns LIMIT 1"""
        rows = self._rows(query, {name: getattr(entry, name) for name in (*_GROUP[:-1], "clock", "started_at")})
        return _entry(rows[0]) if rows else None

    def faults(self) -> list[tuple[str, str]]:
        """The files under `results` that are no runs, each with what is wrong with it."""
        return self._rows("SELECT path, fault FROM faults ORDER BY path")

    def _rows(self, query: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        try:
            return self._database.execute(query, parameters).fetchall()
        except sqlite3.Error:
            # The file was spoilt after it was opened. The runs are the truth, and in memory nobody spoils it.
            self._database.close()
            self._database = _open_in_memory(self._results)
            self._refresh()
            return self._database.execute(query, parameters).fetchall()

    def _refresh(self) -> None:
        if self._stale(scan.folders(self._results)) == (set(), {}):
            return
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            # Looked at again under the lock, so that nobody's older look undoes what another has taken in.
            gone, stale = self._stale(scan.folders(self._results))
            touched: set[tuple[object, ...]] = set()
            for path in gone:
                self._database.execute("DELETE FROM folders WHERE path = ?", (path,))
                touched |= self._forget(self._known_in(path).keys() | self._faults_in(path))
            for path, folder in stale.items():
                touched |= self._read_folder(path, folder)
                # What is a fault is read again each time: it may only have been unreadable for a moment.
                stamp = scan.IN_DOUBT if self._faults_in(path) else folder.stamp
                self._database.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", (path, stamp))
            for group in touched:
                self._settle(group)

    def _stale(self, found: Mapping[str, scan.Folder]) -> tuple[set[str], dict[str, scan.Folder]]:
        """Of the folders `found`: those that are there no more, and those that hold what was not read as it is now."""
        known = dict(self._database.execute("SELECT path, stamp FROM folders"))
        stale = {path for path, f in found.items() if f.stamp == scan.IN_DOUBT or f.stamp != known.get(path)}
        return known.keys() - found.keys(), {path: found[path] for path in stale}

    def _read_folder(self, path: str, folder: scan.Folder) -> set[tuple[object, ...]]:
        """Take in what is new or changed in a folder and forget what is gone; the groups of submissions that this
        touches."""
        present = {f"{path}/{name}": stamp for name, stamp in folder.stamps.items()}
        faults, known = self._faults_in(path), self._known_in(path)
        touched = self._forget((known.keys() | faults) - present.keys())
        if folder.unreadable:
            self._database.execute("INSERT INTO faults VALUES (?, ?)", (f"{path}/", folder.unreadable))
        for name, stamp in sorted(present.items()):
            seen_stamp, seen_sha256 = known.get(name, (scan.IN_DOUBT, ""))
            if stamp == scan.IN_DOUBT or stamp != seen_stamp:
                touched |= self._read_file(name, stamp, seen_sha256)
        return touched

    def _read_file(self, name: str, stamp: str, seen_sha256: str) -> set[tuple[object, ...]]:
        """Take in a run file, unless its content is what was seen before; the groups that this touches."""
        path = self._results / name
        try:
            text = run_file.read(path)
            sha256 = hashlib.sha256(text).hexdigest()
            if sha256 == seen_sha256:
                self._database.execute("UPDATE files SET stamp = ? WHERE path = ?", (stamp, name))
                return set()
            entry = of_run(name, run_file.parse(path, text))
        except ValueError as error:
            touched = self._forget({name})
            self._database.execute("INSERT INTO faults VALUES (?, ?)", (name, str(error)))
            return touched
        touched = self._forget({name})
        self._database.execute("INSERT INTO files VALUES (?, ?, ?)", (name, stamp, sha256))
        row = [getattr(entry, column) for column in _COLUMNS]
        self._database.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", row)
        return touched | {tuple(getattr(entry, column) for column in _GROUP)}

    def _settle(self, group: tuple[object, ...]) -> None:
        """Work out anew which run stands for the submission of `group`."""
        where = " AND ".join(f"{column} = ?" for column in _GROUP)
        rows = self._database.execute(f"SELECT {', '.join(_COLUMNS)}, 1 FROM runs WHERE {where}", group)
        runs = [_entry(row) for row in rows]
        self._database.execute(f"DELETE FROM standings WHERE {where}", group)
        if runs:
            chosen = standing(runs)
            row = (*group, chosen.path, chosen.runs)
            self._database.execute(f"INSERT INTO standings VALUES ({', '.join('?' * len(row))})", row)

    def _known_in(self, folder: str) -> dict[str, tuple[str, str]]:
        """The runs of a folder, by their path: the stamp and the sha256 of the file when it was read."""
        rows = self._database.execute(f"SELECT path, stamp, sha256 FROM files WHERE {_WITHIN}", (folder, folder))
        return {path: (stamp, sha256) for path, stamp, sha256 in rows}

    def _faults_in(self, folder: str) -> set[str]:
        return {
            path for (path,) in self._database.execute(f"SELECT path FROM faults WHERE {_WITHIN}", (folder, folder))
        }

    def _forget(self, paths: set[str]) -> set[tuple[object, ...]]:
        touched: set[tuple[object, ...]] = set()
        for path in paths:
            touched.update(self._database.execute(f"SELECT {', '.join(_GROUP)} FROM runs WHERE path = ?", (path,)))
            for table in ("runs", "files", "faults"):
                self._database.execute(f"DELETE FROM {table} WHERE path = ?", (path,))
        return touched


def _entry(row: Sequence[Any]) -> Entry:
    values = dict(zip(_COLUMNS, row, strict=False))
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
        for table in ("folders", "files", "runs", "faults", "standings"):
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
