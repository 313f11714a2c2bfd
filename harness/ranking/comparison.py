"""Two submissions held against each other: is B faster than A, slower, the same, or can that not be said?

    two stored runs      ─► compare_runs  ─┐  ratio B / A of each case and of the scores, with intervals
    a duel's worker pairs ─► compare_pairs ─┴► FASTER | SLOWER | SAME | AMBIGUOUS, each with its reason

        -noise      0      +noise          log(B / A)
           │   ├──┼──┤       │             SAME        the interval lies within the noise
           │        │   ├────┼──●───┤      SLOWER      the interval excludes 0, its centre is beyond the noise
           │   ├────────●────┼──┤          AMBIGUOUS   anything else

The noise is how far apart this device finds a source from itself (`calibration`). Nothing here reads or measures.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError
from harness.model import (
    Case,
    ClockOwner,
    Label,
    Measurement,
    Run,
    Unranked,
    Verdict,
    outcome,
)
from harness.ranking import stats
from harness.ranking.stats import Ratio

ENVIRONMENT = ("podium", "python", "system", "cpus", "isolation", "driver", "cuda", "hip", "packages")
"""What of a run's environment is said where two runs differ in it."""

DOUBTFUL_LABELS = (Label.HOST_BOUND, Label.VOIDED, Label.CROWDED)
"""Cases with one of these are called faster or slower, but never the same."""


class Speed(enum.StrEnum):
    """What can be said of B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Noise:
    """How far from 0 the log-ratio of a source to itself reaches on a device; `source` says where that is from."""

    log_ratio: float
    calibrated: bool
    source: str

    @property
    def percent(self) -> float:
        return 100 * math.expm1(self.log_ratio)


@dataclass(frozen=True)
class SpeedFinding:
    """B's latency over A's, what that means, and why. No ratio where one of them has no latency."""

    speed: Speed
    reason: str
    ratio: Ratio | None = None


@dataclass(frozen=True)
class ComparedCase:
    """One benchmark case: both latencies in nanoseconds, and the finding. `labels` are those that either bore."""

    case: Case
    a_ns: float
    b_ns: float
    labels: tuple[str, ...]
    finding: SpeedFinding


@dataclass(frozen=True)
class Comparison:
    """B against A, over all cases and case by case. `notes` say what else differs between the two; `a_run` and `b_run`
    are the ids of the runs whose sources these are, where there are runs."""

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
        """What to call A and B."""
        return named_apart((self.a, self.b), (self.a_run, self.b_run))

    def slower_by(self, percent: float) -> bool:
        """Whether B was found slower than A, and by more than `percent`."""
        ratio = self.finding.ratio
        return self.finding.speed is Speed.SLOWER and ratio is not None and ratio.value > 1 + percent / 100


@dataclass(frozen=True)
class PairedMeasurement:
    """One benchmark case in a duel: of each worker pair the samples of A and of B, in nanoseconds, in their order."""

    case: Case
    a_samples_ns: tuple[tuple[float, ...], ...]
    b_samples_ns: tuple[tuple[float, ...], ...]
    labels: tuple[str, ...] = ()


def named_apart(names: tuple[str, str], runs: tuple[str | None, str | None]) -> tuple[str, str]:
    """The names of two submissions; of two versions of one, each with the id of its run."""
    (a, b), (a_run, b_run) = names, runs
    return names if a != b or a_run == b_run else (f"{a} ({a_run})", f"{b} ({b_run})")


def names_of(a: Run, b: Run) -> tuple[str, str]:
    """What to call the submissions of two runs."""
    return named_apart((a.submission, b.submission), (a.id, b.id))


def compare_runs(a: Run, b: Run, noise: Noise, confidence: float, rank_worker_timed: bool = False) -> Comparison:
    """The run `b` against the run `a`: AMBIGUOUS wherever there is a `doubt` about one of them.

    Raises UsageError where they are no measurements of the same thing.
    """
    check_comparable(a, b)
    doubts = [(name, doubt(run, rank_worker_timed)) for run, name in zip((a, b), names_of(a, b), strict=True)]
    doubtful = "; ".join(f"{name} is not ranked, {why}" for name, why in doubts if why)
    theirs = {measurement.case.key: measurement for measurement in b.measurements}
    both = [(old, theirs[old.case.key]) for old in a.measurements if old.case.key in theirs]
    strict = _each_of(len(both), confidence)
    first = _first_processes(b), _first_processes(a)
    cases = []
    for old, new in both:
        ratio = stats.ratio_of_scores(_centres(new.samples_ns), _centres(old.samples_ns), strict, first)
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
        finding=_finding_of_runs(a, b, both, noise, confidence, doubtful),
        cases=tuple(cases),
        noise=noise,
        confidence=confidence,
        notes=tuple(_differences(a, b)),
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
) -> Comparison:
    """The second of `names` against the first, from a duel's samples, at least two pairs of them."""
    strict = _each_of(len(measurements), confidence)
    cases = []
    for measurement in measurements:
        old, new = _centres(measurement.a_samples_ns), _centres(measurement.b_samples_ns)
        finding = judge(stats.ratio_of_pairs(new, old, strict), noise, measurement.labels)
        compared = stats.geometric_mean(old), stats.geometric_mean(new)
        cases.append(ComparedCase(measurement.case, *compared, measurement.labels, finding))
    old, new = paired_scores(measurements)
    labels = tuple(sorted({label for measurement in measurements for label in measurement.labels}))
    return Comparison(
        problem=problem,
        device=device,
        a=names[0],
        b=names[1],
        a_ns=stats.geometric_mean(old),
        b_ns=stats.geometric_mean(new),
        finding=judge(stats.ratio_of_pairs(new, old, confidence), noise, labels),
        cases=tuple(cases),
        noise=noise,
        confidence=confidence,
    )


