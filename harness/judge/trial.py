"""The trial of a submission: its worker processes, the calls that it must answer, and the results.

    one process          every test case, then each once more     ─► checks
    one without it       null calls, which compute nothing        ─► the fixed cost of timing a call (constants)
    a fresh one          a pilot of every benchmark case          ─► number of samples and manner (on a CPU before
                                                                     the constants, in the process of the tests)
    N fresh processes    every benchmark case, in random order    ─► timings; the output of each call is checked
    beside each of them  the same for the problem's baselines     ─► baselines

A submission whose kernels were interpreted or emulated is checked but not timed: its time means nothing. The same holds
if the judge set up the emulator for it, whatever its process says. The cases of a process are timed one after another,
not in turns, because the inputs of one case may fill a GPU.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import cache, partial, reduce

from harness.catalog.config import Sampling
from harness.judge.anchor import Anchor
from harness.judge.baselines import Baselines
from harness.judge.calls import FailedCall, WrongTimedCall
from harness.judge.clock import Void
from harness.judge.entrant import Entrant, Unclockable
from harness.judge.examination import Examination
from harness.judge.null_worker import NullWorker
from harness.judge.pace import Pace
from harness.judge.profiled import profiled
from harness.judge.sitting import Sitting, others_share
from harness.judge.tally import Tally
from harness.judge.timed_process import timed_process
from harness.model import (
    Case,
    CaseCheck,
    Device,
    ProfiledCase,
    Round,
    TimedBaseline,
    Total,
    Verdict,
    eligibility,
)
from harness.progress import Narrate, Step, about, tell
from harness.ranking import stats

NEAR = 2.0
"""If the most processes would leave the half-width above this multiple of the target, they are not worth their time."""


@dataclass
class Timings:
    """One benchmark case: its pace, and one sitting for each process."""

    case: Case
    pace: Pace
    sittings: list[Sitting]

    @property
    def samples_ns(self) -> list[tuple[float, ...]]:
        """The latencies, one tuple for each process."""
        return [sitting.latency_ns for sitting in self.sittings]

    @property
    def voids(self) -> Counter[Void]:
        return sum((sitting.voids for sitting in self.sittings), Counter())

    @property
    def tally(self) -> Tally:
        return reduce(Tally.__add__, (sitting.tally for sitting in self.sittings), Tally())


class Trial:
    """`run` fills `checks`, `totals`, `timings`, `rounds`, `baselines`, `profiles`. They keep their contents when a
    Fault ends it. `unclockable`: why a case could not be timed.

    `exclusive` reserves the device, on a CPU only during the timing.
    """

    def __init__(
        self,
        entrant: Entrant,
        device: Device,
        sampling: Sampling,
        confidence: float,
        new_null: Callable[[], NullWorker],
        narrate: Narrate,
        exclusive: Callable[[], AbstractContextManager[object]] = nullcontext,
        in_turns: Baselines | None = None,
    ) -> None:
        self.entrant, self._device, self._sampling, self._confidence = entrant, device, sampling, confidence
        self._new_null, self._narrate, self._exclusive = new_null, narrate, exclusive
        self.checks: list[CaseCheck] = []
        self.totals: list[Total] = []
        self.timings: list[Timings] = []
        self.rounds: list[Round] = []
        self.unclockable = ""
        self.baselines: tuple[TimedBaseline, ...] = ()
        self.profiles: list[ProfiledCase] = []
        self._in_turns = in_turns or Baselines()
        self._took_s: list[float] = []
        self._expect: Callable[[float], None] | None = None
        self._due, self._most = sampling.processes, sampling.processes + sampling.extra_processes

    @property
    def interpreted_cases(self) -> int:
        """The number of checked cases in which a kernel was interpreted."""
        return sum(check.case.label in self.entrant.caller.seen.launching for check in self.checks)

    def run(self, timed: bool, stop_at_first: bool = False, profiles: bool = False) -> None:
        """Run the trial. `profiles`: take profiles instead of timings. Raises Fault if the submission fails, except for
        a wrong answer in a test case."""
        try:
            with ExitStack() as stack:
                self._run(timed, stop_at_first, stack)
                if profiles and all(check.verdict is Verdict.ACCEPTED for check in self.checks):
                    self.profiles = profiled(self.entrant, self._narrate)
        except (WrongTimedCall, FailedCall) as failed:
            if failed is not self.entrant.failed():
                self.checks.append(failed.check)
            raise
        except Unclockable as reasons:
            self.unclockable = str(reasons)

    def _run(self, timed: bool, stop_at_first: bool, stack: ExitStack) -> None:
        entrant, on_cpu = self.entrant, self._device.kind == "cpu"
        null_worker = cache(lambda: stack.enter_context(closing(self._new_null())))  # its start imports torch
        if timed and not on_cpu:
            null_worker()
        have_it_alone = partial(self._have_it_alone, stack)
        examined = Examination(entrant, on_cpu, self._narrate, timed, stop_at_first, null_worker, have_it_alone)
        self.checks, self.totals = examined.checks, examined.totals
        paces = examined.run()
        if not examined.goes_on:
            return
        if paces is None:
            have_it_alone()
        null = null_worker()
        # The judge's own work first: the code it loads on a GPU changes the constant by 1.2 us (H200, 2026-11-22).
        anchor = Anchor(self._device, self._sampling.anchor_tolerance)
        anchor.begin()
        # No process that has loaded the submission lives now. Things that one leaves to the kernel, such as timers,
        # would change the constant.
        entrant.calibrate(null)
        if paces is None:
            with entrant.session(another_follows=True, limit_s=entrant.limits.benchmark_s) as session:
                paces = entrant.pilot(session)
                session.finish()
            if entrant.caller.untimed:
                return
        if not on_cpu and not entrant.clocks.encloses:
            null.close()
        self._in_turns.begin(entrant.caller.constants, stack)
        processes = self._time_processes(paces, anchor, null if on_cpu or entrant.clocks.encloses else None)
        self.baselines = self._in_turns.held(processes, self._confidence, entrant.ranking)
        self.timings = [
            Timings(case, paces[case.key], [sittings[case.key] for sittings in processes])
            for case in entrant.benchmarks
        ]
        for timings in self.timings:
            examined.add_up(timings.case.label, timings.tally, timings.case)

    def _have_it_alone(self, stack: ExitStack) -> None:
        """Reserve the device until `stack` is left. The wait for it counts against no limit."""
        with self.entrant.deadline.stopped():
            expect = stack.enter_context(self._exclusive())
        self._expect = expect if callable(expect) else None

    def _time_processes(
        self, paces: dict[str, Pace], anchor: Anchor, null: NullWorker | None
    ) -> list[dict[str, Sitting]]:
        """Return the sittings of each process, by the keys of the cases. There are as many processes as the
        configuration says, and as many more as their spread requires. None are added to a crowded run, which is not
        ranked anyway."""
        sampling = self._sampling
        processes = [self._time_round(number, paces, anchor, null) for number in range(sampling.processes)]
        crowded = sum(any(sitting.crowded for sitting in sittings.values()) for sittings in processes)
        if sampling.extra_processes and len(processes) > 1 and 2 * crowded <= len(processes):
            self._due = self._most = self._enough(processes)
        while len(processes) < self._due:
            processes.append(self._time_round(len(processes), paces, anchor, null))
        return processes

    def _time_round(
        self, number: int, paces: dict[str, Pace], anchor: Anchor, null: NullWorker | None
    ) -> dict[str, Sitting]:
        """Time one process of the submission and one of each baseline."""
        began, turn = time.monotonic(), (number, null, self.entrant.waiting)
        self._in_turns.before(*turn)
        sittings = self._time_soundly(number, paces, anchor, null)
        self._in_turns.after(*turn)
        self._took_s.append(time.monotonic() - began)
        return sittings

    def _time_soundly(
        self, number: int, paces: dict[str, Pace], anchor: Anchor, null: NullWorker | None
    ) -> dict[str, Sitting]:
        """Time one process, and repeat it once if the machine was disturbed."""
        for again, why in (("", ""), (" again", " again: it was disturbed")):
            line = f"timing, process {number + 1} of {self._due}{why}{self._left(number)}"
            sittings = self._time_process(number, again, paces, line, null)
            ended = anchor.end_round(others_share(sittings.values()))
            constant_ns = max((sitting.least_ns for sitting in sittings.values()), default=0.0)
            ended = ended.model_copy(update={"constant_ns": constant_ns or None})
            if ended.disturbed is None or again:
                break
            self.rounds.append(ended.model_copy(update={"kept": False}))
        self.rounds.append(ended)
        return sittings

    def _left(self, number: int) -> str:
        """Say how long the processes from `number` on will probably take: as long as those before. Before the first
        nothing is known. Whether more will follow is known only after the number that the configuration says."""
        if not self._took_s:
            return ""
        each_s = statistics.fmean(self._took_s)
        if self._expect is not None:
            self._expect(each_s * (self._due - number))  # tells the programs that wait for the device
        left, more = f", {about(each_s * (self._due - number))} left", self._most - self._due
        if more:
            left += f", {about(each_s * (self._most - number))} if their spread asks for {more} more"
        return left

    def _enough(self, processes: Sequence[dict[str, Sitting]]) -> int:
        """Decide how many processes the run gets, once, after the first ones. A run that decided after each further
        process would stop at an interval that is too narrow by chance (`stats.estimate`)."""
        sampling = self._sampling
        scores = [
            stats.centre_of_cases(
                [stats.interquartile_mean(sitting.latency_ns) for sitting in sittings.values()], self.entrant.ranking
            )
            for sittings in processes
        ]
        most = sampling.processes + sampling.extra_processes
        to_rank, near, all_that_is_asked = (
            sampling.processes if width is None else stats.enough(scores, self._confidence, width)
            for width in (sampling.most_half_width, NEAR * sampling.target_half_width, sampling.target_half_width)
        )
        to_rank = max(to_rank, self._enough_for_cases(processes))
        if to_rank > most:
            return sampling.processes  # even the most processes would not make the run ranked
        return to_rank if near > most else max(min(all_that_is_asked, most), to_rank)

    def _enough_for_cases(self, processes: Sequence[dict[str, Sitting]]) -> int:
        """How many processes make the intervals of the cases as narrow as a ranked run needs."""
        most = self._sampling.most_half_width
        cases = [
            stats.estimate([stats.interquartile_mean(each[key].latency_ns) for each in processes], self._confidence)
            for key in processes[0]
        ]
        reach = eligibility.reach(cases, self.entrant.ranking)
        if most is None or reach <= most:
            return len(processes)
        return math.ceil(len(processes) * (math.log1p(min(reach, sys.maxsize)) / math.log1p(most)) ** 2)

    def _time_process(
        self, number: int, again: str, paces: dict[str, Pace], line: str, null: NullWorker | None
    ) -> dict[str, Sitting]:
        """Time a fresh process through all cases, in random order."""
        cases, expected = len(self.entrant.benchmarks), self._due
        before = number * cases
        tell(self._narrate, Step("timing", "", before, cases * expected, line))
        sittings = {}
        phase, follows = f"process {number}{again}", number + 1 < self._most
        with closing(timed_process(self.entrant, phase, paces, null, another_follows=follows)) as growing:
            for case, done, sitting in growing:
                sittings[case.key] = sitting
                sample = (len(sitting.elapsed_ns), paces[case.key].count)
                share = sample[0] / sample[1]
                tell(self._narrate, Step("timing", case.label, before + done + share, cases * expected, sample=sample))
        return sittings
