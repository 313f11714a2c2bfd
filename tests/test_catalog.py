"""A problem's folder is read strictly, a submission once: each fault is one sentence with the file and the key."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import catalog
from harness.catalog.choice import case_named, choose, choose_to_check, has
from harness.errors import ProblemError, UsageError
from harness.model import Case, Verdict, told_apart

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def yml(toy_root):
    """Edits the toy's problem.yml: replaces `old`, which must be there, by `new`."""

    def edit(old, new, count=-1):
        path = toy_root / "problems" / "double" / "problem.yml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, count))

    return edit


@pytest.fixture
def reference(toy_root):
    def edit(old, new):
        path = toy_root / "problems" / "double" / "reference.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return edit


def complaint(root):
    with pytest.raises(ProblemError) as caught:
        catalog.load_problem(root, "double")
    return str(caught.value)


def test_the_toy_is_read_whole(toy_root):
    problem = catalog.load_problem(toy_root, "double")
    assert problem.name == "double" and problem.outputs == ("y",) and problem.axes == {"y": ("row", "col")}
    assert [case.parameters for case in problem.cpu.test] == [{"rows": 4, "cols": 8}, {"rows": 3, "cols": 5}]
    assert problem.cases_for("cpu") is problem.cpu and problem.cases_for("rocm") is problem.cases
    assert problem.limits.load_s == 600 and problem.limits.call_s == 300
    assert problem.tolerances["close"][0].rel_l2 == 1e-5


def test_the_hash_of_a_problem_covers_all_that_judges_with_it(toy_root):
    def sha256():
        return catalog.load_problem(toy_root, "double").sha256

    seen = [sha256()]
    folder = toy_root / "reference"
    (folder / "__pycache__").mkdir(parents=True)
    for change in (
        lambda: (folder / "attention.py").write_text("x = 1\n"),
        lambda: (folder / "attention.py").write_text("x = 2\n"),
        lambda: (folder / "attention.py").rename(folder / "other.py"),
        lambda: (folder / "aiter.py").write_text(""),
        lambda: ((folder / "within").mkdir(), (folder / "within" / "norm.py").write_text("x = 1\n")),
        lambda: (toy_root / "problems" / "double" / "reference.py").open("a").write("# more\n"),
        lambda: (toy_root / "problems" / "double" / "problem.yml").open("a").write("# more\n"),
    ):
        change()
        seen.append(sha256())
    assert len(set(seen)) == len(seen)
    (folder / "notes.txt").write_text("x")
    (folder / "__pycache__" / "aiter.py").write_text("x")
    assert sha256() == seen[-1]


