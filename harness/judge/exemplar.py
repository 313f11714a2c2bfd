"""Of several wrong test cases, or of several whose call failed, the one that is shown in full. The others have their
line in the list of cases.

A report of one element, or of a gigabyte, says little: shown is the largest of the small cases, and rather one of about
that size whose report has a hint, if possible of one mistake alone. Cases drawn in secret come last: everybody knows
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.judge.calls import FailedCall
from harness.judge.hints import OR
from harness.judge.mismatch import hint_of
from harness.model import Case, CaseCheck

SMALL_BYTES = 64 << 20
"""What a case moves at most that a person likes to judge again and again."""

COMPARABLE = 64.0
"""So many times smaller than the largest, a case is passed over even if its report has a hint: of a few elements much
looks like a known mistake."""


def most_telling(wrong: Sequence[CaseCheck], bytes_of: Callable[[Case], float]) -> CaseCheck:
    """Of the checks in `wrong`, which has one at least. `bytes_of`: what a case moves."""
    wrong = [check for check in wrong if not check.secret] or wrong
    if len(wrong) == 1:
        return wrong[0]
    sizes = [bytes_of(check.case) for check in wrong]
    most = max((size for size in sizes if size <= SMALL_BYTES), default=min(sizes))
    fitting = [(check, size) for check, size in zip(wrong, sizes, strict=True) if most / COMPARABLE <= size <= most]
    return max(fitting, key=lambda each: (_clarity(hint_of(each[0].report)), each[1]))[0]


def _clarity(hint: str) -> int:
    """Of a hint: one that names one mistake says more than one that names several."""
    return 0 if not hint else 1 if OR in hint else 2


def most_telling_failure(failures: Sequence[FailedCall], bytes_of: Callable[[Case], float]) -> FailedCall | None:
    """The same of calls that gave no answer, in their order: of those with the verdict of the first, which is the
    run's. None of none."""
    alike = [each for each in failures if each.ending.verdict is failures[0].ending.verdict]
    shown = most_telling([each.check for each in alike], bytes_of) if alike else None
    return next((each for each in alike if each.check is shown), None)
