"""The result of checking a submission's answers: the verdict, and how each case and all calls meet the tolerances."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from harness.model.case import Case
from harness.model.label import Unranked
from harness.model.value import Text, Value


class Verdict(enum.StrEnum):
    """How a run ended. Files, folders of controls and messages use these values."""

    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    INTEGRITY_VIOLATION = "integrity_violation"
    INFRASTRUCTURE_ERROR = "infrastructure_error"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")

    @property
    def disqualifies(self) -> bool:
        """True if boards show this verdict for the source for ever, whatever its other runs say."""
        return self in (Verdict.WRONG_ANSWER, Verdict.INTEGRITY_VIOLATION)


_EXIT_CODES = {
    Verdict.ACCEPTED: 0,
    Verdict.WRONG_ANSWER: 10,
    Verdict.COMPILE_ERROR: 11,
    Verdict.RUNTIME_ERROR: 12,
    Verdict.TIMEOUT: 13,
    Verdict.INTEGRITY_VIOLATION: 14,
    Verdict.INFRASTRUCTURE_ERROR: 30,
}


class Ending(Value):
    """The verdict, one sentence that says why, and details that help to fix it (traceback, mismatch report)."""

    verdict: Verdict
    message: Text
    detail: Text | None = None


def all_tests(count: int) -> str:
    """`all 4 test cases` or `the one test case`."""
    return "the one test case" if count == 1 else f"all {count} test cases"


def through_interpreter(these: int, count: int) -> str:
    """What follows `all 4 test cases` if kernels were interpreted in `these` of them."""
    return (f", {these or 'none'} of them" if these < count else "") + " through Triton's interpreter"


def not_emulated(what: Iterable[str]) -> str:
    """`; not emulated: TF32 in torch's float32 products`, or nothing."""
    words = ", ".join(sorted(what))
    return f"; not emulated: {words}" if words else ""


def outcome(verdict: Verdict, unranked: str | None) -> str:
    """The verdict in words. `unranked` is the run's reason not to be ranked, if any."""
    return "not judged here" if unranked == Unranked.UNJUDGED else verdict.words


class Excess(Value):
    """How far a checked call is from one tolerance. `ratio` is the worst limit's value over the limit; at most 1 meets
    the tolerance. `limit` names the worst limit (rel_l2, max_mismatch, structure ...).
    """

    limit: str
    ratio: float


class CaseCheck(Value):
    """The comparison of one case's outputs with the reference, over all its checked calls. `secret`: this run drew the
    case."""

    case: Case
    verdict: Verdict
    tolerance: str | None
    excess: dict[str, Excess]
    error: float | None
    reference_error: float | None = None
    report: Text | None = None
    calls: int = 1
    secret: bool = False


class Total(Value):
    """The figures of many outputs together: of all test cases, or of all timed calls of one benchmark case.

    For `gain`, `row_gain`, `dim_rel_l2` and `parts` see Tolerance. `tolerance` is the strictest that they meet.
    """

    what: Text
    gain: float | None
    row_gain: float | None
    dim_rel_l2: float | None
    parts: dict[str, float]
    excess: dict[str, Excess]
    tolerance: str | None