def test_every_shipped_problem_is_good(pytestconfig):
    root = pytestconfig.rootpath
    for name in catalog.problem_names(root):
        problem = catalog.load_problem(root, name)
        assert list(catalog.controls(problem)) is not None
        assert all(problem.tolerances_for(case) for case in (*problem.cases.test, *problem.cpu.benchmark))


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("title:", "titel: x\ntitle:", ["problem.yml", "unknown key titel", "did you mean title?"]),
        ("title:", "name: double\ntitle:", ["problem.yml, line 2", "'name' is given twice"]),
        ("{rows: 3, cols: 5}", "{rows: 3}", ["cases.test[1] lacks the parameter cols"]),
        ("{rows: 3, cols: 5}", "{rows: 3, cols: 5, colls: 1}", ["cases.test[1]: unknown parameter colls", "mean cols"]),
        ("{rows: 64, cols: 64}", "{cols: 64}", ["cases.benchmark[0] lacks the parameter rows"]),
        ("{rows: 3, cols: 5}", "{cols: 8, rows: 4}", ["cases.test[1] is the same case as cases.test[0]", "rows=4"]),
        ("{rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}", "{rtol: 1}", ["close", "limits nothing"]),
        ("{rtol: 1.0e-5,", "{bitwise: true, rtol: 1.0e-5,", ["close", "bitwise allows no difference"]),
        ("{rtol: 1.0e-5,", "{when: {rows: 4}, rtol: 1.0e-5,", ["tolerance close", "rows=3 cols=5"]),
        ("name: double", "name: treble", ["name is 'treble'", "folder is called 'double'"]),
        ("  y: [row, col]", "  {}", ["axes does not name the axes of y"]),
        ("  y: [row, col]", "  y: [row, col]\n  z: [row]", ["axes names z, which is neither an output nor an input"]),
        ("title:", "in_place: [xx]\ntitle:", ["in_place names xx, which is not an input", "did you mean x?"]),
        ("title:", "in_place: [x]\ntitle:", ["axes does not name the axes of x"]),
        (
            "title:",
            "sampled_rows: {output_axis: 0, parameter: row, longer_than: 4, rows: 2, timed_rows: 2}\ntitle:",
            ["sampled_rows.parameter: row is not a parameter", "did you mean rows?"],
        ),
        (
            "title:",
            "sampled_rows: {output_axis: 0, parameter: rows, longer_than: 4, rows: 1, timed_rows: 2}\ntitle:",
            ["sampled_rows.rows", "greater than or equal to 2"],
        ),
        (
            "title:",
            "sampled_rows: {output_axis: 0, parameter: rows, rows: 2, timed_rows: 2}\ntitle:",
            ["sampled_rows", "longer_than and rows belong together"],
        ),
        ("outputs: [y]", "outputs: []", ["outputs"]),
        ("limits: {load_s: 600", "limits: {load_s: 0", ["limits.load_s"]),
        ("limits: {load_s: 600", "limits: {loads: 20", ["unknown key limits.loads", "load_s"]),
        ("limits: {load_s: 600", "limits: {Load_s: 20", ["unknown key limits.Load_s: did you mean load_s?"]),
        ("limits: {", "Limits: {", ["unknown key Limits: did you mean limits?"]),
        ("close: {rtol: 1.0e-5", "Close: {Rtol: 1.0e-5", ["unknown key tolerances.Close.Rtol: did you mean rtol?"]),
        ("close: {rtol: 1.0e-5", "Close: {rtol: -1", ["tolerances.Close.rtol: ", "greater than"]),
        ("description:", "desc:", ["problem.yml", "desc"]),
    ],
)
def test_a_fault_in_problem_yml_is_named(toy_root, yml, old, new, said):
    yml(old, new, 1)
    message = complaint(toy_root)
    assert all(words in message for words in said), message


def test_the_cases_for_machines_without_a_gpu_are_held_to_the_same(toy_root, yml):
    yml("cpu:\n  test:\n    - {rows: 4, cols: 8}", "cpu:\n  test:\n    - {rows: 4}")
    assert "cpu.test[0] lacks the parameter cols" in complaint(toy_root)


def test_an_empty_list_of_cases_is_refused(toy_root, yml):
    yml("  benchmark:\n    - {rows: 64, cols: 64}\n\ncpu", "  benchmark: []\n\ncpu")
    assert "cases.benchmark" in complaint(toy_root)


def test_the_first_tolerance_that_fits_a_case_holds(toy_root, yml):
    yml(
        "{rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}",
        "[{when: {rows: 4}, rel_l2: 0.1}, {when: {rows: 4, cols: 8}, rel_l2: 0.2}, {rel_l2: 0.3}]",
    )
    problem = catalog.load_problem(toy_root, "double")
    bounds = [problem.tolerances_for(case)["close"].rel_l2 for case in problem.cases.test]
    assert bounds == [0.1, 0.3]


def test_an_optional_parameter_may_be_left_out_of_a_case(toy_root, yml, reference):
    reference("cols: int, seed", "cols: int = 8, seed")
    yml("{rows: 4, cols: 8}", "{rows: 4}")
    assert catalog.load_problem(toy_root, "double").cases.test[0].parameters == {"rows": 4}


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("def cost(", "def coast(", "does not define cost"),
        ("def ref_kernel(", "def kernel(", "does not define ref_kernel"),
        ("def generate_input(", "def generate(", "does not define generate_input"),
        ("cols: int, seed: int, device", "cols: int, device", "generate_input must take seed"),
        ("seed: int, device: str", "seed: int", "generate_input must take device"),
        ("def cost(", "def cost(((", "reference.py, line "),
        ("import torch", "import torch\x00", "reference.py, line "),
    ],
)
def test_a_fault_in_reference_py_is_named_without_importing_it(toy_root, reference, old, new, said):
    reference("import torch\n", "import torch\n\nraise SystemExit('never imported')\n")
    reference(old, new)
    assert said in complaint(toy_root)


