"""What boards ask of all runs. The answers come from a SQLite cache over the run files (`tables`), in a moment."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from harness.model import DISTURBED, ClockOwner, Problem, Unranked, Verdict
from harness.records.entry import Entry, of_present, standing
from harness.records.tables import COLUMNS, COPY, GROUP, Tables, entry_of


class Index:
    """Opened, brought up to date, and closed by `with`. `only`: up to date with these files alone, relative to
    `results`, which came, went or were replaced."""

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
        """The names of all that were judged, the one judged last first."""
        query = "SELECT submission FROM runs GROUP BY submission ORDER BY MAX(started_at) DESC, submission"
        return [name for (name,) in self._rows(query)]

    def runs(self) -> list[Entry]:
        """Every run, the latest last; of each, `runs` is 1."""
        query = f"SELECT {', '.join(COLUMNS)}, 1 FROM runs ORDER BY started_at, id"
        return [entry_of(row) for row in self._rows(query)]

    def latest(self, submission: str) -> dict[str, str]:
        """By problem the id of the latest run of the latest source that this submission's name had there. Of a source's
        runs a first look counts only if there is none in full, one of a device that it cannot run on only if there is
        no other, and a reproduction only if there is nothing else."""
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

    def ranked(self, submission: str, problem: str) -> dict[tuple[str, int], str]:
        """By device and revision the id of the latest ranked run of the latest source of this submission."""
        query = f"SELECT {', '.join(COLUMNS)}, 1 FROM runs WHERE submission = ? AND problem = ? ORDER BY started_at, id"
        runs = [entry_of(row) for row in self._rows(query, (submission, problem))]
        return {(run.device, run.revision): run.id for run in runs if run.ranked and run.sha256 == runs[-1].sha256}

    def devices(self, problem: str) -> dict[str, str]:
        """The devices with runs of `problem`: their names by their folders."""
        query = (
            "SELECT device, MAX(device_name) FROM standings JOIN runs USING (path, device) WHERE standings.problem = ?"
        )
        return dict(self._rows(f"{query} GROUP BY device", (problem,)))

    def standings(self, problem: Problem, device: str) -> list[Entry]:
        """One run a submission, see `standing`: of the problem's present files or, where they never judged it, the
        latest of an older revision."""
        columns = ", ".join(f"runs.{column}" for column in COLUMNS)
        query = f"""SELECT {columns}, standings.runs FROM standings JOIN runs USING (path)
                    WHERE standings.problem = ? AND standings.device = ? ORDER BY runs.started_at, runs.id"""
        return _one_each([of_present(entry_of(row), problem) for row in self._rows(query, (problem.name, device))])

    def standings_of(self, problem: Problem, device: str, parts: Mapping[str, str]) -> dict[str, list[Entry]]:
        """As `standings`, of each part of the runs alone. `parts`: by a run's id what it is a part of, such as a
        competition; the runs that it does not name are left out."""
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
        """Of all runs of a problem on a device the id, the submission's name, and the sha256 of its source."""
        query = "SELECT DISTINCT id, submission, sha256 FROM runs WHERE problem = ? AND device = ?"
        return self._rows(query, (problem, device))

    def entries(self, run_ids: Iterable[str]) -> list[Entry]:
        """The runs of these ids."""
        query = f"SELECT {', '.join(COLUMNS)}, 1 FROM runs WHERE id IN (SELECT value FROM json_each(?))"
        return [entry_of(row) for row in self._rows(query, (json.dumps(list(run_ids)),))]

    def judged(
        self, problem: Problem, device: str, quick: bool, unsandboxed: bool = True, worker_timed: bool = False
    ) -> set[str]:
        """The sha256 of every source that the problem's present files gave a verdict here; quick runs count only if
        `quick`, those unranked for want of a sandbox only if `unsandboxed`, those that the worker timed only if
        `worker_timed`, those on a noisy, unstable or crowded machine and reproductions never."""
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
        """A run by its id."""
        rows = self._rows(f"SELECT {', '.join(COLUMNS)}, 1 FROM runs WHERE id = ? LIMIT 1", (run_id,))
        return entry_of(rows[0]) if rows else None

    def revisions(self) -> dict[tuple[str, str], str]:
        """By problem and device a text that is another one after any of their runs came, went or changed."""
        query = "SELECT problem, device, revision FROM revisions"
        return {(problem, device): revision for problem, device, revision in self._rows(query)}

    def cases(self, paths: Iterable[str]) -> dict[str, str]:
        """What the runs at these paths measured, case by case, as texts for `cases_of`. By path; one that was not timed
        is not among them."""
        query = "SELECT path, cases FROM cases WHERE path IN (SELECT value FROM json_each(?))"
        return dict(self._rows(query, (json.dumps(list(paths)),)))

    def records(self, problem: Problem, device: str, clock: ClockOwner) -> list[Entry]:
        """The ranked runs of the problem's present files that were faster than every one before, in the order they
        began; without those of sources ever found wrong."""
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
        """How many runs there are."""
        return int(self._rows("SELECT COUNT(*) FROM runs WHERE problem = ? AND device = ?", (problem, device))[0][0])

    def best_before(self, entry: Entry) -> Entry | None:
        """The fastest ranked run of its board and its clock that began before `entry`, of sources never found wrong."""
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
        """The files under `results` that are no runs, each with what is wrong with it."""
        return self._rows("SELECT path, fault FROM faults WHERE fault != :copy ORDER BY path", {"copy": COPY})


def _one_each(entries: Sequence[Entry]) -> list[Entry]:
    """Of entries in the order they began one a submission: of the present files or, where there is none, the latest."""
    chosen = {entry.submission: entry for entry in entries}
    return list((chosen | {entry.submission: entry for entry in entries if not entry.older}).values())
