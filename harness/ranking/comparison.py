"""Compares two submissions, over all cases and case by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.command import typed
from harness.model import Case, ClockOwner, Measurement, Run, Verdict, outcome
from harness.ranking import stats
from harness.ranking.doubt import check_comparable, doubt, named_apart, names_of
from harness.ranking.fleet import Component, of_two_cards
from harness.ranking.speed import Noise, Speed, SpeedFinding, judge

ENVIRONMENT = ("podium", "python", "system", "cpus", "isolation", "driver", "cuda", "hip", "packages")
"""The entries of a run's environment that are reported if two runs differ in them."""


LEAST_PAIRS = 4
"""The fewest pairs for which a duel says FASTER or SLOWER. With fewer the spread is hardly known, and one disturbance
would affect half of the pairs."""


@dataclass(frozen=True)
class ComparedCase:
    """One benchmark case: both latencies in nanoseconds, and the finding. `labels`: the labels of either side."""

    case: Case
    a_ns: float
    b_ns: float
    labels: tuple[str, ...]
    finding: SpeedFinding


@dataclass(frozen=True)
class Comparison:
    """B against A, over all cases and case by case. `notes` list what else differs between the two. `a_run` and `b_run`
    are the ids of the two runs, if there are runs."""

    problem: str
    device: str
    a: str
    b: str
    a_ns: float | None
    b_ns: float | None
    finding: SpeedFinding
    cases: tuple[ComparedCase, ...]
    noise: Noise
    confidence: float
    notes: tuple[str, ...] = ()
    a_run: str | None = None
    b_run: str | None = None

    @property
    def names(self) -> tuple[str, str]:
        """Names for A and B that tell them apart."""
        return named_apart((self.a, self.b), (self.a_run, self.b_run))

    def slower_by(self, percent: float) -> bool:
        """True if B was found slower than A by more than `percent`."""
        ratio = self.finding.ratio
        return self.finding.speed is Speed.SLOWER and ratio is not None and ratio.value > 1 + percent / 100


@dataclass(frozen=True)
class PairedMeasurement:
    """One benchmark case in a duel. `a_samples_ns` and `b_samples_ns` hold the samples of A and of B for each worker
    pair, in nanoseconds, in the order they were taken."""

    case: Case
    a_samples_ns: tuple[tuple[float, ...], ...]
    b_samples_ns: tuple[tuple[float, ...], ...]
    labels: tuple[str, ...] = ()


def compare_runs(
    a: Run,
    b: Run,
    noise: Noise,
    confidence: float,
    rank_worker_timed: bool = False,
    between_cards: Component | None = None,
) -> Comparison:
    """Compare run `b` with run `a`. The finding is AMBIGUOUS if there is a `doubt` about either run. `between_cards`:
    what a card adds, if two cards judged the runs; the intervals then contain it.

    Raises UsageError if the two runs did not measure the same task.
    """
    check_comparable(a, b)
    doubts = [(name, doubt(run, rank_worker_timed)) for run, name in _named(a, b)]
    doubtful = "; ".join(f"{name} is not ranked, {why}" for name, why in doubts if why)
    theirs = {measurement.case.key: measurement for measurement in b.measurements}
    both = [(old, theirs[old.case.key]) for old in a.measurements if old.case.key in theirs]
    strict = _each_of(len(both), confidence)
    first = _first_processes(b), _first_processes(a)
    cases = []
    for old, new in both:
        ratio = stats.ratio_of_scores(_centres(new.samples_ns), _centres(old.samples_ns), strict, first)
        ratio = of_two_cards(ratio, between_cards, strict)
        labels = tuple(sorted({*old.labels, *new.labels}))
        finding = judge(ratio, noise, labels, doubtful)
        cases.append(ComparedCase(old.case, old.latency.latency_ns, new.latency.latency_ns, labels, finding))
    return Comparison(
        problem=a.problem,
        device=a.device.name,
        a=a.submission,
        b=b.submission,
        a_ns=a.score.latency_ns if a.score else None,
        b_ns=b.score.latency_ns if b.score else None,
        finding=_finding_of_runs(a, b, both, noise, confidence, doubtful, between_cards),
        cases=tuple(cases),
        noise=noise,
        confidence=confidence,
        notes=tuple(_differences(a, b, between_cards)),
        a_run=a.id,
        b_run=b.id,
    )


def compare_pairs(
    problem: str,
    device: str,
    names: tuple[str, str],
    measurements: Sequence[PairedMeasurement],
    noise: Noise,
    confidence: float,
    ranking: str = "geom",
) -> Comparison:
    """Compare the second of `names` with the first from a duel's samples: at least two pairs. AMBIGUOUS below
    LEAST_PAIRS pairs. `ranking`: which mean over the cases is the score."""
    pairs = len(measurements[0].a_samples_ns) if measurements else 0
    few = f"{pairs} pairs are too few for a finding, which needs {LEAST_PAIRS}" if pairs < LEAST_PAIRS else ""
    strict = _each_of(len(measurements), confidence)
    cases = []
    for measurement in measurements:
        old, new = _centres(measurement.a_samples_ns), _centres(measurement.b_samples_ns)
        finding = judge(stats.ratio_of_pairs(new, old, strict), noise, measurement.labels, few)
        compared = stats.geometric_mean(old), stats.geometric_mean(new)
        cases.append(ComparedCase(measurement.case, *compared, measurement.labels, finding))
    old, new = paired_scores(measurements, ranking)
    labels = tuple(sorted({label for measurement in measurements for label in measurement.labels}))
    return Comparison(
        problem=problem,
        device=device,
        a=names[0],
        b=names[1],
        a_ns=stats.geometric_mean(old),
        b_ns=stats.geometric_mean(new),
        finding=judge(stats.ratio_of_pairs(new, old, confidence), noise, labels, few),
        cases=tuple(cases),
        noise=noise,
        confidence=confidence,
    )