def paired_scores(measurements: Sequence[PairedMeasurement]) -> tuple[list[float], list[float]]:
    """The scores of A and of B in each worker pair, in nanoseconds."""
    return (
        _scores([measurement.a_samples_ns for measurement in measurements]),
        _scores([measurement.b_samples_ns for measurement in measurements]),
    )


def doubt(run: Run, rank_worker_timed: bool = False) -> str | None:
    """Why the times of `run` are not to be trusted, in words; None where nothing speaks against them.

    A reason that this Podium does not know is one not to trust them. Those of a run with skipped cases are sound, and
    those that the worker took are where the configuration says `rank_worker_timed`.
    """
    reason = run.unranked_because
    if reason in (None, Unranked.SKIPPED, Unranked.WORKER_TIMED):
        if run.clock is ClockOwner.JUDGE or run.score is None or rank_worker_timed:
            return None
        reason = Unranked.WORKER_TIMED
    return f"{reason}: {reason.why}" if isinstance(reason, Unranked) else reason


def judge(ratio: Ratio, noise: Noise, labels: Sequence[str] = (), doubtful: str = "") -> SpeedFinding:
    """What the ratio B / A means where a source differs from itself by up to `noise`. `doubtful` says why nothing can
    be said of it, if so."""
    if ratio.low is None or ratio.high is None:
        return SpeedFinding(
            Speed.AMBIGUOUS,
            "too few processes: an interval needs two of each run, and a `--quick` run has one",
            ratio,
        )
    band = f"the noise, ±{noise.percent:.2g}\N{NO-BREAK SPACE}%"
    if doubtful:
        return SpeedFinding(Speed.AMBIGUOUS, doubtful, ratio)
    difference, interval = _signed(ratio.value), _between(ratio.low, ratio.high)
    if abs(math.log(ratio.value)) > noise.log_ratio and (ratio.low > 1 or ratio.high < 1):
        speed = Speed.SLOWER if ratio.value > 1 else Speed.FASTER
        reason = f"{difference} in latency is beyond {band}, and its interval, {interval}, excludes equality"
        return SpeedFinding(speed, reason, ratio)
    if doubts := [f"{label}: {label.why}" for label in DOUBTFUL_LABELS if label in labels]:
        return SpeedFinding(Speed.AMBIGUOUS, "; ".join(doubts), ratio)
    if max(-math.log(ratio.low), math.log(ratio.high)) <= noise.log_ratio:
        return SpeedFinding(Speed.SAME, f"the interval, {interval}, lies within {band}", ratio)
    if ratio.low <= 1 <= ratio.high:
        return SpeedFinding(
            Speed.AMBIGUOUS, f"the interval, {interval}, holds equality and reaches beyond {band}", ratio
        )
    return SpeedFinding(Speed.AMBIGUOUS, f"{difference} is within {band}, but its interval, {interval}, is not", ratio)


def check_of_one_problem(a: Run, b: Run) -> None:
    """Raises UsageError if these are runs of two problems, which not even a duel can compare."""
    if a.problem != b.problem:
        old, new = names_of(a, b)
        raise UsageError(f"{old} is a run of {a.problem}, {new} of {b.problem}: compare runs of one problem")


