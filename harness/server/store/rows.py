"""What is in the database, as values: accounts, submissions with their jobs, runs. Times are ISO 8601, UTC."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime


class JobState(enum.StrEnum):
    """Where a job is. The words are those that popcorn-cli knows."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    HACKED = "hacked"

    @property
    def over(self) -> bool:
        """Whether it stays so."""
        return self not in (JobState.PENDING, JobState.RUNNING)


class Mode(enum.StrEnum):
    """What was asked: test judges the test cases, benchmark is a quick look, leaderboard a run that can be ranked."""

    TEST = "test"
    BENCHMARK = "benchmark"
    LEADERBOARD = "leaderboard"
    PROFILE = "profile"


@dataclass(frozen=True)
class Account:
    """A person who may submit. `blocked_because` is set where an administrator has shut the account."""

    id: int
    name: str
    created_at: str
    blocked_because: str | None = None


@dataclass(frozen=True)
class PendingClient:
    """A client that asked to register and waits for approval. `fingerprint` is the beginning of its id's hash."""

    fingerprint: str
    provider: str
    created_at: str


@dataclass(frozen=True)
class SubmissionRow:
    """A submission with its job; without its source, which `Database.source` reads.

    `job_id`, `attempt`, `state` and what follows are of its job. `error` is one sentence, where the job did not
    succeed. `removed_because` is the administrator's reason, where it was removed.
    """

    id: int
    competition: str
    competition_id: int
    user: str
    user_id: int
    file_name: str
    sha256: str
    mode: Mode
    gpu: str
    submitted_at: str
    deleted_at: str | None
    removed_at: str | None
    removed_because: str | None
    job_id: int
    state: JobState
    attempt: int
    started_at: str | None
    ended_at: str | None
    heartbeat_at: str | None
    progress: str | None
    error: str | None


@dataclass(frozen=True)
class RunRow:
    """What boards need of a run. `path` is that of its file under results/. Times of the score in nanoseconds."""

    id: str
    job_id: int
    submission_id: int
    attempt: int
    path: str
    verdict: str
    message: str
    unranked: str | None
    score_ns: float | None
    low_ns: float | None
    high_ns: float | None
    device: str
    device_name: str
    started_at: str
    ended_at: str

    @property
    def ranked(self) -> bool:
        """Whether the run itself can be ranked."""
        return self.verdict == "accepted" and self.score_ns is not None and self.unranked is None


@dataclass(frozen=True)
class TakenOff:
    """A run of a submission that was deleted or removed, and where its file lies under results/. `counts`: its author
    has judged the same bytes again in a submission that still stands, so that the run counts against them."""

    run: str
    path: str
    mode: Mode
    counts: bool


@dataclass(frozen=True)
class StateRow:
    """A change of a job's state."""

    at: str
    state: JobState
    attempt: int
    detail: str | None


@dataclass(frozen=True)
class InviteRow:
    """A code that lets one person into competitions; `user` has used it."""

    code: str
    competition: str
    created_at: str
    user: str | None
    used_at: str | None


def now() -> str:
    """The time, as the database holds it."""
    return stamp(datetime.now(UTC))


def stamp(time: datetime) -> str:
    """`time`, which knows its zone, as the database holds it."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")
