"""A submission under judgement: its workers, and the steps done with one of them.

session      start a fresh worker with the submission loaded
check        judge one test case
pilot        find out how often and in which manner each benchmark case is sampled; fixed from then on
sit          time one benchmark case in one process (a sitting)
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness.catalog.config import Sampling
from harness.judge import bounds, pilot
from harness.judge.caches import Caches
from harness.judge.calls import TWICE, Caller, FailedCall, Series, worst_of
from harness.judge.clock import Answer, Void
from harness.judge.clock_calibration import calibrate
from harness.judge.clocks import Clocks
from harness.judge.deadline import Allowance, Deadline
from harness.judge.emulation import EMULATION, Emulation
from harness.judge.exemplar import most_telling_failure
from harness.judge.null_worker import NullWorker
from harness.judge.offsets import Offsets
from harness.judge.pace import Pace
from harness.judge.precompilation import COMPILERS, COMPILES_S, SHARE_OF_MEMORY, Precompilation, compilers
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.secret_cases import drawn, probe
from harness.judge.seeds import Seeds
from harness.judge.session import Session
from harness.judge.sitting import LEAST_LATENCY_NS, Sitting, new_sitting
from harness.judge.tally import Tally
from harness.judge.worker_clock import WorkerClock
from harness.model import Case, CaseCheck, Device, Isolation, Limits, Problem, Skipped, Submission, Tolerance, Verdict
from harness.progress import Narrate, Step, about, tell

MOST_VOIDS, VOIDS_A_CALL = 60, 1
"""Void calls that a sitting may have: a base, and more for each call wanted. A busy host voids 40 calls in 1 to 2 s."""

MOST_WAITS = 5
"""The most calls of a sitting that may wait for their stopped host. Each takes two seconds."""

LONG_S = 10.0
"""After a call longer than this the user is told how many more follow."""

OF_NO_CASE = (Verdict.TIMEOUT, Verdict.INFRASTRUCTURE_ERROR)
"""Verdicts that may end the tests after a failed call without changing the result that is reported."""


class Unclockable(Exception):
    """Too many calls of a sitting were void. The message lists the reasons."""


class Entrant:
    """`folder` is a scratch directory that holds the submission. The two entrants of a duel share `clocks` and
    `caches`. `first`: a worker that was started already."""

    def __init__(
        self,
        reference: Reference,
        submission: Submission,
        device: Device,
        folder: Path,
        sampling: Sampling,
        master_seed: str,
        narrate: Narrate,
        *,
        threads: int,
        clocks: Clocks,
        caches: Caches,
        deadline: Deadline,
        emulation: Emulation = EMULATION,
        emulates: str | None = None,
        isolation: Isolation | None = None,
        first: Session | None = None,
    ) -> None:
        self._reference, self._device, self.folder = reference, device, folder
        self._sampling, self._master_seed, self._narrate = sampling, master_seed, narrate
        self._threads, self._emulation, self.deadline = threads, emulation, deadline
        self.clocks, self._isolation = clocks, isolation
        self.caller = Caller(reference, submission.path, device, caches, deadline, emulates)
        self._waiting = first
        self.printed, self._compiles = "", any(word in submission.text for word in COMPILERS)
        self._failures: list[FailedCall] = []
        self.tally_of_tests = Tally()
        cases = reference.problem.cases_for(device.kind)
        secret = {case.key: case for case in drawn(cases, master_seed)}
        stated = {case.key for case in cases.test}
        tests = [*cases.test, *(case for key, case in secret.items() if key not in stated)]
        self.skipped = [
            Skipped(case=case, reason=reason)
            for case in (*tests, *cases.benchmark)
            if (reason := reference.does_not_fit(case, device.memory_bytes)) is not None
        ]
        too_large = {skipped.case.key for skipped in self.skipped}
        self.tests = [case for case in tests if case.key not in too_large]
        self._secret = secret.keys()
        self.benchmarks = [case for case in cases.benchmark if case.key not in too_large]

    @property
    def path(self) -> Path:
        return self.folder / "submission.py"

    @property
    def partial(self) -> bool:
        """Whether only some of the problem's cases are judged."""
        return self._reference.problem.partial

    def failed(self, checks: Sequence[CaseCheck] = ()) -> FailedCall | None:
        """The failed test call to report. None if each gave an answer, or if a wrong one among `checks` says more."""
        return most_telling_failure(self._failures, self._reference.most_bytes, checks)

    @property
    def waiting(self) -> list[Session]:
        """Workers that were started for later use."""
        return [self._waiting] if self._waiting is not None else []

    def close(self) -> None:
        for session in self.waiting:
            session.kill()

    @contextmanager
    def session(
        self, another_follows: bool = False, timed: bool = False, limit_s: float | None = None
    ) -> Iterator[Session]:
        """Yield a new worker with the submission loaded. Loading and all of its calls together may take `limit_s`.

        With `another_follows` on a GPU, start the next worker now: idle processors can import torch for it meanwhile.
        """
        with ExitStack() as stack:
            session = stack.enter_context(self.prepared(timed))
            if timed:
                self.offsets.find(session)
            session.allowance = Allowance(limit_s)  # null calls are not the submission's
            self._reference.allow(limit_s)
            stack.callback(self._reference.allow, None)
            session.load(self.path)
            if another_follows and self._device.kind != "cpu":
                self._waiting = self._new_session()
            yield session

    @contextmanager
    def prepared(self, timed: bool = False) -> Iterator[Session]:
        """Yield a new worker that has loaded nothing yet."""
        session = self._waiting or self._new_session(fresh=timed and self._sampling.fresh)
        self._waiting = None
        try:
            session.prepare()
            yield session
        finally:
            session.kill()
            self.printed = session.printed or self.printed

    def _new_session(self, fresh: bool = True) -> Session:
        return Session(
            self._reference.problem,
            self._device,
            self.folder,
            self._threads,
            self.deadline,
            fresh=fresh,
            emulation=self._emulation,
            isolation=self._isolation,
        )

    def precompilation(self, with_benchmarks: bool) -> Precompilation:
        """Return processes that compile ahead while tests are judged, as many as machine and problem allow."""
        reference, device = self._reference, self._device
        count = 0 if reference.has_setup or reference.problem.foreign is not None else compilers(device.kind)
        cases = [*self.tests, *(self.benchmarks if with_benchmarks else ())] if count else []
        return Precompilation(
            count,
            partial(self._new_session, fresh=False),
            self.path,
            [case for case in cases if reference.most_bytes(case) <= device.memory_bytes / SHARE_OF_MEMORY],
            self.series,
            WorkerClock(),
            device.torch_device,
        )

    def check_tests(self, session: Session, ahead: Precompilation | None = None) -> Iterator[CaseCheck]:
        """Judge every test case and every secret case, each `TWICE`.

        Interpreted kernels are slow: with them only the first case is called twice. On a CPU the tests go on after a
        case that raised. On a GPU they end: an exception may lose the context and leave a call half enqueued. `ahead`
        begins if the source names a compiler, or after a case that took so long that it was probably compiled.
        """
        self._failures, self.tally_of_tests = [], Tally()
        if ahead is not None and self._compiles:
            ahead.begin()
        for number, case in enumerate(self.tests):
            line = f"test {number + 1} of {len(self.tests)}: {case.label}"
            tell(self._narrate, Step("test", case.label, number, len(self.tests), line))
            once, began = self.caller.simulated and number > 0, time.monotonic()
            secret = {"secret": case.key in self._secret}
            try:
                check = self.check(session, case, Seeds(self._master_seed, "test", case), 1 if once else TWICE)
            except FailedCall as failed:
                check = failed.check = failed.check.model_copy(update=secret)
                self._failures.append(failed)
                if not failed.raised or self._device.kind != "cpu":
                    yield check
                    return
            except Fault as fault:
                if not self._failures or fault.ending.verdict not in OF_NO_CASE:
                    raise
                return
            check = check.model_copy(update=secret)
            tell(self._narrate, Step("test", case.label, number + 1, len(self.tests), check=check))
            yield check
            if self._reference.stuck:
                return
            if ahead is not None:
                if time.monotonic() - began > COMPILES_S:
                    ahead.begin()
                ahead.feed()

    def check(self, session: Session, case: Case, seeds: Seeds, repeats: int) -> CaseCheck:
        """Judge `case` `repeats` times and return the worst result. Stops at the first wrong answer."""
        checks: list[CaseCheck] = []
        with self.caller.series(seeds, case) as series:
            count = repeats * series.dealer.steps
            for number in range(count):
                began = time.monotonic()
                check, _ = self.caller.put(session, series, self.clocks.for_checks, everything=True)
                assert check is not None
                checks.append(check)
                if check.verdict is not Verdict.ACCEPTED:
                    break
                took_s, left = time.monotonic() - began, count - number - 1
                if left and took_s > LONG_S:
                    self._narrate(f"{left} more of this case, with other values: {about(left * took_s)}")
            self.tally_of_tests += series.tally
        return worst_of(checks)

    @property
    def offsets(self) -> Offsets:
        return Offsets(self.caller, self.clocks, [*self.benchmarks, *self.tests], self.series)

    def calibrate(self, null: NullWorker) -> None:
        """Measure the time to subtract from each call (`clock_calibration`)."""
        on_cpu = self._device.kind == "cpu"
        calibrate(self.caller, self.clocks, self.benchmarks, self.tests, null, self.series, on_cpu, self._narrate)

    def pilot(self, session: Session) -> dict[str, Pace]:
        """Return how each benchmark case is timed, by its key."""
        paces = {}
        for number, case in enumerate(self.benchmarks):
            tell(self._narrate, Step("pilot", case.label, number, len(self.benchmarks), f"pilot: {case.label}"))
            with self.series("pilot", case) as series:
                paces[case.key] = pilot.pace(self.caller, self.clocks, self._sampling, session, series)
        return paces

    def sit(
        self, session: Session, case: Case, phase: str, pace: Pace, null: NullWorker | None
    ) -> Generator[Sitting, None, None]:
        """Warm up on one case in one process, then take its samples, with a probe among them. On a CPU take as many
        null calls. Yields the growing sitting after each sample."""
        sitting = self.new_sitting(session, pace)
        cases = self._reference.problem.cases_for(self._device.kind)
        place, other = probe(cases, case, Seeds(self._master_seed, phase, case), pace.count)
        with self.series(phase, case) as series:
            self.warm_up(session, series, pace)
            while len(sitting.elapsed_ns) < pace.count:
                if other is not None and len(sitting.elapsed_ns) == place:
                    if self._put(session, series, pace, sitting, other).void is not None:
                        continue
                    other = None
                self.take(session, series, pace, sitting, null)
                sitting.tally = series.tally
                yield sitting

    def series(self, phase: str, case: Case) -> AbstractContextManager[Series]:
        return self.caller.series(Seeds(self._master_seed, phase, case), case)

    def tolerances_for(self, case: Case) -> dict[str, Tolerance]:
        return self._reference.problem.tolerances_for(case)

    @property
    def problem(self) -> Problem:
        return self._reference.problem

    @property
    def ranking(self) -> str:
        return self._reference.problem.ranking

    @property
    def limits(self) -> Limits:
        return self._reference.problem.limits

    def cost(self, case: Case) -> dict[str, dict[str, Any]]:
        return self._reference.cost(case)

    def new_sitting(self, session: Session, pace: Pace) -> Sitting:
        shortest_ns = bounds.CPU_NS if self._device.kind == "cpu" else LEAST_LATENCY_NS
        return new_sitting(pace, self.caller.constants, session.offset_ns, shortest_ns)

    def warm_up(self, session: Session, series: Series, pace: Pace) -> None:
        """Make calls that do not count. The first may compile, tune and allocate, so it need not fit the manner."""
        self.caller.put_timed(session, series, self.clocks.for_checks)
        for _ in range(self._sampling.warmup_calls - 1):
            self.caller.put_timed(session, series, self.clocks.of(pace.manner))

    def take(self, session: Session, series: Series, pace: Pace, sitting: Sitting, null: NullWorker | None) -> None:
        """Make one call and add it to `sitting`, counted or void. Raises Unclockable if too many were void."""
        answer = self._put(session, series, pace, sitting)
        if answer.void is not None:
            return
        sitting.elapsed_ns.append(answer.elapsed_ns)
        if null is not None and self._device.kind == "cpu":
            empty = self.caller.put_null(null.ready(), series, self.clocks.of(pace.manner))
            if empty.void is None:
                sitting.null_ns.append(empty.elapsed_ns)

    def _put(self, session: Session, series: Series, pace: Pace, sitting: Sitting, probe: Case | None = None) -> Answer:
        answer = self.caller.put_timed(session, series, self.clocks.of(pace.manner), probe)
        if answer.void is not None:
            sitting.voids[answer.void] += 1
            waits = sitting.voids[Void.NEEDS_ITS_HOST]
            if waits > MOST_WAITS or sum(sitting.voids.values()) > MOST_VOIDS + VOIDS_A_CALL * pace.count:
                reasons = sitting.voids.most_common()
                raise Unclockable(", ".join(f"{count} x {reason.value}" for reason, count in reasons))
        return answer
