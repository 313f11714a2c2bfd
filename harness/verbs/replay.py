"""One case of a submission judged on the very inputs of a mismatch report. Nothing is timed or stored."""

from __future__ import annotations

from pathlib import Path

from harness import catalog
from harness.catalog.choice import no_such_case
from harness.catalog.config import load_config
from harness.chips.targets import EMULATED_TARGETS
from harness.errors import UsageError, judging
from harness.judge.emulation import EMULATION, Emulation
from harness.machine import lock
from harness.model import CaseCheck, Device, Problem
from harness.progress import Narrate


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
    """Judge `file` on the case with the label `case`, whose inputs come from `seed`. `target`: run its machine code for
    that chip in the emulator, Triton's as well.

    Raises UsageError for a case that there is not and a target that is not emulated here, judge.reply.Fault where the
    submission fails without an answer.
    """
    from harness.judge.evaluate import replay as judge_again  # imports torch

    chosen = problem.case_called(case)
    if chosen is None:
        raise no_such_case(problem, case)
    if target is not None and target not in EMULATED_TARGETS:
        raise UsageError(f"{target} is not emulated", f"{', '.join(EMULATED_TARGETS)} are")
    if target is not None and device.kind != "cpu":
        raise UsageError("--target is for a machine without a GPU", "--device cpu emulates the chip")
    emulation = EMULATION if target is None else Emulation(target, triton=True)
    submission = catalog.load_submission(problem, file)
    with lock.hold_if_gpu(device, narrate, problem.limits.evaluation_s), judging(submission.name):
        return judge_again(problem, submission, device, load_config(root), chosen, seed, emulation)
