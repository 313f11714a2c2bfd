"""The reasons not to compare two runs: other tasks or devices, or times that are not to be trusted."""

from __future__ import annotations

from harness.errors import UsageError
from harness.model import ClockOwner, Run, Unranked

ITSELF = "itself"


def check_of_one_problem(a: Run, b: Run) -> None:
    """Raises UsageError if the runs are of two problems. Not even a duel can compare those."""
    if a.problem != b.problem:
        old, new = names_of(a, b)
        raise UsageError(f"{old} is a run of {a.problem}, {new} of {b.problem}: compare runs of one problem")


def check_comparable(a: Run, b: Run) -> None:
    """Raises UsageError with the reason if these two runs cannot be compared."""
    check_of_one_problem(a, b)
    old, new = names_of(a, b)
    if a.problem_revision != b.problem_revision:
        what = f"revision {a.problem_revision} of {a.problem}, {new} one of revision {b.problem_revision}"
        raise UsageError(f"{old} is a run of {what}: they are different tasks", "judge the older one again")
    if a.score and b.score and a.clock is not b.clock:
        judged, other = (old, new) if a.clock is ClockOwner.JUDGE else (new, old)
        what = f"the judge timed {judged}, the submission's own process timed {other}"
        raise UsageError(f"{what}: such times are not compared", f"judge {other} again")
    if a.device.slug != b.device.slug:
        where = f"{old} ran on {a.device.name}, {new} on {b.device.name}"
        raise UsageError(f"{where}: their latencies say nothing about the sources", "judge both on one device")


def doubt(run: Run, rank_worker_timed: bool = False) -> str | None:
    """The reason not to trust the times of `run`, in words. None if they are sound.

    A reason that this version of Podium does not know counts too. Times of a run with skipped cases are sound. Times
    that the worker took are sound only if the configuration says `rank_worker_timed`.
    """
    reason = run.unranked_because
    if reason in (None, Unranked.SKIPPED, Unranked.WORKER_TIMED):
        if run.clock is ClockOwner.JUDGE or run.score is None or rank_worker_timed:
            return None
        reason = Unranked.WORKER_TIMED
    return f"{reason}: {reason.why}" if isinstance(reason, Unranked) else reason


def named_apart(names: tuple[str, str], runs: tuple[str | None, str | None]) -> tuple[str, str]:
    """Names that tell two submissions apart. Two versions of one submission get the ids of their runs added. If a run
    is compared with itself, the first name is `itself`."""
    (a, b), (a_run, b_run) = names, runs
    if a_run is not None and a_run == b_run:
        return ITSELF, f"{b} ({b_run})"
    return names if a != b or a_run == b_run else (f"{a} ({a_run})", f"{b} ({b_run})")


def names_of(a: Run, b: Run) -> tuple[str, str]:
    """Names for the submissions of two runs."""
    return named_apart((a.submission, b.submission), (a.id, b.id))
