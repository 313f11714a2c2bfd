"""Taking submissions off the boards: by the author, or by an administrator with a reason that is shown.

The submission stays in the database. Its runs move from results/local to results/removed, which no board reads. Runs
that their author deleted stay in results/local, or return there, while another submission of the same bytes stands:
they count for it, so that nobody can delete a disqualification or bad luck.
"""

from __future__ import annotations

from pathlib import Path

from harness.errors import InfrastructureError, ProblemError
from harness.server import competition as competitions
from harness.server.serving import Denied
from harness.server.store import Database
from harness.server.store.rows import Mode

TIER = "removed"


def delete(database: Database, root: Path, submission: int) -> None:
    """Delete a submission for its author, so that nobody sees it. Raises Denied after the deadline, even if the
    competition was taken down; also DatabaseGone and InfrastructureError."""
    found = database.queue.submission(submission)
    if found is not None:
        _check_open(root, found.competition)
    database.queue.delete(submission)
    settle(database, root, submission)


def remove(database: Database, root: Path, submission: int, reason: str) -> None:
    """Remove a submission for an administrator, with all submissions of the same bytes to the competition. Everyone who
    looks for one sees the reason. Raises DatabaseGone and InfrastructureError."""
    database.queue.remove(submission, reason)
    settle(database, root, submission)


def settle(database: Database, root: Path, submission: int | None = None) -> None:
    """Move the runs of deleted and removed submissions to their places: for one submission's source, or all. Repeating
    it changes nothing. Raises DatabaseGone, and InfrastructureError if a file cannot be moved; the other files are
    moved."""
    fault: InfrastructureError | None = None
    for each in database.queue.taken_off(submission):
        tier, _, rest = each.path.partition("/")
        wanted = "local" if each.counts and each.mode is Mode.LEADERBOARD else TIER
        if tier == wanted:
            continue
        old, new = root / "results" / each.path, root / "results" / wanted / rest
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            if old.exists():
                old.replace(new)
        except OSError as error:
            fault = InfrastructureError(f"{old} cannot be moved to {new.parent}: {error.strerror}")
            continue
        database.queue.moved(each.run, f"{wanted}/{rest}")
    if fault is not None:
        raise fault


def _check_open(root: Path, name: str) -> None:
    try:
        competition = competitions.load(root, name)
    except ProblemError:
        raise Denied(503, f"whether {name} has closed is not known: its file cannot be read") from None
    if competition.over():
        raise Denied(403, f"{name} has closed: its board stays as it is")
