"""Calls with a benchmark's shape and a test's inputs, at a secret place among the timed ones."""

import textwrap
from pathlib import Path

import pytest
from conftest import lay_out

from harness import catalog
from harness.catalog.config import load_config
from harness.judge import calls
from harness.judge.calls import Series
from harness.judge.evaluate import evaluate
from harness.judge.secret_cases import probe
from harness.judge.seeds import Seeds
from harness.machine.device import detect
from harness.model import Case, Verdict
from harness.verbs import recipe

CHECKOUT = Path(__file__).resolve().parents[1]
TESTS = "    - {rows: 3, cols: 5}\n  benchmark"
HONEST = """
    def custom_kernel(data):
        return data[0] * 2
"""
RIGHT_WHERE_IT_IS_SMALL = """
    def custom_kernel(data):
        x = data[0]
        return x * 2 if len(x) < 64 else (x * 2).clamp(max=500)
"""
PROBE = Case(parameters={"rows": 64, "cols": 64, "shift": 1000})


@pytest.fixture(scope="module")
def shifted_root(tmp_path_factory):
    """The toy, of which one test case has inputs that the benchmark case does not have."""
    root = lay_out(tmp_path_factory.mktemp("shifted"))
    folder = root / "problems" / "double"
    text = (folder / "problem.yml").read_text()
    (folder / "problem.yml").write_text(
        text.replace(TESTS, TESTS.replace("  bench", "    - {rows: 3, cols: 4, shift: 1000}\n  bench"))
    )
    source = (folder / "reference.py").read_text()
    source = source.replace("cols: int", "cols: int, shift: float = 0.0")
    source = source.replace('device=device), {"factor"', 'device=device) + shift, {"factor"')
    (folder / "reference.py").write_text(source)
    return root


def judge(root, source, problem=None, **options):
    path = root / "submissions" / "double" / "subject.py"
    path.write_text(textwrap.dedent(source))
    problem = problem or catalog.load_problem(root, "double")
    submission = catalog.load_submission(problem, path)
    return evaluate(problem, submission, detect(root, "cpu"), load_config(root), **options)


@pytest.fixture(scope="module")
def judged(shifted_root):
    """By source its run, and the probe of each call that is not a test, in their order; None of those that are none."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for source in (HONEST, RIGHT_WHERE_IT_IS_SMALL):
            dealt = []

            class Recorded(Series):
                def deal(self, everything, probe=None, dealt=dealt):
                    if not everything:
                        dealt.append(probe)
                    return super().deal(everything, probe)

            patch.setattr(calls, "Series", Recorded)
            found[source] = judge(shifted_root, source), dealt
    return found


def test_a_probe_is_a_benchmark_case_with_what_tests_state_and_it_leaves_out(shifted_root):
    problem = catalog.load_problem(shifted_root, "double")
    assert problem.cpu.probes(problem.cpu.benchmark[0]) == [PROBE]
    assert problem.case_called(PROBE.label) == PROBE
    assert problem.case_called("rows=64 cols=64 shift=1001") is None


def test_steps_of_a_test_are_no_probe():
    problem = catalog.load_problem(CHECKOUT, "kv_decode")
    probes = problem.cases.probes(problem.cases.benchmark[0])
    said = [tuple(probe.parameters.get(name) for name in ("scores", "values", "lengths")) for probe in probes]
    moved = [(scores, None, None) for scores in ("large", "rising", "shuffled")]
    assert said == [*moved, (None, "outliers", None), (None, "biased", None), (None, None, "shorter")]
    assert all("steps" not in probe.parameters for probe in probes)


def test_a_process_is_put_one_and_it_counts_for_nothing(judged):
    run, dealt = judged[HONEST]
    assert run.ending.verdict is Verdict.ACCEPTED
    (timed,) = run.measurements
    others = len(dealt) - dealt.count(PROBE) - dealt.count(None)
    assert (dealt.count(PROBE), len(timed.samples_ns), others) == (2, 2, 0)
    assert dealt.count(None) > sum(map(len, timed.samples_ns))


def test_who_is_right_for_the_timed_inputs_alone_is_wrong(judged):
    run, _ = judged[RIGHT_WHERE_IT_IS_SMALL]
    assert run.ending.verdict is Verdict.WRONG_ANSWER and run.score is None
    assert run.ending.message == "a benchmark case is wrong: rows=64 cols=64 shift=1000"
    assert "replay double" in run.ending.detail and "'rows=64 cols=64 shift=1000'" in run.ending.detail


def test_its_place_and_its_inputs_are_drawn_for_each_process_from_the_master_seed():
    cases = catalog.load_problem(CHECKOUT, "mla").cases
    case = cases.benchmark[0]

    def found(phase, master_seed):
        return probe(cases, case, Seeds(master_seed, phase, case), 10)

    drawn = [found(f"process {number}", "00" * 16) for number in range(200)]
    assert {place for place, _ in drawn} == set(range(10))
    assert {each.parameters["scores"] for _, each in drawn} == {"large", "rising", "shuffled"}
    assert found("process 3", "00" * 16) == drawn[3]
    assert [found(f"process {number}", "01" * 16) for number in range(200)] != drawn


def test_a_run_is_reproduced_with_the_probes_that_it_had(shifted_root, judged):
    problem = catalog.load_problem(shifted_root, "double")
    for run, _ in judged.values():
        again = recipe._with_its_cases(problem, run)
        assert again.cpu.probed == problem.cpu.probed == {"shift": (1000,)}
        assert [case.label for case in again.cpu.test] == [case.label for case in problem.cpu.test]
