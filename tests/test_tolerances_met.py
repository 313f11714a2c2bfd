"""An accepted run says which tolerance it met, and by how much it missed the next stricter one."""

import math

import pytest
from click.testing import CliRunner
from test_judging import judge

from harness.cli import verbs
from harness.model import Case, CaseCheck, Excess, Total, Verdict, tolerances_met
from harness.render import verdicts


def check(label, tolerance, **ratios):
    excess = {name: Excess(limit="rel_l2", ratio=ratio) for name, ratio in ratios.items()}
    case = Case(parameters={"case": label})
    return CaseCheck(case=case, verdict=Verdict.ACCEPTED, tolerance=tolerance, excess=excess, error=0.1)


def total(tolerance, **ratios):
    excess = {name: Excess(limit="gain", ratio=ratio) for name, ratio in ratios.items()}
    return Total(
        what="all test cases", gain=1, row_gain=1, dim_rel_l2=None, parts={}, excess=excess, tolerance=tolerance
    )


FP4 = "within fp4, not within fp8: rel_l2 is 1.5 x its limit in case=b"
TOTAL = "within fp8, not within exact: gain is 1.31 x its limit in all test cases together"
NONE_MAY = "within fp8, not within exact: rel_l2 is above its limit of 0 in case=d"
STRICT, LOOSE = check("a", "exact", exact=0.4, fp8=0.2, fp4=0.1), check("b", "fp4", exact=9.0, fp8=1.5, fp4=0.8)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([STRICT], "within exact"),
        ([STRICT, LOOSE], FP4),
        ([STRICT, total("fp8", exact=1.31, fp8=0.2)], TOTAL),
        ([STRICT, LOOSE, check("c", "fp8", exact=2.0, fp8=0.9, fp4=0.1)], FP4),
        ([check("d", "fp8", exact=math.inf, fp8=0.9)], NONE_MAY),
        ([], None),
    ],
)
def test_the_loosest_that_all_meet_is_named_and_what_misses_the_next_stricter(found, said):
    assert tolerances_met(found) == said


@pytest.fixture
def two_tolerances(toy_root, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(toy_root / "cache"))
    path = toy_root / "problems" / "double" / "problem.yml"
    close = "close: {rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}"
    assert close in path.read_text()
    path.write_text(path.read_text().replace(close, "close: {rel_l2: 0.001}\n  rough: {rel_l2: 0.1}"))
    return toy_root


@pytest.mark.parametrize(
    ("factor", "said"),
    [("2", "within close"), ("2.02", "within rough, not within close: rel_l2 is 10 x its limit in rows=")],
)
def test_eval_and_check_and_replay_say_it(two_tolerances, factor, said):
    source = f"def custom_kernel(data):\n    return data[0] * {factor}\n"
    run = judge(two_tolerances, source, timed=False)
    assert run.ending.message.startswith(f"all 2 test cases are right, {said}")
    assert run.ending.message in verdicts.verdict_line(run)
    file = str(two_tolerances / "submissions" / "double" / "subject.py")
    words = ["--root", str(two_tolerances)]
    checked = CliRunner().invoke(verbs, [*words, "check", "double", file], standalone_mode=False).stdout
    assert checked.splitlines()[0].startswith(f"subject on double, right on all 2 test cases of a CPU, {said}")
    assert f"(all 2 test cases, {said}" in checked.splitlines()[-1]
    again = [*words, "replay", "double", file, "rows=3 cols=5", "--seed", "1", "--device", "cpu"]
    replayed = CliRunner().invoke(verbs, again, standalone_mode=False).stdout
    calls = "with seed 1, and once more with other values"
    assert replayed.startswith(f"accepted: rows=3 cols=5 is right {calls}, {said}")


def test_replay_of_a_wrong_case_says_by_how_much_in_its_first_line(two_tolerances):
    file = two_tolerances / "submissions" / "double" / "subject.py"
    file.write_text("def custom_kernel(data):\n    return data[0] * 2.4\n")
    words = ["--root", str(two_tolerances), "replay", "double", str(file), "rows=3 cols=5", "--seed", "1"]
    told = CliRunner().invoke(verbs, [*words, "--device", "cpu"], standalone_mode=False).stdout.splitlines()
    assert told[0] == "  wrong  rough: rel_l2 is 2 x its limit  rows=3 cols=5"
    assert told[1] == "case rows=3 cols=5" and told[-1].startswith("reproduce: ")
