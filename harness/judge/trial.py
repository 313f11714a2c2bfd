"""A submission on trial: the worker processes it gets, the calls it must answer, and what came of them.

    one process          every test case, then each once more     ─► checks
                         a pilot of every benchmark case          ─► how many samples, fixed from here on
    N fresh processes    every benchmark case, in random order    ─► timings, each call's output checked

A submission whose Triton kernels were interpreted is verified, not timed: interpreted time is no measurement. The cases
of a process are taken one at a time, not in turns, because a case's inputs may fill a GPU.
"""

from __future__ import annotations

import os
import secrets
import shlex
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.config import Sampling
from harness.judge import mismatch
from harness.judge.check import Comparison, compare
from harness.judge.inputs import Call, Dealer, Reference, Seeds, new_master_seed
from harness.judge.session import CallReply, Fault, Session
from harness.model import Case, CaseCheck, Device, Skipped, Verdict

Narrate = Callable[[str], None]


@dataclass
class Timings:
    """One benchmark case's samples, a list a process, in nanoseconds, and the labels that any of them bore."""

    case: Case
    samples_ns: list[tuple[float, ...]] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)


class Trial:
    """`run` fills `checks`, `timings`, `interpreted` and `printed`; what it had found stays when a Fault ends it."""

    def __init__(
        self,
        reference: Reference,
        path: str,
        device: Device,
        scratch: Path,
        sampling: Sampling,
        narrate: Narrate,
        threads: int | None = None,
    ) -> None:
        self._threads = threads or (len(os.sched_getaffinity(0)) if device.kind == "cpu" else 1)
        self._reference, self._device, self._scratch = reference, device, scratch
        self._path = path
        self._sampling, self._narrate = sampling, narrate
        self._problem = reference.problem
        cases = self._problem.cases_for(device.kind)
        self.skipped = [
            Skipped(case=case, reason=reason)
            for case in (*cases.test, *cases.benchmark)
            if (reason := reference.does_not_fit(case, device.memory_bytes)) is not None
        ]
        too_large = {skipped.case.key for skipped in self.skipped}
        self._tests = [case for case in cases.test if case.key not in too_large]
        self._benchmarks = [case for case in cases.benchmark if case.key not in too_large]
        self.master_seed = new_master_seed()
        self.interpreted = False
        self.printed = ""
        self.checks: list[CaseCheck] = []
        self.timings: list[Timings] = []
        self._judging_s: list[float] = []

    def run(self, timed: bool) -> None:
        """Raises Fault with the verdict when the submission fails other than by a wrong answer in a test case."""
        with self._session() as session:
            self._check_tests(session)
            correct = all(check.verdict is Verdict.ACCEPTED for check in self.checks)
            counts = self._pilot(session) if timed and correct and not self.interpreted else {}
            session.finish()
        if not counts:
            return
        timings = {case.key: Timings(case) for case in self._benchmarks}
        for process in range(self._sampling.processes):
            self._narrate(f"timing, process {process + 1} of {self._sampling.processes}")
            with self._session() as session:
                for case in secrets.SystemRandom().sample(self._benchmarks, len(self._benchmarks)):
                    self._time(session, timings[case.key], f"process {process}", counts[case.key])
                session.finish()
        self.timings = list(timings.values())

    def replay(self, case: Case, seeds: Seeds) -> CaseCheck:
        """One check of one case, nothing else. Raises Fault."""
        with self._session() as session:
            (check,) = self._check_case(session, case, seeds, 1)
            session.finish()
        return check

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """A fresh worker with the submission loaded."""
        session = Session(self._problem, self._device, self._scratch, self._threads)
        try:
            session.load(self._scratch / "submission.py")
            yield session
        finally:
            session.kill()
            self.printed = session.printed or self.printed

    def _check_tests(self, session: Session) -> None:
        """Every test case, each twice with fresh values, so that an answer remembered by shape shows.

        Interpreted kernels are slow: there only the first case is put twice.
        """
        for number, case in enumerate(self._tests):
            self._narrate(f"test {number + 1} of {len(self._tests)}: {case.label}")
            once = self.interpreted and number > 0
            self.checks += self._check_case(session, case, Seeds(self.master_seed, "test", case), 1 if once else 2)

    def _check_case(self, session: Session, case: Case, seeds: Seeds, repeats: int) -> list[CaseCheck]:
        """`repeats` judgements of `case`; stops at the first that is wrong. One CaseCheck, the worst, in a list."""
        dealer = Dealer(self._reference, case, seeds)
        checks: list[CaseCheck] = []
        try:
            for _ in range(repeats * dealer.steps):
                checks.append(self._put(session, dealer, case, everything=True)[0])
                if checks[-1].verdict is not Verdict.ACCEPTED:
                    break
        finally:
            dealer.close()
        return [_worst_of(checks)]

    def _pilot(self, session: Session) -> dict[str, int]:
        """How many samples each benchmark case gets, by its key."""
        counts = {}
        for case in self._benchmarks:
            self._narrate(f"pilot: {case.label}")
            dealer = Dealer(self._reference, case, Seeds(self.master_seed, "pilot", case))
            try:
                self._put_timed(session, dealer, case)
                self._judging_s.clear()
                latencies = [
                    self._put_timed(session, dealer, case).latency_ns for _ in range(self._sampling.pilot_calls)
                ]
            finally:
                dealer.close()
            judging_s = statistics.median(self._judging_s)
            counts[case.key] = self._sampling.samples_for(statistics.median(latencies), judging_s)
        return counts

    def _time(self, session: Session, timings: Timings, phase: str, count: int) -> None:
        """Warm up on one case in one process, then take `count` samples."""
        case = timings.case
        dealer = Dealer(self._reference, case, Seeds(self.master_seed, phase, case))
        try:
            for _ in range(self._sampling.warmup_calls):
                self._put_timed(session, dealer, case)
            replies = [self._put_timed(session, dealer, case) for _ in range(count)]
        finally:
            dealer.close()
        timings.samples_ns.append(tuple(reply.latency_ns for reply in replies))
        timings.labels.update(label for reply in replies for label in reply.labels)

    def _put_timed(self, session: Session, dealer: Dealer, case: Case) -> CallReply:
        """One call of a benchmark case. Raises Fault if its output is wrong, timed or not."""
        check, reply = self._put(session, dealer, case, everything=False)
        if check.verdict is not Verdict.ACCEPTED:
            self.checks.append(check)
            raise Fault(Verdict.WRONG_ANSWER, f"a benchmark case is wrong: {case.label}", check.report)
        return reply

    def _put(self, session: Session, dealer: Dealer, case: Case, everything: bool) -> tuple[CaseCheck, CallReply]:
        """Deal a call, have the worker answer it, judge the answer. Nothing of its tensors outlives this."""
        dealing = time.monotonic()
        call = dealer.deal(everything)
        assert dealer.arena is not None
        waiting = time.monotonic()
        reply = session.call(call.request, dealer.arena, case.label)
        checking = time.monotonic()
        self.interpreted |= reply.interpreted
        comparison = compare(call, reply, dealer.arena, self._problem.tolerances_for(case))
        self._judging_s.append(time.monotonic() - checking + waiting - dealing)
        return self._case_check(case, call, comparison), reply

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
        words = ["python", "-m", "harness", "replay", self._problem.name, self._path, case.label]
        return shlex.join([*words, "--seed", str(seed), "--device", device])


def _worst_of(checks: list[CaseCheck]) -> CaseCheck:
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