def test_a_missing_reference_is_named(toy_root):
    (toy_root / "problems" / "double" / "reference.py").unlink()
    assert "reference.py is missing" in complaint(toy_root)


def test_reading_a_problem_runs_none_of_its_code(toy_root, reference):
    reference("import torch\n", "import torch\n\nraise SystemExit('imported')\n")
    assert catalog.load_problem(toy_root, "double").name == "double"


def test_the_digest_of_a_problem_follows_both_of_its_files(toy_root, yml, reference):
    digests = {catalog.load_problem(toy_root, "double").sha256}
    yml("Twice as much", "Two times")
    digests.add(catalog.load_problem(toy_root, "double").sha256)
    reference("import torch\n", "import torch  # the library\n")
    digests.add(catalog.load_problem(toy_root, "double").sha256)
    assert len(digests) == 3


def test_an_unknown_problem_suggests_the_nearest(toy_root):
    with pytest.raises(UsageError) as caught:
        catalog.load_problem(toy_root, "duoble")
    assert "'duoble'" in caught.value.message and caught.value.hint == "did you mean double?"


def test_an_unknown_problem_with_nothing_near_lists_them_all(toy_root):
    with pytest.raises(UsageError) as caught:
        catalog.load_problem(toy_root, "zzz")
    assert caught.value.hint == "valid: double"


def test_a_case_is_labelled_in_the_order_of_the_file_and_keyed_without_it():
    one, other = Case(parameters={"b": [1, 2], "a": True}), Case(parameters={"a": True, "b": [1, 2]})
    assert one.label == "b=[1,2] a=True" and one.key == other.key


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 1) | st.booleans(), min_size=1), min_size=1))
def test_cases_are_told_apart_by_what_they_do_not_share(parameters):
    cases = [Case(parameters=each) for each in parameters]
    names, shared = told_apart(cases)
    for name, case in zip(names, cases, strict=True):
        assert name and sorted(f"{name} {shared}".split()) == sorted(case.label.split())
    assert told_apart(cases[:1]) == ([cases[0].label], "")


def test_what_cases_share_is_left_out_of_each():
    cases = [Case(parameters={"n": n, "q": 1, "causal": True}) for n in (1, 2)]
    assert told_apart(cases) == (["n=1", "n=2"], "q=1 causal=True")


@pytest.mark.parametrize(
    "old, new, words",
    [
        pytest.param("revision: 1", "revision: 0", "revision", id="revision"),
        pytest.param("{rtol: 1.0e-5,", "{when: {roes: 4}, rel_l2: 1}, {rtol: 1.0e-5,", "roes", id="when"),
        pytest.param("outputs: [y]", "outputs: [y, y]", "twice", id="outputs"),
        pytest.param("inputs: [x, config]", "inputs: [x, x]", "twice", id="inputs"),
        pytest.param("limits: {load_s: 600", "limits: {load_s: .inf", "load_s", id="limits"),
        pytest.param("rel_l2: 1.0e-5}", "rel_l2: .inf}", "rel_l2", id="infinite tolerance"),
        pytest.param("title:", "baselines: [nobody]\ntitle:", "nobody", id="baselines"),
        pytest.param("{rows: 64, cols: 64}", "{rows: [1.5], cols: 64}", "rows.0", id="a list of fractions"),
    ],
)
def test_a_fault_in_problem_yml_that_slips_through_is_named(toy_root, yml, old, new, words):
    if "when" in new:
        yml("  close: {", "  close: [{")
        yml("rel_l2: 1.0e-5}", "rel_l2: 1.0e-5}]")
    yml(old, new)
    assert words in complaint(toy_root)


