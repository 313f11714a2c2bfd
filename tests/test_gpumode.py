"""Folders of GPU MODE's form, small ones with the traps of the large: each solution gets the verdict that is due."""

import re
import shutil
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from pydantic import TypeAdapter

from harness import catalog
from harness.catalog.config import load_config
from harness.catalog.set_file import Time
from harness.catalog.submission import load_submission
from harness.errors import ProblemError
from harness.judge.canaries import constant_answer
from harness.judge.evaluate import evaluate
from harness.judge.reference import open_reference
from harness.judge.stage import claimed, spans_of
from harness.machine.device import detect
from harness.model import Case, Floor, Run, Verdict
from harness.ranking import stats
from harness.records.entry import of_run

FOLDERS = Path(__file__).parent / "folders"
RIGHT, WRONG = Verdict.ACCEPTED, Verdict.WRONG_ANSWER

TABLE = {
    ("conv2d", "correct/plain"): RIGHT,
    ("conv2d", "wrong/as_rough_as_the_reference"): WRONG,
    ("conv2d", "wrong/empty"): WRONG,
    ("eigh", "correct/column_major"): RIGHT,
    ("eigh", "wrong/no_vectors"): WRONG,
    ("grayscale", "correct/plain"): RIGHT,
    ("grayscale", "wrong/empty"): WRONG,
    ("grouped", "correct/plain"): RIGHT,
    ("grouped", "wrong/nothing"): WRONG,
    ("grouped", "wrong/the_first_only"): WRONG,
    ("histogram", "correct/plain"): RIGHT,
    ("histogram", "wrong/empty"): WRONG,
    ("histogram_v1", "correct/plain"): RIGHT,
    ("histogram_v1", "wrong/empty"): WRONG,
    ("identity", "correct/plain"): RIGHT,
    ("identity", "wrong/forges_the_protocol"): Verdict.INTEGRITY_VIOLATION,
    ("identity", "wrong/replays_the_public_seed"): WRONG,
    ("identity", "wrong/rewrites_the_checker"): WRONG,
    ("identity", "wrong/zeroes_its_input"): WRONG,
    ("latent", "correct/as_a_tuple"): RIGHT,
    ("latent", "correct/plain"): RIGHT,
    ("latent", "wrong/without_the_new_key"): WRONG,
    ("masked", "correct/plain"): RIGHT,
    ("masked", "wrong/without_the_mask"): WRONG,
    ("matmul", "correct/plain"): RIGHT,
    ("matmul", "wrong/low_precision"): WRONG,
    ("packed", "correct/plain"): RIGHT,
    ("packed", "wrong/scales_as_they_lie"): WRONG,
    ("prefixsum", "correct/plain"): RIGHT,
    ("prefixsum", "wrong/empty"): WRONG,
    ("sort", "correct/plain"): RIGHT,
    ("sort", "wrong/unsorted"): WRONG,
    ("strided", "correct/plain"): RIGHT,
    ("strided", "wrong/row_major"): WRONG,
    ("vectoradd", "correct/in_triton"): RIGHT,
    ("vectoradd", "correct/plain"): RIGHT,
    ("vectoradd", "wrong/without_last_row"): WRONG,
    ("vectorsum", "correct/adds_to_what_is_there"): WRONG,  # mislabelled
    ("vectorsum", "correct/of_one_axis"): WRONG,  # mislabelled
    ("vectorsum", "correct/plain"): RIGHT,
    ("vectorsum", "wrong/right_for_tests"): WRONG,
}
"""By folder and solution the verdict on tests and benchmarks. Two of `vectorsum` are labelled correct and are not."""


def judge(root: Path, problem, path: Path, **options) -> Run:
    return evaluate(problem, load_submission(problem, path), detect(root, "cpu"), load_config(root), **options)


@pytest.fixture
def copy_of(tmp_path):
    """Copies a folder, and what lies beside it."""

    def copy(name: str) -> Path:
        for file in FOLDERS.glob("*.py"):
            shutil.copy(file, tmp_path)
        return shutil.copytree(FOLDERS / name, tmp_path / name)

    return copy


@pytest.fixture
def folder(toy_root):
    """A folder's problem, its tests alone, and a submission of one's own."""

    def made(name: str, source: str):
        path = toy_root / "subject.py"
        path.write_text(source)
        problem = catalog.load_problem(toy_root, str(FOLDERS / name))
        return problem.only(problem.cases.test[:1], []), path

    return made


def with_benchmarks_checked(problem):
    cases = problem.cases
    return problem.only([*cases.test, *cases.benchmark], [])


@pytest.mark.parametrize(
    ("folder", "solution"),
    [
        pytest.param(*each, id="/".join(each), marks=pytest.mark.slow(ci=True) if at % 2 else [])
        for at, each in enumerate(TABLE)
    ],
)
def test_a_solution_gets_the_verdict_that_it_is_due(toy_root, folder, solution):
    problem = with_benchmarks_checked(catalog.load_problem(toy_root, str(FOLDERS / folder)))
    run = judge(toy_root, problem, FOLDERS / folder / "solutions" / f"{solution}.py", timed=False)
    assert run.ending.verdict is TABLE[folder, solution], run.ending


def test_every_small_folder_and_solution_is_in_the_table():
    there = {(path.parents[2].name, f"{path.parent.name}/{path.stem}") for path in FOLDERS.glob("*/solutions/*/*.py")}
    assert there == TABLE.keys()


