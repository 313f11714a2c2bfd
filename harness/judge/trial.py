"""A submission on trial: the worker processes it gets, the calls it must answer, and what came of them.

    one process          every test case, then each once more     ─► checks
    one without it       calls that compute nothing               ─► what timing a call takes (constants)
    a fresh one          a pilot of every benchmark case          ─► how many samples, in which manner
    N fresh processes    every benchmark case, in random order    ─► timings, each call's output checked

A submission whose Triton kernels were interpreted is verified, not timed: interpreted time is no measurement. The cases
of a process are taken one at a time, not in turns, because a case's inputs may fill a GPU.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace

from harness import stats
from harness.config import Sampling
from harness.judge.anchor import Anchor
from harness.judge.calls import WrongTimedCall
from harness.judge.clock import Void
from harness.judge.entrant import Entrant, NullWorker, Unclockable
from harness.judge.neighbours import Neighbours
from harness.judge.pace import Pace
from harness.judge.sitting import Sitting, others_share
from harness.model import Case, CaseCheck, Device, Round, Verdict
from harness.progress import Narrate, Step, tell


@dataclass
class Timings:
    """One benchmark case: how it was timed, and a sitting a process."""

    case: Case
    pace: Pace
    sittings: list[Sitting]

    @property
    def samples_ns(self) -> list[tuple[float, ...]]:
        """The latencies, a tuple a process."""
        return [sitting.latency_ns for sitting in self.sittings]

    @property
    def voids(self) -> Counter[Void]:
        return sum((sitting.voids for sitting in self.sittings), Counter())


class Trial:
    """`run` fills `checks`, `timings`, `rounds`; what it found stays when a Fault ends it. `unclockable` says why a
    case could not be timed.

    `exclusive` holds the device, on a CPU only while it is timed.
    """

    def __init__(
        self,
        entrant: Entrant,
        device: Device,
        sampling: Sampling,
        new_null: Callable[[], NullWorker],
        narrate: Narrate,
        exclusive: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.entrant, self._device, self._sampling = entrant, device, sampling
        self._new_null, self._narrate, self._exclusive = new_null, narrate, exclusive
        self.checks: list[CaseCheck] = []
        self.timings: list[Timings] = []
        self.rounds: list[Round] = []
        self.unclockable = ""

    def run(self, timed: bool) -> None:
        """Raises Fault with the verdict when the submission fails other than by a wrong answer in a test case."""
        try:
            with ExitStack() as stack:
                self._run(timed, stack)
        except WrongTimedCall as wrong:
            self.checks.append(wrong.check)
            raise
        except Unclockable as reasons:
            self.unclockable = str(reasons)

    def _run(self, timed: bool, stack: ExitStack) -> None:
        entrant, on_cpu = self.entrant, self._device.kind == "cpu"
        null: NullWorker | None = None
        if timed and not on_cpu:  # it imports torch while others are checked
            stack.callback((null := self._new_null()).close)
        with entrant.session(another_follows=timed) as session:
            for check in entrant.check_tests(session):
                self.checks.append(check)
            session.finish()
        correct = all(check.verdict is Verdict.ACCEPTED for check in self.checks)
        if not (timed and correct and entrant.benchmarks) or entrant.caller.interpreted:
            return
        with entrant.deadline.stopped():
            stack.enter_context(self._exclusive())
        if null is None:
            stack.callback((null := self._new_null()).close)
        # The judge's own work first: what it loads on a GPU moves the constant by 1.2 us (H200, 2026-11-22).
        anchor = Anchor(self._device, self._sampling.anchor_tolerance)
        anchor.begin()
        # No process that has loaded the submission lives: what one leaves to the kernel, timers for one, would be in
        # the constant.
        entrant.calibrate(null)
        with entrant.session(another_follows=True) as session:
            paces = entrant.pilot(session)
            session.finish()
        if entrant.caller.interpreted:
            return
        if not on_cpu:
            null.close()
        processes = self._time_processes(paces, anchor, null if on_cpu else None)
        self.timings = [
            Timings(case, paces[case.key], [sittings[case.key] for sittings in processes])
            for case in entrant.benchmarks
        ]

    def _time_processes(
        self, paces: dict[str, Pace], anchor: Anchor, null: NullWorker | None
    ) -> list[dict[str, Sitting]]:
        """The sittings of each process, by the cases' keys: as many processes as the configuration says, and some more
        while the score's interval is wide."""
        processes: list[dict[str, Sitting]] = []
        while not self._enough(processes):
            processes.append(self._time_soundly(len(processes), paces, anchor, null))
        return processes

    def _time_soundly(
        self, number: int, paces: dict[str, Pace], anchor: Anchor, null: NullWorker | None
    ) -> dict[str, Sitting]:
        """A process timed; once more where the machine was disturbed."""
        for again, why in (("", ""), (" again", " again: it was disturbed")):
            line = f"timing, process {number + 1} of {max(self._sampling.processes, number + 1)}{why}"
            sittings = self._time_process(number, again, paces, line, null)
            ended = anchor.end_round(others_share(sittings.values()))
            if ended.disturbed is None or again:
                break
            self.rounds.append(ended.model_copy(update={"kept": False}))
        self.rounds.append(ended)
        return sittings

    def _enough(self, processes: Sequence[dict[str, Sitting]]) -> bool:
        sampling = self._sampling
        if len(processes) < sampling.processes:
            return False
        if len(processes) >= sampling.processes + sampling.extra_processes:
            return True
        scores = [
            stats.geometric_mean([stats.interquartile_mean(sitting.latency_ns) for sitting in sittings.values()])
            for sittings in processes
        ]
        score = stats.estimate(scores, confidence=0.95)
        return score.high_ns is None or score.high_ns <= (1 + sampling.target_half_width) * score.latency_ns

    def _time_process(
        self, number: int, again: str, paces: dict[str, Pace], line: str, null: NullWorker | None
    ) -> dict[str, Sitting]:
        """A fresh process through all cases, in random order."""
        cases = self.entrant.benchmarks
        before, expected = number * len(cases), max(self._sampling.processes, number + 1)
        tell(self._narrate, Step("timing", "", before, len(cases) * expected, line))
        sittings = {}
        most = self._sampling.processes + self._sampling.extra_processes
        with self.entrant.session(another_follows=number + 1 < most) as session:
            ours = [session, *self.entrant.waiting, *([null.ready()] if null is not None else [])]
            neighbours = Neighbours(ours)
            order = secrets.SystemRandom().sample(cases, len(cases))
            for done, case in enumerate(order, before):
                pace = paces[case.key]
                step = Step("timing", case.label, done, len(cases) * expected)

                def told(taken: int, pace: Pace = pace, step: Step = step) -> None:
                    share = taken / pace.count
                    tell(self._narrate, replace(step, done=step.done + share, sample=(taken, pace.count)))

                phase = f"process {number}{again}"
                sittings[case.key] = self.entrant.sit(session, case, phase, pace, null, told)
            crowding = neighbours.crowding()
            for sitting in sittings.values():
                sitting.crowding = crowding
            session.finish()
        return sittings
