"""One evaluation: from a submission to a run, which says what happened whatever the submission does."""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from harness.catalog.config import EvalConfig
from harness.catalog.problem import PATH_OF_PROBLEM
from harness.judge import measured
from harness.judge.assembly import Assembly, be_a_quiet_neighbour
from harness.judge.baselines import Baselines
from harness.judge.emulation import EMULATION, Emulation
from harness.judge.ending import ending_of, loosest, named
from harness.judge.entrant import Entrant
from harness.judge.marks import unranked_because
from harness.judge.reference import Reference, open_reference
from harness.judge.reply import Fault
from harness.judge.seeds import OneSeed, new_master_seed
from harness.judge.sitting import too_many_void, void_share
from harness.judge.spare import Spare
from harness.judge.trial import Trial
from harness.machine import environment
from harness.machine.device import check_answers
from harness.model import (
    Case,
    CaseCheck,
    Device,
    Isolation,
    Measurement,
    Problem,
    Run,
    Submission,
    Verdict,
    eligibility,
)
from harness.progress import Narrate
from harness.sandbox import tiers


def evaluate(
    problem: Problem,
    submission: Submission,
    device: Device,
    config: EvalConfig,
    *,
    quick: bool = False,
    timed: bool = True,
    profiles: bool = False,
    chosen: bool = False,
    stop_at_first: bool = False,
    threads: int | None = None,
    emulation: Emulation = EMULATION,
    isolation: Isolation | None = None,
    allow_unsandboxed: bool = False,
    master_seed: str | None = None,
    exclusive: Callable[[], AbstractContextManager[object]] = nullcontext,
    narrate: Narrate = lambda line: None,
    spare: Spare | None = None,
    baselines: Sequence[Submission] = (),
) -> Run:
    """Judge `submission` on `device`. `timed=False` stops after the test cases, or where `profiles` are asked for takes
    those (`profiled`); `stop_at_first` after the first that is wrong. `chosen`: `problem` has only some of its cases,
    and the run is not ranked. `threads` is how many a worker on a CPU may compute in (default: one a processor),
    `emulation` what becomes there of kernels that need a GPU, `isolation` what confines it (default: the strongest that
    holds). A run that nothing confines is ranked only if `allow_unsandboxed`; one with the `master_seed` of another
    never. What must have the device to itself is done within `exclusive`. Of a `spare` the first worker is taken, if it
    fits. `baselines` are timed in turns with it.

    Raises only what is not the submission's doing: ProblemError, InfrastructureError, OSError.
    """
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    isolation = isolation or tiers.strongest(device)
    surroundings = environment.describe(device, isolation)
    be_a_quiet_neighbour(device.kind)
    reference, sampling = open_reference(problem, device), config.sampling(device.kind, quick)
    surroundings |= _of_the_problem(problem, reference)
    master_seed, reproduced = master_seed or new_master_seed(), master_seed is not None
    measurements: list[Measurement] = []
    if device.kind == "cpu":
        emulation.prepare(submission.text)
    assembly = Assembly(reference, device, sampling, threads, 1 + len(baselines), emulation, isolation)
    with assembly.entrant(submission, master_seed, narrate, spare) as entrant:
        in_turns = Baselines(baselines, lambda source: assembly.entrant(source, master_seed), narrate)
        null_worker = assembly.null_worker
        trial = Trial(entrant, device, sampling, config.confidence, null_worker, narrate, exclusive, in_turns)
        try:
            trial.run(timed, stop_at_first, profiles)
            measurements = [
                measured.measurement(timings, trial, reference, device, config.confidence, sampling)
                for timings in trial.timings
            ]
            ending = ending_of(trial, reference)
            surroundings |= _found_out(entrant, device)
        except Fault as fault:
            check_answers(device)  # a submission is not to blame for a device that is gone
            ending = named(fault.ending, entrant.folder, submission)
    accepted = ending.verdict is Verdict.ACCEPTED
    safe = isolation.confines or allow_unsandboxed
    score = None
    if accepted and measurements:
        score = measured.score(measurements, config.confidence, sampling.processes, problem.ranking)
    latencies, most = [measurement.latency for measurement in measurements], sampling.most_half_width
    imprecise = score is not None and eligibility.is_imprecise(score, latencies, problem.ranking, most)
    return Run(
        id=f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}-{_in_a_path(submission.name)}",
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
        totals=tuple(trial.totals),
        measurements=tuple(measurements),
        skipped=tuple(entrant.skipped),
        rounds=tuple(trial.rounds),
        clock=entrant.clocks.whose,
        constants=measured.constants(trial),
        baselines=trial.baselines,
        profiles=tuple(trial.profiles),
        score=score,
        ranking=problem.ranking,
        unranked_because=unranked_because(trial, ending, measurements, chosen, quick, safe, reproduced, imprecise),
        tolerance=loosest([*trial.checks, *trial.totals], problem) if accepted else None,
        error=max((check.error for check in trial.checks if check.error is not None), default=None),
        output=entrant.printed,
        master_seed=master_seed,
        config=config.model_dump(mode="json"),
    )


