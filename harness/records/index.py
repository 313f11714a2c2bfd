"""The queries of boards over all runs. A SQLite cache over the run files (`tables`) answers them quickly."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from harness.model import DISTURBED, ClockOwner, Problem, Unranked, Verdict
from harness.records.entry import Entry, of_present, standing
from harness.records.tables import COLUMNS, COPY, GROUP, Tables, entry_of


class Index:
    """An index for use with `with`: opened, updated, and closed. `only`: update only for these files, relative to
    `results`, which were added, removed or replaced."""

    def __init__(self, results: Path, only: Collection[str] | None = None) -> None:
        self._tables = Tables(results, only)
        self._rows = self._tables.rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()

    def paths(self) -> dict[str, str]:
        """Every run's file, relative to `results`, by the run's id."""
        return dict(self._rows("SELECT id, path FROM runs"))

    def submissions(self) -> list[str]:
        """The names of all judged submissions, the one judged last first."""
        query = "SELECT submission FROM runs GROUP BY submission ORDER BY MAX(started_at) DESC, submission"
        return [name for (name,) in self._rows(query)]

    def runs(self) -> list[Entry]:
        """Every run, the latest last. `runs` is 1 in each."""
        query = f"SELECT {', '.join(COLUMNS)}, 1 FROM runs ORDER BY started_at, id"
        return [entry_of(row) for row in self._rows(query)]

    def latest(self, submission: str) -> dict[str, str]:
        """For each problem, the id of the latest run of the submission's latest source. A first look counts only if the
        source has no full run. A run on a device that cannot judge it counts only if there is no other. A reproduction
        counts only if there is nothing else."""
        query = f"""SELECT problem, id, sha256,
                    CASE WHEN unranked IS '{Unranked.REPRODUCED}' THEN 3 WHEN unranked IS '{Unranked.UNJUDGED}' THEN 2
                    ELSE unranked IS '{Unranked.QUICK}' AND verdict = 'accepted' END AS behind FROM runs
                    WHERE submission = ? ORDER BY behind = 3, started_at DESC, id DESC"""
        by_problem: dict[str, list[tuple[str, str, int]]] = {}
        for problem, run_id, sha256, behind in self._rows(query, (submission,)):
            by_problem.setdefault(problem, []).append((run_id, sha256, behind))
        found = {}
        for problem, runs in by_problem.items():
            of_source = [(behind, run_id) for run_id, sha256, behind in runs if sha256 == runs[0][1]]
            found[problem] = min(of_source, key=lambda each: each[0])[1]
        return found

    def on_boards(self, submission: str, problem: str) -> list[Entry]:
        """The submission's run on each board (see `standing`): one for each device, revision and problem's hash."""
        columns = ", ".join(f"runs.{column}" for column in COLUMNS)
        query = f"""SELECT {columns}, standings.runs FROM standings JOIN runs USING (path)
                    WHERE standings.submission = ? AND standings.problem = ? ORDER BY runs.started_at, runs.id"""
        return [entry_of(row) for row in self._rows(query, (submission, problem))]

    def devices(self, problem: str) -> dict[str, str]:
        """The names of the devices with runs of `problem`, by their folders."""
        query = (
            "SELECT device, MAX(device_name) FROM standings JOIN runs USING (path, device) WHERE standings.problem = ?"
        )
        return dict(self._rows(f"{query} GROUP BY device", (problem,)))

    def standings(self, problem: Problem, device: str) -> list[Entry]:
        """One run per submission (see `standing`), for the problem's present files. If those never judged a submission,
        the latest run of an older revision."""
        columns = ", ".join(f"runs.{column}" for column in COLUMNS)
        query = f"""SELECT {columns}, standings.runs FROM standings JOIN runs USING (path)
                    WHERE standings.problem = ? AND standings.device = ? ORDER BY runs.started_at, runs.id"""
        return _one_each([of_present(entry_of(row), problem) for row in self._rows(query, (problem.name, device))])

    def standings_of(self, problem: Problem, device: str, parts: Mapping[str, str]) -> dict[str, list[Entry]]:
        """As `standings`, but for each part of the runs separately. `parts` maps a run's id to its part, such as a
        competition. Runs without an entry are left out."""
        query = f"""SELECT {", ".join(COLUMNS)}, 1 FROM runs
                    WHERE problem = ? AND device = ? AND id IN (SELECT value FROM json_each(?))"""
        groups: dict[tuple[object, ...], list[Entry]] = {}
        for row in self._rows(query, (problem.name, device, json.dumps(list(parts)))):
            entry = entry_of(row)
            key = (parts[entry.id], *(getattr(entry, name) for name in GROUP))
            groups.setdefault(key, []).append(entry)
        found: dict[str, list[Entry]] = {}
        for (part, *_), runs in groups.items():
            found.setdefault(str(part), []).append(of_present(standing(runs), problem))
        in_order = {part: sorted(each, key=lambda e: (e.started_at, e.id)) for part, each in found.items()}
        return {part: _one_each(entries) for part, entries in in_order.items()}

    def judged_runs(self, problem: str, device: str) -> list[tuple[str, str, str]]:
        """The id, submission name and source sha256 of every run of a problem on a device."""
        query = "SELECT DISTINCT id, submission, sha256 FROM runs WHERE problem = ? AND device = ?"
        return self._rows(query, (problem, device))

    def entries(self, run_ids: Iterable[str]) -> list[Entry]:
        """The runs with these ids."""
        query = f"SELECT {', '.join(COLUMNS)}, 1 FROM runs WHERE id IN (SELECT value FROM json_each(?))"
        return [entry_of(row) for row in self._rows(query, (json.dumps(list(run_ids)),))]

    def judged(
        self, problem: Problem, device: str, quick: bool, unsandboxed: bool = True, worker_timed: bool = False
    ) -> set[str]:
        """The sha256 of every source that has a verdict here from the problem's present files. Some accepted runs count
        only on request: quick runs with `quick`, runs unranked for lack of a sandbox with `unsandboxed`, worker-timed
        runs with `worker_timed`. Reproductions never count, and neither do accepted runs on a disturbed machine."""
        query = f"""SELECT DISTINCT sha256 FROM runs
                    WHERE problem = ? AND device = ? AND revision = ? AND problem_sha256 = ?
                    AND (verdict != 'infrastructure_error' OR unranked IS '{Unranked.UNJUDGED}')
                    AND (unranked NOT IN ({", ".join(f"'{reason}'" for reason in DISTURBED)}) OR unranked IS NULL
                         OR verdict != 'accepted')
                    AND unranked IS NOT '{Unranked.REPRODUCED}'
                    AND (? OR unranked IS NOT '{Unranked.QUICK}' OR verdict != 'accepted')
                    AND (? OR unranked IS NOT '{Unranked.UNSANDBOXED}' OR verdict != 'accepted')
                    AND (? OR clock != '{ClockOwner.WORKER}' OR score_ns IS NULL OR verdict != 'accepted')"""
        of_board = (problem.name, device, problem.revision, problem.sha256)
        found = self._rows(query, (*of_board, quick, unsandboxed, worker_timed))
        return {str(sha256) for (sha256,) in found}

    def entry(self, run_id: str) -> Entry | None:
        """The run with this id, or None."""
        rows = self._rows(f"SELECT {', '.join(COLUMNS)}, 1 FROM runs WHERE id = ? LIMIT 1", (run_id,))
        return entry_of(rows[0]) if rows else None

    def revisions(self) -> dict[tuple[str, str], str]:
        """A text for each problem and device that changes whenever one of their runs is added, removed or changed."""
        query = "SELECT problem, device, revision FROM revisions"
        return {(problem, device): revision for problem, device, revision in self._rows(query)}

    def cases(self, paths: Iterable[str]) -> dict[str, str]:
        """The figures of the runs at these paths, by path, as texts for `cases_of`. Runs that were not timed are left
        out."""
        query = "SELECT path, cases FROM cases WHERE path IN (SELECT value FROM json_each(?))"
        return dict(self._rows(query, (json.dumps(list(paths)),)))

    def records(self, problem: Problem, device: str, clock: ClockOwner) -> list[Entry]:
        """The successive records: ranked runs of the problem's present files that were faster than all before, in the
        order they began. Sources ever found wrong are left out."""
        wrong = ", ".join(f"'{verdict.value}'" for verdict in Verdict if verdict.disqualifies)
        board = "problem = :problem AND device = :device AND revision = :revision AND problem_sha256 = :sha256"
        names = ", ".join(COLUMNS)
        query = f"""SELECT {names}, 1 FROM runs WHERE path IN (SELECT path FROM (
                        SELECT path, score_ns, MIN(score_ns) OVER (ORDER BY started_at, id
                            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS best
                        FROM runs WHERE {board} AND clock = :clock
                        AND verdict = 'accepted' AND unranked IS NULL AND score_ns IS NOT NULL
                        AND sha256 NOT IN
                            (SELECT sha256 FROM runs WHERE {board} AND verdict IN ({wrong})))
                    WHERE best IS NULL OR score_ns < best) ORDER BY started_at, id"""
        values = {"problem": problem.name, "device": device, "revision": problem.revision, "sha256": problem.sha256}
        rows = self._rows(query, {**values, "clock": clock.value})
        return [entry_of(row) for row in rows]

    def count(self, problem: str, device: str) -> int:
        """The number of runs of a problem on a device."""
        return int(self._rows("SELECT COUNT(*) FROM runs WHERE problem = ? AND device = ?", (problem, device))[0][0])

    def best_before(self, entry: Entry) -> Entry | None:
        """The fastest ranked run of the same board and clock that began before `entry`. Sources ever found wrong are
        left out."""
        wrong = [verdict.value for verdict in Verdict if verdict.disqualifies]
        board = " AND ".join(f"{column} = :{column}" for column in GROUP[:-1])
        query = f"""SELECT {", ".join(COLUMNS)}, 1 FROM runs
                    WHERE {board} AND clock = :clock
                    AND verdict = 'accepted' AND unranked IS NULL AND score_ns IS NOT NULL
                    AND started_at < :started_at AND sha256 NOT IN
                        (SELECT sha256 FROM runs WHERE {board}
                         AND verdict IN ({", ".join(f"'{value}'" for value in wrong)}))
                    ORDER BY score_ns LIMIT 1"""
        rows = self._rows(query, {name: getattr(entry, name) for name in (*GROUP[:-1], "clock", "started_at")})
        return entry_of(rows[0]) if rows else None

    def faults(self) -> list[tuple[str, str]]:
        """The files under `results` that are not valid runs, each with the reason."""
        return self._rows("SELECT path, fault FROM faults WHERE fault != :copy ORDER BY path", {"copy": COPY})


def _one_each(entries: Sequence[Entry]) -> list[Entry]:
    """One entry per submission from `entries`, which are in the order they began: the latest of the present files, else
    the latest."""
    chosen = {entry.submission: entry for entry in entries}
    return list((chosen | {entry.submission: entry for entry in entries if not entry.older}).values())
