"""The database's content as values: accounts, submissions with their jobs, runs. Times are ISO 8601 in UTC."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime


class JobState(enum.StrEnum):
    """The state of a job, in popcorn-cli's words."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    HACKED = "hacked"

    @property
    def over(self) -> bool:
        """Whether the state is final."""
        return self not in (JobState.PENDING, JobState.RUNNING)


class Mode(enum.StrEnum):
    """The mode of a submission: test judges the test cases, benchmark is a quick run, leaderboard can be ranked,
    profile shows where the time goes."""

    TEST = "test"
    BENCHMARK = "benchmark"
    LEADERBOARD = "leaderboard"
    PROFILE = "profile"


@dataclass(frozen=True)
class Account:
    """A person who may submit. `blocked_because`: set if an administrator has blocked the account."""

    id: int
    name: str
    created_at: str
    blocked_because: str | None = None


@dataclass(frozen=True)
class PendingClient:
    """A client that has registered and waits for approval. `fingerprint`: the beginning of its id's hash."""

    fingerprint: str
    provider: str
    created_at: str


@dataclass(frozen=True)
class SubmissionRow:
    """A submission with its job, without its source, which `Queue.source` reads.

    `job_id`, `attempt`, `state` and the fields after them belong to the job. `error`: one sentence, if the job did not
    succeed. `removed_because`: the administrator's reason, if the submission was removed.
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
    """The facts of a run that boards need. `path`: its file under results/. Scores are in nanoseconds."""

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
    """A run of a deleted or removed submission, and its file under results/. `counts`: its author has a judged
    submission of the same bytes that still stands, so the run counts for that one."""

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
    """A code that admits one person to competitions. `user`: the person who has used it."""

    code: str
    competition: str
    created_at: str
    user: str | None
    used_at: str | None


def now() -> str:
    """Return the time in the database's form."""
    return stamp(datetime.now(UTC))


def stamp(time: datetime) -> str:
    """Return `time`, which must have a time zone, in the database's form."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")
