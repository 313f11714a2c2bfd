"""Tasks of KernelBench's form: for each kind of task a right and a wrong ModelNew, and what KernelBench lets pass."""

import contextlib
import json
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from harness import catalog
from harness.catalog import kernelbench
from harness.catalog.config import load_config
from harness.catalog.submission import load_submission
from harness.errors import ProblemError, UsageError
from harness.judge.baselines import Baseline
from harness.judge.clock import Void
from harness.judge.evaluate import evaluate
from harness.judge.kernelbench import _far
from harness.judge.reference import open_reference
from harness.judge.sitting import Sitting
from harness.machine.device import detect
from harness.machine.neighbours import Crowding
from harness.model import Manner, Run, Verdict
from harness.worker.kernelbench import ModelCall

TASKS = Path(__file__).parent / "tasks"
NAMES = sorted(path.stem for path in TASKS.glob("*.py"))

SQUARE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * x

rows = 4
shape = (rows, 6)

def get_inputs():
    return [torch.rand(*shape)]

def get_init_inputs():
    return []
"""


def test_a_model_is_called_without_gradients_and_what_follows_has_them():
    def around():
        seen.append(torch.is_grad_enabled())
        return contextlib.nullcontext()

    seen = []
    model = ModelCall(lambda: torch.nn.Linear(3, 2), around, "cpu")
    model.set_up(([], torch.nn.Linear(3, 2).state_dict(), 0, None))
    for _ in range(2):
        with model.around_call():
            assert not model(([torch.ones(3)], None)).requires_grad
        assert torch.is_grad_enabled()
    assert seen == [True] * 3, "it is entered to build the model and for each call"


def judge(root: Path, task: Path, solution: Path, **options) -> Run:
    problem = catalog.load_problem(root, str(task))
    submission = load_submission(problem, solution)
    return evaluate(problem, submission, detect(root, "cpu"), load_config(root), **options)


@pytest.fixture
def square(toy_root):
    """A task of one's own text, and a solution to it: their run without timing, or the opened task alone."""

    def judged(text=SQUARE, forward="return x * x", **options):
        (toy_root / "square.py").write_text(text)
        body = f"import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        {forward}\n"
        (toy_root / "new.py").write_text(body)
        return judge(toy_root, toy_root / "square.py", toy_root / "new.py", timed=False, **options)

    return judged


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_each_kind_of_task_tells_a_right_solution_from_a_wrong_one(toy_root, name, kind):
    run = judge(toy_root, TASKS / f"{name}.py", TASKS / kind / f"{name}.py", timed=False)
    assert run.ending.verdict is (Verdict.ACCEPTED if kind == "right" else Verdict.WRONG_ANSWER), run.ending


def test_there_are_ten_kinds():
    assert len(NAMES) == 10
    for kind in ("right", "wrong"):
        assert sorted(path.stem for path in (TASKS / kind).glob("*.py")) == NAMES


@pytest.mark.slow(ci=True)
def test_a_timed_run_has_a_score_and_its_case_is_named_by_its_constants(toy_root, roomy):
    run = judge(toy_root, TASKS / "2_weights.py", TASKS / "right/2_weights.py")
    assert run.score is not None and run.ranked, run.unranked_because
    assert [m.case.label for m in run.measurements] == ["rows=8 dim=32"]


def test_weights_are_the_runs_and_inputs_each_calls(toy_root):
    problem = catalog.load_problem(toy_root, str(TASKS / "2_weights.py"))
    reference = open_reference(problem, detect(toy_root, "cpu"))
    case = problem.cpu.test[0]
    weights, inputs = [], []
    for seed in (3 << 40, (7 << 50) + 100):
        (data,), _ = reference.generate(case, reference.admitted(seed + 1))
        (other,), _ = reference.generate(case, reference.admitted(seed + 2))
        inputs += [data, other]
        weights.append(reference.setup()[1]["fc.weight"].clone())
    assert torch.equal(*weights) and len({float(each.sum()) for each in inputs}) > 2
    another = open_reference(problem, detect(toy_root, "cpu"))
    another.generate(case, another.admitted(9 << 45))
    assert not torch.equal(another.setup()[1]["fc.weight"], weights[0])