def check_comparable(a: Run, b: Run) -> None:
    """Raises UsageError saying why these two runs cannot be compared."""
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


def _finding_of_runs(
    a: Run, b: Run, both: Sequence[tuple[Measurement, Measurement]], noise: Noise, confidence: float, doubtful: str
) -> SpeedFinding:
    """The finding over all cases: from the scores of the processes."""
    for run, name in zip((a, b), names_of(a, b), strict=True):
        if run.ending.verdict is not Verdict.ACCEPTED:
            words = outcome(run.ending.verdict, run.unranked_because)
            return SpeedFinding(Speed.AMBIGUOUS, f"{name} has no score: {words}, {run.ending.message}")
        if run.score is None:
            return SpeedFinding(Speed.AMBIGUOUS, f"{name} has no score: {run.unranked_because or 'not timed'}")
    if {m.case.key for m in a.measurements} != {m.case.key for m in b.measurements}:
        return SpeedFinding(Speed.AMBIGUOUS, "not the same cases were timed in both runs")
    old, new = (_scores([pair[side].samples_ns for pair in both]) for side in (0, 1))
    ratio = stats.ratio_of_scores(new, old, confidence, (_first_processes(b), _first_processes(a)))
    if a.problem_sha256 != b.problem_sha256:
        return SpeedFinding(
            Speed.AMBIGUOUS, "the problem's files changed between the runs, its revision did not", ratio
        )
    labels = sorted({label for pair in both for measurement in pair for label in measurement.labels})
    return judge(ratio, noise, labels, doubtful)


def _first_processes(run: Run) -> int | None:
    """How many processes `run` was to have, whatever they said; None where its configuration does not tell."""
    sampling = run.config.get("cpu" if run.device.kind == "cpu" else "gpu")
    processes = sampling.get("processes") if isinstance(sampling, dict) else None
    return processes if isinstance(processes, int) else None


def _each_of(cases: int, confidence: float) -> float:
    """The confidence of one interval for which all `cases` of them hold with `confidence`.

    Bonferroni's correction: without it one of twenty equal cases would be called faster or slower.
    """
    return 1 - (1 - confidence) / max(cases, 1)


def _centres(samples_ns: Sequence[Sequence[float]]) -> list[float]:
    return [stats.interquartile_mean(samples) for samples in samples_ns]


def _scores(samples_ns: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Of samples by case and process: each process's score."""
    return [stats.geometric_mean(process) for process in zip(*map(_centres, samples_ns), strict=True)]


def _differences(a: Run, b: Run) -> list[str]:
    """What was not the same when the two were judged, other than their sources."""
    old, new = ({**run.environment, **run.environment.get("packages", {})} for run in (a, b))
    packages = sorted({*a.environment.get("packages", {}), *b.environment.get("packages", {})})
    names = [name for name in ENVIRONMENT if name != "packages"] + packages
    found = [f"{name}: {_said(old, name)} and {_said(new, name)}" for name in names if old.get(name) != new.get(name)]
    if a.config != b.config:
        found.append("configs/eval.yml was not the same")
    if a.submission_sha256 == b.submission_sha256:
        found.append("both runs are of the same source")
    if a.clock is ClockOwner.WORKER:
        found.append("worker-timed: the submissions' own processes timed both")
    return found


def _said(environment: Mapping[str, Any], name: str) -> str:
    return str(environment.get(name, "unknown"))


def _between(low: float, high: float) -> str:
    """Both ends of an interval: factors if either takes one, since `÷2.4 to -21 %` is hard to picture."""
    factors = _takes_factor(low) or _takes_factor(high)
    return " to ".join(_factor(end) if factors else _signed(end) for end in (low, high))


def _takes_factor(ratio: float) -> bool:
    return not 0.5 <= ratio <= 2


def _factor(ratio: float) -> str:
    return f"×{ratio:.3g}" if ratio >= 1 else f"÷{1 / ratio:.3g}"


def _signed(ratio: float) -> str:
    """`+3.1 %` for 1.031; `×9.7` and `÷9.7` beyond twice as long or short."""
    if _takes_factor(ratio):
        return _factor(ratio)
    percent = 100 * (ratio - 1)
    return f"{percent:+.{0 if abs(percent) >= 10 else 2}{'f' if abs(percent) >= 10 else 'g'}}\N{NO-BREAK SPACE}%"
