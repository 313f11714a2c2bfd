"""Who says whether a call is right: what it left behind is held against what the reference expects.

A problem in another project's form brings a checker of its own (opaque.py); `Reference.checker` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch

from harness.judge import mismatch
from harness.judge.check import compare, differences, overruns
from harness.judge.inputs import Call
from harness.judge.reply import CallReply
from harness.judge.stage import Snapshot
from harness.judge.tally import Tally
from harness.model import CaseCheck, Problem, Verdict


class Checker:
    """Of one problem, by its tolerances."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def check(
        self,
        call: Call,
        reply: CallReply,
        snapshot: Snapshot,
        overrun: list[int],
        everything: bool,
        reproduce: str,
        previous: Mapping[str, torch.Tensor],
    ) -> tuple[CaseCheck, Tally]:
        """The verdict on one call, and what it adds to the figures over many.

        overrun: the inputs, by number, right beside which something was written. everything: as a test case is checked.
        reproduce: the command that makes the call again. previous: some of what the call before it should have left.
        """
        tolerances, case = self._problem.tolerances_for(call.case), call.case
        found = differences(call, reply, snapshot, tolerances)
        checked = compare(call, found + overruns(call, overrun), tolerances)
        met = checked.tolerance
        report = mismatch.report(self._problem, case, checked, reproduce, previous) if met is None else None
        check = CaseCheck(
            case=case,
            verdict=Verdict.ACCEPTED if met is not None else Verdict.WRONG_ANSWER,
            tolerance=met,
            excess=checked.excess,
            error=checked.error,
            reference_error=checked.reference_error,
            report=report,
        )
        return check, reduce(Tally.__add__, (each.tally for each in found if each.tally is not None), Tally())