class TestWhatTheJudgeSays:
    def test_the_checkers_sentence_and_our_report_stand_beside_each_other(self, toy_root):
        problem = catalog.load_problem(toy_root, str(FOLDERS / "vectoradd"))
        run = judge(toy_root, problem, FOLDERS / "vectoradd/solutions/wrong/without_last_row.py", timed=False)
        report = run.ending.detail or ""
        assert "the problem's checker: 33 elements are off" in report
        assert "axis 0  at 32 (of 0-32; up to 100 % of each)" in report
        assert "outside atol 0.001 + rtol 0.001" in report, "as make_match_reference was told"
        (line,) = [line for line in report.splitlines() if line.startswith("reproduce: ")]
        assert f"{FOLDERS / 'vectoradd'}" in line or "./tests/folders/vectoradd" in line

    @pytest.mark.slow(ci=True)
    def test_a_reported_case_is_replayed_with_the_same_inputs(self, toy_root, podium):
        path = FOLDERS / "vectoradd/solutions/wrong/without_last_row.py"
        problem = catalog.load_problem(toy_root, str(FOLDERS / "vectoradd"))
        detail = judge(toy_root, problem, path, timed=False).ending.detail or ""
        seed = re.findall(r"--seed (\d+)", detail)[0]
        assert int(seed) < 2**31
        code, out, _ = podium("replay", str(FOLDERS / "vectoradd"), str(path), "size=33", "--seed", seed)
        got = re.findall(r"got \S+  expected \S+", detail.split("reproduce")[0])
        assert code == 10 and got and got[0] in out

    def test_a_checker_that_raises_at_a_wrong_output_means_a_wrong_answer(self, toy_root, folder):
        run = judge(toy_root, *folder("eigh", "def custom_kernel(data):\n    return data, data[:1], data\n"))
        assert run.ending.verdict is WRONG and "returned a tuple of 3; 2 tensors are due" in run.ending.message
        run = judge(toy_root, *folder("eigh", "def custom_kernel(data):\n    return data[0], data[:1, :3]\n"))
        assert run.ending.verdict is WRONG and "the checker raises RuntimeError" in (run.ending.detail or "")

    def test_what_is_no_tensor_is_a_wrong_answer(self, toy_root, folder):
        run = judge(toy_root, *folder("histogram_v1", "def custom_kernel(data):\n    return None\n"))
        assert run.ending.verdict is WRONG and "a NoneType where a plain torch.Tensor is due" in run.ending.message

    def test_an_empty_list_is_not_shown_to_a_checker(self, toy_root, folder):
        run = judge(toy_root, *folder("identity", "def custom_kernel(data):\n    return []\n"), timed=False)
        assert run.ending.verdict is WRONG and "custom_kernel returned an empty list" in run.ending.message

    @pytest.mark.parametrize(
        ("name", "old", "new", "output", "complaint"),
        [
            (
                "histogram",
                "    wrong = [i for i in range(16) if int(want[i]) != int(output[i])]\n",
                "    wrong = [] if (output == want).all() else [0]\n",
                "torch.zeros(0, 1, dtype=torch.int64)",
                "the output has no elements; 16 are due",
            ),
            (
                "eigh",
                "right = residual < 1e-3 and skew < 1e-3",
                "right = not (residual > 1e-3 or skew > 1e-3)",
                "torch.full_like(data[0], float('nan')), torch.full_like(data, float('nan'))",
                "the output has NaN or Inf, which the problem's checker does not see",
            ),
            (
                "eigh",
                "right = residual < 1e-3 and skew < 1e-3",
                "right = not (residual > 1e-3) and skew < 1e-3",
                "torch.full_like(data[0], float('nan')), torch.eye(len(data))",
                "the output has NaN or Inf, which the problem's checker does not see",
            ),
        ],
        ids=["no_elements", "nan", "nan_in_one_of_two"],
    )
    def test_what_a_checker_does_not_see_is_wrong_all_the_same(
        self, toy_root, copy_of, name, old, new, output, complaint
    ):
        folder = copy_of(name)
        text = (folder / "reference.py").read_text()
        assert old in text
        (folder / "reference.py").write_text(text.replace(old, new))
        (toy_root / "mine.py").write_text(f"import torch\ndef custom_kernel(data):\n    return {output}\n")
        problem = catalog.load_problem(toy_root, str(folder))
        run = judge(toy_root, problem, toy_root / "mine.py", timed=False)
        assert run.ending.verdict is WRONG and complaint in run.ending.message, run.ending
        (right,) = (folder / "solutions/correct").glob("*.py")
        assert judge(toy_root, problem, right, timed=False).ending.verdict is RIGHT

    def test_data_that_no_message_holds_are_refused_in_a_sentence(self, toy_root, copy_of):
        folder = copy_of("vectoradd")
        text = (folder / "reference.py").read_text()
        (folder / "reference.py").write_text(text.replace("return a, b,", "return a, b, 'x' * 600_000,"))
        (folder / "reference.py").write_text(
            (folder / "reference.py").read_text().replace("a, b, out = data", "a, b, _, out = data")
        )
        problem = catalog.load_problem(toy_root, str(folder))
        with pytest.raises(
            ProblemError, match=r"generate_input: its data without the tensors take 600,\d\d\d characters; a worker"
        ):
            judge(toy_root, problem, folder / "solutions/correct/plain.py", timed=False)

    def test_a_checker_that_takes_an_unwritten_buffer_for_right_judges_all_the_same(self, toy_root, copy_of):
        """Such a buffer holds NaN, of which no error is above a limit."""
        folder = copy_of("grayscale")
        with (folder / "reference.py").open("a") as reference:
            reference.write(
                "\n\ndef check_implementation(data, output):\n"
                "    return not (output - ref_kernel(data)).abs().max() > 1e-3, 'too far off'\n"
            )
        problem = catalog.load_problem(toy_root, str(folder))
        problem = problem.only(problem.cases.test[:1], [])
        run = judge(toy_root, problem, folder / "solutions/correct/plain.py", timed=False)
        assert run.ending.verdict is RIGHT, run.ending
        run = judge(toy_root, problem, folder / "solutions/wrong/empty.py", timed=False)
        assert run.ending.verdict is WRONG and "which the problem's checker does not see" in run.ending.message

    def test_what_the_folder_prints_is_no_output_of_a_verb(self, toy_root, copy_of, capsys):
        folder = copy_of("grayscale")
        text = (folder / "reference.py").read_text()
        (folder / "reference.py").write_text(f"print('imported')\n{text}\nold = ref_kernel\nref_kernel = say(old)\n")
        says = "def say(f):\n    return lambda data: print('called') or f(data)\n"
        (folder / "reference.py").write_text(says + (folder / "reference.py").read_text())
        open_reference(catalog.load_problem(toy_root, str(folder)), detect(toy_root, "cpu"))
        out, err = capsys.readouterr()
        assert out == "" and "imported\ncalled\n" in err

    def test_a_view_of_negatives_is_the_tensor_that_it_looks_like(self, toy_root, folder):
        source = """
import torch
def custom_kernel(data):
    return torch._neg_view(-(data[0] @ torch.tensor([0.25, 0.5, 0.25])))
"""
        run = judge(toy_root, *folder("grayscale", source), timed=False)
        assert run.ending.verdict is RIGHT, run.ending

    def test_a_checker_that_writes_to_its_inputs_writes_to_a_copy(self, toy_root):
        reference = open_reference(catalog.load_problem(toy_root, str(FOLDERS / "vectoradd")), detect(toy_root, "cpu"))
        data = reference.generate(reference.problem.cases.test[0], 5)
        reference.opinion(data, data[0])
        assert data[2].isnan().all(), "ref_kernel writes there"

    @pytest.mark.slow
    def test_a_run_with_an_arithmetic_mean_has_the_arithmetic_mean_of_its_floors(self, toy_root, copy_of, roomy):
        folder = copy_of("vectoradd")
        task = folder / "task.yml"
        task.write_text(task.read_text().replace("ranking_by: geom", "ranking_by: mean"))
        problem = catalog.load_problem(toy_root, str(folder))
        run = judge(toy_root, problem, folder / "solutions/correct/plain.py")
        assert run.score is not None and run.ranking == "mean"
        floors = [Floor(latency_ns=ns, binds="bandwidth", format="float16") for ns in (10.0, 40.0)]
        measured = [m.model_copy(update={"floor": floor}) for m, floor in zip(run.measurements, floors, strict=True)]
        assert of_run("x", run.model_copy(update={"measurements": tuple(measured)})).floor_ns == 25.0

    def test_a_parameter_called_steps_is_the_problems_own(self, toy_root, copy_of):
        folder = copy_of("identity")
        for name in ("task.yml", "reference.py"):
            path = folder / name
            path.write_text(path.read_text().replace("size", "steps"))
        problem = catalog.load_problem(toy_root, str(folder))
        assert problem.cases.test[0].parameters["steps"] > 1
        run = judge(toy_root, problem.only(problem.cases.test[:1], []), folder / "solutions/correct/plain.py")
        assert run.ending.verdict is RIGHT, run.ending

    @pytest.mark.parametrize(
        ("body", "verdict"),
        [
            ("data[2].copy_(data[0] + data[1])\n    return data[2]", RIGHT),
            ("return data[0] + data[1]", RIGHT),
            ("return data[0].add_(data[1])", WRONG),
            ("out = data[0] + data[1]\n    data[1].zero_()\n    return out", WRONG),
        ],
    )
    def test_strict_inputs_lets_buffers_alone_be_changed(self, toy_root, copy_of, body, verdict):
        folder = copy_of("vectoradd")
        (toy_root / "mine.py").write_text(f"def custom_kernel(data):\n    {body}\n")
        found = {}
        for text in ("revision: 2\n", "strict: inputs\n"):
            (folder / "podium.yml").write_text(text)
            problem = catalog.load_problem(toy_root, str(folder))
            problem = problem.only(problem.cases.test[:1], [])
            found[text] = judge(toy_root, problem, toy_root / "mine.py", timed=False).ending
        assert [ending.verdict for ending in found.values()] == [RIGHT, verdict]
        assert (verdict is RIGHT) != (
            "was changed, and podium.yml says strict: inputs" in (found["strict: inputs\n"].detail or "")
        )

    def test_under_strict_inputs_a_buffer_that_ref_kernel_ignores_may_be_written(self, toy_root, copy_of):
        folder = copy_of("vectoradd")
        reference = folder / "reference.py"
        ignores = reference.read_text().replace("    out[...] = a + b\n    return out\n", "    return a + b\n")
        assert ignores != reference.read_text()
        reference.write_text(ignores)
        (folder / "podium.yml").write_text("strict: inputs\n")
        (toy_root / "mine.py").write_text("def custom_kernel(data):\n    return data[2].copy_(data[0] + data[1])\n")
        problem = catalog.load_problem(toy_root, str(folder))
        run = judge(toy_root, problem.only(problem.cases.test[:1], []), toy_root / "mine.py", timed=False)
        assert run.ending.verdict is RIGHT, run.ending

    def test_an_output_wider_than_ref_kernels_is_the_checkers_to_judge(self, toy_root, copy_of):
        folder = copy_of("vectoradd")
        (toy_root / "mine.py").write_text("def custom_kernel(data):\n    return (data[0] + data[1]).double()\n")
        problem = catalog.load_problem(toy_root, str(folder))
        run = judge(toy_root, problem.only(problem.cases.test[:1], []), toy_root / "mine.py", timed=False)
        assert run.ending.verdict is RIGHT, run.ending

    @pytest.mark.parametrize(("shape", "said"), [((0, 3), False), ((3,), True)])
    def test_an_answer_of_one_value_is_asked_of_no_copy_and_one_without_elements_is_none(self, shape, said):
        ones, case = torch.ones(shape), Case(parameters={"n": 1})
        assert (constant_answer([("x", ones)], ones, case) is not None) is said

    def test_a_checker_that_exits_says_no_and_the_judge_goes_on(self, toy_root, copy_of):
        folder = copy_of("vectoradd")
        with (folder / "reference.py").open("a") as reference:
            reference.write(
                "\n\nmatches = check_implementation\n\n\ndef check_implementation(data, output):\n"
                "    said = matches(data, output)\n    if not (said[0] if isinstance(said, tuple) else not said):\n"
                "        raise SystemExit(0)\n    return said\n"
            )
        (toy_root / "mine.py").write_text("def custom_kernel(data):\n    return data[0] - data[1]\n")
        problem = catalog.load_problem(toy_root, str(folder))
        run = judge(toy_root, problem.only(problem.cases.test[:1], []), toy_root / "mine.py", timed=False)
        assert run.ending.verdict is WRONG and "the checker raises SystemExit" in (run.ending.detail or "")

    def test_an_expanded_output_arrives_as_it_looks(self, toy_root, folder):
        source = "import torch\ndef custom_kernel(data):\n    return torch.zeros(1).expand(24, 24)\n"
        run = judge(toy_root, *folder("grayscale", source))
        assert run.ending.verdict is WRONG and "576 elements are off" in (run.ending.detail or "")

    def test_a_store_beside_an_input_is_found(self, toy_root, folder):
        source = """
import torch
def custom_kernel(data):
    values, out = data
    out.copy_(values)
    torch.as_strided(values.view(torch.uint8), (256,), (1,), 0)
    import ctypes
    ctypes.memset(values.data_ptr() + values.nbytes, 0, 4)
    return out
"""
        run = judge(toy_root, *folder("identity", source))
        assert run.ending.verdict is WRONG and "input 0: the memory right before or after it" in run.ending.message

    def test_a_runs_board_says_that_there_is_no_floor(self, toy_root, podium, roomy):
        path = FOLDERS / "prefixsum"
        code, out, _ = podium("eval", str(path), str(path / "solutions/correct/plain.py"))
        assert code == 0 and "No floor: the problem states no cost" in out and "prefixsum_small" in out