def test_a_case_must_give_the_parameter_that_says_how_long_its_output_is(toy_root, yml, reference):
    reference("rows: int, cols: int, seed", "rows: int = 9, cols: int, seed")
    yml("title:", "sampled_rows: {output_axis: 0, parameter: rows, longer_than: 4, rows: 2, timed_rows: 2}\ntitle:")
    yml("{rows: 3, cols: 5}", "{cols: 5}")
    assert "rows" in complaint(toy_root)


def test_a_limit_on_parts_needs_a_reference_that_says_what_they_are(toy_root, yml):
    yml("rel_l2: 1.0e-5}", "rel_l2: 1.0e-5, parts: {tail: [0.9, 1.1]}}")
    assert "does not define parts" in complaint(toy_root)


@pytest.mark.parametrize("steps", ["2", "0", "a"])
def test_steps_are_a_positive_number_and_need_next_input(toy_root, yml, reference, steps):
    reference("cols: int, seed", "cols: int, steps: int = 1, seed")
    yml("{rows: 3, cols: 5}", f"{{rows: 3, cols: 5, steps: {steps}}}")
    assert "steps" in complaint(toy_root) or "next_input" in complaint(toy_root)


@pytest.mark.parametrize(("steps", "refused"), [("1", False), ("2", True)])
def test_a_timed_case_has_one_step_for_what_the_call_before_left_is_known(toy_root, yml, reference, steps, refused):
    reference("cols: int, seed", "cols: int, steps: int = 1, seed")
    reference("def ref_kernel", "def next_input(data, *, seed):\n    return data\n\n\ndef ref_kernel")
    yml("{rows: 64, cols: 64}", f"{{rows: 64, cols: 64, steps: {steps}}}")
    if refused:
        assert "benchmark[0] has 2 steps; a benchmark case has one" in complaint(toy_root)
    else:
        catalog.load_problem(toy_root, "double")


