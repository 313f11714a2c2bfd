"""Putting calls to a worker: deal one, have it timed, hold its outputs against the expectation.

put         a checked call               ─► CaseCheck, Answer; the series' tally grows
put_timed   one of a benchmark case      ─► Answer; raises WrongTimedCall
put_null    one that computes nothing    ─► Answer
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch

from harness.command import typed
from harness.judge import hints
from harness.judge.checked_call import changes, overruns
from harness.judge.clock import Answer, Clock, Void
from harness.judge.deadline import Deadline
from harness.judge.emulation import SHARE_OF_A_WAVE
from harness.judge.inputs import Call, Dealer
from harness.judge.null_calls import Constants
from harness.judge.reference import Reference
from harness.judge.reply import Fault, Raised
from harness.judge.seeds import Seeds
from harness.judge.session import Session
from harness.judge.stage import Stage
from harness.judge.tally import Tally
from harness.model import Case, CaseCheck, Device, Verdict
from harness.wire.arena import extent, layout
from harness.wire.flusher import Flusher
from harness.wire.tree import flatten

MOST_WITHOUT = 3
"""Of one series: calls on a GPU that took no longer than one that computes nothing, and left nothing. The device may
not have switched to them; who does so more often has not computed."""


class WrongTimedCall(Fault):
    """A benchmark case's output is wrong, timed or not."""

    def __init__(self, check: CaseCheck) -> None:
        super().__init__(Verdict.WRONG_ANSWER, f"a benchmark case is wrong: {check.case.label}", check.report)
        self.check = check


class FailedCall(Fault):
    """A call that gave no answer: `fault` with the case, and with the command that makes the call again. `raised`: it
    ended with an exception of the submission's own, and its worker can be asked again. It is not where the call took
    `too_long_s`, as others would, too."""

    def __init__(self, fault: Fault, case: Case, reproduce: str, too_long_s: float | None = None) -> None:
        verdict, message = fault.ending.verdict, fault.ending.message
        if isinstance(fault, Raised) and too_long_s is not None:
            message += f"; that took {too_long_s:.0f} s, and no case after it is tried"
        said = (fault.ending.detail or message).strip("\n")
        super().__init__(verdict, message, f"case {case.label}\n{said}\nreproduce: {reproduce}")
        self.raised = isinstance(fault, Raised) and too_long_s is None
        self.check = CaseCheck(case=case, verdict=verdict, tolerance=None, excess={}, error=None)


OF_THE_CALL = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT)
"""What a call with the same inputs would most likely do again."""


class Series:
    """Calls of one case: a dealer of inputs, the stage on which they are made, and what their outputs come to.

    `previous`: some of what the last checked call should have returned; of timed ones nothing is kept."""

    def __init__(self, case: Case, dealer: Dealer, stage: Stage) -> None:
        self.case, self.dealer, self.stage = case, dealer, stage
        self.call: Call | None = None
        self.tally = Tally()
        self.without_a_slice = 0
        self.previous: dict[str, torch.Tensor] = {}

    def deal(self, everything: bool, probe: Case | None = None) -> Call:
        self.call = None  # its inputs may fill half of a GPU
        self.stage.clear()
        self.call = self.dealer.deal(everything, probe)
        return self.call


