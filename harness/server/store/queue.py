"""Submissions and their jobs: accepting, claiming, repeating and ending. This table is the queue.

    accept ─► pending ─► claim ─► running ─► end ─► succeeded, failed, timed_out, hacked
                 ▲                   │
                 └── put_back ◄──────┘    a crowded run, a judge that died, a server that was killed

Each arrow is one transaction.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, fields
from datetime import datetime, timedelta
from typing import NamedTuple

from harness.server.store.connection import Connections, Transaction
from harness.server.store.reading import RUN_COLUMNS, SUBMISSION, Reading, submission_of
from harness.server.store.rows import JobState, Mode, RunRow, SubmissionRow, now, stamp

DELETED = "its author deleted it"
REMOVED = "it was removed: "
_GONE = (
    "SELECT 1 FROM submissions s WHERE s.id = jobs.submission_id"
    " AND (s.deleted_at IS NOT NULL OR s.removed_at IS NOT NULL)"
)


class Recent(NamedTuple):
    """One of a person's latest submissions: its number, its time, and its job's state."""

    id: int
    submitted_at: str
    state: JobState


@dataclass
class _Entry:
    """A submission to be accepted, and the result."""

    competition_id: int
    user_id: int
    file_name: str
    sha256: str
    source: bytes
    mode: Mode
    gpu: str
    allowed: Callable[[list[Recent]], None]
    barred: Callable[[str], None]
    turn: threading.Event = field(default_factory=threading.Event)
    over: bool = False
    error: Exception | None = None
    submission: int = 0
    job: int = 0


class Queue(Reading):
    """The submissions, jobs, states and runs of one database."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._entries: deque[_Entry] = deque()
        self._changing = threading.Lock()
        self._leading = False  # whether a waiting thread has its turn to write

    def accept(
        self,
        *,
        competition_id: int,
        user_id: int,
        file_name: str,
        sha256: str,
        source: bytes,
        mode: Mode,
        gpu: str,
        allowed: Callable[[list[Recent]], None] = lambda recent: None,
        barred: Callable[[str], None] = lambda reason: None,
    ) -> tuple[int, int]:
        """Write submission, job and first state in one transaction. Return the numbers of submission and job.

        `allowed` receives this person's submissions to the competition of the last hour and those that wait or run. It
        raises an exception to refuse. Simultaneous requests of one person each see the earlier ones. `barred` receives
        the reason if the same bytes were removed from the competition. Both are called in the transaction, after the
        time of submission was taken. Entries that arrive during a write are written together, so that they wait for the
        disk only once. Raises DatabaseGone.
        """
        entry = _Entry(competition_id, user_id, file_name, sha256, source, mode, gpu, allowed, barred)
        with self._changing:
            self._entries.append(entry)
            if not self._leading:
                self._leading = True
                entry.turn.set()
        entry.turn.wait()
        if not entry.over:
            self._accept_all()
        if entry.error is not None:
            raise entry.error
        return entry.submission, entry.job

    def _accept_all(self) -> None:
        """Write all waiting entries, the caller's included. The first entry that arrives meanwhile writes the next
        batch."""
        with self._changing:
            entries = [self._entries.popleft() for _ in range(len(self._entries))]
        try:
            with self._connections.writing() as rows:
                for entry in entries:
                    rows("SAVEPOINT entry")
                    try:
                        entry.submission, entry.job = _accept(rows, entry, self._connections.postgres)
                    except Exception as error:
                        if self._connections.failed(error):
                            raise
                        entry.error = error
                        rows("ROLLBACK TO SAVEPOINT entry")
                    rows("RELEASE SAVEPOINT entry")
        except Exception as error:
            for entry in entries:
                entry.error = error
        finally:
            for entry in entries:
                entry.over = True
            with self._changing:
                if self._entries:
                    self._entries[0].turn.set()
                else:
                    self._leading = False
            for entry in entries:
                entry.turn.set()

    def claim(self, gpu: str, besides: Sequence[int] = ()) -> SubmissionRow | None:
        """Claim the first job that waits for `gpu`: it is now running, with its attempt increased. None if no job
        waits.
        `besides`: jobs to skip."""
        others = f" AND id NOT IN ({', '.join('?' * len(besides))})" if besides else ""
        unlocked = " FOR UPDATE SKIP LOCKED" if self._connections.postgres else ""
        with self._connections.writing() as rows:
            taken = rows(
                "UPDATE jobs SET state = 'running', attempt = attempt + 1, started_at = ?, heartbeat_at = ?,"
                " progress = NULL WHERE state = 'pending' AND id ="
                f" (SELECT id FROM jobs WHERE state = 'pending' AND gpu = ?{others} AND NOT EXISTS ({_GONE})"
                f" ORDER BY id LIMIT 1{unlocked})"
                " RETURNING submission_id, id, attempt",
                (now(), now(), gpu, *besides),
            )
            if not taken:
                return None
            submission, job, attempt = taken[0]
            _tell(rows, job, JobState.RUNNING, attempt)
            return submission_of(rows(f"{SUBMISSION} WHERE s.id = ?", (submission,))[0])

    def heartbeat(self, job: int, attempt: int, progress: str | None) -> None:
        """Record that a running job lives, and its progress."""
        with self._connections.writing() as rows:
            rows(
                "UPDATE jobs SET heartbeat_at = ?, progress = ? WHERE id = ? AND attempt = ? AND state = 'running'",
                (now(), progress, job, attempt),
            )

    def put_back(self, job: int, attempt: int, why: str, run: RunRow | None = None) -> bool:
        """Let a running job wait again, in its old place. `run`: the run of this attempt, if any. If the submission was
        deleted or removed meanwhile, the job ends.

        Return whether the job was running in this attempt. If not, nothing changes.
        """
        with self._connections.writing() as rows:
            if not rows(
                "UPDATE jobs SET state = 'pending', progress = NULL"
                " WHERE id = ? AND attempt = ? AND state = 'running' RETURNING id",
                (job, attempt),
            ):
                return False
            if run is not None:
                _store(rows, run)
            _tell(rows, job, JobState.PENDING, attempt, why)
            gone = rows(
                "SELECT s.id, s.removed_because FROM submissions s JOIN jobs j ON j.submission_id = s.id"
                " WHERE j.id = ? AND (s.deleted_at IS NOT NULL OR s.removed_at IS NOT NULL)",
                (job,),
            )
            for submission, reason in gone:
                _cancel(rows, submission, DELETED if reason is None else f"{REMOVED}{reason}")
            return True

    def end(self, job: int, attempt: int, state: JobState, error: str | None, run: RunRow | None = None) -> bool:
        """End a running job: store its run and its state in one transaction. Return whether it was running in this
        attempt."""
        with self._connections.writing() as rows:
            if not rows(
                "UPDATE jobs SET state = ?, error = ?, ended_at = ?, progress = NULL"
                " WHERE id = ? AND attempt = ? AND state = 'running' RETURNING id",
                (state.value, error, now(), job, attempt),
            ):
                return False
            if run is not None:
                _store(rows, run)
            _tell(rows, job, state, attempt, error)
            return True

    def moved(self, run_id: str, path: str) -> None:
        """Record the new place of a run's file."""
        with self._connections.writing() as rows:
            rows("UPDATE runs SET path = ? WHERE id = ?", (path, run_id))

    def delete(self, submission: int) -> None:
        """Delete a submission for its author: nobody sees it, and a waiting job is cancelled."""
        with self._connections.writing() as rows:
            rows("UPDATE submissions SET deleted_at = ? WHERE id = ? AND deleted_at IS NULL", (now(), submission))
            _cancel(rows, submission, DELETED)

    def remove(self, submission: int, reason: str) -> None:
        """Remove a submission for an administrator, with a reason that is shown, together with everyone's submissions
        of the same bytes to the competition."""
        with self._connections.writing() as rows:
            same = rows(
                "SELECT s.id FROM submissions s JOIN submissions t ON t.competition_id = s.competition_id"
                " AND t.sha256 = s.sha256 WHERE t.id = ?",
                (submission,),
            )
            for (number,) in same:
                rows("UPDATE submissions SET removed_at = ?, removed_because = ? WHERE id = ?", (now(), reason, number))
                _cancel(rows, number, f"{REMOVED}{reason}")


