"""Two submissions timed in turns, so that what disturbs one disturbs the other.

    one process each       the test cases; a pilot, which fixes how often each case is sampled
    pairs of fresh processes, A's and B's side by side:
        every benchmark case, in random order:
            both warm up
            blocks of four     A B B A  or  B A A B, by a coin: a steady drift cancels within each
                               └─ the n-th call of A and the n-th of B have the same inputs

Only one of the two computes at a time. On a CPU the other is stopped meanwhile: threads of OpenMP wait by spinning, and
would take a processor from it. Every output is checked, as in an evaluation, and the judge's clock is held against what
each says (clock.py): a pair that it objects to is played again.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness import roofline, stats
from harness.comparison import PairedMeasurement
from harness.config import EvalConfig
from harness.errors import PodiumError, UsageError
from harness.judge.clock import LEAVES_THREADS, Sitting
from harness.judge.evaluate import be_a_quiet_neighbour
from harness.judge.inputs import Dealer
from harness.judge.neighbours import Neighbours
from harness.judge.pace import Pace, flushes, warm_ups
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.seeds import Seeds
from harness.judge.session import Session
from harness.judge.trial import Trial
from harness.model import NOISY, Case, Device, Ending, Problem, Skipped, Submission, Verdict
from harness.progress import Narrate, Step, named, tell
from harness.sandbox import tiers
from harness.sandbox.scratch import scratch

BLOCK = (0, 1, 1, 0)
IDLE_ONE_IN = 4  # calls


class Disqualified(PodiumError):
    """One of the two failed, and how: the exit code is that of its verdict."""

    def __init__(self, name: str, ending: Ending) -> None:
        super().__init__(f"{name}: {ending.verdict.words}: {ending.message}", ending.detail)
        self.exit_code = ending.verdict.exit_code


@dataclass(frozen=True)
class Duel:
    """What was measured. `skipped`: cases that do not fit the device's memory twice."""

    measurements: tuple[PairedMeasurement, ...]
    skipped: tuple[Skipped, ...]
    master_seed: str


def duel(
    problem: Problem,
    a: Submission,
    b: Submission,
    device: Device,
    config: EvalConfig,
    *,
    pairs: int,
    narrate: Narrate = lambda line: None,
) -> Duel:
    """Time `a` and `b` in turns on `device`, which must be ours alone meanwhile.

    Raises Disqualified where one of them fails, UsageError where one cannot be timed here.
    """
    be_a_quiet_neighbour(device)
    reference = Reference(problem, device)
    with ExitStack() as stack:
        contestants = []
        for submission in (a, b):
            folder = stack.enter_context(scratch(submission.source, tiers.strongest(device).new_uid()))
            told = named(narrate, submission.name)
            contestants.append(_Contestant(submission, reference, device, folder, config, told))
        contestants[1].master_seed = contestants[0].master_seed
        return _Match(reference, device, contestants, narrate).run(pairs)


