"""What a submission's exception is reported as: one sentence with its type and line, whatever the exception is."""

import re
import textwrap

import pytest
from test_judging import judge

from harness.model import Verdict
from harness.render import document, verdicts
from harness.render.cases import case_list
from harness.render.run import parts
from harness.wire.protocol import Descriptors, NoDescriptor
from harness.worker.load import describe_failure


def reported(tmp_path, source):
    """What is said of the exception that `source` raises when it is imported."""
    path = tmp_path / "submission.py"
    path.write_text(textwrap.dedent(source))
    try:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "submission"})
    except BaseException as error:
        return describe_failure(error, path)
    raise AssertionError("it raises nothing")


CASES = [
    ("raise RuntimeError", "RuntimeError without a message (line 1)"),
    ("raise Exception()", "Exception without a message (line 1)"),
    ("raise type('Two\\nlines', (Exception,), {})('told')", "Two: told (line 1)"),
    ("\nassert 1 > 2", "AssertionError without a message (line 2)"),
    ("raise ValueError('  \\n ')", "ValueError without a message (line 1)"),
    ("raise ValueError('rows\\nand more')", "ValueError: rows (line 1)"),
    ("raise SystemExit", "the submission called sys.exit() (line 1)"),
    ("import sys\nsys.exit(3)", "the submission called sys.exit(3) (line 2)"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt without a message (line 1)"),
    (
        "class Bad(Exception):\n  def __str__(self): raise KeyError(1)\nraise Bad",
        "Bad: its own __str__ raises KeyError (line 3)",
    ),
    (
        "class Bad(Exception):\n  def __str__(self): return 7\nraise Bad()",
        "Bad: its own __str__ raises TypeError (line 3)",
    ),
    (
        "class Bad(Exception):\n  def __str__(self): raise SystemExit(0)\nraise Bad()",
        "Bad: its own __str__ raises SystemExit (line 3)",
    ),
    (
        "raise ExceptionGroup('both', [ValueError('rows'), KeyError('cols')])",
        "ExceptionGroup: both (2 sub-exceptions), the first of them ValueError: rows (line 1)",
    ),
    (
        """
        def inner():
            raise ValueError
        try:
            inner()
        except ValueError as error:
            found = error
        raise BaseExceptionGroup("outer", [ExceptionGroup("middle", [found])])
        """,
        "ExceptionGroup: outer (1 sub-exception), the first of them ValueError without a message (line 3)",
    ),
    (
        """
        a, b = ValueError("a"), ValueError("b")
        a.__cause__, b.__cause__ = b, a
        raise a
        """,
        "ValueError: a (line 4)",
    ),
]


@pytest.mark.parametrize(("source", "message"), CASES)
def test_an_exception_is_one_sentence_with_its_type_and_line(tmp_path, source, message):
    failure = reported(tmp_path, source)
    assert (failure["kind"], failure["message"]) == ("runtime_error", message)
    assert re.search(r"submission.py", failure["detail"])


def test_an_exception_that_cannot_be_looked_at_at_all_is_reported_all_the_same(tmp_path):
    failure = reported(tmp_path, "class Bad(SystemExit):\n  code = property(lambda self: 1 / 0)\nraise Bad")
    assert failure == {
        "kind": "runtime_error",
        "message": "the submission raised an exception that raises another when it is looked at",
        "detail": "",
    }


@pytest.mark.parametrize("where", ["import", "call"])
def test_an_exception_whose_text_raises_ends_no_worker(toy_root, where):
    bad = "class Bad(Exception):\n    def __str__(self):\n        raise KeyError\n"
    call = "raise Bad\n" if where == "import" else "def custom_kernel(data):\n    raise Bad\n"
    run = judge(toy_root, bad + call, timed=False)
    assert run.ending.verdict is Verdict.RUNTIME_ERROR
    assert run.ending.message.startswith("Bad: its own __str__ raises KeyError (line")


def test_a_thread_s_exception_that_is_raised_again_has_its_line(toy_root):
    source = """
        from concurrent.futures import ThreadPoolExecutor
        def work():
            raise RuntimeError
        def custom_kernel(data):
            with ThreadPoolExecutor() as pool:
                return pool.submit(work).result()
    """
    run = judge(toy_root, source, timed=False)
    assert run.ending.message == "RuntimeError without a message (line 4)"


@pytest.mark.parametrize("where", ["import", "call"])
def test_who_lowers_the_limit_on_open_files_is_told_that_it_is_that(toy_root, where):
    lower = "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))"
    source = "import resource\n"
    source += f"{lower}\ndef custom_kernel(data):\n    " if where == "import" else "def custom_kernel(data):\n    "
    source += "return data[0] * 2\n" if where == "import" else f"{lower}\n    return data[0] * 2\n"
    run = judge(toy_root, source, timed=False)
    assert run.ending.verdict is Verdict.RUNTIME_ERROR, run.ending
    assert "the submission has lowered RLIMIT_NOFILE, or has as many files open as it may" in run.ending.message


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from utils import make_match_reference", "copy what it uses of utils into it"),
        ("import utils.more", "copy what it uses of utils into it"),
        ("from reference import ref_kernel", "the reference is the judge's"),
        ("from eval import main", "leave eval out"),
        ("from task import Config", "task has input_t, output_t, TestSpec here"),
    ],
)
def test_an_import_of_the_contest_s_that_is_not_here_is_told_what_to_write_instead(toy_root, line, said):
    run = judge(toy_root, f"import torch\n{line}\ndef custom_kernel(data):\n    return data[0] * 2\n", timed=False)
    assert run.ending.verdict is Verdict.RUNTIME_ERROR
    assert re.match(r"(ModuleNotFound|Import)Error: .*\(line 2\): ", run.ending.message) and said in run.ending.message