def _of_the_problem(problem: Problem, reference: Reference) -> dict[str, Any]:
    """What a run's environment says of the problem's folder."""
    found: dict[str, Any] = {"notes": list(reference.notes)} if reference.notes else {}
    if problem.foreign is not None and problem.foreign.called is None:
        found[PATH_OF_PROBLEM] = problem.foreign.address
    return found


def _found_out(entrant: Entrant, device: Device) -> dict[str, Any]:
    """What a trial has shown of where it ran, and of the emulator's part in it."""
    caller = entrant.caller
    found: dict[str, Any] = {"null_kernel_ns": caller.constants.launch_ns}
    if caller.emulated:
        found |= {"emulated": caller.emulated, "emulated_instructions": caller.executed}
        found |= {"emulated_compiling_s": round(caller.compiling_s, 1)}
        found |= {"emulated_remarks": caller.remarks} if caller.remarks else {}
    if device.kind != "cpu" and entrant.clocks.why_not:
        found["worker_timed_because"] = entrant.clocks.why_not
    return found


def replay(
    problem: Problem,
    submission: Submission,
    device: Device,
    config: EvalConfig,
    case: Case,
    seed: int,
    emulation: Emulation = EMULATION,
) -> CaseCheck:
    """Judge one call of `case` with the inputs of `seed`, to look at a mismatch again. Raises Fault."""
    if device.kind == "cpu":
        emulation.prepare(submission.text)
    sampling = config.sampling(device.kind, quick=True)
    assembly = Assembly(open_reference(problem, device), device, sampling, emulation=emulation)
    with assembly.entrant(submission, new_master_seed()) as entrant:
        try:
            with entrant.session() as session:
                check = entrant.check(session, case, OneSeed(seed), 1)
                session.finish()
                return check
        except Fault as fault:
            fault.ending = named(fault.ending, entrant.folder, submission)
            raise


def _in_a_path(name: str) -> str:
    """A submission's name, as a file may be called. That of a stored run, which is judged again, may be anything."""
    return "".join(each if each.isprintable() else "_" for each in name.rpartition("/")[2])


def _measurement(
    timings: Timings, trial: Trial, reference: Reference, device: Device, confidence: float, sampling: Sampling
) -> Measurement:
    centres = [stats.interquartile_mean(samples) for samples in timings.samples_ns]
    latency = stats.estimate(centres, confidence, sampling.processes)
    floor = roofline.floor(reference.cost(timings.case), device)
    pace, constants = timings.pace, trial.entrant.caller.constants
    labels = {Label.WORKER_TIMED} if pace.manner is Manner.WORKER else set()
    if pace.manner is Manner.STOPPED and device.kind != "cpu":
        labels.add(Label.HOST_BOUND)
    elif pace.copied and device.kind != "cpu":
        labels.add(Label.COPIED)
    if _crowded(timings):
        labels.add(Label.CROWDED)
    if too_many_void(each.sittings for each in trial.timings) and void_share(timings.sittings) > eligibility.MOST_VOID:
        labels.add(Label.VOIDED)
    if eligibility.is_wider(latency, sampling.most_half_width):
        labels.add(Label.IMPRECISE)
    if device.kind == "cpu" and latency.latency_ns <= bounds.CPU_NS:
        labels.add(Label.TOO_SHORT)
    launch_ns = constants.launch_ns
    if floor is not None and launch_ns is not None and floor.latency_ns < 2 * launch_ns:
        labels.add(Label.LATENCY_BOUND)
    return Measurement(
        case=timings.case,
        samples_ns=tuple(timings.samples_ns),
        latency=latency,
        floor=floor,
        labels=tuple(sorted(labels)),
        manner=pace.manner,
        bound_ns=bounds.of(pace, constants, device, latency.latency_ns, timings.sittings),
        inside_ns=pace.inside_ns,
        voids={void.value: count for void, count in sorted(timings.voids.items())},
    )