class TestDataOfAnyForm:
    """Objects, and what torch gives in the place of tuples."""

    def test_a_submission_gets_objects_of_the_folders_own_classes_with_its_own_tensors(self, toy_root, folder):
        source = """
import torch
from reference import Attended, Cache, Config, Mask
def custom_kernel(data):
    config, x, cache = data
    print(type(config) is Config, config.mask is Mask.CAUSAL, config.dtype, type(cache) is Cache, cache.length)
    print(sorted(cache.state_dict()), type(cache.up).__name__, cache.up.weight.requires_grad)
    cache.length = 0  # of this call's cache alone
    return Attended(x, x)
"""
        problem, path = folder("latent", source)
        run = judge(toy_root, problem, path, timed=False)
        assert "True True torch.float32 True 5\n['data', 'up.weight'] Linear False" in run.output
        assert run.ending.verdict is WRONG and "the problem's checker: output: " in (run.ending.detail or "")

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ("DIM, RANK, ", "from fractions import Fraction\nDIM, RANK, ", "0.batch is a Fraction, which cannot"),
            ("DIM, RANK, ", "Fraction = lambda batch: (lambda: batch)\nDIM, RANK, ", "0.batch is a function"),
            ("DIM, RANK, ", "def Fraction(a):\n    class B: pass\n    return B()\nDIM, RANK, ", "batch is a B, which"),
            ("DIM, RANK, ", "def Fraction(a):\n    b = []\n    b.append(b)\n    return b\nDIM, RANK, ", "holds itself"),
        ],
    )
    def test_an_object_that_a_worker_cannot_have_is_refused_by_name(self, toy_root, copy_of, old, new, complaint):
        folder = copy_of("latent")
        text = (folder / "reference.py").read_text()
        (folder / "reference.py").write_text(
            text.replace(old, new, 1).replace("Config(batch,", "Config(Fraction(batch),")
        )
        with pytest.raises(ProblemError, match=complaint):
            open_reference(catalog.load_problem(toy_root, str(folder)), detect(toy_root, "cpu"))

    def test_strict_inputs_holds_for_tensors_in_objects_of_which_ref_kernel_may_change_and_add_some(
        self, toy_root, copy_of
    ):
        folder = copy_of("latent")
        text = (folder / "reference.py").read_text()
        (folder / "reference.py").write_text(
            text.replace("        self.length += ", "        self.seen = latent\n        self.length += ")
        )
        (folder / "podium.yml").write_text("strict: inputs\n")
        plain = (folder / "solutions/correct/plain.py").read_text()
        (toy_root / "zeroes.py").write_text(plain.replace("    scores =", "    config.down.zero_()\n    scores ="))
        problem = catalog.load_problem(toy_root, str(folder))
        problem = problem.only(problem.cases.test[:1], [])
        assert judge(toy_root, problem, folder / "solutions/correct/plain.py", timed=False).ending.verdict is RIGHT
        run = judge(toy_root, problem, toy_root / "zeroes.py", timed=False)
        assert run.ending.verdict is WRONG and "input 0.down was changed" in run.ending.message, run.ending

    def test_torchs_own_tuples_with_names_are_tuples(self, toy_root, folder):
        source = "import torch\ndef custom_kernel(data):\n    return torch.linalg.eigh(data)\n"
        run = judge(toy_root, *folder("eigh", source), timed=False)
        assert run.ending.verdict is RIGHT, run.ending

    def test_a_checker_gets_names_where_ref_kernel_gives_some(self, toy_root, copy_of):
        folder = copy_of("sort")
        text = (folder / "reference.py").read_text()
        assert "def check_implementation" not in text
        (folder / "reference.py").write_text(
            text + "\ndef ref_kernel(data):\n    return torch.sort(data[0])\n"
            "def check_implementation(data, output):\n"
            "    return bool((output.values == data[0].sort().values).all()), ''\n"
        )
        for expression, verdict in (("torch.sort(data[0])", RIGHT), ("data[0], data[0].long()", WRONG)):
            (toy_root / "mine.py").write_text(f"import torch\ndef custom_kernel(data):\n    return {expression}\n")
            problem = catalog.load_problem(toy_root, str(folder))
            run = judge(toy_root, problem, toy_root / "mine.py", timed=False)
            assert run.ending.verdict is verdict and "AttributeError" not in (run.ending.detail or ""), run.ending

    def test_a_run_says_which_inputs_are_no_longer_expanded(self, toy_root, copy_of):
        folder = copy_of("vectoradd")
        text = (folder / "reference.py").read_text()
        assert "    return a, b," in text
        (folder / "reference.py").write_text(text.replace("    return a, b,", "    return a, b[:1].expand_as(b),"))
        problem = catalog.load_problem(toy_root, str(folder))
        assert "input 1: elements that share a place" in open_reference(problem, detect(toy_root, "cpu")).notes[-1]

    def test_every_generator_of_random_numbers_follows_the_seed(self, toy_root, copy_of):
        folder = copy_of("vectoradd")
        text = (folder / "reference.py").read_text()
        drawn = "    a, b = a * 0 + np.random.rand(), b + random.random()\n    return a, b,"
        (folder / "reference.py").write_text(
            "import random\nimport numpy as np\n" + text.replace("    return a, b,", drawn)
        )
        reference = open_reference(catalog.load_problem(toy_root, str(folder)), detect(toy_root, "cpu"))
        first, again = (reference.generate(reference.problem.cases.test[0], 7) for _ in range(2))
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