class _Contestant(Trial):
    """One side of a duel: a trial whose workers and calls are asked for one by one."""

    def __init__(
        self,
        submission: Submission,
        reference: Reference,
        device: Device,
        folder: Path,
        config: EvalConfig,
        narrate: Narrate,
    ) -> None:
        # Two workers are alive at once, so a case must fit twice.
        half = device.model_copy(update={"memory_bytes": device.memory_bytes // 2})
        super().__init__(reference, submission.path, half, folder, config.sampling(device.kind, quick=False), narrate)
        self.name = submission.name

    @property
    def cases(self) -> list[Case]:
        return self._benchmarks

    @property
    def warmup_calls(self) -> int:
        return self._sampling.warmup_calls

    def qualify(self) -> dict[str, Pace]:
        """The test cases, then the pilot and idle calls: how each benchmark case is sampled, by its key."""
        with _named(self.name), self._session() as session:
            self._check_tests(session)
            wrong = [check for check in self.checks if check.verdict is not Verdict.ACCEPTED]
            if wrong:
                raise Fault(Verdict.WRONG_ANSWER, f"a test case is wrong: {wrong[0].case.label}", wrong[0].report)
            if self.interpreted:
                hint = "a duel takes a device that runs its kernels"
                raise UsageError(f"{self.name} is interpreted here: interpreted time is no measurement", hint)
            paces = self._pilot(session)
            session.finish()
        self.apart = self._time_idle_calls(paces)
        return paces

    @contextmanager
    def worker(self) -> Iterator[Session]:
        """A fresh worker with the submission loaded."""
        with _named(self.name), self._session() as session:
            yield session

    def finish(self, session: Session) -> None:
        with _named(self.name):
            session.finish()

    @contextmanager
    def dealing(self, case: Case, phase: str) -> Iterator[Dealer]:
        with self._caller.dealing(Seeds(self.master_seed, phase, case), case) as dealer:
            yield dealer

    def call(
        self,
        session: Session,
        dealer: Dealer,
        case: Case,
        patience_s: float,
        sitting: Sitting,
        flush: bool,
        waits: bool,
    ) -> None:
        """One checked call into `sitting`, and now and then an idle one, which `waits` if the others do."""
        with _named(self.name):
            answer = self._caller.put_timed(session, dealer, case, patience_s, flush)
            calls, idle = sitting.kind(flush)
            calls.add(answer)
            sitting.note(answer)
            if IDLE_ONE_IN * len(idle) < len(calls):
                idle.add(self._caller.put_idle(session, dealer, case, patience_s, flush, waits))

    def warm_up(self, session: Session, dealer: Dealer, case: Case, patience_s: float, flush: bool) -> None:
        with _named(self.name):
            self._caller.put_timed(session, dealer, case, patience_s, flush)

    def is_objected_to(self, sittings: dict[str, Sitting], paces: dict[str, Pace]) -> bool:
        """Whether the judge's clock has something against a pair's worker. Raises Disqualified for hidden work."""
        with _named(self.name):
            for case in self.cases:
                if sittings[case.key].leaves_threads:
                    raise Fault(Verdict.INTEGRITY_VIOLATION, f"with {case.label} {LEAVES_THREADS}")
            return self._objection(sittings, paces) is not None


class _Match:
    """The pairs of a duel, one after another."""

    def __init__(self, reference: Reference, device: Device, contestants: list[_Contestant], narrate: Narrate) -> None:
        self._reference, self._device = reference, device
        self._contestants, self._narrate = contestants, narrate
        self._cases = contestants[0].cases
        self._samples: dict[str, list[list[tuple[float, ...]]]] = {case.key: [[], []] for case in self._cases}
        self._labels: dict[str, set[str]] = {case.key: set() for case in self._cases}
        self._turn: int | None = None

    def run(self, pairs: int) -> Duel:
        paces = [contestant.qualify() for contestant in self._contestants]
        if not self._cases:
            raise UsageError("no benchmark case fits this device's memory twice", "compare stored runs without --duel")
        for pair in range(pairs):
            line = f"timing in turns, pair {pair + 1} of {pairs}"
            start = Step("in turns", "", pair * len(self._cases), pairs * len(self._cases), line)
            tell(self._narrate, start)
            for side, sittings in enumerate(self._soundly(pair, paces, start)):
                for key, sitting in sittings.items():
                    self._samples[key][side].append(tuple(sitting.calls.latency_ns))
                    self._labels[key].update(sitting.labels)
        measurements = tuple(self._measurement(case) for case in self._cases)
        first = self._contestants[0]
        return Duel(measurements, tuple(first.skipped), first.master_seed)

    def _soundly(self, pair: int, paces: list[dict[str, Pace]], start: Step) -> tuple[dict[str, Sitting], ...]:
        """A pair played, again as long as the judge's clock objects and doubts allow; then it is labelled `noisy`."""
        again = ""
        while True:
            sittings = self._play(f"pair {pair}{again}", paces, start)
            sides = zip(self._contestants, sittings, paces, strict=True)
            objected_to = [side for side, found, pace in sides if side.is_objected_to(found, pace)]
            if not objected_to:
                return sittings
            if not all([side.doubts.set_aside() for side in objected_to]):
                for labels in self._labels.values():
                    labels.add(NOISY)
                return sittings
            tell(self._narrate, replace(start, line=f"{start.line} again: the judge's clock could not confirm it"))
            again += " again"

    def _play(self, phase: str, paces: list[dict[str, Pace]], start: Step) -> tuple[dict[str, Sitting], ...]:
        """One pair of fresh workers, through every case: for each side its sittings, by the cases' keys."""
        random = secrets.SystemRandom()
        found: tuple[dict[str, Sitting], ...] = ({}, {})
        with ExitStack() as stack:
            sessions: dict[int, Session] = {}
            self._turn = None
            for side in random.sample((0, 1), 2):  # which starts first is left to chance
                sessions[side] = stack.enter_context(self._contestants[side].worker())
            neighbours = Neighbours(list(sessions.values()))
            for number, case in enumerate(random.sample(self._cases, len(self._cases))):
                both = [pace[case.key] for pace in paces]
                step = Step("in turns", case.label, start.done + number, start.total)
                for side, sitting in enumerate(self._time(case, phase, sessions, both, step)):
                    found[side][case.key] = sitting
            crowding = neighbours.crowding()
            for sitting in (*found[0].values(), *found[1].values()):
                sitting.crowding = crowding
            for side, session in sessions.items():
                session.resume()
                self._contestants[side].finish(session)
        return found

    def _time(
        self, case: Case, phase: str, sessions: dict[int, Session], paces: list[Pace], step: Step
    ) -> tuple[Sitting, Sitting]:
        """Warm up on one case, then take its blocks of samples, and between them some calls without a flush."""
        sittings = (Sitting(), Sitting())
        # Both are treated alike: as often as the judge can afford for either, and with the longer patience.
        count, patience_s = min(pace.count for pace in paces), max(pace.patience_s for pace in paces)
        with ExitStack() as stack:
            dealers = [stack.enter_context(contestant.dealing(case, phase)) for contestant in self._contestants]
            for flush in warm_ups(self._contestants[0].warmup_calls):
                for side, contestant in enumerate(self._contestants):
                    self._give_turn_to(side, sessions)
                    contestant.warm_up(sessions[side], dealers[side], case, patience_s, flush)
            plan = flushes(math.ceil(count / 2))
            for number, flush in enumerate(plan, 1):
                swapped = secrets.randbelow(2)
                for position in BLOCK if flush else BLOCK[:2]:
                    side = position ^ swapped
                    contestant, arguments = self._contestants[side], (sessions[side], dealers[side], case)
                    self._give_turn_to(side, sessions)
                    contestant.call(*arguments, patience_s, sittings[side], flush, paces[side].waits)
                tell(self._narrate, replace(step, done=step.done + number / len(plan), sample=(number, len(plan))))
        return sittings

    def _give_turn_to(self, side: int, sessions: dict[int, Session]) -> None:
        """Stop the other side, on a CPU. Stopping a process that holds a context of a GPU has not been tried."""
        if self._device.kind != "cpu" or self._turn == side:
            return
        self._turn = side
        sessions[side].resume()
        sessions[1 - side].pause()

    def _measurement(self, case: Case) -> PairedMeasurement:
        """One case's samples. Raises Disqualified for a latency below the floor, as an evaluation would find."""
        floor = roofline.floor(self._reference.cost(case), self._device)
        for contestant, samples_ns in zip(self._contestants, self._samples[case.key], strict=True):
            latency_ns = stats.geometric_mean([stats.centre(samples) for samples in samples_ns])
            if floor is not None and latency_ns < floor.latency_ns:
                times = f"{latency_ns / 1e3:.2f} us, less than the {floor.latency_ns / 1e3:.2f} us"
                message = f"{case.label} took {times} that the device needs at its peak"
                raise Disqualified(contestant.name, Ending(verdict=Verdict.INTEGRITY_VIOLATION, message=message))
        a, b = map(tuple, self._samples[case.key])
        return PairedMeasurement(case, a, b, tuple(sorted(self._labels[case.key])))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of a fault whose it is."""
    try:
        yield
    except Fault as fault:
        raise Disqualified(name, fault.ending) from None
