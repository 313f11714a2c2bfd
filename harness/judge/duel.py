"""Time two submissions in turns, so that a disturbance affects both.

    one process for each   the test cases; then one with a pilot, which fixes how often each case is sampled
    pairs of fresh processes, A's and B's side by side:
        every benchmark case, in random order:
            both warm up
            blocks of four     A B B A  or  B A A B, at random: a steady drift cancels within each block
                               └─ the n-th call of A and the n-th of B have the same inputs

Only one of the two computes at a time: a worker that has answered a call stands still. Every output is checked and
every call is timed as in an evaluation (clock.py).
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from harness.catalog.config import EvalConfig
from harness.errors import PodiumError, UsageError
from harness.judge import marks, share
from harness.judge.assembly import Assembly, be_a_quiet_neighbour
from harness.judge.entrant import Entrant, Unclockable
from harness.judge.null_worker import NullWorker
from harness.judge.pace import Pace
from harness.judge.reference import open_reference
from harness.judge.reply import Fault
from harness.judge.seeds import new_master_seed
from harness.judge.session import Session
from harness.judge.sitting import Sitting
from harness.machine.device import answering
from harness.machine.neighbours import Neighbours
from harness.model import Case, Device, Ending, Problem, Skipped, Submission, Verdict
from harness.progress import Narrate, Step, about, named, tell
from harness.ranking import roofline, stats
from harness.ranking.comparison import PairedMeasurement

BLOCK = (0, 1, 1, 0)
LEAST_TOLD = 2
"""The fewest pairs for which an interval can be computed."""
BELOW_FLOOR_SHARE = 0.02
"""How far a latency may lie below the floor, as a fraction: the error of the clock (bounds.py)."""


class Disqualified(PodiumError):
    """One of the two submissions failed. The exit code is that of its verdict."""

    def __init__(self, name: str, ending: Ending) -> None:
        super().__init__(f"{name}: {ending.verdict.words}: {ending.message}", ending.detail)
        self.exit_code = ending.verdict.exit_code


@dataclass(frozen=True)
class Duel:
    """The measurements of a number of whole `pairs`. Ctrl-C ends a duel with the pairs finished so far, if these are at
    least LEAST_TOLD. `skipped`: cases that do not fit twice into the device's memory."""

    measurements: tuple[PairedMeasurement, ...]
    skipped: tuple[Skipped, ...]
    master_seed: str
    pairs: int