@pytest.mark.slow
def test_weights_of_other_names_are_drawn_from_the_same_seed(toy_root):
    (toy_root / "renamed.py").write_text((TASKS / "right/2_weights.py").read_text().replace("self.fc", "self.layer"))
    assert judge(toy_root, TASKS / "2_weights.py", toy_root / "renamed.py", timed=False).ending.verdict.exit_code == 0


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        ("return x", "24 of 24 elements of the output are off"),
        ("return torch.zeros_like(x)", "elements of the output are off"),
        ("return (x * x).double()", "torch.float64 (4, 6); expected torch.float32 (4, 6)"),
        ("return (x * x)[:2]", "torch.float32 (2, 6); expected torch.float32 (4, 6)"),
        ("return x * x, x", "forward gives 1 outputs; this one gives 2"),
        ("return x * x + float('nan')", "24 of 24 elements"),
        ("return None", "a NoneType where a plain torch.Tensor is due"),
    ],
)
def test_a_wrong_output_is_told_from_a_right_one(square, forward, why):
    run = square(forward=forward)
    assert run.ending.verdict is Verdict.WRONG_ANSWER and why in (run.ending.detail or "")


def test_a_mismatch_report_of_a_task_is_by_the_tolerance_that_decides(square):
    """Beside outputs around 0.004 the absolute part is 250 times as small as KernelBench's."""
    small = SQUARE.replace("return x * x", "return torch.softmax(x.repeat(1, 40), 1)")
    detail = square(small, "return torch.softmax(x.repeat(1, 40), 1) + 2e-5").ending.detail or ""
    allowed = r"off, by most at \[\d, \d+\]: got 0\.00\d+, due 0\.00\d+, within [4-9](\.\d+)?e-07"
    assert re.search(allowed, detail), detail
    assert "960 of 960 elements (100 %) are outside atol 4." in detail and "reference.py" not in detail


def test_a_mismatch_report_of_a_task_in_bfloat16_is_by_the_tolerance_of_bfloat16(toy_root):
    (toy_root / "square.py").write_text(SQUARE)
    new = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    (toy_root / "new.py").write_text(new)
    run = judge(toy_root, Path(f"{toy_root}/square.py:bfloat16"), toy_root / "new.py", timed=False)
    assert "rtol 0.01" in (run.ending.detail or ""), run.ending.detail


@pytest.mark.parametrize(
    ("want", "got", "worst"),
    [
        ([1, 5], [1, 10**11 + 1], (1, "[1]: got 100000000001, due 5")),
        ([1.0, float("inf")], [1.0, 2.0], (1, "[1]: got 2, due inf, within inf")),
        ([1.0, 2.0], [float("nan"), 5.0], (2, "[0]: got nan, due 1, within 0.0002")),
        ([1.0, 2.0], [1.0, 2.0], (0, "")),
        ([True, False], [True, True], (1, "[1]: got True, due False")),
    ],
)
def test_the_worst_element_is_named(want, got, worst):
    due = torch.tensor(want)
    assert _far(due, due, torch.tensor(got)) == worst


def test_weights_that_no_seed_changes_are_named_in_the_runs_notes(square):
    norm = """    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward"""
    text = SQUARE.replace("    def forward", norm).replace("return x * x", "return self.norm(self.fc(x)) + x")
    (note,) = square(text).environment["notes"]
    assert note.startswith("In Model's state norm.weight, norm.bias begin with one value in all elements"), note
    assert "notes" not in square().environment


def test_a_model_whose_state_has_other_names_says_that_it_does_not_get_the_weights(toy_root):
    (toy_root / "renamed.py").write_text((TASKS / "right/2_weights.py").read_text().replace("self.fc", "self.layer"))
    renamed = judge(toy_root, TASKS / "2_weights.py", toy_root / "renamed.py", timed=False).output
    assert re.search(r"its state is not Model's: it lacks fc\.weight \(.*\) and has layer\.weight \(", renamed), renamed
    assert not judge(toy_root, TASKS / "2_weights.py", TASKS / "right/2_weights.py", timed=False).output


