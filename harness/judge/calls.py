"""Make calls with a worker: deal the inputs, have the call timed, check its outputs.

put         one checked call                 ─► CaseCheck, Answer; the series' tally grows
put_timed   one call of a benchmark case     ─► Answer; raises WrongTimedCall
put_null    one null call (computes nothing) ─► Answer
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch

from harness.command import typed
from harness.errors import InfrastructureError
from harness.judge import hints, share
from harness.judge.caches import Caches
from harness.judge.checked_call import changes, overruns
from harness.judge.clock import Answer, Clock, Void
from harness.judge.deadline import Deadline
from harness.judge.emulation import SHARE_OF_A_WAVE
from harness.judge.inputs import Call, Dealer
from harness.judge.null_calls import Constants
from harness.judge.reference import Reference
from harness.judge.reply import Fault, Raised
from harness.judge.seeds import Seeds
from harness.judge.seen import Seen
from harness.judge.session import Session
from harness.judge.stage import Stage
from harness.judge.tally import Tally
from harness.model import Case, CaseCheck, Device, Verdict
from harness.wire.arena import extent, layout
from harness.wire.tree import flatten

MOST_WITHOUT = 3
"""The most wrong calls of one series that are void because they took no longer than a null call (GPU only). The device
may not have switched to the worker. A submission to which this happens more often has not computed."""


class WrongTimedCall(Fault):
    """An output of a benchmark case is wrong. The call may be timed or not."""

    def __init__(self, check: CaseCheck) -> None:
        super().__init__(Verdict.WRONG_ANSWER, f"a benchmark case is wrong: {check.case.label}", check.report)
        self.check = check


class FailedCall(Fault):
    """A call that gave no answer. It is `fault`, extended by the case and by the command that repeats the call.

    `raised`: the submission raised an exception of its own, so its worker can be asked again. `raised` is False if the
    call took `too_long_s` seconds, because the cases after it would probably take as long.
    """

    def __init__(self, fault: Fault, case: Case, reproduce: str, too_long_s: float | None = None) -> None:
        verdict, message = fault.ending.verdict, fault.ending.message
        if isinstance(fault, Raised) and too_long_s is not None:
            message += f"; the call took {too_long_s:.0f} s, so no later case was tried"
        said = (fault.ending.detail or message).strip("\n")
        super().__init__(verdict, message, f"case {case.label}\n{said}\nreproduce: {reproduce}")
        self.raised = isinstance(fault, Raised) and too_long_s is None
        self.check = CaseCheck(case=case, verdict=verdict, tolerance=None, excess={}, error=None)


TWICE = 2
"""How often a test case is called. The second call has fresh values, so that a cached answer is found."""

OF_THE_CALL = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT)
"""The verdicts that another call with the same inputs would probably get too."""


class Series:
    """Calls of one case: the dealer of their inputs, the memory (stage) in which they are made, and the tally of their
    outputs.

    `previous`: samples of the expected outputs of the last checked call. Empty for timed calls.
    """

    def __init__(self, case: Case, dealer: Dealer, stage: Stage) -> None:
        self.case, self.dealer, self.stage = case, dealer, stage
        self.call: Call | None = None
        self.tally = Tally()
        self.without_a_slice = 0
        self.previous: dict[str, torch.Tensor] = {}

    def deal(self, everything: bool, probe: Case | None = None) -> Call:
        self.call = None  # freed first: the inputs of a call may fill half of a GPU
        self.stage.clear()
        self.call = self.dealer.deal(everything, probe)
        return self.call


class Caller:
    """Makes the calls of one submission on one device.

    seen: what the submission's own process says of its calls.
    emulated: the chip for which a call ran in the emulator, or None. With it: the instructions executed, the seconds of
    compiling and the emulator's remarks. All of these come from the submission's own process.
    emulates: the chip for which the judge set up the emulator, or None. If None, the judge ignores any chip that the
    worker names, and the call's time does not count either.
    judging_s: the judge's own seconds for each call: dealing and checking.
    constants: decide which calls are void.
    """

    def __init__(
        self,
        reference: Reference,
        path: str,
        device: Device,
        caches: Caches,
        deadline: Deadline | None = None,
        emulates: str | None = None,
    ) -> None:
        self._reference, self._path, self._device, self._caches = reference, path, device, caches
        self._problem, self._deadline, self._checker = reference.problem, deadline, reference.checker()
        self.constants = Constants()
        self.seen, self.emulates = Seen(), emulates
        self.emulated: str | None = None
        self._claims = False
        self.executed, self.compiling_s = 0, 0.0
        self.remarks: list[str] = []
        self.judging_s: list[float] = []

    @cached_property
    def _smallest(self) -> str | None:
        """The key of the test case that moves the fewest bytes. None if the problem was loaded with only some of its
        cases."""
        tests = self._problem.cases_for(self._device.kind).test
        if not tests or self._problem.partial:
            return None
        return min(tests, key=self._reference.most_bytes).key

    @property
    def calls_a_model(self) -> bool:
        """Whether a call runs a torch module instead of a function."""
        return self._problem.foreign is not None and self._problem.foreign.form == "kernelbench"

    @property
    def simulated(self) -> bool:
        """Whether a call so far was interpreted or emulated, according to the submission's own process."""
        return self.seen.interpreted or self.emulated is not None

    @property
    def untimed(self) -> bool:
        """Whether the submission's times mean nothing. Where the judge set up the emulator, the answer is yes whatever
        the process says."""
        return self.seen.interpreted or self.by_emulator

    @property
    def by_emulator(self) -> bool:
        """Whether the judge set up the emulator for the submission, or its process says that it runs in one."""
        return self.emulates is not None or self._claims

    @contextmanager
    def series(self, seeds: Seeds, case: Case) -> Iterator[Series]:
        dealer, stage = self._reference.dealer(case, seeds), Stage(self._device, self._caches)
        try:
            yield Series(case, dealer, stage)
        finally:
            stage.close()
            dealer.close()

    def put(
        self, session: Session, series: Series, clock: Clock, everything: bool, probe: Case | None = None
    ) -> tuple[CaseCheck | None, Answer]:
        """Deal a call, have it timed and check its outputs. A void call may have no check. The outputs of a `probe`, a
        call of another case among the timed ones, are not tallied. Raises FailedCall, Fault, InfrastructureError."""
        try:
            with share.full_memory_is_no_crash():
                return self._put(session, series, clock, everything, probe)
        except share.DeviceFull:
            self.blame(session)
            raise

    def blame(self, session: Session) -> None:
        """End a worker where the device's memory is full. Raises Fault if it kept more than its share."""
        share.blame(session, self._device, self._reference.holders)

    def _put(
        self, session: Session, series: Series, clock: Clock, everything: bool, probe: Case | None
    ) -> tuple[CaseCheck | None, Answer]:
        if self._deadline is not None:
            self._deadline.check()
        began = time.monotonic()
        call = self._deal(session, series, everything, probe)
        case = call.case
        self.set_up(session, series.case)
        session.on_the_smallest = case.key == self._smallest
        dealt = time.monotonic()
        try:
            answer = self._timed(session, series, clock, call)
        except Fault as fault:
            if fault.ending.verdict not in OF_THE_CALL:
                raise
            took_s = time.monotonic() - dealt
            long_s = took_s if took_s >= SHARE_OF_A_WAVE * session.limits.call_s else None
            raise FailedCall(fault, case, self._reproduce(case, call.seed), long_s) from None
        void = self.constants.void(answer, clock.manner, series.case)
        timed = time.monotonic()
        check, tally = self._check(series, call, answer, everything)
        if everything and call.expectation.selection is None:
            series.previous = {name: hints.sampled(output) for name, output in call.expectation.outputs.items()}
        wrong = check is not None and check.verdict is not Verdict.ACCEPTED
        if void is None and wrong and self.constants.took_nothing(answer) and series.without_a_slice < MOST_WITHOUT:
            series.without_a_slice += 1
            void = Void.NO_SLICE
        if void is None and wrong and self._right_later(series, call, answer):
            void = Void.CUT
        if void is None and probe is None:
            series.tally += tally
        self.judging_s.append(dealt - began + time.monotonic() - timed)
        return check, _done(answer, void)

    def _deal(self, session: Session, series: Series, everything: bool, probe: Case | None = None) -> Call:
        """Deal a call. If a GPU's memory is short, the worker gives back what torch keeps for later, and another is
        dealt. A step of a loop cannot be dealt again."""
        try:
            return series.deal(everything, probe)
        except (InfrastructureError, torch.OutOfMemoryError):
            if self._device.kind == "cpu" or series.dealer.steps > 1:
                raise
        session.trim()  # not above: there the exception holds the inputs
        torch.cuda.empty_cache()
        return series.deal(everything, probe)

    def set_up(self, session: Session, case: Case) -> None:
        """Send the worker the data that it gets once, before its calls."""
        if not self._reference.has_setup or session.set_up_for == case.key:
            return
        tree, leaves = flatten(self._reference.setup(), None)
        tensors = [tensor.detach().contiguous() for _, tensor in leaves]
        specs = layout(tensors)
        arena = self._reference.new_arena(extent(specs))
        try:
            for tensor, spec in zip(tensors, specs, strict=True):
                arena.view(spec).copy_(tensor)
            if self._device.kind != "cpu":
                torch.cuda.synchronize()
            session.set_up(arena, {"tree": tree, "inputs": [spec.to_json() for spec in specs]}, case.key)
        finally:
            arena.close()

    def put_timed(self, session: Session, series: Series, clock: Clock, probe: Case | None = None) -> Answer:
        """Make one call of a benchmark case. With `probe`, make a call of that case instead: the worker can tell the
        two apart only by the inputs. Raises WrongTimedCall if the output is wrong, unless the call is void for a reason
        that excuses it."""
        check, answer = self.put(session, series, clock, everything=False, probe=probe)
        excused = answer.void is not None and answer.void.excuses
        if not excused and check is not None and check.verdict is not Verdict.ACCEPTED:
            raise WrongTimedCall(check)
        return answer

    def put_null(self, session: Session, series: Series, clock: Clock, cycles: int = 1) -> Answer:
        """Make a null call with the memory layout of the last call dealt. It computes nothing; on a GPU it waits for
        `cycles` clock cycles. No submission is to blame if it fails. Raises InfrastructureError then, or Fault if the
        evaluation's time is up."""
        with share.full_memory_is_no_crash():
            call = series.call or self._deal(session, series, everything=False)
            try:
                answer = self._timed(session, series, clock, call, cycles)
            except Fault as fault:
                if self._deadline is not None:
                    self._deadline.check()
                raise InfrastructureError(f"a call that computes nothing failed: {fault}") from fault
        return _done(answer, self.constants.void(answer, clock.manner, series.case))

    def _timed(self, session: Session, series: Series, clock: Clock, call: Call, null: int | None = None) -> Answer:
        series.stage.arm_s = self.constants.arm_ns(series.case) / 1e9
        return clock.time(session, series.stage, call, call.case.label, null)

    def _check(
        self, series: Series, call: Call, answer: Answer, everything: bool = False
    ) -> tuple[CaseCheck | None, Tally]:
        if answer.reply is None or answer.snapshot is None:
            return None, Tally()
        self.seen.note(call.case.label, answer.reply)
        self._claims |= answer.reply.emulated is not None
        if self.emulates is not None and answer.reply.emulated is not None:
            self.emulated = self.emulates
            self.executed = max(self.executed, answer.reply.executed)
            self.compiling_s = max(self.compiling_s, answer.reply.compiling_s)
            self.remarks += [one for one in answer.reply.remarks if one not in self.remarks and len(self.remarks) < 16]
        beside = sorted({*series.stage.overrun(), *answer.reply.overrun})
        trespasses = [*overruns(call, beside), *changes(call, series.stage.changed())]
        again = self._reproduce(call.case, call.seed)
        return self._checker.check(
            call, answer.reply, answer.snapshot, trespasses, everything, again, previous=series.previous
        )

    def _right_later(self, series: Series, call: Call, answer: Answer) -> bool:
        """Whether a call that was wrong at stamp B is right by now. Then the call was not over at stamp B."""
        if answer.later is None:
            return False
        check, _ = self._check(series, call, replace(answer, snapshot=answer.later()))
        return check is not None and check.verdict is Verdict.ACCEPTED

    def _reproduce(self, case: Case, seed: int) -> str:
        device = "cpu" if self._device.kind == "cpu" else self._device.torch_device
        words = [self._problem.argument, self._path, case.label, "--seed", str(seed), "--device", device]
        return typed("replay", *words, *(["--target", self.emulates] if self.emulates else []))


def worst_of(checks: list[CaseCheck]) -> CaseCheck:
    """Merge the repeated checks of one case into one: the check that is furthest from each tolerance."""
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


def _done(answer: Answer, void: Void | None) -> Answer:
    """Return the answer without the call's inputs and outputs: those of a few calls may fill a GPU."""
    return replace(answer, void=void, snapshot=None, later=None)