class TestSubmissions:
    @pytest.fixture
    def problem(self, toy_root):
        return catalog.load_problem(toy_root, "double")

    def test_a_submission_is_its_bytes(self, toy_root, problem):
        path = toy_root / "submissions" / "double" / "mine.py"
        path.write_bytes(b"# caf\xc3\xa9 \xff\r\n")
        submission = catalog.load_submission(problem, path)
        assert submission.source == b"# caf\xc3\xa9 \xff\r\n"
        assert submission.sha256 == hashlib.sha256(submission.source).hexdigest()
        assert (submission.name, submission.problem, submission.path) == ("mine", "double", str(path))
        path.write_text("changed afterwards")
        assert submission.text == "# café �\r\n"

    def test_the_limit_on_its_size_is_exact(self, tmp_path, problem):
        path = tmp_path / "big.py"
        path.write_bytes(b"#" * (1 << 20))
        assert len(catalog.load_submission(problem, path).source) == 1 << 20
        path.write_bytes(b"#" * ((1 << 20) + 1))
        with pytest.raises(UsageError, match="1,048,577 bytes"):
            catalog.load_submission(problem, path)

    def test_a_file_of_another_kind_is_refused(self, tmp_path, problem):
        (tmp_path / "kernel.hip").write_text("__global__")
        with pytest.raises(UsageError, match=r"kernel\.hip is not a \.py file"):
            catalog.load_submission(problem, tmp_path / "kernel.hip")

    def test_its_name_leaves_room_for_a_run_s(self, problem, tmp_path):
        with pytest.raises(UsageError, match="has 203 bytes; at most 200 fit"):
            catalog.load_submission(problem, tmp_path / f"{'é' * 100}.py")

    def test_a_missing_file_suggests_its_neighbour(self, tmp_path, problem):
        (tmp_path / "kernel.py").write_text("")
        with pytest.raises(UsageError) as caught:
            catalog.load_submission(problem, tmp_path / "kernle.py")
        assert "there is no file" in caught.value.message and "kernel.py?" in caught.value.hint

    def test_a_name_without_a_folder_suggests_a_submission_to_the_problem(self, toy_root, monkeypatch):
        monkeypatch.chdir(toy_root)
        (toy_root / "submissions" / "double" / "mine.py").write_text("")
        with pytest.raises(UsageError) as caught:
            catalog.load_submission(catalog.load_problem(toy_root, "double"), Path("mine"))
        assert caught.value.hint == "did you mean submissions/double/mine.py?"

    def test_what_else_lies_here_is_offered_only_if_it_is_called_much_the_same(self, toy_root, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for path in (tmp_path / "hatch_build.py", toy_root / "submissions" / "double" / "own_fused.py"):
            path.write_text("")
        hints = {}
        for name in ("nofile.py", "own_fusd.py", "hatch_bild.py"):
            with pytest.raises(UsageError) as caught:
                catalog.load_submission(catalog.load_problem(toy_root, "double"), Path(name))
            hints[name] = caught.value.hint
        assert "own_fused.py" in hints["nofile.py"] and "hatch" not in hints["nofile.py"]
        assert hints["own_fusd.py"].endswith("submissions/double/own_fused.py?")
        assert hints["hatch_bild.py"] == "did you mean hatch_build.py?"

    def test_a_file_in_a_missing_folder_is_only_missing(self, tmp_path, problem):
        with pytest.raises(UsageError, match="there is no file"):
            catalog.load_submission(problem, tmp_path / "no" / "kernel.py")

    def test_a_link_to_nothing_names_what_it_points_to_and_not_itself(self, tmp_path, problem):
        (tmp_path / "mine.py").symlink_to("gone.py")
        with pytest.raises(UsageError, match=r"mine\.py is a link to gone\.py, which is not there") as caught:
            catalog.load_submission(problem, tmp_path / "mine.py")
        assert caught.value.hint is None

    def test_a_device_or_a_pipe_is_refused_before_it_is_read(self, tmp_path, problem):
        (tmp_path / "mine.py").symlink_to(os.devnull)  # a pipe without a writer, or /dev/zero, would never end
        with pytest.raises(UsageError, match="is not a regular file"):
            catalog.load_submission(problem, tmp_path / "mine.py")

    def test_a_folder_is_no_submission(self, tmp_path, problem):
        (tmp_path / "folder.py").mkdir()
        with pytest.raises(UsageError, match="is a folder"):
            catalog.load_submission(problem, tmp_path / "folder.py")

    def test_a_file_whose_name_is_no_text_is_refused(self, tmp_path, problem):
        path = tmp_path / b"\xff.py".decode(errors="surrogateescape")
        try:
            path.write_text("")
        except OSError:
            pytest.skip("this file system refuses such names")
        with pytest.raises(UsageError):
            catalog.load_submission(problem, path)

    def test_the_submissions_of_a_problem_come_by_name(self, toy_root, problem):
        for name in ("b.py", "a.py", "_shared.py", "notes.txt"):
            (toy_root / "submissions" / "double" / name).write_text("")
        assert [submission.name for submission in catalog.submissions(toy_root, problem)] == ["a", "b"]

    def test_a_problem_without_submissions_has_none(self, toy_root, problem):
        (toy_root / "submissions" / "double").rmdir()
        assert catalog.submissions(toy_root, problem) == []


class TestControls:
    def control(self, root, folder, name="one.py"):
        path = root / "problems" / "double" / "controls" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def test_a_control_bears_the_verdict_of_its_folder(self, toy_root):
        for folder in ("wrong_answer", "accepted", "__pycache__", ".hidden"):
            self.control(toy_root, folder)
        found = list(catalog.controls(catalog.load_problem(toy_root, "double")))
        assert [(submission.name, verdict) for submission, verdict in found] == [
            ("accepted/one", Verdict.ACCEPTED),
            ("wrong_answer/one", Verdict.WRONG_ANSWER),
        ]

    def test_a_folder_that_is_no_verdict_is_named(self, toy_root):
        self.control(toy_root, "wrong_anwser")
        with pytest.raises(ProblemError) as caught:
            list(catalog.controls(catalog.load_problem(toy_root, "double")))
        assert "wrong_anwser is not the name of a verdict" in caught.value.message
        assert caught.value.hint == "did you mean wrong_answer?"

    def test_a_problem_without_controls_has_none(self, toy_root):
        assert list(catalog.controls(catalog.load_problem(toy_root, "double"))) == []


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("1", ["a=1 fmt=bf16", "a=[1,10] fmt=mxfp4"]),
        ("a=1", ["a=1 fmt=bf16"]),
        ("10", ["a=[1,10] fmt=mxfp4"]),
        ("16", ["a=16 fmt=mxfp4"]),
        ("fp4", ["a=16 fmt=mxfp4", "a=[1,10] fmt=mxfp4"]),
        ("4", []),
        ("5", []),
        ("a=", ["a=1 fmt=bf16", "a=16 fmt=mxfp4", "a=[1,10] fmt=mxfp4", "a=0.5 fmt=bf16"]),
    ],
)
def test_a_number_in_a_choice_of_cases_is_meant_whole_and_a_word_in_part(word, found):
    labels = ["a=1 fmt=bf16", "a=16 fmt=mxfp4", "a=[1,10] fmt=mxfp4", "a=0.5 fmt=bf16"]
    assert [label for label in labels if has(label, word)] == found


