"""One evaluation: from a submission to a run, which says what happened whatever the submission does."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from harness import environment, roofline, stats
from harness.config import EvalConfig
from harness.device import check_answers
from harness.judge.clock import find
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.seeds import OneSeed
from harness.judge.trial import Narrate, Timings, Trial
from harness.model import (
    CROWDED,
    NOISY,
    REPRODUCED,
    UNJUDGED,
    UNSANDBOXED,
    UNSTABLE,
    Case,
    CaseCheck,
    Device,
    Ending,
    Estimate,
    Measurement,
    Problem,
    Round,
    Run,
    Submission,
    Verdict,
)
from harness.sandbox import tiers
from harness.sandbox.scratch import scratch


def evaluate(
    problem: Problem,
    submission: Submission,
    device: Device,
    config: EvalConfig,
    *,
    quick: bool = False,
    timed: bool = True,
    threads: int | None = None,
    allow_unsandboxed: bool = False,
    master_seed: str | None = None,
    exclusive: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    narrate: Narrate = lambda line: None,
) -> Run:
    """Judge `submission` on `device`. `timed=False` stops after the test cases; `threads` is how many a worker on a CPU
    may compute in (default: one a processor). A run that nothing confines is ranked only if `allow_unsandboxed`; one
    with the `master_seed` of another never. What `exclusive` gives is held while the device must be ours alone.

    Raises only what is not the submission's doing: ProblemError, InfrastructureError, OSError.
    """
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    isolation = tiers.strongest(device)
    surroundings = environment.describe(device, isolation)
    be_a_quiet_neighbour(device)
    reference = Reference(problem, device)
    with scratch(submission.source, isolation.new_uid()) as folder:
        trial = Trial(reference, submission.path, device, folder, config.sampling(device.kind, quick), narrate, threads)
        trial.master_seed = master_seed or trial.master_seed
        try:
            with exclusive():
                trial.run(timed)
            measurements = [
                _measurement(timings, reference, device, config, trial.null_kernel_ns, trial.tick_ns)
                for timings in trial.timings
            ]
            surroundings |= {"null_kernel_ns": trial.null_kernel_ns, "tick_ns": trial.tick_ns}
            ending = _ending(trial, measurements)
        except Fault as fault:
            check_answers(device)  # a submission is not to blame for a device that is gone
            measurements, ending = [], _named(fault.ending, folder, submission)
    accepted = ending.verdict is Verdict.ACCEPTED
    unjudged = ending.verdict is Verdict.INFRASTRUCTURE_ERROR
    safe = isolation.confines or allow_unsandboxed
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
        rounds=tuple(trial.rounds),
        score=_score(measurements, config.confidence, trial.tick_ns) if accepted and measurements else None,
        unranked_because=(
            UNJUDGED if unjudged else _unranked_because(trial, quick, safe, reproduced=master_seed is not None)
        ),
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
    with scratch(submission.source, tiers.strongest(device).new_uid()) as folder:
        reference, sampling = Reference(problem, device), config.sampling(device.kind, quick=True)
        trial = Trial(reference, submission.path, device, folder, sampling, lambda line: None)
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


def _measurement(
    timings: Timings,
    reference: Reference,
    device: Device,
    config: EvalConfig,
    null_kernel_ns: float | None,
    tick_ns: float,
) -> Measurement:
    centres = [stats.centre(samples, tick_ns) for samples in timings.samples_ns]
    latency = stats.estimate(centres, config.confidence)
    floor = roofline.floor(reference.cost(timings.case), device)
    found = [find(device.kind, sitting, timings.apart, tick_ns) for sitting in timings.sittings]
    labels = set(timings.labels)
    if 2 * sum(sitting.crowded for sitting in timings.sittings) > len(timings.sittings):
        labels.add(CROWDED)
    if floor is not None and null_kernel_ns is not None and floor.latency_ns < 2 * null_kernel_ns:
        labels.add("latency-bound")
    if stats.tick_limited(latency.latency_ns, tick_ns):
        labels.add("tick-limited")
    return Measurement(
        case=timings.case,
        samples_ns=tuple(timings.samples_ns),
        latency=latency,
        floor=floor,
        labels=tuple(sorted(labels)),
        hidden_ns=tuple(one.hidden_ns for one in found),
        idle_excess_ns=tuple(one.idle_excess_ns for one in found),
    )


def _ending(trial: Trial, measurements: Sequence[Measurement]) -> Ending:
    """The verdict where nothing ended the trial early."""
    failed = [check for check in trial.checks if check.verdict is not Verdict.ACCEPTED]
    if failed:
        first = failed[0]
        reasons = (first.report or "").splitlines()[1:]  # below the case
        message = f"{len(failed)} of {len(trial.checks)} test cases are wrong; the first is {first.case.label}"
        message += f": {reasons[0]}" if reasons else ""
        return Ending(verdict=Verdict.WRONG_ANSWER, message=message, detail=first.report)
    for measurement in measurements:
        if measurement.floor is not None and measurement.latency.latency_ns < measurement.floor.latency_ns:
            message = (
                f"{measurement.case.label} took {measurement.latency.latency_ns / 1e3:.2f} us, less than the "
                f"{measurement.floor.latency_ns / 1e3:.2f} us that the device needs at its peak"
            )
            return Ending(verdict=Verdict.INTEGRITY_VIOLATION, message=message)
    how = " through Triton's interpreter" if trial.interpreted else ""
    return Ending(verdict=Verdict.ACCEPTED, message=f"all {len(trial.checks)} test cases are right{how}")


def _named(ending: Ending, folder: Path, submission: Submission) -> Ending:
    """With the submission's own path where a traceback has that of its copy in the worker's scratch `folder`."""
    texts = {
        name: text.replace(str(folder / "submission.py"), submission.path).replace(
            "(submission.py, line", f"({Path(submission.path).name}, line"
        )
        for name, text in (("message", ending.message), ("detail", ending.detail))
        if text is not None
    }
    return ending.model_copy(update=texts)


def _doubtful(rounds: Sequence[Round]) -> bool:
    """Whether the judge's clock objected to more than a third of the processes, or to one that counts for want of a
    better one."""
    objected = [each for each in rounds if each.objection is not None]
    return 3 * len(objected) > len(rounds) or any(each.kept for each in objected)


def _unstable(rounds: Sequence[Round]) -> bool:
    """Whether the machine was disturbed in more than a quarter of the processes, each of which had a second chance."""
    kept = [each for each in rounds if each.kept]
    return 4 * sum(each.disturbed is not None for each in kept) > len(kept)


def _unranked_because(trial: Trial, quick: bool, safe: bool, reproduced: bool) -> str | None:
    if reproduced:
        return NOISY if _doubtful(trial.rounds) else REPRODUCED
    if trial.interpreted:
        return "interpreted"
    if trial.skipped:
        return "skipped"
    if quick:
        return "quick"
    if _doubtful(trial.rounds):
        return NOISY
    if _unstable(trial.rounds):
        return UNSTABLE
    return None if safe else UNSANDBOXED


def _score(measurements: Sequence[Measurement], confidence: float, tick_ns: float) -> Estimate:
    """The geometric mean over the cases, with its interval over the processes."""
    centres = [[stats.centre(samples, tick_ns) for samples in m.samples_ns] for m in measurements]
    return stats.estimate([stats.geometric_mean(process) for process in zip(*centres, strict=True)], confidence)


def _loosest(checks: Sequence[CaseCheck], problem: Problem) -> str | None:
    """Of the tolerances that the checks met, the loosest: the one that the whole run meets."""
    met = [check.tolerance for check in checks if check.tolerance is not None]
    return max(met, key=list(problem.tolerances).index, default=None)
