"""One case of a submission judged on the very inputs of a mismatch report. Nothing is timed or stored."""

from __future__ import annotations

from pathlib import Path

from harness import catalog
from harness.catalog.choice import case_named
from harness.catalog.config import load_config
from harness.errors import judging
from harness.machine import lock
from harness.model import CaseCheck, Device, Problem
from harness.progress import Narrate


def replay(
    root: Path, problem: Problem, file: Path, case: str, seed: int, device: Device, narrate: Narrate
) -> CaseCheck:
    """Judge `file` on `case`, a label or the number of a benchmark case from 1, whose inputs come from `seed`.

    Raises UsageError for a case that there is not, judge.reply.Fault where the submission fails without an answer.
    """
    from harness.judge.evaluate import replay as judge_again  # imports torch

    chosen = case_named(problem, device.kind, case)
    submission = catalog.load_submission(problem, file)
    with lock.hold_if_gpu(device, narrate, problem.limits.evaluation_s), judging(submission.name):
        return judge_again(problem, submission, device, load_config(root), chosen, seed)