KV_REPLICATE = "batch_size=1 seq_len=4 num_kv_heads=2 num_q_heads={} head_dim=8 dtype={}"


@pytest.mark.parametrize(
    ("heads", "dtype", "reason"),
    [
        (5, "float32", "num_q_heads=5 is not a multiple of num_kv_heads"),
        ("many", "float32", "num_q_heads=many is not a multiple of num_kv_heads"),
        (64, "float32", "num_q_heads=64 is not 1 to 11 times num_kv_heads\n    or for another kind of case: num_q"),
        (5, "float64", "num_q_heads=5 is not a multiple of num_kv_heads, and dtype=float64 is not one of float32, "),
        (6, "float64", "dtype=float64 is not one of float32, bfloat16, float16"),
        (6, "float32", None),
    ],
)
def test_a_case_of_one_s_own_that_no_run_draws_is_refused_with_the_reason(heads, dtype, reason):
    problem = catalog.load_problem(ROOT, "kv_replicate")
    label = KV_REPLICATE.format(heads, dtype)
    if reason is None:
        assert case_named(problem, "cpu", label).label == label and problem.refusals(label) == []
    else:
        with pytest.raises(UsageError, match="kv_replicate has no case") as refused:
            case_named(problem, "cpu", label)
        assert refused.value.hint.startswith(reason)


MLA = "batch_size=1 q_seq_len=1 kv_seq_len=[100]"


@pytest.mark.parametrize(
    ("problem", "label", "hint"),
    [
        ("mla", MLA, "a case of your own also needs scores=plain|large"),
        (
            "mla",
            MLA.replace("100", "10"),
            "a case of your own also needs scores=plain|large, and kv_seq_len=[10] is not a list of batch_size "
            "numbers, each 64 to 3000\n    or scores=plain|large|rising|shuffled, and kv_seq_len=[10] is not a ",
        ),
        (
            "mla",
            "batch_size=4",
            "a case of your own also needs q_seq_len=1 kv_seq_len=[64..3000 each batch_size] scores=plain|large\n"
            "    or q_seq_len=1 kv_seq_len=1001..9000 scores=plain|large|rising|shuffled",
        ),
        (
            "kv_replicate",
            "batch_size=1 seq_len=4 num_q_heads=6 head_dim=8 dtype=float32",
            "a case of your own also needs num_kv_heads=1..12\n    or num_kv_heads=1..4",
        ),
    ],
)
def test_a_case_of_one_s_own_that_lacks_parameters_is_told_which_and_what_they_may_be(problem, label, hint):
    with pytest.raises(UsageError, match="has no case") as refused:
        case_named(catalog.load_problem(ROOT, problem), "cpu", label)
    assert refused.value.hint.startswith(hint)


