"""Baselines that come with a problem, timed in turns with a submission: what disturbs one disturbs the other.

    begin        a worker each, with a pilot: how often each case is sampled
    before       a round: of some a fresh process ahead of the submission's, of the others one behind it, by a coin;
    after        calls of one round have the same inputs
    held         what came of each, and how many times as long as the submission it takes

One that fails is left out with the reason, and the submission is judged all the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing

from harness.judge.entrant import Entrant, Unclockable
from harness.judge.null_calls import Constants
from harness.judge.null_worker import NullWorker
from harness.judge.pace import Pace
from harness.judge.reply import Fault
from harness.judge.session import Session
from harness.judge.sitting import Sitting, too_many_void
from harness.judge.tally import Tally
from harness.judge.timed_process import timed_process
from harness.model import Submission, TimedBaseline
from harness.progress import Narrate
from harness.ranking import stats


class Baseline:
    """One of them. `why_not` says why it is left out."""

    def __init__(self, name: str, entrant: Entrant) -> None:
        self.name, self.entrant = name, entrant
        self.processes: list[dict[str, Sitting]] = []
        self.why_not = ""
        self._paces: dict[str, Pace] = {}

    def begin(self, constants: Constants) -> None:
        self.entrant.caller.constants = constants
        try:
            with self.entrant.session(limit_s=self.entrant.limits.benchmark_s) as session:
                self._paces = self.entrant.pilot(session)
                session.finish()
        except (Fault, Unclockable) as failed:
            self.why_not = _said(failed)

    def time(self, phase: str, null: NullWorker | None, waiting: list[Session]) -> None:
        if self.why_not:
            return
        try:
            with closing(timed_process(self.entrant, phase, self._paces, null, waiting=waiting)) as growing:
                sittings = {case.key: sitting for case, _, sitting in growing}
        except (Fault, Unclockable) as failed:
            self.why_not = _said(failed)
            return
        for sitting in sittings.values():
            sitting.tally = Tally()
        self.processes.append(sittings)

    def held(self, ours: Sequence[dict[str, Sitting]], confidence: float, ranking: str) -> TimedBaseline:
        """Against the submission's processes, round by round."""
        if self.why_not:
            return TimedBaseline(name=self.name, why_not=self.why_not)
        theirs = [_score(process, ranking) for process in self.processes]
        ratio = stats.ratio_of_pairs(theirs, [_score(process, ranking) for process in ours], confidence)
        return TimedBaseline(
            name=self.name,
            score=stats.estimate(theirs, confidence),
            latencies_ns=tuple(
                stats.estimate([_centre(process[case.key]) for process in self.processes], confidence).latency_ns
                for case in self.entrant.benchmarks
            ),
            speed_up=ratio.value,
            speed_up_low=ratio.low,
            speed_up_high=ratio.high,
            doubt=self._doubt(),
        )

    def _doubt(self) -> str | None:
        if too_many_void([process[case.key] for process in self.processes] for case in self.entrant.benchmarks):
            return "too many of its calls had to be taken again"
        sittings = [sitting for process in self.processes for sitting in process.values()]
        crowded = 2 * sum(sitting.crowded for sitting in sittings) > len(sittings)
        return "other processes took the processors from it" if crowded else None


class Baselines:
    """All of a problem's. `enter` makes an entrant of a source."""

    def __init__(
        self,
        sources: Sequence[Submission] = (),
        enter: Callable[[Submission], AbstractContextManager[Entrant]] | None = None,
        narrate: Narrate = lambda line: None,
    ) -> None:
        self._sources, self._enter, self._narrate = sources, enter, narrate
        self._all: list[Baseline] = []
        self._behind: list[Baseline] = []

    def begin(self, constants: Constants, stack: ExitStack) -> None:
        """Pilots. Their workers end with `stack`; `constants` are what is subtracted from a call."""
        for source in self._sources:
            assert self._enter is not None
            self._narrate(f"pilot of the baseline {source.name}")
            baseline = Baseline(source.name, stack.enter_context(self._enter(source)))
            baseline.begin(constants)
            self._all.append(baseline)

    def before(self, number: int, null: NullWorker | None, waiting: list[Session]) -> None:
        """Those whose turn is before the submission's process of this `number`, counted from 0."""
        drawn = secrets.SystemRandom().sample(self._all, len(self._all))
        ahead = [baseline for baseline in drawn if secrets.randbelow(2)]
        self._behind = [baseline for baseline in drawn if baseline not in ahead]
        self._time(ahead, number, null, waiting)

    def after(self, number: int, null: NullWorker | None, waiting: list[Session]) -> None:
        """The others."""
        self._time(self._behind, number, null, waiting)

    def held(self, ours: Sequence[dict[str, Sitting]], confidence: float, ranking: str) -> tuple[TimedBaseline, ...]:
        """What came of each, `ours` being the submission's processes."""
        return tuple(baseline.held(ours, confidence, ranking) for baseline in self._all)

    def _time(self, turns: Sequence[Baseline], number: int, null: NullWorker | None, waiting: list[Session]) -> None:
        for baseline in turns:
            if not baseline.why_not:
                self._narrate(f"timing in turns, process {number + 1}: the baseline {baseline.name}")
            baseline.time(f"process {number}", null, waiting)


def _centre(sitting: Sitting) -> float:
    return stats.interquartile_mean(sitting.latency_ns)


def _score(process: dict[str, Sitting], ranking: str) -> float:
    return stats.centre_of_cases([_centre(sitting) for sitting in process.values()], ranking)


def _said(failed: Fault | Unclockable) -> str:
    if isinstance(failed, Fault):
        return f"{failed.ending.verdict.words}: {failed.ending.message}"
    return f"it cannot be timed here: {failed}"
