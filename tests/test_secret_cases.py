"""Cases that each run draws in secret: within their ranges, the same from the same seed, checked and never timed."""

import functools
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import catalog
from harness.catalog.config import load_config
from harness.errors import ProblemError
from harness.judge.evaluate import evaluate
from harness.judge.reference import Reference
from harness.judge.secret_cases import drawn, untried
from harness.machine.device import detect
from harness.model import Case, Cases, Draw, SecretCases, Verdict, case_of
from harness.render import boards
from harness.render import run as rendered
from harness.verbs import recipe

CHECKOUT = Path(__file__).resolve().parents[1]
HONEST = "def custom_kernel(data):\n    return data[0] * 2\n"
STATED_ONLY = """
def custom_kernel(data):
    return data[0] * (2 if tuple(data[0].shape) in ((4, 8), (3, 5), (64, 64)) else 0)
"""
FAMILY = (
    "  secret:\n    - {count: 2, parameters: {rows: {least: 5, most: 900}, cols: {least: 1, most: 3, times: rows}}}\n"
)
BENCHMARK = "  benchmark:\n    - {rows: 64, cols: 64}\n"
SEED, OTHER_SEED = "ab" * 16, "cd" * 16

seeds = st.binary(min_size=16, max_size=16).map(bytes.hex)


@pytest.fixture
def secret_root(toy_root):
    """The toy, of which each run draws two more cases."""
    path = toy_root / "problems" / "double" / "problem.yml"
    path.write_text(path.read_text().replace(BENCHMARK, BENCHMARK + FAMILY))
    return toy_root


def judge(root, source, **options):
    path = root / "submissions" / "double" / "subject.py"
    path.write_text(textwrap.dedent(source))
    problem = catalog.load_problem(root, "double")
    submission = catalog.load_submission(problem, path)
    return evaluate(problem, submission, detect(root, "cpu"), load_config(root), **options)


def labels_of(run):
    return [check.case.label for check in run.checks if check.secret]


def test_a_kernel_for_the_stated_shapes_alone_is_a_wrong_answer(secret_root):
    run = judge(secret_root, STATED_ONLY, timed=False)
    assert run.ending.verdict is Verdict.WRONG_ANSWER
    assert [check.verdict is Verdict.ACCEPTED for check in run.checks] == [not check.secret for check in run.checks]


def test_drawn_cases_are_checked_and_not_timed_and_said_so(secret_root):
    run = judge(secret_root, HONEST)
    assert run.ending.verdict is Verdict.ACCEPTED and len(labels_of(run)) == 2
    assert "all 4 test cases, 2 of them drawn in secret, are right" in run.ending.message
    assert [m.case.label for m in run.measurements] == ["rows=64 cols=64"]
    table = rendered._checks(run.checks)
    assert [row[0].endswith("(secret)") for row in table.rows] == [False, False, True, True]


def test_every_run_draws_its_own_and_the_same_seed_draws_the_same(secret_root):
    first, again, other = (judge(secret_root, HONEST, timed=False, master_seed=s) for s in (SEED, SEED, OTHER_SEED))
    assert labels_of(first) == labels_of(again) != labels_of(other)
    assert [check.error for check in first.checks] == [check.error for check in again.checks]


@pytest.mark.parametrize("source", [HONEST, STATED_ONLY])
def test_a_run_is_judged_again_on_the_cases_that_it_drew(secret_root, source):
    run = judge(secret_root, source, timed=False)
    problem = catalog.load_problem(secret_root, "double")
    again = recipe._with_its_cases(problem, run)
    path = secret_root / "submissions" / "double" / "subject.py"
    submission = catalog.load_submission(problem, path)
    device, config = detect(secret_root, "cpu"), load_config(secret_root)
    now = evaluate(again, submission, device, config, timed=False, master_seed=run.master_seed)
    assert [(c.case, c.secret, c.error) for c in now.checks] == [(c.case, c.secret, c.error) for c in run.checks]


def test_a_drawn_case_can_be_replayed_by_its_label(secret_root):
    problem = catalog.load_problem(secret_root, "double")
    case = drawn(problem.cpu, SEED)[0]
    assert problem.case_called(case.label) == case
    for label in ("rows=4 cols=5", "rows=901 cols=901", "rows=5", "rows=5 cols=True", "nonsense", ""):
        assert problem.case_called(label) is None


