"""Of several wrong cases the report shows one that says something."""

import pytest
from test_judging import judge

from harness.judge.calls import FailedCall
from harness.judge.exemplar import SMALL_BYTES, most_telling, most_telling_failure
from harness.judge.mismatch import HINT
from harness.judge.reply import Fault
from harness.model import Case, CaseCheck, Verdict
from harness.render import left_out

MB = 1e6


def wrong(mb, hint=False, secret=False):
    """A check of a case that moves so many megabytes; of the hints one names two mistakes, and one is a guess."""
    others = {"both": "as if this, or as if that", "guess": "all elements are zero: perhaps it was never written"}
    said = others.get(hint, "head 5 holds head 4")
    report = f"case mb={mb}\n{HINT}{said}" if hint else f"case mb={mb}"
    case = Case(parameters={"mb": mb})
    return CaseCheck(
        case=case, verdict=Verdict.WRONG_ANSWER, tolerance=None, excess={}, error=None, report=report, secret=secret
    )


@pytest.mark.parametrize(
    ("cases", "shown"),
    [
        ([wrong(1e-5), wrong(3), wrong(2)], 3),
        ([wrong(3), wrong(1, hint=True), wrong(2, hint=True)], 2),
        ([wrong(3, hint="both"), wrong(1, hint=True), wrong(4)], 1),
        ([wrong(3), wrong(1, hint="both")], 1),
        ([wrong(3, hint="guess"), wrong(1, hint=True), wrong(4)], 1),
        ([wrong(3, hint="both"), wrong(1, hint="guess")], 3),
        ([wrong(3), wrong(1e-5, hint=True)], 3),
        ([wrong(500), wrong(2), wrong(100)], 2),
        ([wrong(500), wrong(100), wrong(300)], 100),
        ([wrong(500)], 500),
        ([wrong(3, hint=True, secret=True), wrong(1)], 1),
        ([wrong(3, secret=True), wrong(4, secret=True)], 4),
    ],
    ids=(
        [
            "the largest",
            "with a hint",
            "of one mistake",
            "or of two",
            "rather than a guess",
            "a guess is as good as two",
            "no hint of one element",
            "a small one",
            "none is small",
            "one",
            "a stated one",
            "none is stated",
        ]
    ),
)
def test_the_case_shown_is_the_largest_of_the_small_ones_and_rather_one_with_a_hint(cases, shown):
    assert SMALL_BYTES < 100 * MB
    found = most_telling(cases, lambda case: case.parameters["mb"] * MB)
    assert found.case.parameters["mb"] == shown


def test_the_report_is_of_a_larger_case_and_every_case_keeps_its_line(toy_root):
    path = toy_root / "problems" / "double" / "problem.yml"
    text = path.read_text()
    path.write_text(
        text.replace("    - {rows: 4, cols: 8}\n    - {rows: 3", "    - {rows: 1, cols: 1}\n    - {rows: 3")
    )
    assert path.read_text() != text
    run = judge(toy_root, "def custom_kernel(data):\n    return data[0] * 3\n", timed=False)
    assert [check.case.label for check in run.checks] == ["rows=1 cols=1", "rows=3 cols=5"]
    assert run.ending.message.startswith("2 of 2 test cases are wrong; the one shown is rows=3 cols=5: y: ")
    assert run.ending.detail == run.checks[1].report and "'rows=3 cols=5' --seed" in run.ending.detail


def failed(mb, verdict=Verdict.RUNTIME_ERROR):
    return FailedCall(Fault(verdict, "why"), Case(parameters={"mb": mb}), "the command")


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        ([failed(1e-5), failed(3), failed(2)], 3),
        ([failed(500), failed(2), failed(100)], 2),
        ([failed(1), failed(3, Verdict.COMPILE_ERROR), failed(2)], 2),
        ([failed(3, Verdict.TIMEOUT)], 3),
        ([], None),
    ],
    ids=["the largest", "a small one", "of the first one's verdict", "one", "none"],
)
def test_of_calls_that_gave_no_answer_the_one_shown_is_chosen_as_of_wrong_answers(calls, shown):
    found = most_telling_failure(calls, lambda case: case.parameters["mb"] * MB)
    assert (found and found.check.case.parameters["mb"]) == shown


def out_of_bounds(mb, raised=True):
    fault = Fault(Verdict.RUNTIME_ERROR, "OutOfBounds: kernel k loads x[9]")
    found = FailedCall(fault, Case(parameters={"mb": mb}), "the command")
    found.raised = raised
    return found


@pytest.mark.parametrize(
    ("calls", "checks", "yields"),
    [
        ([out_of_bounds(1)], [wrong(1, hint=True)], True),
        ([out_of_bounds(1)], [wrong(1, hint="both")], True),
        ([out_of_bounds(1)], [wrong(1, hint="guess")], False),
        ([out_of_bounds(1)], [wrong(1)], False),
        ([out_of_bounds(1)], [], False),
        ([out_of_bounds(1), failed(2)], [wrong(1, hint=True)], False),
        ([out_of_bounds(1, raised=False)], [wrong(1, hint=True)], False),
    ],
    ids=["a hint", "two mistakes", "a guess", "no hint", "none is wrong", "another error too", "none was tried after"],
)
def test_a_wrong_answer_with_a_hint_is_shown_rather_than_calls_out_of_bounds(calls, checks, yields):
    assert (most_telling_failure(calls, lambda case: case.parameters["mb"] * MB, checks) is None) == yields


HINTED_OR_RAISES = """
class OutOfBounds(RuntimeError):
    pass


def custom_kernel(data):
    if len(data[0]) == 3:
        raise OutOfBounds("kernel k loads x[15]")
    return data[0] * FACTOR
"""


@pytest.mark.parametrize("factor", [3, 2])
def test_beside_a_wrong_answer_with_a_hint_it_is_said_how_many_cases_were_out_of_bounds(toy_root, factor):
    run = judge(toy_root, HINTED_OR_RAISES.replace("FACTOR", str(factor)), timed=False)
    assert [check.verdict for check in run.checks].count(Verdict.RUNTIME_ERROR) == 1
    if factor == 2:
        assert run.ending.verdict is Verdict.RUNTIME_ERROR
    else:
        start = "1 of 2 test cases is wrong, 1 raised OutOfBounds; it is rows=4 cols=8: y: "
        assert run.ending.verdict is Verdict.WRONG_ANSWER and run.ending.message.startswith(start)
        assert "it is 1.5 x the expected" in run.ending.detail
        assert left_out.cause(run.ending.message).endswith("(1 of 2 test cases is wrong, 1 raised OutOfBounds)")


def test_of_cases_that_raise_a_larger_one_is_shown_and_each_keeps_its_line(toy_root):
    path = toy_root / "problems" / "double" / "problem.yml"
    path.write_text(path.read_text().replace("{rows: 4, cols: 8}", "{rows: 1, cols: 1}"))
    raises = "def custom_kernel(data):\n    raise ValueError(tuple(data[0].shape))\n"
    run = judge(toy_root, raises, timed=False)
    assert [check.case.label for check in run.checks] == ["rows=1 cols=1", "rows=3 cols=5"]
    assert run.ending.message.startswith("ValueError: (3, 5) (line 2)")
    assert run.ending.detail.startswith("case rows=3 cols=5\n") and "'rows=3 cols=5' --seed" in run.ending.detail
