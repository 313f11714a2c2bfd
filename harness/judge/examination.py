"""Judge the test cases of a submission: its processes for them, and the results.

one process                 every test case, then each once more      ─► checks
on a GPU some beside it     compile ahead                             (precompilation)
the same process, on a CPU  a pilot of every benchmark case           ─► number of samples, manner of timing
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
from harness.judge.tally import Tally, total
from harness.judge.wrong_together import meaning, words
from harness.model import Case, CaseCheck, Problem, Tolerance, Total, Verdict
from harness.progress import Narrate

ALL_TESTS = "all test cases"
MAY_LACK_MEMORY = (Verdict.RUNTIME_ERROR, Verdict.COMPILE_ERROR)
"""Verdicts of a call that may come from a lack of memory, because other processes of the submission use it. The judge's
own work may fail for the same reason."""


class WrongTotal(Fault):
    """Each output is right by itself, but together they show a systematic error."""

    def __init__(self, what: str, tally: Tally, tolerances: Mapping[str, Tolerance], problem: Problem) -> None:
        said = meaning(tally, tolerances, sides(problem))
        super().__init__(Verdict.WRONG_ANSWER, words(what, tally, tolerances), said)


class Examination:
    """`run` fills `checks` and `totals`. They keep what was found when a Fault ends the run.

    `timed`: the submission is to be timed if it is right. Then `likely_timed` is called after each right case, and
    `have_it_alone` reserves the device.
    """

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
        """Whether the submission is to be timed."""
        entrant = self._entrant
        return self._timed and self._right and bool(entrant.benchmarks) and not entrant.caller.untimed

    @property
    def _right(self) -> bool:
        return all(check.verdict is Verdict.ACCEPTED for check in self.checks)

    def run(self) -> dict[str, Pace] | None:
        """Judge the test cases. Return the paces of the pilot if it was made in the same process (CPU only), else None.

        If a call fails while other processes of the submission run, those may have taken its memory: all tests run
        again, alone. Raises Fault, but not for a wrong answer in a test case.
        """
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
                what = "the judge's own work failed"
        self._narrate(f"{what} while other processes of the submission ran: all tests run again, alone")
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
            if (failed := entrant.failed(self.checks)) is not None:
                raise failed
            wrong = self._wrong_together()
            # On a CPU the start of another process takes as long as all calls of the pilot.
            if wrong is None and self.goes_on and self._on_cpu and limits.test_s is None is limits.benchmark_s:
                self._have_it_alone()
                paces = entrant.pilot(session)
            session.finish()
        if wrong is not None:
            raise wrong
        return paces

    def _wrong_together(self) -> WrongTotal | None:
        """Return the systematic error of all tests together, if each is right by itself."""
        entrant = self._entrant
        if entrant.tests and not entrant.partial and self._right:
            try:
                self.add_up(ALL_TESTS, entrant.tally_of_tests, entrant.tests[0])
            except WrongTotal as wrong:
                return wrong
        return None

    def add_up(self, what: str, tally: Tally, case: Case) -> None:
        """Add the total of a tally to `totals`. Raises WrongTotal if it meets no tolerance."""
        tolerances = self._entrant.tolerances_for(case)
        found = total(what, tally, tolerances)
        if found is not None:
            self.totals.append(found)
            if found.tolerance is None:
                raise WrongTotal(what, tally, tolerances, self._entrant.problem)
