"""`verify`: every control must get its verdict, every tolerance must reject every wrong answer, and inputs must depend
  on the seed.

A control is a submission shipped with a problem, in a folder named after the verdict that it must get. The table shows
the margin: the largest ratio of a measured error to its limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import catalog
from harness.catalog.config import load_config
from harness.errors import ProblemError, judging
from harness.machine import lock
from harness.model import Device, Excess, Problem, Run, Submission, Verdict
from harness.progress import Narrate, Step, tell
from harness.sandbox import tiers


@dataclass(frozen=True)
class ControlResult:
    """One control: its due verdict, the verdict it got, and its worst excess over each tolerance."""

    name: str
    due: Verdict
    got: Verdict
    message: str
    excess: dict[str, Excess]
    tolerance: str | None
    faults: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        excess = {name: json.loads(worst.model_dump_json()) for name, worst in self.excess.items()}
        return {**asdict(self), "excess": excess}


def verify(root: Path, problem: Problem, device: Device, narrate: Narrate) -> Iterator[ControlResult]:
    """Judge each control on the test cases for `device`, untimed and several at a time. Yield results in the controls'
    order. A GPU is reserved for this process meanwhile.

    Raises ProblemError if there are no controls.
    """
    from harness.judge.evaluate import evaluate  # imports torch

    controls = list(catalog.controls(problem))
    if not controls:
        where = "controls" if problem.foreign is None else "solutions/correct and solutions/wrong"
        raise ProblemError(f"{problem.name} has no controls", f"put some in {problem.folder / where}")
    config = load_config(root)
    # A foreign problem's files are not by this problem's author, so the strongest isolation (None) applies.
    isolation = tiers.for_trusted(device) if problem.foreign is None and device.kind == "cpu" else None
    # On a CPU each worker computes in one thread, else the workers' threads would spin while they wait for each other.
    at_once = len(os.sched_getaffinity(0)) if device.kind == "cpu" and problem.foreign is None else 1
    judged_on = problem
    if problem.foreign is not None:  # a wrong control may pass the tests and fail at a benchmark's size
        cases = problem.cases_for(device.kind)
        judged_on = problem.only([*cases.test, *(case for case in cases.benchmark if case not in cases.test)], [])
    executor = ThreadPoolExecutor(at_once)
    judged: list[str] = []

    def judge(control: tuple[Submission, Verdict]) -> ControlResult:
        submission, due = control
        line = f"{problem.name}: {submission.name}"
        tell(narrate, Step("control", submission.name, len(judged), len(controls), line))
        with judging(submission.name):
            run = evaluate(judged_on, submission, device, config, timed=False, threads=1, isolation=isolation)
        judged.append(submission.name)
        tell(narrate, Step("control", submission.name, len(judged), len(controls)))
        result = _result(submission.name, due, run, problem)
        for fault in result.faults:  # also at the end, but there may be none
            narrate(f"{problem.name}: {fault}")
        return result

    # A foreign problem's code can be given time limits only in the main thread.
    in_turn = executor.map if at_once > 1 else map
    try:
        with lock.hold_if_gpu(device, narrate):
            yield from in_turn(judge, controls)
    finally:
        executor.shutdown(cancel_futures=True)


def broken_promises(problem: Problem, device: Device, narrate: Narrate = lambda line: None) -> list[str]:
    """Return the ways in which reference.py breaks the promises of `problem.yml` or the judge's contract. A GPU that it
    computes on is reserved for this process meanwhile."""
    with lock.hold_if_gpu(device, narrate):
        return _broken_promises(problem, device)


def _broken_promises(problem: Problem, device: Device) -> list[str]:
    import torch

    from harness.judge.reference import open_reference
    from harness.wire.tree import flatten

    reference = open_reference(problem, device)
    case = problem.cases_for(device.kind).test[0]

    names, owners = (problem.inputs, ()) if problem.foreign is None else (None, problem.foreign.modules)

    def drawn(seed: int) -> list[torch.Tensor]:
        return [leaf for _, leaf in flatten(reference.generate(case, seed), names, owners)[1]]

    def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
        bits = (
            (a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
            for a, b in zip(left, right)
        )
        return all(a.shape == b.shape and torch.equal(a, b) for a, b in bits)

    first = drawn(1)
    faults = []
    if not same(first, drawn(1)):
        faults.append(f"{problem.name}: generate_input draws other inputs from the same seed: no run could be repeated")
    elif same(first, drawn(2)):
        faults.append(f"{problem.name}: generate_input draws the same inputs from any seed: answers could be cached")
    if problem.foreign is not None:
        return faults  # `open_reference` has compared its outputs with its checker
    data = reference.generate(case, 1)
    tensors = [*flatten(data, names)[1], *zip(problem.outputs, reference.expect(data, None))]
    for name, tensor in tensors:
        named = problem.axes.get(name)
        if named is not None and len(named) != tensor.dim():
            faults.append(f"{problem.name}: axes names {len(named)} axes of {name}, which has {tensor.dim()}")
    return faults


def unmet(problem: Problem, results: list[ControlResult]) -> list[str]:
    """Return the tolerances that no accepted control meets as its strictest. For these nothing shows that honest work
    passes."""
    if problem.foreign is not None:
        return []  # its controls come from the other project
    met = {result.tolerance for result in results if result.due is Verdict.ACCEPTED}
    return [name for name in problem.tolerances if name not in met]


def _result(name: str, due: Verdict, run: Run, problem: Problem) -> ControlResult:
    got = run.ending.verdict
    # A wrong answer must be rejected in some case; an honest control must pass in all.
    seen = [check.excess for check in run.checks] + [total.excess for total in run.totals]
    excess = {
        tolerance: max((each[tolerance] for each in seen if tolerance in each), key=lambda e: e.ratio)
        for tolerance in problem.tolerances
        if any(tolerance in each for each in seen)
    }
    faults = []
    refused = got not in (Verdict.ACCEPTED, Verdict.INFRASTRUCTURE_ERROR)
    if problem.foreign is not None and due is Verdict.WRONG_ANSWER and refused:
        return ControlResult(name, due, got, run.ending.message, excess, run.tolerance, ())
    if got is not due and problem.foreign is not None:
        label = "correct" if due is Verdict.ACCEPTED else "wrong"
        faults.append(f"{name} is labelled {label}, but got {got.words}: {run.ending.message}")
    elif got is not due:
        faults.append(f"{name} must get {due.words}, but got {got.words}: {run.ending.message}")
    if due is Verdict.WRONG_ANSWER:
        lenient = [tolerance for tolerance, worst in excess.items() if worst.ratio <= 1]
        faults += [f"the tolerance {tolerance} does not reject {name}" for tolerance in lenient]
    return ControlResult(name, due, got, run.ending.message, excess, run.tolerance, tuple(faults))
