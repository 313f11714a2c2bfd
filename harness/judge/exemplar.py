"""Choose which of several wrong test cases, or failed calls, is shown in full. The others have a line in the list of
cases.

A report on one element, or on a gigabyte, says little. So the choice is the largest of the small cases. A case of about
that size is preferred if its report has a hint, best of one single mistake and no guess. Secret cases come last:
everybody knows the others. A wrong answer with a hint that is no guess is shown rather than calls that read or wrote
out of bounds: that is what the same mistake often does at the end of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.judge.calls import FailedCall
from harness.judge.hints import OR, is_guess
from harness.judge.mismatch import hint_of
from harness.model import Case, CaseCheck, Verdict

SMALL_BYTES = 64 << 20
"""The most bytes that a case may move to be convenient to judge again and again."""

OUT_OF_BOUNDS = "OutOfBounds:"
"""Begins the message of a kernel's access to memory outside every tensor, as the interpreter raises it."""

COMPARABLE = 64.0
"""A case this many times smaller than the largest is not chosen even if its report has a hint: a few elements look like
many known mistakes by chance."""


def most_telling(wrong: Sequence[CaseCheck], bytes_of: Callable[[Case], float]) -> CaseCheck:
    """Choose one of the checks in `wrong`, which is not empty. `bytes_of`: the bytes that a case moves."""
    wrong = [check for check in wrong if not check.secret] or wrong
    if len(wrong) == 1:
        return wrong[0]
    sizes = [bytes_of(check.case) for check in wrong]
    most = max((size for size in sizes if size <= SMALL_BYTES), default=min(sizes))
    fitting = [(check, size) for check, size in zip(wrong, sizes, strict=True) if most / COMPARABLE <= size <= most]
    return max(fitting, key=lambda each: (_clarity(hint_of(each[0].report)), each[1]))[0]


def _clarity(hint: str) -> int:
    """Rank a hint: one that names a single mistake says more than one that names several, or that guesses."""
    return 0 if not hint else 1 if OR in hint or is_guess(hint) else 2


def most_telling_failure(
    failures: Sequence[FailedCall], bytes_of: Callable[[Case], float], checks: Sequence[CaseCheck] = ()
) -> FailedCall | None:
    """Choose one of the calls that gave no answer, in their order, among those with the verdict of the first (the run's
    verdict). None for an empty list, and if all are out of bounds and a wrong answer among `checks` says more."""
    wrong = [check for check in checks if check.verdict is Verdict.WRONG_ANSWER]
    if wrong and all(each.raised and each.ending.message.startswith(OUT_OF_BOUNDS) for each in failures):
        hint = hint_of(most_telling(wrong, bytes_of).report)
        if hint and not is_guess(hint):
            return None
    alike = [each for each in failures if each.ending.verdict is failures[0].ending.verdict]
    shown = most_telling([each.check for each in alike], bytes_of) if alike else None
    return next((each for each in alike if each.check is shown), None)
