"""`--csv`: rows that a spreadsheet and a script read, one form at a time, and no formula."""

import csv
import io

import pytest

from harness import catalog
from harness.model import Ending, Verdict
from harness.records.store import Store
from tests.test_cli import timed
from tests.test_store import SUBMISSION, make_run


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def stored(toy_root):
    """Two runs: `fast` is ranked, `wrong` is not."""
    sha256 = catalog.load_problem(toy_root, "double").sha256
    fast = make_run(
        "20260101T000000-1-fast",
        submission="fast",
        problem_sha256=sha256,
        score=1234.5,
        measurements=(timed(1e6, 300),),
    )
    ending = Ending(verdict=Verdict.WRONG_ANSWER, message='off by 1, "far",\noff')
    wrong = make_run(
        "20260101T000000-2-wrong", submission="=1+1", submission_sha256="ee", problem_sha256=sha256, ending=ending,
        score=None, measurements=(),
    )  # fmt: skip
    for run in (fast, wrong):
        Store(toy_root).write(run, SUBMISSION.model_copy(update={"sha256": run.submission_sha256}))


def test_a_board_is_a_row_for_each_submission_the_ranked_first(podium, stored):
    code, out, _ = podium("leaderboard", "double", "--csv")
    fast, wrong = rows_of(out)
    assert code == 0 and (fast["submission"], fast["first"], fast["last"], fast["verdict"]) == (
        "fast",
        "1",
        "1",
        "accepted",
    )
    assert float(fast["score_ns"]) == 1234.5 > float(fast["low_ns"])
    assert wrong["message"] == 'off by 1, "far",\noff' and (wrong["first"], wrong["score_ns"]) == ("", "")
    (run, _) = rows_of(podium("show", "--csv")[1])
    assert fast["device"] == wrong["device"] == run["device"] == "test-1000"
    assert [row["device"] for row in rows_of(podium("leaderboard", "double", "--csv", "--cases")[1])] == ["test-1000"]
    assert podium("leaderboard", "double", "--csv", "--device", fast["device"])[1] == out


def test_with_cases_a_row_is_a_case_of_a_ranked_run(podium, stored):
    (case,) = rows_of(podium("leaderboard", "double", "--csv", "--cases")[1])
    assert case["submission"] == "fast" and case["case"] == "rows=1000000 cols=4" and float(case["latency_ns"]) == 1e6


def test_the_list_of_runs_is_a_row_for_each_and_one_run_is_no_list(podium, stored):
    assert [row["id"] for row in rows_of(podium("show", "--csv")[1])] == [
        "20260101T000000-1-fast",
        "20260101T000000-2-wrong",
    ]
    code, out, err = podium("show", "fast", "--csv")
    assert (code, out) == (2, "") and "--csv applies only to the list of runs" in err


def test_a_text_that_begins_as_a_formula_does_is_none(podium, stored):
    for verb in (("leaderboard", "double"), ("show",)):
        assert "'=1+1" in [row["submission"] for row in rows_of(podium(*verb, "--csv")[1])]


def test_what_is_no_run_is_said_beside_the_sheet(podium, toy_root, stored):
    (toy_root / "results" / "local" / "double" / "test-1000" / "corrupt.json").write_text("{")
    _, out, err = podium("leaderboard", "double", "--csv")
    assert len(rows_of(out)) == 2 and "corrupt.json" in err


def test_nothing_stored_is_a_header_alone(podium):
    assert podium("leaderboard", "double", "--csv")[1].count("\n") == podium("show", "--csv")[1].count("\n") == 1


@pytest.mark.parametrize("verb", [("leaderboard", "double"), ("show",)])
@pytest.mark.parametrize("other", ["--json", "--markdown"])
def test_csv_is_a_form_of_its_own(podium, verb, other):
    for words in ((other, "--csv"), ("--csv", other)):
        code, out, err = podium(*verb, *words)
        assert (code, out) == (2, "") and f"{other} and --csv cannot be combined" in err