def test_a_custom_kernel_that_cannot_be_called_is_told_how_it_is_called(toy_root):
    run = judge(toy_root, "def custom_kernel(data, more):\n    return data[0] * 2\n", timed=False)
    assert run.ending.message.startswith("TypeError: custom_kernel() missing 1 required positional argument: 'more'")
    assert run.ending.message.endswith(": it is called as custom_kernel(data)")


def test_of_a_kernel_that_does_not_compile_one_line_is_named_its_own(toy_root, in_triton):
    run = judge(toy_root, in_triton.replace("tl.arange", "tl.arrange"), timed=False)
    assert run.ending.verdict is Verdict.COMPILE_ERROR
    assert re.search(r"CompilationError: twice, line 5: .*'arrange'.*for sm_90", run.ending.message)
    assert "(line" not in run.ending.message


def test_another_module_that_is_missing_gets_no_such_hint(tmp_path):
    failure = reported(tmp_path, "import not_there")
    assert failure["message"] == "ModuleNotFoundError: No module named 'not_there' (line 1)"
    (tmp_path / "own.py").write_text("")
    failure = reported(tmp_path, f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom own import utils")
    assert "GPU MODE" not in failure["message"] and failure["message"].endswith("(line 3)")


def test_what_a_contest_s_template_imports_of_task_is_there(toy_root):
    source = """
        from task import TestSpec, input_t, output_t
        from typing import List
        def custom_kernel(data: input_t, specs: List[TestSpec] = []) -> output_t:
            return data[0] * 2
    """
    assert judge(toy_root, source, timed=False).ending.verdict is Verdict.ACCEPTED


def test_a_descriptor_that_did_not_come_is_missed():
    came = Descriptors()
    came += [7]
    assert came and came.pop() == 7 and not came
    with pytest.raises(NoDescriptor, match="RLIMIT_NOFILE"):
        came.pop()


def test_a_kernel_that_stores_out_of_bounds_is_named_with_its_line_and_the_index(toy_root):
    source = """
        import triton, triton.language as tl
        @triton.jit
        def double(x, out, BLOCK: tl.constexpr):
            i = tl.arange(0, BLOCK)
            value = tl.load(x + i, i < 32)
            tl.store(out + i, value * 2)
        def custom_kernel(data):
            out = data[0].new_empty(data[0].shape)
            double[(1,)](data[0], out, BLOCK=1024)
            return out
    """
    run = judge(toy_root, source, timed=False)
    assert run.ending.verdict is Verdict.RUNTIME_ERROR
    assert re.match(r"OutOfBounds: kernel double stores to out\[\d+\], which has elements 0 to", run.ending.message)
    assert "(line 7)" in run.ending.message and "submissions/double/subject.py" in run.ending.detail


RAISES_LATER = """
    def custom_kernel(data):
        x = data[0]
        if x.shape[0] == 3:
            [][0]
        return x * 2
"""


@pytest.mark.parametrize(
    ("failure", "verdict"),
    [("[][0]", Verdict.RUNTIME_ERROR), ("import os; os.abort()", Verdict.RUNTIME_ERROR), ("x.no_such", None)],
)
def test_a_call_that_fails_is_named_with_its_case_and_the_command_that_makes_it_again(toy_root, failure, verdict):
    run = judge(toy_root, RAISES_LATER.replace("[][0]", failure), timed=False)
    assert run.ending.verdict is (verdict or Verdict.RUNTIME_ERROR)
    lines = run.ending.detail.splitlines()
    assert lines[0] == "case rows=3 cols=5"
    path = toy_root / "submissions" / "double" / "subject.py"
    assert re.fullmatch(
        rf"reproduce: python3 -m harness replay double {path} 'rows=3 cols=5' --seed \d+ --device cpu", lines[-1]
    )
    assert [(check.case.label, check.verdict) for check in run.checks] == [
        ("rows=4 cols=8", Verdict.ACCEPTED),
        ("rows=3 cols=5", Verdict.RUNTIME_ERROR),
    ]


def test_the_cases_of_a_run_that_failed_are_listed_one_by_one_with_how_far_each_is_off(toy_root):
    source = "def custom_kernel(data):\n    return data[0] * (2 if data[0].shape[0] == 4 else 3)\n"
    wrong, raises = judge(toy_root, source, timed=False), judge(toy_root, RAISES_LATER, timed=False)
    told = [document.text([verdicts.failure(run)]).splitlines() for run in (wrong, raises)]
    assert told[0][1:3] == [
        "  right  close: 0.00 of max_mismatch                  rows=4 cols=8",
        "  wrong  close: max_mismatch is above its limit of 0  rows=3 cols=5",
    ]
    assert told[1][1].split()[0] == "right" and told[1][2].split() == ["runtime", "error", "rows=3", "cols=5"]
    assert told[1][3].endswith("case rows=3 cols=5")
    shown = document.text(parts(raises))  # of a check without figures
    assert "runtime error" in shown and "of close" in shown
    assert case_list(raises.checks[:1], ["rows=4 cols=8", "rows=9 cols=9"]).splitlines()[1].split() == [
        "not",
        "tried",
        "rows=9",
        "cols=9",
    ]


def test_on_a_narrow_terminal_a_report_and_its_list_of_cases_fit_and_the_command_stays_a_line(toy_root, monkeypatch):
    wrong = judge(toy_root, "def custom_kernel(data):\n    return data[0] * 3\n", timed=False)
    wide = document.text([verdicts.failure(wrong)])
    assert any(len(line) > 60 for line in wide.splitlines())  # nobody asked for less: it goes to a file
    monkeypatch.setenv("COLUMNS", "60")
    narrow = document.text([verdicts.failure(wrong)])
    (command,) = [line for line in narrow.splitlines() if len(line) > 60]
    assert command == wrong.ending.detail.splitlines()[-1] and command.startswith("reproduce: ")
    assert narrow.split() == wide.split()
    lines = narrow.splitlines()
    assert lines[1:3] == ["  wrong  close: max_mismatch is above its limit of 0", "      rows=4 cols=8"]
    worst = next(number for number, line in enumerate(lines) if line.startswith("  worst   "))
    assert all(line.startswith(("  worst   ", "          ")) for line in lines[worst : worst + 2])