def paired_scores(measurements: Sequence[PairedMeasurement], ranking: str = "geom") -> tuple[list[float], list[float]]:
    """The scores of A and of B in each worker pair, in nanoseconds."""
    return (
        _scores([measurement.a_samples_ns for measurement in measurements], ranking),
        _scores([measurement.b_samples_ns for measurement in measurements], ranking),
    )


def _named(a: Run, b: Run) -> list[tuple[Run, str]]:
    """Both runs with their names. A run that is compared with itself appears once."""
    named = list(zip((a, b), names_of(a, b), strict=True))
    return named if a.id != b.id else named[1:]


def _finding_of_runs(
    a: Run,
    b: Run,
    both: Sequence[tuple[Measurement, Measurement]],
    noise: Noise,
    confidence: float,
    doubtful: str,
    between_cards: Component | None,
) -> SpeedFinding:
    """The finding over all cases, from the scores of the processes."""
    named = _named(a, b)
    for run, name in named:
        if run.ending.verdict is not Verdict.ACCEPTED:
            words = outcome(run.ending.verdict, run.unranked_because)
            return SpeedFinding(Speed.AMBIGUOUS, f"{name} has no score: {words}, {run.ending.message}")
    for run, name in named:
        if run.score is None:
            return SpeedFinding(Speed.AMBIGUOUS, f"{name} has no score: {run.unranked_because or 'not timed'}")
    if {m.case.key for m in a.measurements} != {m.case.key for m in b.measurements}:
        return SpeedFinding(Speed.AMBIGUOUS, "the two runs timed different cases")
    old, new = (_scores([pair[side].samples_ns for pair in both], a.ranking) for side in (0, 1))
    ratio = stats.ratio_of_scores(new, old, confidence, (_first_processes(b), _first_processes(a)))
    ratio = of_two_cards(ratio, between_cards, confidence)
    if a.problem_sha256 != b.problem_sha256:
        return SpeedFinding(
            Speed.AMBIGUOUS, "the problem's files changed between the runs, its revision did not", ratio
        )
    labels = sorted({label for pair in both for measurement in pair for label in measurement.labels})
    return judge(ratio, noise, labels, doubtful)


def _first_processes(run: Run) -> int | None:
    """The number of processes that `run` was to have before its spread could extend it. None if its configuration does
    not tell."""
    sampling = run.config.get("cpu" if run.device.kind == "cpu" else "gpu")
    processes = sampling.get("processes") if isinstance(sampling, dict) else None
    return processes if isinstance(processes, int) else None


def _each_of(cases: int, confidence: float) -> float:
    """The confidence that each single interval needs so that all `cases` intervals hold together with `confidence`.

    This is Bonferroni's correction. Without it, one of twenty equal cases would be called faster or slower.
    """
    return 1 - (1 - confidence) / max(cases, 1)


def _centres(samples_ns: Sequence[Sequence[float]]) -> list[float]:
    return [stats.interquartile_mean(samples) for samples in samples_ns]


def _scores(samples_ns: Sequence[Sequence[Sequence[float]]], ranking: str) -> list[float]:
    """The score of each process, from samples by case and process."""
    return [stats.centre_of_cases(process, ranking) for process in zip(*map(_centres, samples_ns), strict=True)]


def _differences(a: Run, b: Run, between_cards: Component | None) -> list[str]:
    """What differed between the two runs besides their sources."""
    old, new = ({**run.environment, **run.environment.get("packages", {})} for run in (a, b))
    packages = sorted({*a.environment.get("packages", {}), *b.environment.get("packages", {})})
    names = [name for name in ENVIRONMENT if name != "packages"] + packages
    found = [f"{name}: {_said(old, name)} and {_said(new, name)}" for name in names if old.get(name) != new.get(name)]
    if between_cards is not None:
        adds = f"the intervals contain what a card adds, a standard deviation of {between_cards.percent:.2g} %"
        duel = typed("compare", a.submission, b.submission, "--duel")
        found.append(f"two cards of one model judged them: {adds}. `{duel}` times both on one card")
    if a.config != b.config:
        found.append("configs/eval.yml was not the same")
    if a.submission_sha256 == b.submission_sha256:
        found.append("both runs are of the same source")
    if a.clock is ClockOwner.WORKER:
        found.append("worker-timed: the submissions' own processes timed both")
    return found


def _said(environment: Mapping[str, Any], name: str) -> str:
    return str(environment.get(name, "unknown"))