def _constants(trial: Trial) -> tuple[Constant, ...]:
    """What was subtracted: on a GPU measured once, on a CPU among the calls."""
    measured = tuple(trial.entrant.caller.constants.by_manner.values())
    null_ns = [ns for timings in trial.timings for sitting in timings.sittings for ns in sitting.null_ns]
    return measured or ((constant(Manner.STOPPED, null_ns),) if null_ns else ())


def _ending(trial: Trial, reference: Reference) -> Ending:
    """The verdict where nothing ended the trial early."""
    failed = [check for check in trial.checks if check.verdict is not Verdict.ACCEPTED]
    if failed:
        shown = most_telling(failed, reference.most_bytes)
        reasons = (shown.report or "").splitlines()[1:]  # below the case
        count, untried = len(trial.entrant.tests), len(trial.entrant.tests) - len(trial.checks)
        cases = "test case" if count == 1 else "test cases"
        wrong, which = ("is wrong", "it is") if len(failed) == 1 else ("are wrong", "the one shown is")
        rest = f", {untried} not tried" if untried else ""
        message = f"{len(failed)} of {count} {cases} {wrong}{rest}; {which} {shown.case.label}"
        message += f": {reasons[0]}" if reasons else ""
        return Ending(verdict=Verdict.WRONG_ANSWER, message=message, detail=shown.report)
    how = " through Triton's interpreter" if trial.entrant.caller.interpreted else ""
    how += f" (emulated {trial.entrant.caller.emulated})" if trial.entrant.caller.emulated else ""
    untimed = f"; it could not be timed: {trial.unclockable}" if trial.unclockable else ""
    secret = sum(check.secret for check in trial.checks)
    count = len(trial.checks)
    of_them = "" if count == 1 else f"{secret} of them "
    drawn = f", {of_them}drawn in secret," if secret else ""
    met = tolerances_met([*trial.checks, *trial.totals])
    within = f", {met}" if met else ""
    right = f"{all_tests(count)}{drawn} {'is' if count == 1 else 'are'} right" if count else "all timed calls are right"
    message = f"{right}{how}{within}{untimed}"
    return Ending(verdict=Verdict.ACCEPTED, message=message)


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


def _crowded(timings: Timings) -> bool:
    """Whether others took the processors in most of its processes."""
    return 2 * sum(sitting.crowded for sitting in timings.sittings) > len(timings.sittings)


def _unranked_because(
    trial: Trial,
    ending: Ending,
    measurements: Sequence[Measurement],
    chosen: bool,
    quick: bool,
    safe: bool,
    reproduced: bool,
    imprecise: bool,
) -> Unranked | None:
    if ending.verdict is Verdict.INFRASTRUCTURE_ERROR:
        return Unranked.UNJUDGED
    reasons = {
        Unranked.INTERPRETED: trial.entrant.caller.interpreted,
        Unranked.EMULATED: trial.entrant.caller.by_emulator,
        Unranked.CHOSEN: chosen,
        Unranked.SKIPPED: bool(trial.entrant.skipped),
        Unranked.QUICK: quick,
        Unranked.VOIDED: bool(trial.unclockable) or too_many_void(timings.sittings for timings in trial.timings),
        Unranked.CROWDED: any(_crowded(timings) for timings in trial.timings),
        Unranked.UNSTABLE: eligibility.is_unstable(trial.rounds),
        Unranked.IMPRECISE: imprecise,
        Unranked.BELOW_FLOOR: any(eligibility.is_below_floor(measurement) for measurement in measurements),
        Unranked.UNSANDBOXED: not safe,
        Unranked.WORKER_TIMED: trial.entrant.clocks.whose is ClockOwner.WORKER,
        Unranked.REPRODUCED: reproduced,  # last: `repro` asks what else there was, and then says this of every run
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _score(measurements: Sequence[Measurement], confidence: float, first: int, ranking: str) -> Estimate:
    """The mean over the cases that `ranking` names, with its interval over the processes."""
    centres = [[stats.interquartile_mean(samples) for samples in m.samples_ns] for m in measurements]
    processes = [stats.centre_of_cases(process, ranking) for process in zip(*centres, strict=True)]
    return stats.estimate(processes, confidence, first)


def _loosest(checks: Sequence[CaseCheck | Total], problem: Problem) -> str | None:
    """Of the tolerances that the checks met, the loosest: the one that the whole run meets."""
    met = [check.tolerance for check in checks if check.tolerance is not None]
    return max(met, key=list(problem.tolerances).index, default=None)
