"""What the server's database says of runs: whose they are.

A run's file is there a moment before the database knows of the run; its id names the job, which the database has known
all along. So a source is never shown for want of a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.records.run_file import OF_SUBMISSION
from harness.server.store import Database

AT_ONCE = 500
"""Jobs in one query."""


@dataclass(frozen=True)
class Origin:
    """The submission that a run judged: its number, its author, its competition, whether it is for the board, whether
    it `stands` (its author may have deleted it), and whether an administrator has `removed` it."""

    submission: int
    user: str
    user_id: int
    competition: str
    mode: str
    stands: bool = True
    removed: bool = False


class Ledger:
    """Over `database`, or over none, where the runs of `eval` are all that there is. Raises DatabaseGone."""

    def __init__(self, database: Database | None) -> None:
        self._database = database

    def origins(self, runs: Iterable[str]) -> dict[str, Origin]:
        """By run id, of those that this server judged."""
        jobs = {run: int(found[1]) for run in runs if (found := OF_SUBMISSION.fullmatch(run))}
        if self._database is None or not jobs:
            return {}
        by_job: dict[int, tuple[str, Origin]] = {}
        numbers = sorted(set(jobs.values()))
        with self._database.connections.reading() as rows:
            for start in range(0, len(numbers), AT_ONCE):
                some = numbers[start : start + AT_ONCE]
                query = f"""SELECT j.id, s.file_name, s.id, u.name, u.id, c.name, s.mode,
                            s.deleted_at IS NULL AND s.removed_at IS NULL, s.removed_at IS NOT NULL FROM jobs j
                            JOIN submissions s ON s.id = j.submission_id JOIN users u ON u.id = s.user_id
                            JOIN competitions c ON c.id = s.competition_id
                            WHERE j.id IN ({", ".join("?" * len(some))})"""
                for job, file_name, *values, stands, removed in rows(query, some):
                    origin = Origin(*[*values, bool(stands), bool(removed)])
                    by_job[job] = (f"{origin.user}.{file_name.removesuffix('.py')}", origin)
        of_job = {run: by_job[job] for run, job in jobs.items() if job in by_job}
        return {run: origin for run, (name, origin) in of_job.items() if run.endswith(f"-{name}")}

    def taken_off(self) -> tuple[Any, ...]:
        """Another value after any submission was deleted or removed."""
        if self._database is None:
            return ()
        return self._database.queue.last_taken_off()

    def removed(self) -> frozenset[int]:
        """The numbers of all submissions that an administrator has removed."""
        if self._database is None:
            return frozenset()
        with self._database.connections.reading() as rows:
            return frozenset(number for (number,) in rows("SELECT id FROM submissions WHERE removed_at IS NOT NULL"))
