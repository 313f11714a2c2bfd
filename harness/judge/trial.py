"""A submission on trial: the worker processes it gets, the calls it must answer, and what came of them.

    one process          every test case, then each once more     ─► checks
                         a pilot of every benchmark case          ─► how many samples, fixed from here on
    one without it       idle calls of every benchmark case       ─► what a call takes besides its kernel (clock)
    N fresh processes    every benchmark case, in random order    ─► timings, each call's output checked

A submission whose Triton kernels were interpreted is verified, not timed: interpreted time is no measurement. The cases
of a process are taken one at a time, not in turns, because a case's inputs may fill a GPU.
"""

from __future__ import annotations

import os
import secrets
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness import stats
from harness.config import Sampling
from harness.judge.anchor import Anchor
from harness.judge.calls import Caller, WrongTimedCall, worst_of
from harness.judge.clock import LEAVES_THREADS, Doubts, Sitting, others_share
from harness.judge.neighbours import Neighbours
from harness.judge.pace import PATIENCE_S, Pace, flushes, waits_for_device, warm_ups
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.seeds import Seeds, new_master_seed
from harness.judge.session import Session
from harness.model import Case, CaseCheck, Device, Round, Skipped, Verdict
from harness.progress import Narrate, Step, tell
from harness.sandbox import tiers
from harness.sandbox.scratch import scratch


@dataclass
class Timings:
    """One benchmark case: a sitting a process, and `apart` the idle calls of a process without the submission."""

    case: Case
    sittings: list[Sitting]
    apart: Sitting

    @property
    def labels(self) -> set[str]:
        return set().union(*(sitting.labels for sitting in self.sittings))

    @property
    def samples_ns(self) -> list[tuple[float, ...]]:
        """The latencies, a tuple a process."""
        return [tuple(sitting.calls.latency_ns) for sitting in self.sittings]