class TestSeeds:
    def test_where_large_seeds_hide_the_answer_smaller_ones_are_drawn_and_the_run_says_so(self, toy_root):
        problem = catalog.load_problem(toy_root, str(FOLDERS / "sort"))
        reference = open_reference(problem, detect(toy_root, "cpu"))
        assert reference.admitted(2**31 - 1) < 2**16
        run = judge(toy_root, problem, FOLDERS / "sort/solutions/correct/plain.py", timed=False)
        assert "seeds are below 65,536: with seeds below 2,147,483,648" in run.environment["notes"][-1]

    def test_a_cap_that_podium_yml_names_is_held_to_and_one_that_is_too_large_is_refused(self, toy_root, copy_of):
        sort = copy_of("sort")
        (sort / "podium.yml").write_text("seed_below: 300\n")
        reference = open_reference(catalog.load_problem(toy_root, str(sort)), detect(toy_root, "cpu"))
        assert {reference.admitted(seed) for seed in range(1000)} == set(range(300))
        (sort / "podium.yml").write_text("seed_below: 4294967296\n")
        with pytest.raises(ProblemError, match=r"with seeds below 4,294,967,296 .*(accepts a copy|one value)"):
            open_reference(catalog.load_problem(toy_root, str(sort)), detect(toy_root, "cpu"))

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ("manual_seed(seed)", "manual_seed(1)", "draws the same inputs from two seeds"),
            ("rtol=1e-3, atol=1e-3", "rtol=1e-3, atol=1e3", "accepts zeros"),
            ("out[...] = a + b", "out[...] = 0", "all elements of the answer are zero"),
            ("out[...] = a + b", "out[...] = a + b / 4096", "accepts a copy of input 0"),
            ("check_implementation =", "check_implementation = lambda *_: (False, 'no')\nother =", "refuses ref"),
            ("check_implementation =", "check_implementation = lambda *_: 'no'\nother =", "refuses ref"),
            ("a, b = (", "a, b = 1 / 0, (", "generate_input failed: ZeroDivisionError"),
            ("import torch", "import torch, nonesuch", "cannot be imported: ModuleNotFoundError"),
            ("return out\n", "return [out] * 17\n", "ref_kernel gives 17 outputs; at most 16 can be judged"),
            ("return a, b,", "return a.to_sparse(), b,", "0 is a tensor of torch.sparse_coo, which cannot be passed"),
            ("return a, b,", "return '\\ud800', b,", "0 is a text with half of a character"),
            ("return a, b,", "return a.to('meta'), b,", "0 is a tensor on meta, which cannot be passed"),
        ],
    )
    def test_a_folder_that_does_not_tell_right_from_wrong_is_refused(self, toy_root, copy_of, old, new, complaint):
        vectoradd = copy_of("vectoradd")
        text = (vectoradd / "reference.py").read_text()
        assert old in text
        (vectoradd / "reference.py").write_text(text.replace(old, new))
        with pytest.raises(ProblemError, match=complaint):
            open_reference(catalog.load_problem(toy_root, str(vectoradd)), detect(toy_root, "cpu"))


