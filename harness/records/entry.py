"""A run as boards see it, and which of a submission's runs stands for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.model import Case, ClockOwner, Problem, Run, Unranked, Verdict


@dataclass(frozen=True)
class Entry:
    """A run as boards need it. Times in nanoseconds; `started_at` in ISO 8601, UTC; `runs` counts the ranked runs of
    its source if it is one, else all of them but first looks (`--quick`). `floor_format` names the formats whose floors
    `floor_ns` is made of.

    `older`: not the problem's present files judged it, as far as the problem was at hand. `older_source`: the file that
    it judged holds another source now, as far as somebody looked (`Store.mark_sources`). `unranked` is the reason that
    the run itself has; a board has more (see `ranking`). `flags` are the rules of a scanner that its source broke; see
    `triage`. `speed_up`: over the fastest of the baselines that were timed in turns with it."""

    id: str
    path: str
    problem: str
    revision: int
    problem_sha256: str
    device: str
    device_name: str
    submission: str
    sha256: str
    started_at: str
    verdict: Verdict
    message: str
    clock: ClockOwner
    unranked: str | None
    tolerance: str | None
    error: float | None
    score_ns: float | None
    low_ns: float | None
    high_ns: float | None
    floor_ns: float | None
    floor_format: str | None = None
    isolation: str | None = None
    flags: str | None = None
    submission_path: str = ""
    speed_up: float | None = None
    runs: int = 1
    older: bool = False
    older_source: bool = False

    @property
    def ranked(self) -> bool:
        """Whether it is, on a board of its clock and of its revision of the problem."""
        return self.verdict is Verdict.ACCEPTED and self.score_ns is not None and self.unranked is None

    @property
    def worker_timed(self) -> bool:
        """Whether it was timed, and by the submission's own process."""
        return self.score_ns is not None and self.clock is ClockOwner.WORKER


@dataclass(frozen=True)
class CaseFigures:
    """What a run measured on one case, without its samples. Times in nanoseconds; `floor_ns` is that of `format`."""

    case: Case
    latency_ns: float
    low_ns: float | None
    high_ns: float | None
    floor_ns: float | None
    format: str | None
    labels: tuple[str, ...]


def figures_of(run: Run) -> tuple[CaseFigures, ...]:
    """Of each case that was timed, in the order of the run."""
    return tuple(
        CaseFigures(
            case=m.case,
            latency_ns=m.latency.latency_ns,
            low_ns=m.latency.low_ns,
            high_ns=m.latency.high_ns,
            floor_ns=m.floor.latency_ns if m.floor else None,
            format=m.floor.format if m.floor else None,
            labels=m.labels,
        )
        for m in run.measurements
    )


def of_run(path: str, run: Run) -> Entry:
    """The entry of `run`, whose file lies at `path` under `results`."""
    floors = [m.floor.latency_ns for m in run.measurements if m.floor is not None]
    complete = bool(floors) and len(floors) == len(run.measurements)
    score = run.score
    return Entry(
        id=run.id,
        path=path,
        problem=run.problem,
        revision=run.problem_revision,
        problem_sha256=run.problem_sha256,
        device=run.device.slug,
        device_name=run.device.name,
        submission=run.submission,
        sha256=run.submission_sha256,
        started_at=run.started_at,
        verdict=run.ending.verdict,
        message=run.ending.message,
        clock=run.clock,
        unranked=None if run.unranked_because == Unranked.WORKER_TIMED else run.unranked_because,  # `clock` says it
        tolerance=run.tolerance,
        error=run.error,
        score_ns=score.latency_ns if score else None,
        low_ns=score.low_ns if score else None,
        high_ns=score.high_ns if score else None,
        # Of the floors the same mean as of the latencies: see `of_limit`.
        floor_ns=_mean(floors, run.ranking) if complete else None,
        floor_format=", ".join(sorted({m.floor.format for m in run.measurements if m.floor is not None})) or None,
        isolation=run.environment.get("isolation"),
        flags=", ".join(sorted({found.rule for found in run.triage if found.flagged})) or None,
        submission_path=run.submission_path,
        speed_up=run.speed_up,
    )


def _mean(floors_ns: Sequence[float], ranking: str) -> float:
    if ranking == "mean":
        return sum(floors_ns) / len(floors_ns)
    return math.exp(sum(map(math.log, floors_ns)) / len(floors_ns))


def of_present(entry: Entry, problem: Problem) -> Entry:
    """`entry`, marked as `older` unless the present files of `problem` judged it."""
    older = (entry.revision, entry.problem_sha256) != (problem.revision, problem.sha256)
    return replace(entry, older=older)


def standing(runs: Sequence[Entry]) -> Entry:
    """The run that stands for one submission on a board, of all its runs there; `runs` says of how many.

    Of its latest source: the run with the median score among the ranked ones (the slower of two middles), so that
    judging again until lucky gains nothing; those that the judge timed come before all that the worker timed. A source
    that was ever found wrong or dishonest shows that run instead, and one without ranked runs its latest, a first look
    (`--quick`) only where there is no other. An old source whose run was reproduced does not become the latest by that,
    nor does a source that only first looks accepted, where an earlier one was accepted in full.
    """
    in_order = sorted(runs, key=lambda run: (run.started_at, run.id))
    first_hand = [run for run in in_order if run.unranked != Unranked.REPRODUCED] or in_order
    latest = _latest_source(first_hand)
    source = [run for run in in_order if run.sha256 == latest]
    disqualifying = [run for run in source if run.verdict.disqualifies]
    ranked = sorted((run for run in source if run.ranked), key=lambda run: (run.score_ns or 0.0, run.id))
    ranked = [run for run in ranked if run.clock is ClockOwner.JUDGE] or ranked
    if disqualifying:
        chosen = disqualifying[-1]
    elif ranked:
        chosen = ranked[len(ranked) // 2]
    else:
        of_latest = [run for run in first_hand if run.sha256 == latest]
        chosen = max(of_latest, key=lambda run: (run.unranked != Unranked.QUICK, run.started_at, run.id))
    whole = [run for run in source if run.unranked != Unranked.QUICK]
    return replace(chosen, runs=len(ranked if chosen.ranked else whole))


def _latest_source(in_order: Sequence[Entry]) -> str:
    """The sha256 of the source that stands for a submission with these runs, the latest last."""
    last = in_order[-1].sha256
    if any(not _is_accepted_look(run) for run in in_order if run.sha256 == last):
        return last
    whole = next((run for run in reversed(in_order) if not _is_accepted_look(run)), None)
    if whole is None or any(run.verdict is not Verdict.ACCEPTED for run in in_order if run.sha256 == whole.sha256):
        return last
    return whole.sha256


def _is_accepted_look(run: Entry) -> bool:
    return run.unranked == Unranked.QUICK and run.verdict is Verdict.ACCEPTED
