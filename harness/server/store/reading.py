"""Queries on submissions, jobs, states and runs. Nothing is written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from harness.server.store.connection import Connections
from harness.server.store.rows import JobState, Mode, RunRow, StateRow, SubmissionRow, TakenOff

SUBMISSION = """SELECT s.id, c.name, c.id, u.name, u.id, s.file_name, s.sha256, s.mode, s.gpu, s.submitted_at,
    s.deleted_at, s.removed_at, s.removed_because, j.id, j.state, j.attempt, j.started_at, j.ended_at, j.heartbeat_at,
    j.progress, j.error
    FROM submissions s JOIN jobs j ON j.submission_id = s.id
    JOIN competitions c ON c.id = s.competition_id JOIN users u ON u.id = s.user_id"""
_FIELDS = [field.name for field in fields(SubmissionRow)]
RUN_COLUMNS = [field.name for field in fields(RunRow) if field.name != "submission_id"]
_RUN = f"""SELECT {", ".join("s.id" if f.name == "submission_id" else f"r.{f.name}" for f in fields(RunRow))}
    FROM runs r JOIN jobs j ON j.id = r.job_id JOIN submissions s ON s.id = j.submission_id"""


class Reading:
    """The submissions, jobs, states and runs of one database. Every method raises DatabaseGone."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def submission(self, number: int) -> SubmissionRow | None:
        """Return one submission, even if it was deleted or removed."""
        found = self._submissions("WHERE s.id = ?", (number,))
        return found[0] if found else None

    def source(self, submission: int) -> bytes:
        """Return the file as it was sent, or b"" if there is no such submission."""
        with self._connections.reading() as rows:
            found = rows("SELECT source FROM submissions WHERE id = ?", (submission,))
        return bytes(found[0][0]) if found else b""

    def of_user(
        self, user_id: int, competition: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[SubmissionRow]:
        """Return a person's submissions except deleted ones, the newest first."""
        board, values = ("AND c.name = ? ", (competition,)) if competition is not None else ("", ())
        where = f"WHERE s.user_id = ? AND s.deleted_at IS NULL {board}ORDER BY s.id DESC LIMIT ? OFFSET ?"
        return self._submissions(where, (user_id, *values, limit, offset))

    def of_competition(
        self, competition: str, state: JobState | None = None, limit: int = 1000, offset: int = 0
    ) -> list[SubmissionRow]:
        """Return a competition's submissions in one state or in any, except deleted ones, the newest first."""
        board, values = ("AND j.state = ? ", (state.value,)) if state is not None else ("", ())
        where = f"WHERE c.name = ? AND s.deleted_at IS NULL {board}ORDER BY s.id DESC LIMIT ? OFFSET ?"
        return self._submissions(where, (competition, *values, limit, offset))

    def running(self) -> list[SubmissionRow]:
        """Return the submissions that are judged now, on all cards."""
        return self._submissions("WHERE j.state = 'running' ORDER BY j.id", ())

    def waiting(self, gpu: str | None = None, limit: int = 1000) -> list[SubmissionRow]:
        """Return the submissions that wait for one GPU or for any, the next one first."""
        on, values = ("AND j.gpu = ? ", (gpu,)) if gpu is not None else ("", ())
        return self._submissions(f"WHERE j.state = 'pending' {on}ORDER BY j.id LIMIT ?", (*values, limit))

    def position(self, submission: int) -> int | None:
        """Return a submission's place in its GPU's queue, from 1, or None if it does not wait."""
        with self._connections.reading() as rows:
            found = rows(
                "SELECT (SELECT COUNT(*) FROM jobs b WHERE b.gpu = j.gpu AND b.state = 'pending' AND b.id <= j.id)"
                " FROM jobs j WHERE j.submission_id = ? AND j.state = 'pending'",
                (submission,),
            )
        return int(found[0][0]) if found else None

    def counts(self, gpu: str) -> tuple[int, int]:
        """Return how many jobs wait for a GPU, and how many run on it."""
        with self._connections.reading() as rows:
            by_state = dict(rows("SELECT state, COUNT(*) FROM jobs WHERE gpu = ? AND state IN ('pending', 'running')"
                                 " GROUP BY state", (gpu,)))  # fmt: skip
        return int(by_state.get("pending", 0)), int(by_state.get("running", 0))

    def states(self, job: int) -> list[StateRow]:
        """Return the state changes of a job, in order."""
        with self._connections.reading() as rows:
            found = rows("SELECT at, state, attempt, detail FROM states WHERE job_id = ? ORDER BY at", (job,))
        return [StateRow(at, JobState(state), attempt, detail) for at, state, attempt, detail in found]

    def runs(self, submission: int) -> list[RunRow]:
        """Return the runs of a submission, one for each attempt. The last one decides."""
        return self._runs("WHERE s.id = ? ORDER BY r.attempt", (submission,))

    def runs_of(self, submissions: Sequence[int]) -> dict[int, list[RunRow]]:
        """Return the runs of several submissions, by their numbers."""
        found: dict[int, list[RunRow]] = {number: [] for number in submissions}
        if submissions:
            marks = ", ".join("?" * len(submissions))
            for run in self._runs(f"WHERE s.id IN ({marks}) ORDER BY r.attempt", tuple(submissions)):
                found[run.submission_id].append(run)
        return found

    def totals(self, since: str = "") -> dict[str, int]:
        """Count the jobs in each state, for submissions since `since`."""
        with self._connections.reading() as rows:
            found = rows(
                "SELECT j.state, COUNT(*) FROM jobs j JOIN submissions s ON s.id = j.submission_id"
                " WHERE s.submitted_at >= ? GROUP BY j.state",
                (since,),
            )
        return {state: int(count) for state, count in found}

    def run(self, run_id: str) -> RunRow | None:
        """Return a run by its id."""
        found = self._runs("WHERE r.id = ?", (run_id,))
        return found[0] if found else None

    def stored(self) -> int:
        """Return the number of runs."""
        with self._connections.reading() as rows:
            return int(rows("SELECT COUNT(*) FROM runs")[0][0])

    def last_taken_off(self) -> tuple[tuple[object, ...], ...]:
        """Return a value that changes whenever a submission is deleted or removed."""
        with self._connections.reading() as rows:
            return tuple(
                tuple(rows(f"SELECT COUNT(*), MAX({column}) FROM submissions WHERE {column} IS NOT NULL")[0])
                for column in ("deleted_at", "removed_at")
            )

    def runs_of_competition(self, competition: str, gpu: str) -> list[tuple[RunRow, SubmissionRow]]:
        """Return every leaderboard run on a GPU with its submission, even deleted and removed ones, the oldest
        first."""
        where, values = "c.name = ? AND s.mode = 'leaderboard' AND s.gpu = ?", (competition, gpu)
        joined = f"JOIN competitions c ON c.id = s.competition_id WHERE {where} ORDER BY r.ended_at, r.id"
        runs = self._runs(joined, values)
        by_number = {each.id: each for each in self._submissions(f"WHERE {where}", values)}
        return [(run, by_number[run.submission_id]) for run in runs if run.submission_id in by_number]

    def best_ns(self, competition: str, gpu: str, besides: str = "") -> float | None:
        """Return the fastest ranked score of a competition on a GPU, without the run `besides`, or None if nothing is
        ranked."""
        with self._connections.reading() as rows:
            found = rows(
                "SELECT MIN(r.score_ns) FROM runs r JOIN jobs j ON j.id = r.job_id"
                " JOIN submissions s ON s.id = j.submission_id JOIN competitions c ON c.id = s.competition_id"
                " WHERE c.name = ? AND s.gpu = ? AND s.mode = 'leaderboard' AND r.verdict = 'accepted'"
                " AND r.unranked IS NULL AND s.removed_at IS NULL AND s.deleted_at IS NULL AND r.id <> ?",
                (competition, gpu, besides),
            )
        return found[0][0] if found else None

    def taken_off(self, submission: int | None = None) -> list[TakenOff]:
        """Return the runs of deleted and removed submissions: all of them, or those of one submission's source."""
        of_source = " AND (s.competition_id, s.sha256) IN (SELECT competition_id, sha256 FROM submissions WHERE id = ?)"
        with self._connections.reading() as rows:
            found = rows(
                "SELECT r.id, r.path, s.mode, s.removed_at IS NULL AND EXISTS"
                " (SELECT 1 FROM submissions o JOIN jobs k ON k.submission_id = o.id"
                "  WHERE o.user_id = s.user_id AND o.competition_id = s.competition_id AND o.sha256 = s.sha256"
                "  AND o.gpu = s.gpu AND o.mode = 'leaderboard'"
                "  AND o.deleted_at IS NULL AND o.removed_at IS NULL AND k.state NOT IN ('pending', 'running'))"
                " FROM runs r JOIN jobs j ON j.id = r.job_id JOIN submissions s ON s.id = j.submission_id"
                f" WHERE (s.deleted_at IS NOT NULL OR s.removed_at IS NOT NULL){of_source if submission else ''}",
                (submission,) if submission else (),
            )
        return [TakenOff(run, path, Mode(mode), bool(still)) for run, path, mode, still in found]

    def _submissions(self, where: str, values: tuple[object, ...]) -> list[SubmissionRow]:
        with self._connections.reading() as rows:
            return [submission_of(row) for row in rows(f"{SUBMISSION} {where}", values)]

    def _runs(self, where: str, values: tuple[object, ...]) -> list[RunRow]:
        with self._connections.reading() as rows:
            return [RunRow(*row) for row in rows(f"{_RUN} {where}", values)]


def submission_of(row: tuple[object, ...]) -> SubmissionRow:
    """Convert a row of the query SUBMISSION."""
    named = dict(zip(_FIELDS, row, strict=True))
    return SubmissionRow(**{**named, "mode": Mode(named["mode"]), "state": JobState(named["state"])})  # type: ignore[arg-type]