def test_outputs_so_small_that_zeros_are_within_the_tolerance_are_judged_by_their_own_size(square):
    small = SQUARE.replace("return x * x", "return x * x * 1e-5")
    assert square(small, "return x * x * 1e-5").ending.verdict is Verdict.ACCEPTED
    assert square(small, "return torch.zeros_like(x)").ending.verdict is Verdict.WRONG_ANSWER


def test_the_error_of_a_few_large_elements_excuses_nothing_in_the_others(square):
    """Of float32 a number around 1e8 is off by 1 or more."""
    wide = SQUARE.replace("return x * x", "return torch.exp(x * 26 - 4)")
    assert square(wide, "return torch.exp(x * 13 - 2) ** 2").ending.verdict is Verdict.ACCEPTED
    run = square(wide, "y = torch.exp(x * 26 - 4)\n        return y * (y > 100)")
    assert run.ending.verdict is Verdict.WRONG_ANSWER, run.ending


@pytest.mark.parametrize("drawn", ["numpy.random.rand(*shape)", "[[random.random()] * 6] * rows"])
def test_inputs_may_be_drawn_by_other_libraries(square, drawn):
    text = f"import random, numpy\n{SQUARE.replace('torch.rand(*shape)', f'torch.tensor({drawn})')}"
    assert square(text).ending.verdict is Verdict.ACCEPTED


@pytest.mark.parametrize("size", ["0.01", "0.0001"])
def test_numbers_that_forward_draws_are_no_error_of_its_own(square, size):
    """In float64 torch draws others: beside those Model would be off by as much as what it draws."""
    noisy = f"x * x + {size} * torch.randn_like(x)"
    task = SQUARE.replace("x * x", noisy)
    assert square(task, f"return {noisy}").ending.verdict is Verdict.ACCEPTED
    assert square(task, f"return x * x + {size} * torch.rand_like(x)").ending.verdict is Verdict.WRONG_ANSWER
    assert square(task, "return x * x").ending.verdict is Verdict.WRONG_ANSWER


def test_where_infinity_is_right_no_number_is(square):
    """As of masked scores, which are -inf."""
    masked = SQUARE.replace("return x * x", "return torch.where(x > 0.5, x * x, float('-inf'))")
    assert square(masked, "return (x * x).masked_fill(x <= 0.5, float('-inf'))").ending.verdict is Verdict.ACCEPTED
    for instead in ("0.0", "-1e30", "float('inf')", "float('nan')"):
        run = square(masked, f"return (x * x).masked_fill(x <= 0.5, {instead})")
        assert run.ending.verdict is Verdict.WRONG_ANSWER, instead


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("return x * x", "return x * 0", "the same outputs for other inputs"),
        ("torch.rand(*shape)", "torch.ones(*shape)", "draws the same inputs from two seeds"),
        ("rand(*shape)", "rand(*shape) * (__import__('time').time() % 1)", "draws other inputs from the same seed"),
        ("return x * x", "return None", "returns something that is no tensor"),
        ("return x * x", "return torch.fft.fft(x)", "complex numbers, which are not judged"),
        ("return x * x", "raise SystemExit(0)", "Model.forward failed: SystemExit"),
        ("import torch\n", "import torch\nraise SystemExit(0)\n", "the module failed: SystemExit"),
        ("return x * x", "return x @ x", "Model.forward failed: RuntimeError"),
        ("return []", "return [1]", "Model failed: TypeError"),
        ("return [torch", "return 1 / 0, [torch", "get_inputs failed: ZeroDivisionError"),
        ("import torch\n", "import torch, nonesuch\n", "the module failed: ModuleNotFoundError"),
        (
            "    def forward(self, x):\n",
            "    calls = 0\n    def forward(self, x):\n        Model.calls += 1\n        x = x + Model.calls\n",
            "other outputs for the same inputs",
        ),
        (
            "    def forward(self, x):\n",
            "    calls = 0\n    def forward(self, x):\n        self.calls += 1\n        x = x + self.calls\n",
            "other outputs in its second call",
        ),
    ],
)
def test_a_task_that_cannot_tell_is_refused(square, old, new, complaint):
    assert old in SQUARE
    with pytest.raises(ProblemError, match=complaint):
        square(SQUARE.replace(old, new))