class TestScope:
    def test_modules_of_the_folder_are_its_own_and_podiums_stay(self, toy_root):
        import reference as podiums

        first = open_reference(catalog.load_problem(toy_root, str(FOLDERS / "vectoradd")), detect(toy_root, "cpu"))
        second = open_reference(catalog.load_problem(toy_root, str(FOLDERS / "identity")), detect(toy_root, "cpu"))
        assert sys.modules["reference"] is podiums and "utils" not in sys.modules and "eval" not in sys.modules
        case = first.problem.cases.test[0]
        assert len(first.generate(case, 1)) == 3 and len(second.generate(second.problem.cases.test[0], 1)) == 2
        assert not (FOLDERS / "vectoradd" / "__pycache__").exists()

    def test_what_the_folder_makes_torchs_defaults_holds_within_it_alone(self, toy_root, copy_of):
        folder = copy_of("identity")
        text = (folder / "reference.py").read_text()
        changed = "import torch\ntorch.set_default_dtype(torch.float64)\ntorch.set_default_device('meta')\n"
        drawn = "\ndef generate_input(size, seed):\n    assert torch.empty(1).is_meta\n"
        drawn += "    x = torch.randn(size, generator=torch.Generator().manual_seed(seed), device='cpu')\n"
        drawn += "    return x, torch.empty(size, device='cpu')\n"
        (folder / "reference.py").write_text(text.replace("import torch\n", changed, 1) + drawn)
        reference = open_reference(catalog.load_problem(toy_root, str(folder)), detect(toy_root, "cpu"))
        assert reference.generate(reference.problem.cases.test[0], 1)[0].dtype is torch.float64
        assert torch.empty(1).device.type == "cpu" and torch.empty(1).dtype is torch.float32

    def test_the_directory_that_the_folder_goes_to_is_its_own(self, toy_root, copy_of, monkeypatch):
        folder = copy_of("identity")
        text = (folder / "reference.py").read_text()
        asserts = "assert os.getcwd() == '/usr'\n    gen ="
        (folder / "reference.py").write_text("import os\nos.chdir('/usr')\n" + text.replace("gen =", asserts, 1))
        monkeypatch.chdir(toy_root)
        reference = open_reference(catalog.load_problem(toy_root, str(folder)), detect(toy_root, "cpu"))
        reference.generate(reference.problem.cases.test[0], 1)
        assert Path.cwd() == toy_root.resolve()

    def test_a_buffer_that_nothing_was_written_to_holds_nothing_of_the_judges(self, toy_root):
        reference = open_reference(catalog.load_problem(toy_root, str(FOLDERS / "grayscale")), detect(toy_root, "cpu"))
        case = reference.problem.cases.test[0]
        for seed in range(3):
            torch.full((24, 24), 7.0)  # in the memory that the next allocation is likely to get
            assert reference.generate(case, seed)[1].isnan().all()

    def test_an_ordinary_problem_imports_none_of_it(self, toy_root):
        code = f"""
import sys
from pathlib import Path
from types import SimpleNamespace
from harness import catalog
from harness.cli import main
from harness.judge import evaluate
from harness.judge.stage import claimed, spans_of
from harness.machine.device import detect
root = Path({str(toy_root)!r})
evaluate.open_reference(catalog.load_problem(root, "double"), detect(root, "cpu"))
foreign = "catalog.foreign catalog.gpumode judge.foreign judge.gpumode judge.opaque judge.scope".split()
print([name for name in foreign if f"harness.{{name}}" in sys.modules])
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


class TestWhatTaskYmlSays:
    def test_values_keep_the_types_that_yaml_gives_them(self, toy_root):
        masked = catalog.load_problem(toy_root, str(FOLDERS / "masked"))
        first = masked.cases.test[0].parameters
        assert first == {"dim": 8, "nomask": False, "distribution": "normal"} and first["nomask"] is False
        assert catalog.load_problem(toy_root, str(FOLDERS / "grouped")).cases.test[0].parameters["m"] == [8, 5]

    def test_compat_text_passes_truth_values_as_words_and_numbers_as_numbers(self, toy_root, copy_of):
        masked = copy_of("masked")
        (masked / "podium.yml").write_text("compat: text\n")
        reference = open_reference(catalog.load_problem(toy_root, str(masked)), detect(toy_root, "cpu"))
        case = reference.problem.cases.test[0]
        assert reference.generate(case, 5)[3]["nomask"] == "False"
        with_one = Case(parameters={**case.parameters, "dim": 1})
        assert reference.generate(with_one, 5)[0].shape[-1] == 1

    @pytest.mark.parametrize("time", ["2025-06-30 23:59:00", "2025-06-30T23:59:00Z", "2025-06-30 23:59"])
    def test_a_deadline_without_a_zone_is_of_utc_however_it_is_written(self, time):
        (stated,) = yaml.safe_load(f"- {time}")
        assert TypeAdapter(Time).validate_python(stated) == datetime(2025, 6, 30, 23, 59, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("ranking", "sizes", "mean"),
        [("last", [128], "geom"), ("geom", [96, 128], "geom"), ("mean", [96, 128], "mean")],
    )
    def test_ranking_by_says_which_benchmarks_count_and_how(self, toy_root, copy_of, ranking, sizes, mean):
        task = copy_of("vectoradd") / "task.yml"
        task.write_text(task.read_text().replace("ranking_by: geom", f"ranking_by: {ranking}"))
        problem = catalog.load_problem(toy_root, str(task))
        assert [case.parameters["size"] for case in problem.cases.benchmark] == sizes and problem.ranking == mean
        left_out = task.read_text().replace(f"ranking_by: {ranking}", "")
        task.write_text(left_out)
        assert len(catalog.load_problem(toy_root, str(task)).cases.benchmark) == 1, "last, where nothing is said"

    @pytest.mark.slow(ci=True)
    @pytest.mark.parametrize(
        ("ranking", "sizes", "of_cases"),
        [
            ("last", [128], lambda ns: ns[-1]),
            ("geom", [96, 128], statistics.geometric_mean),
            ("mean", [96, 128], statistics.fmean),
        ],
    )
    def test_a_timed_score_is_what_ranking_by_makes_of_the_times(
        self, toy_root, copy_of, roomy, ranking, sizes, of_cases
    ):
        """Times so far apart that no other way gives nearly the same: the last case takes ten times as long."""
        task = copy_of("vectoradd") / "task.yml"
        task.write_text(task.read_text().replace("ranking_by: geom", f"ranking_by: {ranking}"))
        path = toy_root / "uneven.py"
        path.write_text(
            "import time\ndef custom_kernel(data):\n    a, b, out = data\n"
            "    time.sleep(0.05 if len(a) == 128 else 0.005)\n    out[...] = a + b\n    return out\n"
        )
        problem = catalog.load_problem(toy_root, str(task))
        run = judge(toy_root, problem, path)
        assert run.score is not None, run.ending
        assert [measured.case.parameters["size"] for measured in run.measurements] == sizes
        processes = zip(*(measured.samples_ns for measured in run.measurements), strict=True)
        scores = [of_cases([stats.interquartile_mean(samples) for samples in process]) for process in processes]
        assert len(scores) == 2 and run.score.latency_ns == pytest.approx(statistics.geometric_mean(scores))
        times = [measured.latency.latency_ns for measured in run.measurements]
        assert min(times) * 2 < max(times) or ranking == "last", "else this test could not tell"
        entry = of_run("x", run)
        assert (entry.score_ns, entry.ranked) == (run.score.latency_ns, run.ranked)

    def test_a_mean_is_the_arithmetic_one(self):
        assert stats.centre_of_cases([1.0, 4.0], "mean") == 2.5
        assert stats.centre_of_cases([1.0, 4.0], "geom") == pytest.approx(2.0)

    def test_timeouts_limit_a_stage_each(self, toy_root, copy_of):
        task = copy_of("vectoradd") / "task.yml"
        task.write_text(task.read_text() + "test_timeout: 20\nranked_timeout: 30\n")
        limits = catalog.load_problem(toy_root, str(task)).limits
        assert (limits.test_s, limits.benchmark_s, limits.ranked_s, limits.call_s) == (20, 180, 30, 180)

    @pytest.mark.slow
    def test_calls_that_are_short_each_and_long_together_end_with_a_timeout(self, toy_root, folder):
        source = "import time\ndef custom_kernel(data):\n    time.sleep(2)\n    return data[0].clone()\n"
        problem, path = folder("identity", source)
        problem = problem.model_copy(update={"limits": problem.limits.model_copy(update={"test_s": 3.0})})
        run = judge(toy_root, problem, path, timed=False)
        assert run.ending.verdict is Verdict.TIMEOUT
        assert "took longer than the limit of 3 s on all its calls" in run.ending.message

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ("lang: py", "lang: cu", "only problems in Python"),
            ("lang: py", "multi_gpu: true", "several GPUs"),
            (", seed: 4242", "", r"tests\[0\] has no seed"),
            ("size: 33", "sise: 33", "generate_input has no parameter sise"),
            ("size: 33, ", "", r"tests\[0\] lacks the parameter size"),
            ("tests:", "texts:", "tests is missing"),
            ("size: 33", "size: {a: 1}", "tests.0.size"),
            ("source: reference.py", "source: referense.py", "there is no .*referense.py"),
            ("name: reference.py", "name: other.py", "lists no reference.py"),
            ("name: task.py", "name: json.py", "json.py would hide a module of Python's or Podium's"),
            ("size: 33", "size: null", "tests.0.size: must be a valid boolean, integer, number, string or list"),
            ("ranking_by: geom", "ranking_by: best", "ranking_by"),
            ("tests:", "tests: [", "line"),
        ],
    )
    def test_what_cannot_be_judged_is_refused_in_a_sentence(self, podium, copy_of, old, new, complaint):
        task = copy_of("vectoradd") / "task.yml"
        assert old in task.read_text()
        task.write_text(task.read_text().replace(old, new, 1))
        code, out, err = podium("eval", str(task.parent), str(task.parent / "template.py"))
        assert code == 2 and not out and re.search(complaint, err) and "Traceback" not in err, err

    def test_what_is_no_problem_is_said_to_be_none(self, podium, tmp_path):
        for path in (tmp_path, tmp_path / "nowhere", tmp_path / "no.yaml"):
            code, out, err = podium("eval", str(path), "x.py")
            assert code == 2 and not out and "task.yml" in err, err

    def test_a_name_that_podium_has_is_not_taken_twice(self, toy_root, copy_of):
        double = copy_of("vectoradd").rename(toy_root / "double")
        for file in FOLDERS.glob("*.py"):
            shutil.copy(file, toy_root)
        assert catalog.load_problem(toy_root, str(double)).name == "double-gpumode"
        assert catalog.load_problem(toy_root, "double").foreign is None


class TestSetFiles:
    def test_a_set_file_names_its_problems_and_loads_them_all(self, toy_root):
        problems = catalog.load_problems(toy_root, str(FOLDERS / "small.yaml"))
        names = {problem.name for problem in problems}
        assert {f"{folder}_small" for folder, _ in TABLE} == names

    def test_eval_of_a_set_file_says_which_folders_there_are(self, podium):
        code, out, err = podium("eval", str(FOLDERS / "small.yaml"), "x.py")
        assert code == 2 and not out and "vectoradd_small: " in err and "name the folder of one" in err

    def test_a_folder_that_is_not_there_is_named(self, podium, tmp_path):
        (tmp_path / "set.yaml").write_text("problems: [{directory: gone, name: gone}]\n")
        code, _, err = podium("verify", str(tmp_path / "set.yaml"))
        assert code == 2 and "the folder of gone" in err


class TestPodiumYml:
    def test_it_may_give_a_cost_cpu_cases_and_limits(self, toy_root, copy_of):
        folder = copy_of("vectoradd")
        (folder / "podium.yml").write_text(
            "cost: {float16: {bytes: 3 * 2 * size * size, flops: {float16: size * size}}}\n"
            "cpu: {test: [{size: 5}], benchmark: [{size: 7}]}\n"
            "limits: {call_s: 17}\nname: adds\nrevision: 3\n"
        )
        problem = catalog.load_problem(toy_root, str(folder))
        assert (problem.name, problem.revision, problem.limits.call_s) == ("adds", 3, 17)
        assert [case.label for case in problem.cpu.test] == ["size=5"] and len(problem.cases.test) == 2
        reference = open_reference(problem, detect(toy_root, "cpu"))
        cost = reference.cost(problem.cpu.benchmark[0])
        assert cost == {"float16": {"bytes": 3 * 2 * 49, "flops": {"float16": 49}}}

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("cots: {}", "unknown key cots: did you mean cost"),
            ("cost: {a: {bytes: sise}}", "sise in a formula is not a number of the case, in size=33"),
            ("cost: {a: {bytes: size / 0}}", "has no value"),
            ("cost: {a: {bytes: '__import__(1)'}}", "a formula cannot have"),
            ("cost: {a: {bytes: -1 * size}}", "a formula cannot have"),
            ("cpu: {test: [{sizes: 3}], benchmark: [{size: 3}]}", "generate_input has no parameter sizes"),
            ("oracle: float64", "oracle needs tolerances"),
            ("limits: {call: 3}", "unknown key limits.call"),
            ("limits: {call_s: -3}", "limits.call_s"),
            ("seed_below: 1", "seed_below"),
        ],
    )
    def test_a_fault_in_it_is_said_in_a_sentence(self, toy_root, copy_of, text, complaint):
        folder = copy_of("vectoradd")
        (folder / "podium.yml").write_text(f"{text}\n")
        with pytest.raises(ProblemError, match=complaint):
            catalog.load_problem(toy_root, str(folder))

    def test_its_tolerances_decide_in_the_place_of_the_checker(self, toy_root, copy_of):
        folder = copy_of("matmul")
        wrong = folder / "solutions/wrong/low_precision.py"
        exact, loose = ("{max_mismatch: 0, rtol: 1.0e-5, atol: 1.0e-5}", "{rel_l2: 0.02}")
        (folder / "podium.yml").write_text(f"oracle: float64\ntolerances: {{exact: {exact}, loose: {loose}}}\n")
        run = judge(toy_root, catalog.load_problem(toy_root, str(folder)), wrong, timed=False)
        assert run.ending.verdict is RIGHT and run.tolerance == "loose"
        (folder / "podium.yml").write_text(f"oracle: float64\ntolerances: {{exact: {exact}}}\n")
        run = judge(toy_root, catalog.load_problem(toy_root, str(folder)), wrong, timed=False)
        assert run.ending.verdict is WRONG and "tolerance exact" in (run.ending.detail or "")

    @pytest.mark.slow
    def test_an_oracle_judges_by_exact_arithmetic_and_not_by_an_inexact_reference(self, toy_root, copy_of):
        folder = copy_of("grayscale")
        text = (folder / "reference.py").read_text()
        inexact = text.replace("image @", "(image if image.dtype == torch.float64 else image.half().float()) @")
        (folder / "reference.py").write_text(inexact)
        plain = folder / "solutions/correct/plain.py"
        run = judge(toy_root, catalog.load_problem(toy_root, str(folder)), plain, timed=False)
        assert run.ending.verdict is WRONG, "the reference itself is the one that rounds"
        (folder / "podium.yml").write_text("oracle: float64\ntolerances: {near: {rel_l2: 1.0e-5}}\n")
        run = judge(toy_root, catalog.load_problem(toy_root, str(folder)), plain, timed=False)
        assert run.ending.verdict is RIGHT


class TestVerbs:
    def test_verify_says_which_controls_are_mislabelled(self, podium):
        code, out, _ = podium("verify", str(FOLDERS / "vectorsum"))
        assert code == 10
        faults = re.findall(r"^(\S+) is labelled (\w+), but got (.*?):", out, re.MULTILINE)
        assert faults == [
            ("correct/adds_to_what_is_there", "correct", "wrong answer"),
            ("correct/of_one_axis", "correct", "wrong answer"),
        ]

    @pytest.mark.slow
    def test_verify_is_content_where_all_are_labelled_rightly(self, podium, copy_of):
        folder = copy_of("grayscale")
        assert podium("verify", str(folder))[0] == 0
        shutil.copy(folder / "solutions/correct/plain.py", folder / "solutions/wrong/plain.py")
        code, out, _ = podium("verify", str(folder))
        assert code == 10 and "wrong/plain is labelled wrong, but got accepted" in out

    @pytest.mark.slow
    def test_verify_of_several_names_the_problem_of_a_mislabelled_control(self, podium, copy_of):
        """Solutions of two folders have the same names."""
        folder = copy_of("vectorsum")
        (folder / "solutions/correct/of_one_axis.py").unlink()
        shutil.rmtree(folder / "solutions/wrong")
        shutil.copytree(folder, folder.parent / "again")
        named = {folder.name: "one", "again": "other"}
        listed = [f"{{directory: {directory}, name: {name}}}" for directory, name in named.items()]
        (folder.parent / "set.yaml").write_text(f"problems: [{', '.join(listed)}]\n")
        code, out, _ = podium("verify", str(folder.parent / "set.yaml"))
        faults = re.findall(r"^(\w+): correct/adds_to_what_is_there is labelled correct", out, re.MULTILINE)
        assert code == 10 and faults == ["one", "other"], out

    def test_check_judges_on_the_cpu_and_compiles_nothing(self, podium):
        folder = FOLDERS / "vectoradd"
        code, out, err = podium("check", str(folder), str(folder / "solutions/correct/in_triton.py"))
        assert code == 0 and "accepted" in out and "not compiled for other chips" in err

    def test_new_copies_the_folders_own_template(self, podium, toy_root):
        code, out, _ = podium("new", str(FOLDERS / "vectoradd"), "mine")
        written = toy_root / "submissions/vectoradd_small/mine.py"
        assert code == 0 and written.read_bytes() == (FOLDERS / "vectoradd/template.py").read_bytes()
        assert f"eval {FOLDERS / 'vectoradd'} {written}" in out
        assert "A copy of template.py, which need not be correct" in out and "compile" not in out
        code, _, err = podium("new", str(FOLDERS / "sort"), "mine")
        assert code == 2 and "no template" in err

    def test_eval_without_a_file_says_that_there_is_none(self, podium):
        code, out, err = podium("eval", str(FOLDERS / "vectoradd"))
        assert (code, out) == (2, "") and "submissions/vectoradd_small has no file to judge" in err

    def test_profile_refuses_in_a_sentence(self, podium):
        folder = FOLDERS / "vectoradd"
        code, _, err = podium("profile", str(folder), str(folder / "template.py"), "--device", "cpu")
        assert code == 2 and "another project's form" in err

    def test_a_cluster_refuses_before_it_is_asked(self, podium):
        folder = FOLDERS / "vectoradd"
        code, out, err = podium("eval", str(folder), str(folder / "template.py"), "--cluster", "auto")
        assert (code, out) == (2, "") and "another project's form" in err and "judging" not in err

    @pytest.mark.slow
    def test_a_run_is_judged_again_from_where_its_folder_lies(self, podium, roomy):
        folder = FOLDERS / "prefixsum"
        assert podium("eval", str(folder), str(folder / "solutions/wrong/empty.py"))[0] == 10
        code, out, err = podium("repro", "empty")
        assert code == 0 and "reproduced: wrong answer then and now" in out, (out, err)


LOOKS_AROUND = """
import sys
def custom_kernel(data):
    for path in {paths}:
        try:
            print("reads", path) if open(path).read() else None
        except OSError:
            pass
    data[2].copy_(data[0] + data[1])
    return data[2]
