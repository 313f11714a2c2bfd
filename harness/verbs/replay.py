"""Judge one case of a submission again, first on the inputs of a mismatch report. Nothing is timed or stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import catalog
from harness.catalog.choice import case_named
from harness.catalog.config import load_config
from harness.chips.targets import EMULATED_TARGETS
from harness.errors import UsageError, judging
from harness.judge.emulation import EMULATION, Emulation
from harness.machine import lock
from harness.model import CaseCheck, Device, Problem
from harness.progress import Narrate
from harness.verbs.forewarning import of_interpreting


def one_case(asked: Sequence[str]) -> str:
    """Return the one case that was asked for. Raises UsageError unless there is exactly one."""
    if len(asked) == 1:
        return asked[0]
    what = f"takes one CASE, and was given {len(asked)}" if asked else "needs the CASE of the mismatch report"
    raise UsageError(f"replay {what}", "in quotes: 'batch_size=2 q_seq_len=1'; or the number of a benchmark case")


def replay(
    root: Path,
    problem: Problem,
    file: Path,
    case: str,
    seed: int,
    device: Device,
    narrate: Narrate,
    target: str | None = None,
) -> CaseCheck:
    """Judge `file` on `case`, a label or the number of a benchmark case from 1, with inputs drawn from `seed`, and if
    it is right with others.
    `target`: compile the kernels for that chip, Triton's too, and run the machine code in the emulator.

    Raises UsageError for an unknown case or a target that cannot be emulated here, judge.reply.Fault if the submission
    fails without an answer.
    """
    from harness.judge.evaluate import replay as judge_again  # imports torch

    chosen = case_named(problem, device.kind, case)
    if target is not None and target not in EMULATED_TARGETS:
        raise UsageError(f"{target} is not emulated", f"{', '.join(EMULATED_TARGETS)} are")
    if target is not None and device.kind != "cpu":
        raise UsageError("--target is for a machine without a GPU", "--device cpu emulates the chip")
    emulation = EMULATION if target is None else Emulation(target, triton=True)
    submission = catalog.load_submission(problem, file)
    if device.kind == "cpu":  # the report may come from `check --case`, which gave a large case longer limits
        asked, line = of_interpreting(root, problem, problem.only([chosen], [], partial=True), submission)
        problem = problem.model_copy(update={"limits": asked.limits})
        if line:
            narrate(line)
    with lock.hold_if_gpu(device, narrate, problem.limits.evaluation_s), judging(submission.name):
        return judge_again(problem, submission, device, load_config(root), chosen, seed, emulation)