@pytest.mark.slow(ci=True)
def test_two_inputs_of_which_the_same_comes_by_chance_do_not_condemn_a_task(toy_root):
    """As of a loss in float16; here it is so of one pair in sixteen."""
    (toy_root / "square.py").write_text(SQUARE.replace("return x * x", "return x * 0 + torch.floor(x[0, 0] * 16) + 1"))
    problem = catalog.load_problem(toy_root, str(toy_root / "square.py"))
    for _ in range(80):
        open_reference(problem, detect(toy_root, "cpu"))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("class Model(", "class Modell(", "no class Model"),
        ("def get_inputs", "def get_input", "no function get_inputs"),
        ("def forward", "def forward(", "line 6"),
    ],
)
def test_a_file_that_is_no_task_is_refused(square, old, new, complaint):
    with pytest.raises(ProblemError, match=complaint):
        square(SQUARE.replace(old, new))


def test_shapes_are_other_on_a_cpu_where_podium_yml_says_so(toy_root):
    (toy_root / "square.py").write_text(SQUARE)
    (toy_root / "square.podium.yml").write_text("shapes: {rows: 2}\ncost: {float32: {bytes: 8 * 6 * rows}}\n")
    problem = catalog.load_problem(toy_root, str(toy_root / "square.py"))
    assert problem.cases.test[0].label == "rows=4" and problem.cpu.test[0].label == "rows=2"
    reference = open_reference(problem, detect(toy_root, "cpu"))
    assert reference.generate(problem.cpu.test[0], 1)[0][0].shape == (2, 6), "what is computed from it follows"
    assert reference.cost(problem.cpu.test[0]) == {"float32": {"bytes": 96, "flops": {}}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("shapes: {row: 2}", "square.py has no constant row"),
        ("oracle: float64\ntolerances: {a: {rel_l2: 1}}", "has no meaning"),
        ("limits: {calls: 2}", "unknown key limits.calls"),
        ("limits: {call_s: -1}", "limits: "),
    ],
)
def test_a_fault_in_podium_yml_is_said_in_a_sentence(toy_root, text, complaint):
    (toy_root / "square.py").write_text(SQUARE)
    (toy_root / "square.podium.yml").write_text(text + "\n")
    with pytest.raises(ProblemError, match=complaint):
        catalog.load_problem(toy_root, str(toy_root / "square.py"))


def test_a_submission_without_modelnew_does_not_load(toy_root):
    (toy_root / "square.py").write_text(SQUARE)
    run = judge(toy_root, toy_root / "square.py", toy_root / "square.py", timed=False)
    assert run.ending.verdict is Verdict.COMPILE_ERROR and "no class ModelNew" in run.ending.message


@pytest.mark.slow
def test_the_same_inputs_and_weights_are_had_again_by_replay(toy_root, podium):
    task, wrong = TASKS / "2_weights.py", TASKS / "wrong/2_weights.py"
    detail = judge(toy_root, task, wrong, timed=False).ending.detail or ""
    (line,) = [line for line in detail.splitlines() if line.startswith("reproduce: ")]
    seed = line.partition("--seed ")[2].split()[0]
    code, out, _ = podium("replay", str(task), str(wrong), "rows=8 dim=32", "--seed", seed)
    worst = next(each for each in detail.splitlines() if each.startswith("  worst"))
    assert code == 10 and worst in out


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_task_in_another_precision_is_a_problem_of_its_own(toy_root, precision):
    task = f"{TASKS / '4_integers.py'}:{precision}"
    problem = catalog.load_problem(toy_root, task)
    assert problem.name == f"4_integers_{precision}" and problem.argument.endswith(f"4_integers.py:{precision}")
    reference = open_reference(problem, detect(toy_root, "cpu"))
    inputs, _ = reference.generate(problem.cpu.test[0], reference.admitted(5))
    dtypes = {each.dtype for each in inputs if each.is_floating_point()}
    weights = {each.dtype for each in reference.setup()[1].values() if each.is_floating_point()}
    assert dtypes | weights == {getattr(torch, precision)}
    assert any(not each.is_floating_point() for each in inputs), "whole numbers stay"