class Trial:
    """`run` fills `checks`, `timings`, `rounds`, `interpreted`, `printed`; what it found stays when a Fault ends it."""

    def __init__(
        self,
        reference: Reference,
        path: str,
        device: Device,
        folder: Path,
        sampling: Sampling,
        narrate: Narrate,
        threads: int | None = None,
    ) -> None:
        self._threads = threads or (len(os.sched_getaffinity(0)) if device.kind == "cpu" else 1)
        self._reference, self._device, self._folder = reference, device, folder
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
        self._caller = Caller(reference, path, device)
        self.printed = ""
        self.checks: list[CaseCheck] = []
        self.timings: list[Timings] = []
        self.rounds: list[Round] = []
        self.null_kernel_ns: float | None = None
        self.tick_ns = 0.0
        self.doubts = Doubts(device.kind)
        self.apart: dict[str, Sitting] = {}
        self._waiting: Session | None = None

    @property
    def interpreted(self) -> bool:
        """Whether any call so far ran in Triton's interpreter."""
        return self._caller.interpreted

    def run(self, timed: bool) -> None:
        """Raises Fault with the verdict when the submission fails other than by a wrong answer in a test case."""
        try:
            self._run(timed)
        except WrongTimedCall as wrong:
            self.checks.append(wrong.check)
            raise
        finally:
            if self._waiting is not None:
                self._waiting.kill()

    def _run(self, timed: bool) -> None:
        with self._session(another_follows=timed) as session:
            self._check_tests(session)
            correct = all(check.verdict is Verdict.ACCEPTED for check in self.checks)
            paces = self._pilot(session) if timed and correct and not self.interpreted else {}
            session.finish()
        if not paces:
            return
        self.apart = self._time_idle_calls(paces)
        if self._device.kind != "cpu":  # whose clock ticks in ns
            self.tick_ns = stats.tick([ns for sitting in self.apart.values() for ns in sitting.idle.latency_ns])
        processes = self._time_processes(paces)
        self.timings = [
            Timings(case, [sittings[case.key] for sittings in processes], self.apart[case.key])
            for case in self._benchmarks
        ]

    def _time_processes(self, paces: dict[str, Pace]) -> list[dict[str, Sitting]]:
        """The sittings of each process, by the cases' keys: as many processes as the configuration says, and some more
        while the score's interval is wide."""
        anchor = Anchor(self._device, self._sampling.anchor_tolerance)
        anchor.begin()
        processes: list[dict[str, Sitting]] = []
        while not self._enough(processes):
            processes.append(self._time_soundly(len(processes), paces, anchor))
        return processes

    def _time_soundly(self, number: int, paces: dict[str, Pace], anchor: Anchor) -> dict[str, Sitting]:
        """A process timed; once more where the machine was disturbed, and again as often as the judge's clock objects
        to it and doubts allow."""
        why, again, disturbed = "", "", False
        while True:
            line = f"timing, process {number + 1} of {max(self._sampling.processes, number + 1)}{why}"
            sittings = self._time_process(number, again, paces, line)
            ended = anchor.end_round(others_share(sittings.values()))
            if ended.disturbed is not None and not disturbed:
                disturbed, why = True, " again: it was disturbed"
                self.rounds.append(ended.model_copy(update={"kept": False}))
            else:
                self.rounds.append(ended)
                if not self._objects(sittings, paces):
                    return sittings
                why = " again: the judge's clock could not confirm it"
            again += " again"

    def _objects(self, sittings: dict[str, Sitting], paces: dict[str, Pace]) -> bool:
        """Whether the process that has just been timed is to be set aside, for what the judge's clock says of it.

        The last of the rounds is told. Raises Fault for hidden work."""
        try:
            said = self._objection(sittings, paces)
        except Fault as fault:
            self._tell_round(fault.ending.message, kept=False)
            raise
        if said is None:
            return False
        aside = self.doubts.set_aside()
        self._tell_round(said, kept=not aside)
        return aside

    def _objection(self, sittings: dict[str, Sitting], paces: dict[str, Pace]) -> str | None:
        """What the judge's clock says against a process that has been timed. Raises Fault for hidden work."""
        found = self.doubts.objections(sittings, self.apart, self.tick_ns)
        if found:
            # The machine may have become slower since idle calls were timed without the submission.
            later = self._time_idle_calls(paces)
            self.apart = {key: self.apart[key].slower(later[key], self._device.kind) for key in later}
            found = self.doubts.objections(sittings, self.apart, self.tick_ns)
        said = {case.key: f"{case.label}: {found[case.key].words}" for case in self._benchmarks if case.key in found}
        hiding = self.doubts.count(found)
        if hiding is not None:
            raise Fault(Verdict.INTEGRITY_VIOLATION, said[hiding])
        return next(iter(said.values()), None)

    def _tell_round(self, objection: str, kept: bool) -> None:
        self.rounds[-1] = self.rounds[-1].model_copy(update={"objection": objection, "kept": kept})

    def _enough(self, processes: Sequence[dict[str, Sitting]]) -> bool:
        sampling = self._sampling
        if len(processes) < sampling.processes:
            return False
        if len(processes) >= sampling.processes + sampling.extra_processes:
            return True
        scores = [
            stats.geometric_mean(
                [stats.centre(sitting.calls.latency_ns, self.tick_ns) for sitting in sittings.values()]
            )
            for sittings in processes
        ]
        score = stats.estimate(scores, confidence=0.95)
        return score.high_ns is None or score.high_ns <= (1 + sampling.target_half_width) * score.latency_ns

    def _time_process(self, number: int, again: str, paces: dict[str, Pace], line: str) -> dict[str, Sitting]:
        """A fresh process through all cases, in random order."""
        before, expected = number * len(self._benchmarks), max(self._sampling.processes, number + 1)
        tell(self._narrate, Step("timing", "", before, len(self._benchmarks) * expected, line))
        sittings = {}
        with self._session(another_follows=number + 1 < self._sampling.processes) as session:
            neighbours = Neighbours([session, *([self._waiting] if self._waiting else [])])
            order = secrets.SystemRandom().sample(self._benchmarks, len(self._benchmarks))
            for done, case in enumerate(order, before):
                phase = f"process {number}{again}"
                step = Step("timing", case.label, done, len(self._benchmarks) * expected)
                sittings[case.key] = self._time(session, case, phase, paces[case.key], step)
            crowding = neighbours.crowding()
            for sitting in sittings.values():
                sitting.crowding = crowding
            session.finish()
        return sittings

    def replay(self, case: Case, seeds: Seeds) -> CaseCheck:
        """One check of one case, nothing else. Raises Fault."""
        with self._session() as session:
            (check,) = self._check_case(session, case, seeds, 1)
            session.finish()
        return check

    @contextmanager
    def _session(self, another_follows: bool = False) -> Iterator[Session]:
        """A fresh worker with the submission loaded.

        If another will be asked for, it is started already: beside a GPU there are processors to import torch on.
        """
        session = self._waiting or self._new_session()
        self._waiting = None
        try:
            session.load(self._folder / "submission.py")
            if another_follows and self._device.kind != "cpu":
                self._waiting = self._new_session()
            yield session
        finally:
            session.kill()
            self.printed = session.printed or self.printed

    def _new_session(self) -> Session:
        return Session(self._problem, self._device, self._folder, self._threads)

    def _check_tests(self, session: Session) -> None:
        """Every test case, each twice with fresh values, so that an answer remembered by shape shows.

        Interpreted kernels are slow: there only the first case is put twice.
        """
        for number, case in enumerate(self._tests):
            line = f"test {number + 1} of {len(self._tests)}: {case.label}"
            tell(self._narrate, Step("test", case.label, number, len(self._tests), line))
            once = self.interpreted and number > 0
            self.checks += self._check_case(session, case, Seeds(self.master_seed, "test", case), 1 if once else 2)
            tell(self._narrate, Step("test", case.label, number + 1, len(self._tests), check=self.checks[-1]))

    def _check_case(self, session: Session, case: Case, seeds: Seeds, repeats: int) -> list[CaseCheck]:
        """`repeats` judgements of `case`; stops at the first that is wrong. One CaseCheck, the worst, in a list."""
        checks: list[CaseCheck] = []
        with self._caller.dealing(seeds, case) as dealer:
            for _ in range(repeats * dealer.steps):
                checks.append(self._caller.put(session, dealer, case, everything=True)[0])
                if checks[-1].verdict is not Verdict.ACCEPTED:
                    break
        return [worst_of(checks)]

    def _pilot(self, session: Session) -> dict[str, Pace]:
        """How often each benchmark case is sampled and how patiently its calls are made, by its key."""
        paces = {}
        for number, case in enumerate(self._benchmarks):
            tell(self._narrate, Step("pilot", case.label, number, len(self._benchmarks), f"pilot: {case.label}"))
            answers = []
            with self._caller.dealing(Seeds(self.master_seed, "pilot", case), case) as dealer:
                self._caller.put_timed(session, dealer, case, PATIENCE_S)  # compiles; nothing is learnt from it
                self._caller.judging_s.clear()
                for _ in range(self._sampling.pilot_calls):
                    answers.append(self._caller.put_timed(session, dealer, case, PATIENCE_S))
            judging_s = statistics.median(self._caller.judging_s)
            latency_ns = statistics.median(answer.reply.latency_ns for answer in answers)
            count = self._sampling.samples_for(latency_ns, judging_s)
            paces[case.key] = Pace(count, waits_for_device([answer.was_ready for answer in answers]))
        return paces

    def _time_idle_calls(self, paces: dict[str, Pace]) -> dict[str, Sitting]:
        """What calls of each benchmark case take that compute nothing, by its key.

        In a worker and a directory where the submission has never been.
        """
        apart: dict[str, Sitting] = {}
        with scratch(b"", tiers.strongest(self._device).new_uid()) as folder, ExitStack() as stack:
            session = Session(self._problem, self._device, folder, self._threads)
            stack.callback(session.kill)
            session.load(None)
            for case in self._benchmarks:
                apart[case.key] = Sitting()
                with self._caller.dealing(Seeds(self.master_seed, "idle", case), case) as dealer:
                    dealer.deal(everything=False)
                    pace = paces[case.key]
                    for flush in warm_ups(self._sampling.warmup_calls):
                        self._caller.put_idle(session, dealer, case, pace.patience_s, flush, pace.waits)
                    for flush in flushes(self._sampling.idle_calls):
                        answer = self._caller.put_idle(session, dealer, case, pace.patience_s, flush, pace.waits)
                        apart[case.key].kind(flush)[1].add(answer)
                    if self._device.kind != "cpu" and self.null_kernel_ns is None:
                        least = [{"dtype": "uint8", "shape": [1]}]
                        calls = [
                            self._caller.put_idle(session, dealer, case, PATIENCE_S, outputs=least) for _ in range(10)
                        ]
                        self.null_kernel_ns = stats.interquartile_mean([call.reply.latency_ns for call in calls])
            session.finish()
        return apart

    def _time(self, session: Session, case: Case, phase: str, pace: Pace, step: Step) -> Sitting:
        """Warm up on one case in one process, then take its samples."""
        sitting, plan = Sitting(), flushes(pace.count)
        with self._caller.dealing(Seeds(self.master_seed, phase, case), case) as dealer:
            for flush in warm_ups(self._sampling.warmup_calls):
                self._caller.put_timed(session, dealer, case, pace.patience_s, flush)
            for number, flush in enumerate(plan, 1):
                answer = self._caller.put_timed(session, dealer, case, pace.patience_s, flush)
                calls, idle = sitting.kind(flush)
                calls.add(answer)
                if 2 * len(idle) < len(calls):
                    idle.add(self._caller.put_idle(session, dealer, case, pace.patience_s, flush, pace.waits))
                sitting.note(answer)
                tell(self._narrate, replace(step, done=step.done + number / len(plan), sample=(number, len(plan))))
        if sitting.leaves_threads:
            raise Fault(Verdict.INTEGRITY_VIOLATION, f"with {case.label} {LEAVES_THREADS}")
        return sitting
