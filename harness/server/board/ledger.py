"""The submissions that the server's runs judged, from the database.

A run's file exists a moment before the run's row in the database. So a run is found by the job in its id, which the
database knew before. A source is therefore never shown just because a row is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.records.run_file import OF_SUBMISSION
from harness.server.store import Database

AT_ONCE = 500
"""The most jobs in one query."""


@dataclass(frozen=True)
class Origin:
    """The submission that a run judged: its number, author, competition and mode. `stands`: it was neither deleted nor
    removed. `removed`: an administrator has removed it."""

    submission: int
    user: str
    user_id: int
    competition: str
    mode: str
    stands: bool = True
    removed: bool = False


class Ledger:
    """Reads `database`. Without a database, there are only the runs of `eval`. Raises DatabaseGone."""

    def __init__(self, database: Database | None) -> None:
        self._database = database

    def origins(self, runs: Iterable[str]) -> dict[str, Origin]:
        """Return the origins by run id, for the runs that this server judged."""
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
        """Return a value that changes whenever a submission is deleted or removed."""
        if self._database is None:
            return ()
        return self._database.queue.last_taken_off()

    def removed(self) -> frozenset[int]:
        """Return the numbers of all submissions that an administrator has removed."""
        if self._database is None:
            return frozenset()
        with self._database.connections.reading() as rows:
            return frozenset(number for (number,) in rows("SELECT id FROM submissions WHERE removed_at IS NOT NULL"))
