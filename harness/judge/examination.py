"""The test cases of a submission: the processes it gets for them, and what came of them.

one process                 every test case, then each once more      ─► checks
on a GPU some beside it     compile ahead                             (precompilation)
the same process, on a CPU  a pilot of every benchmark case           ─► how many samples, in which manner
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from harness.errors import InfrastructureError
from harness.judge.calls import FailedCall
from harness.judge.entrant import Entrant
from harness.judge.mistakes import sides
from harness.judge.pace import Pace
from harness.judge.precompilation import Precompilation
from harness.judge.reply import Fault
from harness.judge.tally import Tally, meaning, total, words
from harness.model import Case, CaseCheck, Problem, Tolerance, Total, Verdict
from harness.progress import Narrate

ALL_TESTS = "all test cases"
MAY_LACK_MEMORY = (Verdict.RUNTIME_ERROR, Verdict.COMPILE_ERROR)
"""How a call may end because other processes of the submission take what it needs. So may the judge's own work."""


class WrongTotal(Fault):
    """Outputs that are right each by itself are wrong together."""

    def __init__(self, what: str, tally: Tally, tolerances: Mapping[str, Tolerance], problem: Problem) -> None:
        said = meaning(tally, tolerances, sides(problem))
        super().__init__(Verdict.WRONG_ANSWER, words(what, tally, tolerances), said)


class Examination:
    """`run` fills `checks` and `totals`; what it found stays when a Fault ends it. `timed`: it is to be timed if it is
    right; `likely_timed` is told so after each case that is, and `have_it_alone` holds the device."""

    def __init__(
        self,
        entrant: Entrant,
        on_cpu: bool,
        narrate: Narrate,
        timed: bool,
        stop_at_first: bool,
        likely_timed: Callable[[], object],
        have_it_alone: Callable[[], None],
    ) -> None:
        self._entrant, self._on_cpu, self._narrate, self._timed = entrant, on_cpu, narrate, timed
        self._stop_at_first, self._likely_timed, self._have_it_alone = stop_at_first, likely_timed, have_it_alone
        self.checks: list[CaseCheck] = []
        self.totals: list[Total] = []

    @property
    def goes_on(self) -> bool:
        """Whether it is to be timed."""
        entrant = self._entrant
        return self._timed and self._right and bool(entrant.benchmarks) and not entrant.caller.untimed

    @property
    def _right(self) -> bool:
        return all(check.verdict is Verdict.ACCEPTED for check in self.checks)

    def run(self) -> dict[str, Pace] | None:
        """Once more where a call failed beside other processes of the submission, which may have taken its memory. On
        a CPU the pilot too, where it can be had at once. Raises Fault other than for a wrong answer in a test case."""
        with closing(self._entrant.precompilation(self._timed)) as ahead:
            try:
                return self._beside(ahead)
            except FailedCall as failed:
                if not ahead.began or failed.ending.verdict not in MAY_LACK_MEMORY:
                    raise
                what = f"{failed.check.case.label} failed"
            except InfrastructureError:
                if not ahead.began:
                    raise
                what = "the judge lacked something"
        self._narrate(f"{what} beside other processes of the submission: all tests again, alone")
        self.checks.clear()
        return self._beside(None)

    def _beside(self, ahead: Precompilation | None) -> dict[str, Pace] | None:
        entrant, limits, paces = self._entrant, self._entrant.limits, None
        with entrant.session(another_follows=self._timed, limit_s=limits.test_s) as session:
            for check in entrant.check_tests(session, ahead):
                self.checks.append(check)
                right = check.verdict is Verdict.ACCEPTED
                if self._timed and right and not entrant.caller.untimed:
                    self._likely_timed()
                if self._stop_at_first and not right:
                    break
            if entrant.failed is not None:
                raise entrant.failed
            wrong = self._wrong_together()
            # On a CPU a start takes as long as all of the pilot's calls.
            if wrong is None and self.goes_on and self._on_cpu and limits.test_s is None is limits.benchmark_s:
                self._have_it_alone()
                paces = entrant.pilot(session)
            session.finish()
        if wrong is not None:
            raise wrong
        return paces

    def _wrong_together(self) -> WrongTotal | None:
        """What is wrong of all tests together, if each is right by itself."""
        entrant = self._entrant
        if entrant.tests and not entrant.partial and self._right:
            try:
                self.add_up(ALL_TESTS, entrant.tally_of_tests, entrant.tests[0])
            except WrongTotal as wrong:
                return wrong
        return None

    def add_up(self, what: str, tally: Tally, case: Case) -> None:
        """Raises WrongTotal if no tolerance is met."""
        tolerances = self._entrant.tolerances_for(case)
        found = total(what, tally, tolerances)
        if found is not None:
            self.totals.append(found)
            if found.tolerance is None:
                raise WrongTotal(what, tally, tolerances, self._entrant.problem)