class Caller:
    """Calls of one submission on one device.

    interpreted: whether any call so far ran in Triton's interpreter; emulated: for which chip one ran in the emulator,
    with the instructions that its process executed, what compiling took it and what the emulator remarks; the
    submission's own process says so.
    emulates: the chip that the judge had the emulator set up for, None where it had not: then no chip is believed, and
    the call's time is not either.
    judging_s: what the judge itself took for each call, to make it and to check it. `constants` say which calls are
    void.
    """

    def __init__(
        self,
        reference: Reference,
        path: str,
        device: Device,
        flusher: Flusher,
        deadline: Deadline | None = None,
        emulates: str | None = None,
    ) -> None:
        self._reference, self._path, self._device, self._flusher = reference, path, device, flusher
        self._problem, self._deadline, self._checker = reference.problem, deadline, reference.checker()
        self.constants = Constants()
        self.interpreted, self.emulates = False, emulates
        self.emulated: str | None = None
        self._claims = False
        self.executed, self.compiling_s = 0, 0.0
        self.remarks: list[str] = []
        self.judging_s: list[float] = []

    @cached_property
    def _smallest(self) -> str | None:
        """The key of the test case that moves the fewest bytes; None if not all of them are here to be compared."""
        tests = self._problem.cases_for(self._device.kind).test
        if not tests or self._problem.partial:
            return None
        return min(tests, key=self._reference.most_bytes).key

    @property
    def calls_a_model(self) -> bool:
        """Whether a call is one of a module of torch's, in the place of a function."""
        return self._problem.foreign is not None and self._problem.foreign.form == "kernelbench"

    @property
    def simulated(self) -> bool:
        """Whether a call so far was interpreted or emulated, as far as the submission's own process says."""
        return self.interpreted or self.emulated is not None

    @property
    def untimed(self) -> bool:
        """Whether its time says nothing: whatever its process says of the emulator that was set up for it."""
        return self.interpreted or self.by_emulator

    @property
    def by_emulator(self) -> bool:
        """Whether the emulator was set up for it, or its process says that it was."""
        return self.emulates is not None or self._claims

    @contextmanager
    def series(self, seeds: Seeds, case: Case) -> Iterator[Series]:
        dealer, stage = self._reference.dealer(case, seeds), Stage(self._device, self._flusher)
        try:
            yield Series(case, dealer, stage)
        finally:
            stage.close()
            dealer.close()

    def put(
        self, session: Session, series: Series, clock: Clock, everything: bool, probe: Case | None = None
    ) -> tuple[CaseCheck | None, Answer]:
        """Deal a call, have it timed, judge its outputs. A void call may have no check. What a `probe` returns is not
        tallied with the others. Raises FailedCall, Fault."""
        if self._deadline is not None:
            self._deadline.check()
        began = time.monotonic()
        call = series.deal(everything, probe)
        case = call.case
        self.set_up(session, series.case)
        session.on_the_smallest = case.key == self._smallest
        dealt = time.monotonic()
        try:
            answer = clock.time(session, series.stage, call, case.label)
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

    def set_up(self, session: Session, case: Case) -> None:
        """Hand a worker what it gets before its calls, once."""
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
        """One call of a benchmark case, or with `probe` one that nobody can tell from it but by its inputs. Raises
        WrongTimedCall if its output is wrong and no void excuses that."""
        check, answer = self.put(session, series, clock, everything=False, probe=probe)
        excused = answer.void is not None and answer.void.excuses
        if not excused and check is not None and check.verdict is not Verdict.ACCEPTED:
            raise WrongTimedCall(check)
        return answer

    def put_null(self, session: Session, series: Series, clock: Clock, cycles: int = 1) -> Answer:
        """A call like the last one dealt that computes nothing, or on a GPU waits for so many of its cycles."""
        call = series.call or series.deal(everything=False)
        answer = clock.time(session, series.stage, call, series.case.label, cycles)
        return _done(answer, self.constants.void(answer, clock.manner, series.case))

    def _check(
        self, series: Series, call: Call, answer: Answer, everything: bool = False
    ) -> tuple[CaseCheck | None, Tally]:
        if answer.reply is None or answer.snapshot is None:
            return None, Tally()
        self.interpreted |= answer.reply.interpreted
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
        """Whether a call that was wrong at its second stamp has become right since: it was not over."""
        if answer.later is None:
            return False
        check, _ = self._check(series, call, replace(answer, snapshot=answer.later()))
        return check is not None and check.verdict is Verdict.ACCEPTED

    def _reproduce(self, case: Case, seed: int) -> str:
        device = "cpu" if self._device.kind == "cpu" else self._device.torch_device
        words = [self._problem.argument, self._path, case.label, "--seed", str(seed), "--device", device]
        return typed("replay", *words, *(["--target", self.emulates] if self.emulates else []))


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


def _done(answer: Answer, void: Void | None) -> Answer:
    """Without what holds the call's inputs and outputs: those of a few may fill a GPU."""
    return replace(answer, void=void, snapshot=None, later=None)
