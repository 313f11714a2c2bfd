"""Putting calls to a worker: deal one, have it answered, hold the answer against the expectation and the clock.

put          a checked call               ─► CaseCheck, Answer
put_timed    one of a benchmark case      ─► Answer; raises WrongTimedCall
put_idle     one that computes nothing    ─► Answer
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.arena import Arena
from harness.judge import mismatch
from harness.judge.check import Comparison, Difference, compare, differences, overruns
from harness.judge.inputs import Call, Dealer
from harness.judge.pace import PATIENCE_S
from harness.judge.reference import Reference
from harness.judge.reply import Answer, CallReply, Fault
from harness.judge.seeds import Seeds
from harness.judge.session import Session
from harness.model import Case, CaseCheck, Device, Verdict


class WrongTimedCall(Fault):
    """A benchmark case's output is wrong, timed or not."""

    def __init__(self, check: CaseCheck) -> None:
        super().__init__(Verdict.WRONG_ANSWER, f"a benchmark case is wrong: {check.case.label}", check.report)
        self.check = check


class Caller:
    """Calls of one submission on one device.

    interpreted: whether any call so far ran in Triton's interpreter. judging_s: what the judge itself took for each
    call, to make it and to check it.
    """

    def __init__(self, reference: Reference, path: str, device: Device) -> None:
        self._reference, self._path, self._device = reference, path, device
        self._problem = reference.problem
        self.interpreted = False
        self.judging_s: list[float] = []

    def put_timed(self, session: Session, dealer: Dealer, case: Case, patience_s: float, flush: bool = True) -> Answer:
        """One call of a benchmark case. Raises WrongTimedCall if its output is wrong."""
        check, answer = self.put(session, dealer, case, False, patience_s, flush)
        if check.verdict is not Verdict.ACCEPTED:
            raise WrongTimedCall(check)
        return answer

    def put(
        self,
        session: Session,
        dealer: Dealer,
        case: Case,
        everything: bool,
        patience_s: float = PATIENCE_S,
        flush: bool = True,
    ) -> tuple[CaseCheck, Answer]:
        """Deal a call, have the worker answer it, judge the answer."""
        dealing = time.monotonic()
        call = dealer.deal(everything)
        assert dealer.arena is not None
        dealing_s = time.monotonic() - dealing
        found: list[Difference] = []

        def read(reply: CallReply) -> None:
            reading = time.monotonic()
            assert dealer.arena is not None
            found.extend(differences(call, reply, dealer.arena, tolerances))
            self.judging_s.append(dealing_s + time.monotonic() - reading)

        tolerances = self._problem.tolerances_for(case)
        request = {**call.request, **self._manner(dealer.arena, flush)}
        answer = session.call(request, dealer.arena, case.label, dealer.pour, patience_s, read)
        if answer.aftermath.left:
            left = answer.aftermath.left[0]
            message = f"a call with {case.label} {left}: later calls would not be timed as this one was"
            raise Fault(Verdict.INTEGRITY_VIOLATION, message)
        self.interpreted |= answer.reply.interpreted
        comparison = compare(call, found + overruns(call, answer.aftermath.overrun), tolerances)
        return self._case_check(case, call, comparison), answer

    def put_idle(
        self,
        session: Session,
        dealer: Dealer,
        case: Case,
        patience_s: float,
        flush: bool = True,
        waits: bool = False,
        outputs: list[dict[str, Any]] | None = None,
    ) -> Answer:
        """A call that computes nothing, as large as the last one dealt, and `waits` for the device before."""
        assert dealer.arena is not None
        request = {**dealer.idle_request, **self._manner(dealer.arena, flush), "waits": waits}
        if outputs:
            request["idle"] = outputs
        return session.call(request, dealer.arena, case.label, dealer.pour, patience_s)

    def _manner(self, arena: Arena, flush: bool) -> dict[str, bool]:
        """A call without a flush works on the arena's own memory, where that is the device's: then nothing that any
        call does besides its kernel takes long enough to do work in its place."""
        return {"flush": flush, "page_in": flush or arena.on_device != (self._device.kind != "cpu")}

    @contextmanager
    def dealing(self, seeds: Seeds, case: Case) -> Iterator[Dealer]:
        dealer = Dealer(self._reference, case, seeds)
        try:
            yield dealer
        finally:
            dealer.close()

    def _case_check(self, case: Case, call: Call, comparison: Comparison) -> CaseCheck:
        met = comparison.tolerance
        return CaseCheck(
            case=case,
            verdict=Verdict.ACCEPTED if met is not None else Verdict.WRONG_ANSWER,
            tolerance=met,
            excess=comparison.excess,
            error=comparison.error,
            reference_error=comparison.reference_error,
            report=None
            if met is not None
            else mismatch.report(self._problem, case, comparison, self._reproduce(case, call.seed)),
        )

    def _reproduce(self, case: Case, seed: int) -> str:
        device = "cpu" if self._device.kind == "cpu" else self._device.torch_device
        words = ["python3", "-m", "harness", "replay", self._problem.name, self._path, case.label]
        return shlex.join([*words, "--seed", str(seed), "--device", device])


def worst_of(checks: list[CaseCheck]) -> CaseCheck:
    """One case's repeated checks as one: the one that is furthest from each tolerance."""
    worst = max(checks, key=lambda check: (check.verdict is not Verdict.ACCEPTED, _ratios(check)))
    excess = {name: max((check.excess[name] for check in checks), key=lambda e: e.ratio) for name in worst.excess}
    errors = [check.error for check in checks if check.error is not None]
    return worst.model_copy(
        update={
            "calls": len(checks),
            "excess": excess,
            "error": max(errors, default=None),
            "tolerance": next((name for name, e in excess.items() if e.ratio <= 1), None),
        }
    )


def _ratios(check: CaseCheck) -> list[float]:
    return [excess.ratio for excess in check.excess.values()]
