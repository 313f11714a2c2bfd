"""Folders of GPU MODE's form, small ones with the traps of the large: each solution gets the verdict that is due."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness import catalog
from harness.catalog.config import load_config
from harness.catalog.submission import load_submission
from harness.errors import ProblemError
from harness.judge.evaluate import evaluate
from harness.judge.reference import open_reference
from harness.machine.device import detect
from harness.model import Run, Verdict

FOLDERS = Path(__file__).parent / "folders"
RIGHT, WRONG = Verdict.ACCEPTED, Verdict.WRONG_ANSWER

TABLE = {
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
    ("masked", "correct/plain"): RIGHT,
    ("masked", "wrong/without_the_mask"): WRONG,
    ("matmul", "correct/plain"): RIGHT,
    ("matmul", "wrong/low_precision"): WRONG,
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


@pytest.mark.parametrize(("folder", "solution"), TABLE, ids=["/".join(each) for each in TABLE])
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
        assert "axis0   at 32 (of 0-32; up to 100 % of each)" in report
        assert "outside atol 0.001 + rtol 0.001" in report, "as make_match_reference was told"
        (line,) = [line for line in report.splitlines() if line.startswith("reproduce: ")]
        assert f"{FOLDERS / 'vectoradd'}" in line or "./tests/folders/vectoradd" in line

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


class TestSeeds:
    def test_where_large_seeds_hide_the_answer_smaller_ones_are_drawn_and_the_run_says_so(self, toy_root):
        problem = catalog.load_problem(toy_root, str(FOLDERS / "sort"))
        reference = open_reference(problem, detect(toy_root, "cpu"))
        assert reference.admitted(2**31 - 1) < 2**16
        run = judge(toy_root, problem, FOLDERS / "sort/solutions/correct/plain.py", timed=False)
        assert "seeds are below 65,536: with seeds below 2,147,483,648" in run.environment["notes"][0]

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
            ("out[...] = a + b", "out[...] = a + b / 4096", "accepts a copy of input 0"),
            ("check_implementation =", "check_implementation = lambda *_: (False, 'no')\nother =", "refuses what ref"),
            ("check_implementation =", "check_implementation = lambda *_: 'no'\nother =", "refuses what ref"),
            ("a, b = (", "a, b = 1 / 0, (", "generate_input failed: ZeroDivisionError"),
            ("import torch", "import torch, nonesuch", "cannot be imported: ModuleNotFoundError"),
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
from harness import catalog
from harness.cli import main
from harness.judge import evaluate
from harness.machine.device import detect
root = Path({str(toy_root)!r})
evaluate.open_reference(catalog.load_problem(root, "double"), detect(root, "cpu"))
foreign = "catalog.foreign catalog.gpumode judge.foreign judge.folder judge.opaque judge.scope".split()
print([name for name in foreign if f"harness.{{name}}" in sys.modules])
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"
