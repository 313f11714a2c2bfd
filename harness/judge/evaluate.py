"""One evaluation turns a submission into a run. The run says what happened, whatever the submission does."""

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
from harness.judge.calls import TWICE
from harness.judge.emulation import EMULATION, Emulation
from harness.judge.ending import ending_of, loosest, named
from harness.judge.marks import unranked_because
from harness.judge.reference import Reference, open_reference
from harness.judge.reply import Fault
from harness.judge.seeds import OneSeed, new_master_seed
from harness.judge.spare import Spare
from harness.judge.trial import Trial
from harness.machine import environment
from harness.machine.device import answering, check_answers
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
    """Judge `submission` on `device` and return the run.

    `timed=False` ends after the test cases. With `profiles` as well, profiles are taken next (`profiled`).
    `stop_at_first` ends after the first wrong test case. `chosen`: `problem` holds only some of its cases; the run is
    not ranked. `threads`: how many threads a worker on a CPU may compute in (default: one for each processor).
    `emulation`: how kernels that need a GPU run on a CPU. `isolation`: the confinement of the worker (default: the
    strongest that works here). An unconfined run is ranked only with `allow_unsandboxed`. A run with a given
    `master_seed` is never ranked. Work that needs the device for itself is done within `exclusive`. `spare`: its first
    worker is used if it fits. `baselines` are timed in turns with the submission.

    Raises ProblemError, InfrastructureError or OSError for failures that the submission did not cause, and nothing
    else.
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
            with answering(device):
                trial.run(timed, stop_at_first, profiles)
            measurements = [
                measured.measurement(timings, trial, reference, device, config.confidence, sampling)
                for timings in trial.timings
            ]
            ending = ending_of(trial, reference)
            surroundings |= _found_out(trial, device, timed, assembly.caches.why_not)
        except Fault as fault:
            check_answers(device)  # if the device is gone, the submission is not to blame
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
    """Facts about the problem's folder for the run's environment."""
    found: dict[str, Any] = {"notes": list(reference.notes)} if reference.notes else {}
    if problem.foreign is not None and problem.foreign.called is None:
        found[PATH_OF_PROBLEM] = problem.foreign.address
    return found


def _found_out(trial: Trial, device: Device, timed: bool, caches_kept_because: str) -> dict[str, Any]:
    """Facts about the device, the interpreter and the emulator that the trial has shown."""
    entrant, caller = trial.entrant, trial.entrant.caller
    found: dict[str, Any] = {"null_kernel_ns": caller.constants.launch_ns}
    if caller.emulated:
        found |= {"emulated": caller.emulated, "emulated_instructions": caller.executed}
        found |= {"emulated_compiling_s": round(caller.compiling_s, 1)}
        found |= {"emulated_remarks": caller.remarks} if caller.remarks else {}
    if not timed:  # not in each stored run: boards list what runs differ in
        found |= {"interpreted_kernels": sorted(caller.seen.kernels)} if caller.seen.kernels else {}
        found |= {"interpreted_switches": sorted(caller.seen.switches)} if caller.seen.switches else {}
        found |= {"interpreted_cases": trial.interpreted_cases} if caller.seen.interpreted else {}
        found |= {"not_emulated": sorted(caller.seen.inexact)} if caller.seen.inexact else {}
    if device.kind != "cpu" and entrant.clocks.why_not:
        found["worker_timed_because"] = entrant.clocks.why_not
    if timed and caches_kept_because:
        found["caches_kept_because"] = caches_kept_because
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
    """Judge `case` as a run judges its first test case, to reproduce a mismatch: a call with the inputs of `seed`, and
    if it is right one with others. Raises Fault."""
    if device.kind == "cpu":
        emulation.prepare(submission.text)
    sampling = config.sampling(device.kind, quick=True)
    assembly = Assembly(open_reference(problem, device), device, sampling, emulation=emulation)
    with assembly.entrant(submission, new_master_seed()) as entrant:
        try:
            with entrant.session() as session:
                check = entrant.check(session, case, OneSeed(seed), TWICE)
                session.finish()
                return check
        except Fault as fault:
            fault.ending = named(fault.ending, entrant.folder, submission)
            raise


def _in_a_path(name: str) -> str:
    """Return a submission's name in a form that a file may have. A stored run that is judged again may have any
    name."""
    return "".join(each if each.isprintable() else "_" for each in name.rpartition("/")[2])