@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_modelnew_has_the_weights_in_that_precision(toy_root, kind):
    run = judge(toy_root, f"{TASKS / '2_weights.py'}:bfloat16", TASKS / kind / "2_weights.py", timed=False)
    assert run.ending.verdict is (Verdict.ACCEPTED if kind == "right" else Verdict.WRONG_ANSWER), run.ending
    assert run.environment["problem_path"].endswith("2_weights.py:bfloat16") and run.problem == "2_weights_bfloat16"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("    return []", "    return [{1, 2}]", "Model: argument.0 is a set, which cannot be passed to a worker"),
        ("[torch.rand(*shape)]", "[torch.rand(*shape), {1, 2}]", "get_inputs: 1 is a set, which cannot be passed"),
    ],
)
def test_what_no_worker_can_have_is_refused_by_name(square, old, new, complaint):
    text = SQUARE.replace("(self, x)", "(self, x, y=0)").replace(
        "    def forward", "    def __init__(self, *given):\n        super().__init__()\n\n    def forward"
    )
    assert old in text
    with pytest.raises(ProblemError, match=complaint):
        square(text.replace(old, new))


def test_new_says_what_a_submission_to_a_task_defines(podium):
    code, _, err = podium("new", str(TASKS / "1_stateless.py"), "mine")
    assert code == 2 and "write a file with class ModelNew" in err and "custom_kernel" not in err


def test_a_task_beside_the_current_directory_is_called_as_it_was_typed(toy_root, monkeypatch):
    (toy_root / "square.py").write_text(SQUARE)
    (toy_root / "here").mkdir()
    monkeypatch.chdir(toy_root / "here")
    assert catalog.load_problem(toy_root, "../square.py").argument == "../square.py"
    shutil.copy("../square.py", ".")
    assert catalog.load_problem(toy_root, "square.py").argument == "./square.py"


def test_what_is_no_precision_is_said(podium):
    for said, hint in (("floot16", "did you mean float16"), ("fp4", "valid: bfloat16, float16")):
        code, out, err = podium("eval", f"{TASKS / '2_weights.py'}:{said}", "x.py")
        assert code == 2 and not out and f"{said!r} is not a precision of a task" in err and hint in err


def test_a_file_that_is_not_there_is_no_task(toy_root):
    with pytest.raises(UsageError, match="there is no problem at"):
        catalog.load_problem(toy_root, "./nowhere.py")


@pytest.fixture(scope="module")
def kept():
    return {}


