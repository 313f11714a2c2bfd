"""A run as boards see it, and the choice of the run that stands for a submission."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.model import Case, ClockOwner, Problem, Run, Unranked, Verdict


@dataclass(frozen=True)
class Entry:
    """The facts of a run that boards need. Times are in nanoseconds; `started_at` is ISO 8601, UTC. `runs`: for a
    ranked run, the number of ranked runs of its source; else the number of its runs except first looks (`--quick`).
    `floor_format`: the storage formats whose floors make up `floor_ns`.

    `older`: other files than the problem's present ones judged the run. It is set only if the problem was at hand.
    `older_source`: the judged file holds another source now. It is set only by `Store.mark_sources`. `unranked`: the
    run's own reason; a board may add more (see `ranking`). `flags`: the scanner rules that its source broke (see
    `triage`). `speed_up`: over the fastest baseline that was timed in turns with the submission.

    `card`: the card that judged the run, if it says. `freedom`: the degrees of freedom of the score's interval.
    `confidence`: that of the interval. `widened`: the interval contains what the card adds; a board sets it.
    """

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
    card: str | None = None
    freedom: int = 1
    confidence: float = 0.95
    runs: int = 1
    older: bool = False
    older_source: bool = False
    widened: bool = False

    @property
    def ranked(self) -> bool:
        """True if a board of the run's clock and revision ranks it."""
        return self.verdict is Verdict.ACCEPTED and self.score_ns is not None and self.unranked is None

    @property
    def worker_timed(self) -> bool:
        """True if it was timed, and by the submission's own process."""
        return self.score_ns is not None and self.clock is ClockOwner.WORKER


@dataclass(frozen=True)
class CaseFigures:
    """A run's figures for one case, without its samples. Times are in nanoseconds; `floor_ns` is the floor of
    `format`."""

    case: Case
    latency_ns: float
    low_ns: float | None
    high_ns: float | None
    floor_ns: float | None
    format: str | None
    labels: tuple[str, ...]


def figures_of(run: Run) -> tuple[CaseFigures, ...]:
    """The figures of each timed case, in the order of the run."""
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
        # The same mean of the floors as of the latencies: see `of_limit`.
        floor_ns=_mean(floors, run.ranking) if complete else None,
        floor_format=", ".join(sorted({m.floor.format for m in run.measurements if m.floor is not None})) or None,
        isolation=run.environment.get("isolation"),
        flags=", ".join(sorted({found.rule for found in run.triage if found.flagged})) or None,
        submission_path=run.submission_path,
        speed_up=run.speed_up,
        card=card_of(run),
        freedom=freedom_of(run),
        confidence=confidence_of(run),
    )


def card_of(run: Run) -> str | None:
    """The card that judged the run: its UUID, or its name in the cluster. None if the run does not say. Processors are
    no cards."""
    in_cluster = _told(run, "cluster", "card") if run.device.kind != "cpu" else None
    return _told(run, "gpu", "uuid") or in_cluster


def freedom_of(run: Run) -> int:
    """The degrees of freedom of the score's interval. They follow from the planned processes, whatever happened
    later."""
    sampling = run.config.get("cpu" if run.device.kind == "cpu" else "gpu")
    asked = sampling.get("processes") if isinstance(sampling, dict) else None
    had: Sequence[object] = run.measurements[0].samples_ns if run.measurements else ()
    processes = min(asked, len(had)) if isinstance(asked, int) else len(had)
    return max(processes - 1, 1)


def confidence_of(run: Run) -> float:
    found = run.config.get("confidence")
    return found if isinstance(found, float) and 0 < found < 1 else 0.95


def _told(run: Run, source: str, name: str) -> str | None:
    told = run.environment.get(source)
    found = told.get(name) if isinstance(told, dict) else None
    return found if isinstance(found, str) else None


def _mean(floors_ns: Sequence[float], ranking: str) -> float:
    if ranking == "mean":
        return sum(floors_ns) / len(floors_ns)
    return math.exp(sum(map(math.log, floors_ns)) / len(floors_ns))


def of_present(entry: Entry, problem: Problem) -> Entry:
    """`entry`, marked as `older` unless the present files of `problem` judged it."""
    older = (entry.revision, entry.problem_sha256) != (problem.revision, problem.sha256)
    return replace(entry, older=older)


def standing(runs: Sequence[Entry]) -> Entry:
    """Choose the run that stands for one submission on a board from all its runs there. The result's `runs` counts
    them.

    For the latest source this is the ranked run with the median score (the slower of two middles), so judging again
    until lucky gains nothing. Runs timed by the judge are preferred to worker-timed ones. A source that was ever found
    wrong or dishonest is represented by that run. A source without ranked runs is represented by its latest run; a
    first look (`--quick`) only if there is no other.

    Reproducing a run of an old source does not make it the latest source. Neither does an accepted first look, if an
    earlier source was accepted in full.
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
    """The sha256 of the source that stands for a submission. `in_order`: its runs, the latest last."""
    last = in_order[-1].sha256
    if any(not _is_accepted_look(run) for run in in_order if run.sha256 == last):
        return last
    whole = next((run for run in reversed(in_order) if not _is_accepted_look(run)), None)
    if whole is None or any(run.verdict is not Verdict.ACCEPTED for run in in_order if run.sha256 == whole.sha256):
        return last
    return whole.sha256


def _is_accepted_look(run: Entry) -> bool:
    return run.unranked == Unranked.QUICK and run.verdict is Verdict.ACCEPTED
