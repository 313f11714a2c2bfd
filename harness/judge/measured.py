"""The results of a trial: the latency of each case with its floor and bound, the times that were subtracted, the
score."""

from __future__ import annotations

from collections.abc import Sequence

from harness.catalog.config import Sampling
from harness.judge import bounds, marks
from harness.judge.null_calls import constant
from harness.judge.reference import Reference
from harness.judge.trial import Timings, Trial
from harness.model import Constant, Device, Estimate, Manner, Measurement
from harness.ranking import roofline, stats


def measurement(
    timings: Timings, trial: Trial, reference: Reference, device: Device, confidence: float, sampling: Sampling
) -> Measurement:
    """The measurement of one benchmark case, over its processes."""
    centres = [stats.interquartile_mean(samples) for samples in timings.samples_ns]
    latency = stats.estimate(centres, confidence, sampling.processes)
    floor = roofline.floor(reference.cost(timings.case), device)
    pace, taken = timings.pace, trial.entrant.caller.constants
    copies = any(tolerance.bitwise for tolerance in reference.problem.tolerances_for(timings.case).values())
    return Measurement(
        case=timings.case,
        samples_ns=tuple(timings.samples_ns),
        latency=latency,
        floor=floor,
        labels=marks.labels(timings, trial, latency, floor, device, sampling.most_half_width),
        manner=pace.manner,
        bound_ns=bounds.of(pace, taken, device, latency.latency_ns, timings.sittings, copies),
        inside_ns=pace.inside_ns,
        voids={void.value: count for void, count in sorted(timings.voids.items())},
    )


def constants(trial: Trial) -> tuple[Constant, ...]:
    """The times that were subtracted: on a GPU measured once, on a CPU among the calls."""
    measured = tuple(trial.entrant.caller.constants.by_manner.values())
    null_ns = [ns for timings in trial.timings for sitting in timings.sittings for ns in sitting.null_ns]
    return measured or ((constant(Manner.STOPPED, null_ns),) if null_ns else ())


def score(measurements: Sequence[Measurement], confidence: float, first: int, ranking: str) -> Estimate:
    """The mean over the cases, as `ranking` defines it, with its interval over the processes."""
    centres = [[stats.interquartile_mean(samples) for samples in m.samples_ns] for m in measurements]
    processes = [stats.centre_of_cases(process, ranking) for process in zip(*centres, strict=True)]
    return stats.estimate(processes, confidence, first)
