"""What a run means to whoever submitted it: the job's state, and one sentence where it is not good news."""

from __future__ import annotations

from harness.model import Run, Unranked, Verdict
from harness.server.store.rows import JobState, Mode

_STATES = {
    Verdict.ACCEPTED: JobState.SUCCEEDED,
    Verdict.TIMEOUT: JobState.TIMED_OUT,
    Verdict.INTEGRITY_VIOLATION: JobState.HACKED,
}
LONGEST = 1000


def state_of(run: Run) -> JobState:
    """Where a job is whose last run this is."""
    return _STATES.get(run.ending.verdict, JobState.FAILED)


def error_of(run: Run, mode: Mode) -> str | None:
    """Why the submission was not accepted or, of one for the leaderboard, is not ranked; None if neither."""
    if run.ending.verdict is not Verdict.ACCEPTED:
        return one_line(f"{run.ending.verdict.words}: {run.ending.message}")
    if mode is Mode.LEADERBOARD and not run.ranked:
        return one_line(f"right, but not ranked: {why_unranked(run.unranked_because)}")
    return None


def why_unranked(because: str | None) -> str:
    """The reason in words."""
    try:
        return Unranked(because).why if because is not None else "it was not timed"
    except ValueError:
        return str(because)


def one_line(text: str) -> str:
    """`text` on one line, printable, and not endless."""
    flat = "".join(char if char.isprintable() else " " for char in text.replace("\0", ""))
    flat = " ".join(flat.split())
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
