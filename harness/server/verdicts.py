"""A run's result for its author: the job's state, and one sentence if the result is not good."""

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
"""The state of a leaderboard submission that is accepted but has no rank."""


def state_of(run: Run) -> JobState:
    """Return the job's state after this last run."""
    return _STATES.get(run.ending.verdict, JobState.FAILED)


def word_of(row: SubmissionRow, last: RunRow | None) -> str:
    """Return the state of a submission in a word or two, the same everywhere. `last`: its last run."""
    if row.removed_at is not None:
        return "removed"
    if row.state is JobState.SUCCEEDED and row.mode is Mode.LEADERBOARD and (last is None or not last.ranked):
        return UNRANKED
    return row.state.value.replace("_", " ")


def error_of(run: Run, mode: Mode) -> str | None:
    """Return why the submission was not accepted or, for the leaderboard, is not ranked. None if neither."""
    if run.ending.verdict is not Verdict.ACCEPTED:
        return one_line(f"{run.ending.verdict.words}: {run.ending.message}")
    if mode is Mode.LEADERBOARD and not run.ranked:
        return one_line(f"{UNRANKED}: {why_unranked(run.unranked_because)}")
    return None


def why_unranked(because: str | None) -> str:
    """Return the reason in words."""
    try:
        return Unranked(because).why if because is not None else "it was not timed"
    except ValueError:
        return str(because)


def place(doing: str, done: float, total: int) -> str:
    """Return a job's progress: `done` of `total` cases are done."""
    return f"{doing}, case {min(int(done) + 1, total)} of {total}"


def progress_for_others(row: SubmissionRow) -> str:
    """Return only how far a job is. The judge's other words may tell what is wrong with the submission."""
    said = row.progress or ""
    return said if _PLACE.fullmatch(said) else ""


def one_line(text: str) -> str:
    """Return `text` on one line, printable and of limited length."""
    flat = "".join(char if char.isprintable() else " " for char in text.replace("\0", ""))
    flat = " ".join(flat.split())
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