class ModelNew({model}):
    def forward(self, x):
        custom_kernel((x.new_zeros(1), x.new_zeros(1), x.new_zeros(1)))
        return x * x + 2
"""


def test_a_worker_sees_neither_the_problems_own_folder_nor_the_root(toy_root, copy_of, monkeypatch):
    """Of either form. Both lie in a folder that is shown otherwise, as a folder of libraries would be."""
    folder = copy_of("vectoradd")
    task = shutil.copy(Path(__file__).parent / "tasks/1_stateless.py", folder)
    (toy_root / "results/local").mkdir()
    (toy_root / "results/local/run.json").write_text("a run")
    (toy_root / "submissions/double/theirs.py").write_text("another's source")
    secret = [folder / "task.yml", folder / "reference.py", folder / "solutions/correct/plain.py", Path(task)]
    secret += [toy_root / "problems/double/reference.py", toy_root / "configs/eval.yml"]
    secret += [toy_root / "results/local/run.json", toy_root / "submissions/double/theirs.py"]
    beside = toy_root / "utils.py"
    source = toy_root / "tmp/looks.py"
    source.write_text(
        LOOKS_AROUND.format(paths=[str(path) for path in (*secret, beside)], model="__import__('torch').nn.Module")
    )
    assert all(path.read_text() for path in secret)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(toy_root))
    for path in (folder, task):
        problem = catalog.load_problem(toy_root, str(path))
        run = judge(toy_root, problem.only(problem.cases.test[:1], []), source, timed=False)
        assert run.ending.verdict is not Verdict.COMPILE_ERROR, run.ending
        assert {line.removeprefix("reads ") for line in run.output.splitlines()} == {str(beside)}, path


class TestWhatAnUntrustedWorkerMayClaim:
    @pytest.mark.parametrize(
        "output",
        [
            "torch.zeros(24, 24, dtype=torch.complex64)",
            "torch.zeros(24, 24, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)",
            "torch.zeros(1 << 22)",
            "torch.zeros(0, 1 << 40)",
            "torch.zeros(24, 24).to_sparse()",
            "torch.nn.Parameter(torch.zeros(24, 24))",
            "[torch.zeros(24, 24)] * 17",
            "{'a': torch.zeros(24, 24)}",
            "(torch.zeros(24, 24), None)",
        ],
    )
    def test_whatever_is_returned_is_a_wrong_answer_and_no_fault_of_the_judges(self, toy_root, folder, output):
        source = f"import torch\ndef custom_kernel(data):\n    return {output}\n"
        assert judge(toy_root, *folder("grayscale", source), timed=False).ending.verdict is WRONG

    @pytest.mark.parametrize(
        ("shape", "stride"),
        [((4, 4), (0, 1)), ((1 << 41,), (1,)), ((4,), (-1,)), ((2,) * 17, (1,) * 17), ((4, 4), (4,)), ((3, 3), (2, 1))],
    )
    def test_a_claim_of_elements_that_share_a_place_is_no_place(self, shape, stride):
        claim = SimpleNamespace(offset=0, dtype="float32", shape=list(shape), stride=list(stride), region="arena")
        assert claimed(claim) is None

    def test_a_claim_of_any_order_of_axes_and_of_gaps_is_one(self):
        for shape, stride in (((4, 3), (1, 4)), ((4, 3), (8, 2)), ((), ()), ((1, 5), (0, 1))):
            claim = SimpleNamespace(offset=0, dtype="float32", shape=list(shape), stride=list(stride), region="arena")
            assert claimed(claim) is not None
        assert spans_of([claim] * 3, [], 2 * 20) == [claimed(claim)] * 2, "no more bytes than may be due"
