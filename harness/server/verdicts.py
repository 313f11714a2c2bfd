"""What a run means to whoever submitted it: the job's state, and one sentence where it is not good news."""

from __future__ import annotations

import re

from harness.model import Run, Unranked, Verdict
from harness.server.store.rows import JobState, Mode, RunRow, SubmissionRow

_STATES = {
    Verdict.ACCEPTED: JobState.SUCCEEDED,
    Verdict.TIMEOUT: JobState.TIMED_OUT,
    Verdict.INTEGRITY_VIOLATION: JobState.HACKED,
}
LONGEST = 1000
_PLACE = re.compile(r"[a-z ]+, case \d+ of \d+")
UNRANKED = "right, not ranked"
"""What is said of a submission for the leaderboard that is accepted and has no rank."""


def state_of(run: Run) -> JobState:
    """Where a job is whose last run this is."""
    return _STATES.get(run.ending.verdict, JobState.FAILED)


def word_of(row: SubmissionRow, last: RunRow | None) -> str:
    """The state of a submission in a word, the same wherever it is told. `last`: its last run."""
    if row.removed_at is not None:
        return "removed"
    if row.state is JobState.SUCCEEDED and row.mode is Mode.LEADERBOARD and (last is None or not last.ranked):
        return UNRANKED
    return row.state.value.replace("_", " ")


def error_of(run: Run, mode: Mode) -> str | None:
    """Why the submission was not accepted or, of one for the leaderboard, is not ranked; None if neither."""
    if run.ending.verdict is not Verdict.ACCEPTED:
        return one_line(f"{run.ending.verdict.words}: {run.ending.message}")
    if mode is Mode.LEADERBOARD and not run.ranked:
        return one_line(f"{UNRANKED}: {why_unranked(run.unranked_because)}")
    return None


def why_unranked(because: str | None) -> str:
    """The reason in words."""
    try:
        return Unranked(because).why if because is not None else "it was not timed"
    except ValueError:
        return str(because)


def place(doing: str, done: float, total: int) -> str:
    """How far a job is, of which `done` of `total` cases are done."""
    return f"{doing}, case {min(int(done) + 1, total)} of {total}"


def progress_for_others(row: SubmissionRow) -> str:
    """How far a job is, and nothing else that its judge says: that may tell what is wrong with the submission."""
    said = row.progress or ""
    return said if _PLACE.fullmatch(said) else ""


def one_line(text: str) -> str:
    """`text` on one line, printable, and not endless."""
    flat = "".join(char if char.isprintable() else " " for char in text.replace("\0", ""))
    flat = " ".join(flat.split())
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