def duel(
    problem: Problem,
    a: Submission,
    b: Submission,
    device: Device,
    config: EvalConfig,
    *,
    pairs: int,
    exclusive: Callable[[], AbstractContextManager[object]] = nullcontext,
    narrate: Narrate = lambda line: None,
) -> Duel:
    """Time `a` and `b` in turns on `device`. The timing is done within `exclusive`, which reserves the device. If
    `exclusive` gives a callable, it is told how many more seconds the timing will probably take.

    Raises KeyboardInterrupt if Ctrl-C comes before LEAST_TOLD pairs, Disqualified if a submission fails, UsageError if
    one cannot be timed here.
    """
    be_a_quiet_neighbour(device.kind)
    # Two workers are alive at once, so a case must fit twice.
    half = device.model_copy(update={"memory_bytes": device.memory_bytes // 2})
    sampling, master_seed = config.sampling(device.kind, quick=False), new_master_seed()
    with answering(device), ExitStack() as stack:
        assembly = Assembly(open_reference(problem, device), half, sampling, pairs=pairs)
        sides = tuple(
            Side(submission.name, stack.enter_context(assembly.entrant(submission, master_seed, told)))
            for submission in (a, b)
            for told in [named(narrate, submission.name)]
        )
        match = _Match(assembly, device, sides, sampling.warmup_calls, narrate)
        match.check()
        with sides[0].entrant.deadline.stopped():
            expect = stack.enter_context(exclusive())
        match.pilot(stack)
        return match.run(pairs, master_seed, expect if callable(expect) else lambda seconds: None)


@dataclass(frozen=True)
class Side:
    """One of the two submissions. Faults raised within `named` are reported under its name."""

    name: str
    entrant: Entrant

    @contextmanager
    def named(self) -> Iterator[None]:
        try:
            yield
        except Fault as fault:
            raise Disqualified(self.name, fault.ending) from None
        except Unclockable as reasons:
            hint = "end what else uses the device, or time it alone: eval says more"
            raise UsageError(f"{self.name} cannot be timed here: {reasons}", hint) from None


class _Match:
    """Plays the pairs of a duel, one after another. `paces` holds the paces of each side, by the keys of the cases."""

    def __init__(
        self, assembly: Assembly, device: Device, sides: Sequence[Side], warmup_calls: int, narrate: Narrate
    ) -> None:
        self._assembly, self._device, self._sides, self._narrate = assembly, device, sides, narrate
        self._warmup_calls = warmup_calls
        self._cases = sides[0].entrant.benchmarks
        self._sittings: dict[str, tuple[list[Sitting], list[Sitting]]] = {c.key: ([], []) for c in self._cases}
        self._null: NullWorker | None = None
        self.paces: list[dict[str, Pace]] = []

    def check(self) -> None:
        """Run the test cases of both."""
        for side in self._sides:
            with side.named(), side.entrant.session() as session:
                for check in side.entrant.check_tests(session):
                    if check.verdict is not Verdict.ACCEPTED:
                        wrong = f"a test case is wrong: {check.case.label}"
                        raise side.entrant.failed() or Fault(Verdict.WRONG_ANSWER, wrong, check.report)
                if side.entrant.caller.untimed:
                    hint = "a duel needs a device that runs its kernels"
                    raise UsageError(f"{side.name} is interpreted or emulated here, so its time means nothing", hint)
                session.finish()

    def pilot(self, stack: ExitStack) -> None:
        """Find out how each case is sampled. The constants are measured first, while no worker of either side is
        alive."""
        first, second = (side.entrant for side in self._sides)
        self._null = self._assembly.null_worker()
        stack.callback(self._null.close)
        first.calibrate(self._null)
        second.caller.constants = first.caller.constants
        for side in self._sides:
            with side.named(), side.entrant.session() as session:
                self.paces.append(side.entrant.pilot(session))
                session.finish()

    def run(self, pairs: int, master_seed: str, expect: Callable[[float], object]) -> Duel:
        if not self._cases:
            raise UsageError("no benchmark case fits this device's memory twice", "compare stored runs without --duel")
        played, began, left = 0, time.monotonic(), ""
        try:
            for pair in range(pairs):
                if played:
                    left_s = (time.monotonic() - began) / played * (pairs - played)
                    left = f", {about(left_s)} left"
                    expect(left_s)
                line = f"timing in turns, pair {pair + 1} of {pairs}{left}"
                start = Step("in turns", "", pair * len(self._cases), pairs * len(self._cases), line)
                tell(self._narrate, start)
                self._play(pair, start)
                played += 1
        except KeyboardInterrupt:
            if played < LEAST_TOLD:
                raise
            for sittings in itertools.chain.from_iterable(self._sittings.values()):
                del sittings[played:]
        measurements = tuple(self._measurement(case) for case in self._cases)
        return Duel(measurements, tuple(self._sides[0].entrant.skipped), master_seed, played)

    def _play(self, pair: int, start: Step) -> None:
        """Time every case with one pair of fresh workers."""
        random = secrets.SystemRandom()
        played: dict[int, list[Sitting]] = {0: [], 1: []}
        assert self._null is not None
        with ExitStack() as stack:
            sessions: dict[int, Session] = {}
            for number in random.sample((0, 1), 2):  # random: neither side always starts first
                with self._sides[number].named():
                    sessions[number] = stack.enter_context(self._sides[number].entrant.prepared(timed=True))
            # Offsets can change between processes, and can be trusted while neither side has loaded its submission.
            for number, session in sessions.items():
                with self._sides[number].named():
                    self._sides[number].entrant.offsets.find(session)
                    session.rest()
            for number, session in sessions.items():
                with self._full_memory_blamed_on_the_right_side(sessions), self._sides[number].named():
                    session.load(self._sides[number].entrant.path)
                    session.rest()
            neighbours = Neighbours([*sessions.values(), self._null.ready()])
            for number, case in enumerate(random.sample(self._cases, len(self._cases))):
                step = Step("in turns", case.label, start.done + number, start.total)
                with self._full_memory_blamed_on_the_right_side(sessions):
                    timed = self._time(case, f"pair {pair}", sessions, step)
                for side_number, sitting in enumerate(timed):
                    self._sittings[case.key][side_number].append(sitting)
                    played[side_number].append(sitting)
            crowding = neighbours.crowding()
            for number, session in sessions.items():
                with self._sides[number].named():
                    session.finish()
        for number, sittings in played.items():
            offsets = self._sides[number].entrant.offsets
            less_ns = offsets.excess_ns(sessions[number].offset_ns, self._null.ready())
            for sitting in sittings:
                sitting.crowding = crowding
                sitting.subtract_less(less_ns)

    @contextmanager
    def _full_memory_blamed_on_the_right_side(self, sessions: dict[int, Session]) -> Iterator[None]:
        """If memory is full for the judge or for one side, the other may keep it. Raises Disqualified then."""
        try:
            yield
        except (Disqualified, share.DeviceFull) as error:
            full = isinstance(error, share.DeviceFull) or share.SAID_BY_TORCH in error.message
            suspects = list(sessions.items()) if full else []
            for place, (number, session) in enumerate(suspects):
                for _, other in suspects[place + 1 :]:
                    share.keep_still(other)
                with self._sides[number].named():
                    self._sides[number].entrant.caller.blame(session)
            raise

    def _time(self, case: Case, phase: str, sessions: dict[int, Session], step: Step) -> tuple[Sitting, ...]:
        """Warm up on one case, then take its blocks of samples."""
        paces = [paces[case.key] for paces in self.paces]
        sittings = tuple(
            side.entrant.new_sitting(sessions[number], paces[number]) for number, side in enumerate(self._sides)
        )
        count = math.ceil(min(pace.count for pace in paces) / 2)  # a block has two calls of each side
        null = self._null if self._device.kind == "cpu" else None
        with ExitStack() as stack:
            series = [stack.enter_context(side.entrant.series(phase, case)) for side in self._sides]
            for number, side in enumerate(self._sides):
                with side.named():
                    side.entrant.warm_up(sessions[number], series[number], paces[number])
                    sessions[number].rest()
            for block in range(1, count + 1):
                swapped = secrets.randbelow(2)
                for position in BLOCK:
                    number = position ^ swapped
                    side, sitting = self._sides[number], sittings[number]
                    counted = len(sitting.elapsed_ns)
                    while len(sitting.elapsed_ns) == counted:
                        with side.named():
                            side.entrant.take(sessions[number], series[number], paces[number], sitting, null)
                    sessions[number].rest()
                tell(self._narrate, replace(step, done=step.done + block / count, sample=(block, count)))
        return sittings

    def _measurement(self, case: Case) -> PairedMeasurement:
        """Collect the samples of one case. Raises UsageError for a latency below the floor."""
        floor = roofline.floor(self._sides[0].entrant.cost(case), self._device)
        samples = [tuple(sitting.latency_ns for sitting in sittings) for sittings in self._sittings[case.key]]
        for side, samples_ns in zip(self._sides, samples, strict=True):
            latency_ns = stats.geometric_mean([stats.interquartile_mean(each) for each in samples_ns])
            if floor is not None and latency_ns < (1 - BELOW_FLOOR_SHARE) * floor.latency_ns:
                times = f"{latency_ns / 1e3:.2f} us, less than the {floor.latency_ns / 1e3:.2f} us"
                raise UsageError(f"{side.name}: {case.label} took {times} that the device needs at its peak")
        a, b = map(tuple, samples)
        return PairedMeasurement(case, a, b, marks.labels_of_pairs(self._sittings[case.key]))
