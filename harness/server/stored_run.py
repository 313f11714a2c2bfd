"""The records of a judged job: the name of its run, the place of the run's file, and the run's row in the database."""

from __future__ import annotations

from harness.model import Run
from harness.server.store.rows import Mode, RunRow, SubmissionRow, now

TIERS = {mode: "local" if mode is Mode.LEADERBOARD else "trials" for mode in Mode}
"""The folder of results/ for the runs of each mode. Boards read `local` and `published`."""


def board_name(job: SubmissionRow) -> str:
    """Return the name on boards: the author and the file. So one person's file is one row, even if others use its
    name."""
    return f"{job.user}.{job.file_name.removesuffix('.py')}"


def run_id(job: SubmissionRow) -> str:
    """Return the run's id, made from job and attempt, in the usual form: when, which, what."""
    sent = job.submitted_at[:19].replace("-", "").replace(":", "")
    return f"{sent}-j{job.job_id}a{job.attempt}-{board_name(job)}"


def row_of(job: SubmissionRow, run: Run) -> RunRow:
    """Return the run's row for the database."""
    score = run.score
    return RunRow(
        id=run.id,
        job_id=job.job_id,
        submission_id=job.id,
        attempt=job.attempt,
        path=f"{TIERS[job.mode]}/{run.problem}/{run.device.slug}/{run.id}.json",
        verdict=run.ending.verdict.value,
        message=run.ending.message.replace("\0", ""),
        unranked=run.unranked_because,
        score_ns=score.latency_ns if score else None,
        low_ns=score.low_ns if score else None,
        high_ns=score.high_ns if score else None,
        device=run.device.slug,
        device_name=run.device.name,
        started_at=run.started_at,
        ended_at=now(),
    )
