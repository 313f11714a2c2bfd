"""One evaluation: from a submission to a run, which says what happened whatever the submission does."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from harness import environment, roofline, stats
from harness.config import EvalConfig
from harness.judge.inputs import OneSeed, Reference
from harness.judge.session import Fault
from harness.judge.trial import Narrate, Timings, Trial
from harness.model import (
    UNJUDGED,
    Case,
    CaseCheck,
    Device,
    Ending,
    Estimate,
    Measurement,
    Problem,
    Run,
    Submission,
    Verdict,
)


def evaluate(
    problem: Problem,
    submission: Submission,
    device: Device,
    config: EvalConfig,
    *,
    quick: bool = False,
    timed: bool = True,
    threads: int | None = None,
    narrate: Narrate = lambda line: None,
) -> Run:
    """Judge `submission` on `device`. `timed=False` stops after the test cases; `threads` is how many a worker on a CPU
    may compute in (default: one a processor).

    Raises only what is not the submission's doing: ProblemError, OSError.
    """
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    surroundings = environment.describe(device)
    be_a_quiet_neighbour(device)
    reference = Reference(problem, device)
    with _scratch(submission) as scratch:
        trial = Trial(
            reference, submission.path, device, scratch, config.sampling(device.kind, quick), narrate, threads
        )
        try:
            trial.run(timed)
            measurements = [_measurement(timings, reference, device, config) for timings in trial.timings]
            ending = _ending(trial, measurements)
        except Fault as fault:
            measurements, ending = [], fault.ending
    accepted = ending.verdict is Verdict.ACCEPTED
    unjudged = ending.verdict is Verdict.INFRASTRUCTURE_ERROR
    return Run(
        id=f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}-{submission.name.rpartition('/')[2]}",
        problem=problem.name,
        problem_revision=problem.revision,
        problem_sha256=problem.sha256,
        submission=submission.name,
        submission_sha256=submission.sha256,
        submission_path=submission.path,
        device=device,
        environment=surroundings,
        started_at=started.isoformat(timespec="milliseconds"),
        duration_s=round(time.monotonic() - clock, 3),
        ending=ending,
        checks=tuple(trial.checks),
        measurements=tuple(measurements),
        skipped=tuple(trial.skipped),
        score=_score(measurements, config.confidence) if accepted and measurements else None,
        unranked_because=UNJUDGED if unjudged else _unranked_because(trial, quick),
        tolerance=_loosest(trial.checks, problem) if accepted else None,
        error=max((check.error for check in trial.checks if check.error is not None), default=None),
        output=trial.printed,
        master_seed=trial.master_seed,
        config=config.model_dump(mode="json"),
    )


def replay(
    problem: Problem, submission: Submission, device: Device, config: EvalConfig, case: Case, seed: int
) -> CaseCheck:
    """Judge one call of `case` with the inputs of `seed`, to look at a mismatch again. Raises Fault."""
    with _scratch(submission) as scratch:
        reference, sampling = Reference(problem, device), config.sampling(device.kind, quick=True)
        trial = Trial(reference, submission.path, device, scratch, sampling, lambda line: None)
        return trial.replay(case, OneSeed(seed))


def be_a_quiet_neighbour(device: Device) -> None:
    """Keep the judge from disturbing what it measures.

    On a CPU it computes in one thread: its cases are small, and a pool of threads that waits by spinning takes the
    processor from the worker (and costs 5 times the CPU time on a busy machine). Freed blocks from 1 MiB up go back to
    the system: inputs are made anew for each call, and kept blocks would pile up to several times what is in use.
    """
    if device.kind == "cpu":
        torch.set_num_threads(1)
    with contextlib.suppress(AttributeError, OSError):  # glibc only
        mmap_threshold = -3  # M_MMAP_THRESHOLD, malloc.h; setting it also turns its growth off
        ctypes.CDLL(None).mallopt(mmap_threshold, 1 << 20)


@contextlib.contextmanager
def _scratch(submission: Submission) -> Iterator[Path]:
    """A directory for the worker, with the submission in it; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="podium-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "submission.py").write_bytes(submission.source)
        yield Path(folder)


def _measurement(timings: Timings, reference: Reference, device: Device, config: EvalConfig) -> Measurement:
    centres = [stats.interquartile_mean(samples) for samples in timings.samples_ns]
    return Measurement(
        case=timings.case,
        samples_ns=tuple(timings.samples_ns),
        latency=stats.estimate(centres, config.confidence),
        floor=roofline.floor(reference.cost(timings.case), device),
        labels=tuple(sorted(timings.labels)),
    )


def _ending(trial: Trial, measurements: Sequence[Measurement]) -> Ending:
    """The verdict where nothing ended the trial early."""
    failed = [check for check in trial.checks if check.verdict is not Verdict.ACCEPTED]
    if failed:
        message = f"{len(failed)} of {len(trial.checks)} test cases are wrong; the first is {failed[0].case.label}"
        return Ending(verdict=Verdict.WRONG_ANSWER, message=message, detail=failed[0].report)
    for measurement in measurements:
        if measurement.floor is not None and measurement.latency.latency_ns < measurement.floor.latency_ns:
            message = (
                f"{measurement.case.label} took {measurement.latency.latency_ns / 1e3:.2f} us, less than the "
                f"{measurement.floor.latency_ns / 1e3:.2f} us that the device needs at its peak"
            )
            return Ending(verdict=Verdict.INTEGRITY_VIOLATION, message=message)
    how = " through Triton's interpreter" if trial.interpreted else ""
    return Ending(verdict=Verdict.ACCEPTED, message=f"all {len(trial.checks)} test cases are right{how}")


def _unranked_because(trial: Trial, quick: bool) -> str | None:
    if trial.interpreted:
        return "interpreted"
    if trial.skipped:
        return "skipped"
    return "quick" if quick else None


def _score(measurements: Sequence[Measurement], confidence: float) -> Estimate:
    """The geometric mean over the cases, with its interval over the processes."""
    centres = [[stats.interquartile_mean(samples) for samples in m.samples_ns] for m in measurements]
    return stats.estimate([stats.geometric_mean(process) for process in zip(*centres, strict=True)], confidence)


def _loosest(checks: Sequence[CaseCheck], problem: Problem) -> str | None:
    """Of the tolerances that the checks met, the loosest: the one that the whole run meets."""
    met = [check.tolerance for check in checks if check.tolerance is not None]
    return max(met, key=list(problem.tolerances).index, default=None)