def _accept(rows: Transaction, entry: _Entry, postgres: bool) -> tuple[int, int]:
    at = now()
    if postgres:
        rows("SELECT id FROM users WHERE id = ? FOR UPDATE", (entry.user_id,))
    found = rows(
        "SELECT s.id, s.submitted_at, j.state FROM submissions s JOIN jobs j ON j.submission_id = s.id"
        " WHERE s.user_id = ? AND s.competition_id = ?"
        " AND (s.submitted_at > ? OR j.state IN ('pending', 'running')) ORDER BY s.id",
        (entry.user_id, entry.competition_id, _earlier(at, 3600)),
    )
    entry.allowed([Recent(number, sent, JobState(state)) for number, sent, state in found])
    removed = rows(
        "SELECT removed_because FROM submissions WHERE competition_id = ? AND sha256 = ? AND removed_at IS NOT NULL"
        " ORDER BY id DESC LIMIT 1",
        (entry.competition_id, entry.sha256),
    )
    if removed:
        entry.barred(removed[0][0] or "no reason was given")
    submission = rows(
        "INSERT INTO submissions (competition_id, user_id, file_name, sha256, source, mode, gpu, submitted_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
        (
            entry.competition_id,
            entry.user_id,
            entry.file_name,
            entry.sha256,
            entry.source,
            entry.mode.value,
            entry.gpu,
            at,
        ),
    )[0][0]
    job = rows(
        "INSERT INTO jobs (submission_id, gpu, state) VALUES (?, ?, 'pending') RETURNING id", (submission, entry.gpu)
    )[0][0]
    _tell(rows, job, JobState.PENDING, 0)
    return submission, job


def _store(rows: Transaction, run: RunRow) -> None:
    """Store a run. Storing it twice changes nothing, because its id is made from job and attempt."""
    values = [value for column, value in zip(fields(run), astuple(run)) if column.name != "submission_id"]
    marks = ", ".join("?" * len(values))
    rows(f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) VALUES ({marks}) ON CONFLICT DO NOTHING", values)


def _tell(rows: Transaction, job: int, state: JobState, attempt: int, detail: str | None = None) -> None:
    rows("INSERT INTO states VALUES (?, ?, ?, ?, ?)", (job, now(), state.value, attempt, detail))


def _cancel(rows: Transaction, submission: int, why: str) -> None:
    cancelled = rows(
        "UPDATE jobs SET state = 'failed', error = ?, ended_at = ? WHERE submission_id = ? AND state = 'pending'"
        " RETURNING id, attempt",
        (why, now(), submission),
    )
    for job, attempt in cancelled:
        _tell(rows, job, JobState.FAILED, attempt, why)


def _earlier(at: str, seconds: float) -> str:
    return stamp(datetime.fromisoformat(at) - timedelta(seconds=seconds))