def test_a_case_of_one_s_own_with_parameters_too_many_is_told_which():
    label = "batch_size=1 seq_len=70 num_q_heads=2 num_kv_heads=1 head_dim=64 causal=True growth=5 scores=large"
    with pytest.raises(UsageError, match="has no case") as refused:
        case_named(catalog.load_problem(ROOT, "prefill"), "cpu", label)
    assert refused.value.hint == "a case of your own must do without scores=large\n    or without growth=5"


@pytest.mark.parametrize(
    ("label", "hint"),
    [
        ("batch_size=1 seq_length=70 causal=True", "it has no parameter 'seq_length'; did you mean seq_len?"),
        ("batch_size=1 seq_len=70 batch_size=2", "it has batch_size twice"),
        (
            "batch_size=9 seq_len=70 num_q_heads=2 num_kv_heads=1 head_dim=64 causal=1 scores=large",
            "batch_size=9 is not a whole number from 1 to 3, and causal=1 is not one of True, False\n    or for anothe",
        ),
    ],
)
def test_a_case_is_told_what_is_wrong_with_it_of_the_kind_that_it_is_nearest_to(label, hint):
    with pytest.raises(UsageError, match="has no case") as refused:
        case_named(catalog.load_problem(ROOT, "prefill"), "cpu", label)
    assert refused.value.hint.startswith(hint)


def test_a_case_is_known_with_commas_lower_case_booleans_and_spaces_in_lists():
    label = "batch_size=2, seq_len=70, num_q_heads=4, num_kv_heads=2, head_dim=64, causal=true, scores=large"
    prefill = catalog.load_problem(ROOT, "prefill")
    assert case_named(prefill, "cpu", label).label == label.replace(",", "").replace("true", "True")
    case = case_named(
        catalog.load_problem(ROOT, "mla"), "cpu", "batch_size=2 q_seq_len=1 kv_seq_len=[ 70, 80 ] scores=plain"
    )
    assert case.parameters["kv_seq_len"] == [70, 80]
    stated = prefill.cpu.test[0]
    assert case_named(prefill, "cpu", ", ".join(reversed(stated.label.split()))) == stated


def test_the_case_of_one_s_own_in_mla_s_readme_is_one():
    text = " ".join((ROOT / "problems/mla/README.md").read_text().split())
    label = text.partition("--case '")[2].partition("'")[0]
    assert label == f"{MLA} scores=plain"
    assert case_named(catalog.load_problem(ROOT, "mla"), "cpu", label).label == label


def test_what_is_no_label_is_taken_for_a_misspelt_one():
    problem = catalog.load_problem(ROOT, "kv_replicate")
    label = problem.cpu.test[0].label
    with pytest.raises(UsageError) as refused:
        case_named(problem, "cpu", label.replace("seq_len=", "seq_len:"))
    assert refused.value.hint == f"did you mean {label}?"


def test_a_word_that_is_a_whole_value_is_that_value_and_no_part_of_another():
    problem = catalog.load_problem(ROOT, "kv_replicate")
    for word, dtypes in (("float16", {"float16"}), ("bfloat16", {"bfloat16"}), ("float", set(DTYPES))):
        chosen = choose(problem, "cpu", [], [word])
        assert {case.parameters["dtype"] for case in chosen.cpu.test} == dtypes, word


DTYPES = ("float16", "bfloat16", "float32")


def test_a_check_takes_benchmark_cases_only_if_they_are_named_or_no_test_case_fits():
    problem = catalog.load_problem(ROOT, "kv_replicate")
    large = {case.label for case in problem.cpu.benchmark}
    for named, words, taken in (([], ["bfloat16"], 0), (["2"], [], 1), ([], ["seq_len=1024"], 2)):
        chosen = choose_to_check(problem, named, words).cpu
        assert chosen.test and not chosen.benchmark
        assert sum(case.label in large for case in chosen.test) == taken


def test_a_broken_problem_is_named_and_the_others_are_listed_all_the_same(toy_root, podium):
    shutil.copytree(toy_root / "problems/double", toy_root / "problems/broken")
    (toy_root / "problems/broken/problem.yml").write_text("name: broken\ncases: [\n")
    code, listed, said = podium("problems")
    assert code == 2 and "double" in listed and "broken/problem.yml" in said