def test_boards_list_what_is_drawn(secret_root):
    (part, *_) = boards.secret_cases(catalog.load_problem(secret_root, "double"))
    assert "2 x rows=5..900 cols=rows×1..3" in part.content


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("{count: 2, parameters: {rows: 5}}", "cases.secret[0] lacks the parameter cols"),
        ("{count: 2, parameters: {rows: 5, col: 5}}", "unknown parameter col"),
        ("{count: 0, parameters: {rows: 5, cols: 5}}", "count"),
        ("{count: 1, parameters: {rows: {least: 5, most: 4}, cols: 5}}", "give least and most"),
        ("{count: 1, parameters: {rows: {least: 5}, cols: 5}}", "give least and most"),
        ("{count: 1, parameters: {rows: {one_of: []}, cols: 5}}", "one_of lists the values"),
        ("{count: 1, parameters: {rows: {least: 1, most: 2, times: cols}, cols: 5}}", "rows is drawn from cols"),
        ("{count: 1, parameters: {rows: {least: 0, most: 2}, cols: {least: 1, most: 2, times: rows}}}", "from rows"),
    ],
)
def test_a_fault_in_a_family_is_named(toy_root, family, said):
    path = toy_root / "problems" / "double" / "problem.yml"
    path.write_text(path.read_text().replace(BENCHMARK, BENCHMARK + f"  secret:\n    - {family}\n"))
    with pytest.raises(ProblemError) as caught:
        catalog.load_problem(toy_root, "double")
    assert said in str(caught.value)


def test_a_tolerance_that_fits_no_drawn_case_is_refused(secret_root):
    path = secret_root / "problems" / "double" / "problem.yml"
    text = path.read_text()
    stated = ", ".join(f"{{when: {{rows: {rows}}}, rel_l2: 0.1}}" for rows in (3, 4, 64, *range(5, 900)))
    path.write_text(text.replace("{rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}", f"[{stated}]"))
    with pytest.raises(ProblemError, match="applies to secret cases of rows=900"):
        catalog.load_problem(secret_root, "double")


@given(seed=seeds)
def test_what_is_drawn_lies_within_the_ranges(seed):
    family = SecretCases(
        count=1,
        parameters={
            "batch": Draw(least=1, most=3),
            "heads": Draw(least=2, most=4, times="batch"),
            "lengths": Draw(least=0, most=9, each="batch"),
            "dtype": Draw(one_of=["float32", "float16"]),
            "causal": Draw(one_of=[True, False]),
            "fixed": 0.5,
        },
    )
    (case,) = drawn(Cases(test=(), benchmark=(), secret=(family,)), seed)
    p = case.parameters
    assert 1 <= p["batch"] <= 3 and p["heads"] in [p["batch"] * times for times in (2, 3, 4)]
    assert len(p["lengths"]) == p["batch"] and all(0 <= length <= 9 for length in p["lengths"])
    assert p["dtype"] in ("float32", "float16") and isinstance(p["causal"], bool) and p["fixed"] == 0.5
    assert family.allows(case) and case_of(case.label) == case
    assert not family.allows(Case(parameters={**p, "heads": p["heads"] + 1 if p["batch"] > 1 else 9}))


def test_every_value_of_a_range_is_drawn():
    family = SecretCases(count=1, parameters={"n": Draw(least=1, most=4), "x": Draw(one_of=["a", "b"])})
    cases = Cases(test=(), benchmark=(), secret=(family,))
    found = {tuple(drawn(cases, f"{number:032x}")[0].parameters.values()) for number in range(200)}
    assert found == {(n, x) for n in (1, 2, 3, 4) for x in "ab"}


@functools.cache
def loaded(name):
    problem = catalog.load_problem(CHECKOUT, name)
    return problem, Reference(problem, detect(CHECKOUT, "cpu"))


@pytest.mark.parametrize("name", catalog.problem_names(CHECKOUT))
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_whatever_a_bundled_problem_draws_is_within_its_contract(name, seed):
    problem, reference = loaded(name)
    for case in drawn(problem.cpu, seed) + drawn(problem.cases, seed):
        reference._run("empty_input", **case.parameters, device="meta")
        assert reference.most_bytes(case) > 0 and reference._run("device_bytes", **case.parameters) < 8 << 30
        assert problem.tolerances_for(case) and problem.case_called(case.label) == case


@pytest.mark.parametrize("verb", ["eval", "check"])
def test_who_stops_at_the_first_wrong_case_is_told_how_many_drawn_ones_were_to_follow(podium, secret_root, verb):
    path = secret_root / "wrong.py"
    path.write_text(HONEST.replace("* 2", "* 3"))
    _, out, _ = podium(verb, "double", str(path), "-x")
    rows = [line.split() for line in out.splitlines() if line.startswith("  not tried")]
    assert [row[2:] for row in rows] == [[rows[0][2], rows[0][3]], ["2", "more,", "drawn", "in", "secret"]]
    _, out, _ = podium(verb, "double", str(path))
    assert out.count("(secret)") == 2 and "not tried" not in out


def test_of_drawn_cases_those_are_untried_that_a_run_did_not_come_to(secret_root):
    cases = catalog.load_problem(secret_root, "double").cpu
    run = judge(secret_root, STATED_ONLY, timed=False, stop_at_first=True)
    assert len(labels_of(run)) == 1 and untried(cases, run) == 1
    assert untried(cases, judge(secret_root, STATED_ONLY, timed=False)) == 0
