"""The ending of an evaluation that nothing ended early: the verdict in words, and the tolerance that was met."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.judge.exemplar import most_telling
from harness.judge.reference import Reference
from harness.judge.trial import Trial
from harness.model import (
    CaseCheck,
    Ending,
    Problem,
    Submission,
    Total,
    Verdict,
    all_tests,
    not_emulated,
    through_interpreter,
    tolerances_met,
)


def ending_of(trial: Trial, reference: Reference) -> Ending:
    """Return the ending of a trial that no Fault ended early."""
    wrong = [check for check in trial.checks if check.verdict is Verdict.WRONG_ANSWER]
    return _of_wrong_cases(trial, wrong, reference) if wrong else _of_right_ones(trial)


def _of_wrong_cases(trial: Trial, failed: Sequence[CaseCheck], reference: Reference) -> Ending:
    shown = most_telling(failed, reference.most_bytes)
    raised = sum(check.verdict not in (Verdict.ACCEPTED, Verdict.WRONG_ANSWER) for check in trial.checks)
    reasons = (shown.report or "").splitlines()[1:]  # without the line that names the case
    count, untried = len(trial.entrant.tests), len(trial.entrant.tests) - len(trial.checks)
    cases = "test case" if count == 1 else "test cases"
    wrong, which = ("is wrong", "it is") if len(failed) == 1 else ("are wrong", "the one shown is")
    rest = f", {raised} raised OutOfBounds" if raised else ""
    rest += f", {untried} not tried" if untried else ""
    message = f"{len(failed)} of {count} {cases} {wrong}{rest}; {which} {shown.case.label}"
    message += f": {reasons[0]}" if reasons else ""
    return Ending(verdict=Verdict.WRONG_ANSWER, message=message, detail=shown.report)


def _of_right_ones(trial: Trial) -> Ending:
    caller = trial.entrant.caller
    how = through_interpreter(trial.interpreted_cases, len(trial.checks)) if caller.seen.interpreted else ""
    how += f" (emulated {caller.emulated})" if caller.emulated else ""
    untimed = f"; it could not be timed: {trial.unclockable}" if trial.unclockable else ""
    secret = sum(check.secret for check in trial.checks)
    count = len(trial.checks)
    of_them = "" if count == 1 else f"{secret} of them "
    drawn = f", {of_them}drawn in secret," if secret else ""
    met = tolerances_met([*trial.checks, *trial.totals])
    within = (f", {met}" if met else "") + not_emulated(caller.seen.inexact)
    right = f"{all_tests(count)}{drawn} {'is' if count == 1 else 'are'} right" if count else "all timed calls are right"
    return Ending(verdict=Verdict.ACCEPTED, message=f"{right}{how}{within}{untimed}")


def named(ending: Ending, folder: Path, submission: Submission) -> Ending:
    """Replace the path of the submission's copy in the worker's scratch `folder` by the submission's own path."""
    texts = {
        name: text.replace(str(folder / "submission.py"), submission.path).replace(
            "(submission.py, line", f"({Path(submission.path).name}, line"
        )
        for name, text in (("message", ending.message), ("detail", ending.detail))
        if text is not None
    }
    return ending.model_copy(update=texts)


def loosest(checks: Sequence[CaseCheck | Total], problem: Problem) -> str | None:
    """Return the loosest tolerance that a check met. The whole run meets that one."""
    met = [check.tolerance for check in checks if check.tolerance is not None]
    return max(met, key=list(problem.tolerances).index, default=None)