class TestBaselines:
    """Of a task its own Model, as it is and compiled; here bodies of ModelNew that take less time than a compiler."""

    BODIES: ClassVar = {
        "eager": "    pass\n",
        "slow": "    def forward(self, x):\n        import time; time.sleep(0.02)\n        return super().forward(x)\n",
        "broken": "    def forward(self, *x):\n        raise ValueError('no compiler')\n",
        "wrong": "    def forward(self, *x):\n        return super().forward(*x) + 1\n",
    }

    @pytest.fixture
    def judged(self, toy_root, podium, monkeypatch, roomy):
        monkeypatch.setattr(kernelbench, "_BASELINES", self.BODIES)

        def judge(kind="right", *options):
            task, new = str(TASKS / "1_stateless.py"), str(TASKS / kind / "1_stateless.py")
            code, out, err = podium("eval", task, new, "--json", *options)
            (run,) = json.loads(out)["runs"]
            return code, Run.model_validate(run), json.loads(out), err

        return judge

    @pytest.fixture
    def right(self, judged, kept, toy_root, tmp_path_factory):
        """What came of a right ModelNew, judged once for all tests; it is among this test's results."""
        if not kept:
            kept["said"] = judged()
            kept["results"] = shutil.copytree(toy_root / "results", tmp_path_factory.mktemp("right") / "results")
        else:
            shutil.copytree(kept["results"], toy_root / "results", dirs_exist_ok=True)
        return kept["said"]

    @pytest.mark.slow(ci=True)
    def test_they_are_timed_in_turns_with_a_submission_within_its_run(self, right, podium):
        code, run, document, _ = right
        assert code == 0 and run.ranked, run.unranked_because
        eager, slow, broken, wrong = run.baselines
        assert slow.score.latency_ns > 20e6 and len(slow.latencies_ns) == len(run.measurements) == 1
        assert slow.speed_up == pytest.approx(slow.score.latency_ns / run.score.latency_ns, rel=1e-6)
        assert slow.speed_up_low <= slow.speed_up <= slow.speed_up_high
        assert run.speed_up == min(eager.speed_up, slow.speed_up)
        assert (broken.score, broken.speed_up) == (None, None) and "ValueError: no compiler" in broken.why_not
        assert wrong.speed_up is None and "wrong answer" in wrong.why_not
        ((standing,),) = [board["ranked"] for board in document["boards"]]
        assert standing["times_baseline"] == run.speed_up, "and no baseline has a row of its own"
        _, out, _ = podium("show", run.id)
        assert "speed-up: how many times as long as the submission" in out and "no compiler" in out
        _, out, _ = podium("leaderboard", str(TASKS / "1_stateless.py"))
        assert f"{run.speed_up:.2f}" in out

    @pytest.mark.slow(ci=True)
    def test_a_report_and_a_reproduction_have_each_ones_speed_up(self, right, podium, toy_root):
        _, run, _, _ = right
        code, _, err = podium("report", str(TASKS / "1_stateless.py"), "--out", str(toy_root / "board.html"))
        assert code == 0, err
        page = (toy_root / "board.html").read_text()
        assert "Speed-up over eager and slow and broken and wrong, each timed in turns" in page
        for each in run.baselines[:2]:
            assert page.count(f'<td class="number">{each.speed_up:.3g}</td>') == 1, "among the run's own figures"
            assert f">{each.speed_up:.3g}</td><td>{each.speed_up_low:.3g} to {each.speed_up_high:.3g}</td>" in page
        assert "× best baseline" in page and "wrong: wrong answer" in page
        assert "No floor: the problem states no cost" in page
        code, out, err = podium("repro", run.id, "--json")
        assert code in (0, 20), err
        eager, slow, broken, wrong = json.loads(out)["baselines"]
        assert slow["name"] == "slow" and slow["then"] == run.baselines[1].speed_up and slow["now"] > 1
        assert eager["now"] and broken["now"] is None and wrong["now"] is None

    def test_a_wrong_submission_and_a_quick_look_wait_for_none(self, judged):
        code, run, _, err = judged("wrong")
        assert code == 10 and run.baselines == () and "baseline" not in err
        code, run, _, err = judged("right", "--quick")
        assert code == 0 and run.measurements and run.baselines == () and "baseline" not in err

    def test_the_speed_up_over_one_that_was_crowded_or_often_taken_again_is_in_doubt(self):
        def sitting(others=0.0, **changes):
            return Sitting(Manner.STOPPED, elapsed_ns=[1e6] * 8, crowding=Crowding(others=others, idle=0.0), **changes)

        case = SimpleNamespace(key="case")
        for theirs, why in (
            (sitting(), None),
            (sitting(others=0.9), "other processes took the processors from it"),
            (sitting(voids=Counter({Void.CUT: 3})), "too many of its calls had to be taken again"),
        ):
            baseline = Baseline("eager", SimpleNamespace(benchmarks=[case]))
            baseline.processes = [{"case": theirs}] * 2
            held = baseline.held([{"case": sitting()}] * 2, 0.95, "geom")
            assert held.doubt == why and held.speed_up == pytest.approx(1)


@pytest.mark.slow
def test_the_compiled_baseline_is_right(toy_root, monkeypatch):
    # g++ looks for a place to write to as the worker's user, who cannot get into pytest's own directories.
    monkeypatch.setenv("TMPDIR", "/tmp")
    monkeypatch.setattr(tempfile, "tempdir", None)
    problem = catalog.load_problem(toy_root, str(TASKS / "2_weights.py"))
    patient = problem.limits.model_copy(update={"call_s": 600.0})  # on a busy machine it compiles for a minute
    problem = problem.model_copy(update={"limits": patient})
    (compiled,) = [each for each in kernelbench.baselines(problem) if each.name == "compiled"]
    run = evaluate(problem, compiled, detect(toy_root, "cpu"), load_config(toy_root), timed=False)
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
