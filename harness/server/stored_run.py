"""What is kept of a job that was judged: what its run is called, where its file lies, its row in the database."""

from __future__ import annotations

from harness.model import Run
from harness.server.store.rows import Mode, RunRow, SubmissionRow, now

TIERS = {mode: "local" if mode is Mode.LEADERBOARD else "trials" for mode in Mode}
"""Of results/: where a mode's runs are stored. Boards read `local` and `published`."""


def board_name(job: SubmissionRow) -> str:
    """What boards call it: the author and the file. One person's file is one row, whatever others call theirs."""
    return f"{job.user}.{job.file_name.removesuffix('.py')}"


def run_id(job: SubmissionRow) -> str:
    """Made of job and attempt, in the form of all ids: when, which, what."""
    sent = job.submitted_at[:19].replace("-", "").replace(":", "")
    return f"{sent}-j{job.job_id}a{job.attempt}-{board_name(job)}"


def row_of(job: SubmissionRow, run: Run) -> RunRow:
    """What the database keeps of a run."""
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
