"""Decides whether a call is right: compares its outputs and memory with the reference's expectation.

A problem in another project's form has a checker of its own (opaque.py). `Reference.checker` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce

import torch

from harness.judge import mismatch
from harness.judge.checked_call import compare, differences
from harness.judge.difference import Difference
from harness.judge.inputs import Call
from harness.judge.mistakes import Mistakes
from harness.judge.reply import CallReply
from harness.judge.stage import Snapshot
from harness.judge.tally import Tally
from harness.model import CaseCheck, Problem, Verdict


class Checker:
    """Checks calls of one problem by its tolerances."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._mistakes = problem, Mistakes(problem)

    def check(
        self,
        call: Call,
        reply: CallReply,
        snapshot: Snapshot,
        trespasses: list[Difference],
        everything: bool,
        reproduce: str,
        previous: Mapping[str, torch.Tensor],
    ) -> tuple[CaseCheck, Tally]:
        """Return the verdict on one call, and its contribution to the figures over many calls.

        trespasses: inputs that were written to, or beside which something was written.
        everything: check as in a test case, with hints from the problem's known mistakes.
        reproduce: the command that repeats the call.
        previous: samples of the expected outputs of the call before it.
        """
        tolerances, case = self._problem.tolerances_for(call.case), call.case
        found = differences(call, reply, snapshot, tolerances)
        checked = compare(call, found + trespasses, tolerances)
        met = checked.tolerance
        report = None
        if met is None:
            outputs = [difference for difference in found if not difference.is_state]
            recognised = partial(self._mistakes.recognised, call, outputs, tolerances) if everything else _nothing
            report = mismatch.report(self._problem, case, checked, reproduce, previous, _left(call), recognised)
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


def _left(call: Call) -> dict[str, torch.Tensor]:
    """The contents of the checked memory before the call, by the names of inputs and of the outputs that lie there."""
    expected = call.expectation
    poured = {name: tensor for name, (tensor, _) in zip(call.input_names, call.places, strict=True)}
    found = {name: poured[name] for name in expected.state}
    of = {want.data_ptr(): name for name, want in expected.state.items() if want.numel()}
    return found | {
        name: poured[of[want.data_ptr()]] for name, want in expected.outputs.items() if want.data_ptr() in of
    }


def _nothing() -> None:
    """No hint from known mistakes: finding one takes too long in a timed call."""
