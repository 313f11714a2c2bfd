"""`check`: what a competitor without the target GPU is told, on a problem of one operation, with the real compilers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import main
from harness.compile import tools
from harness.compile.compilation import Compilation, CompiledKernel
from harness.compile.kept import Kept
from harness.compile.processes import Finished, Job, Processes
from harness.compile.survey import Tools
from harness.hip import compilers as hip
from harness.render.kernels import table
from harness.sandbox import enclosure
from harness.temporary import remove_abandoned
from tests.processes import alive, below

CHECKOUT = Path(__file__).resolve().parents[1]

TORCH = "def custom_kernel(data):\n    return data[0] * 2\n"

TRITON = """\
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(y_ptr + at, x * FACTOR, mask=at < count)


FACTOR: tl.constexpr = tl.constexpr(2.0)


def custom_kernel(data):
    x = data[0]
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
    return y
"""

IMPORTS = "import triton\nimport triton.language as tl"

HIP = '''\
import torch
from harness.hip import Module, int32, ptr

module = Module(r"""
extern "C" __global__ __launch_bounds__(64) void double_all(const float* x, float* y, int n) {
    extern __shared__ float staged[];
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
""")
double_all = module.kernel("double_all", [ptr(torch.float32), ptr(torch.float32), int32])


def custom_kernel(data):
    x = data[0]
    y = torch.empty_like(x)
    double_all(x, y, x.numel(), grid=-(-x.numel() // 64), block=64, shared_bytes=SHARED)
    return y


SHARED = 0
'''


@pytest.fixture
def podium(toy_root, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(toy_root / "cache"))
    monkeypatch.setenv("COLUMNS", "100")

    def run(source: str, *words: str) -> tuple[int, str, str]:
        path = toy_root / "mine.py"
        path.write_text(source)
        code = main(["--root", str(toy_root), "check", "double", str(path), *words])
        streams = capsys.readouterr()
        assert "Traceback" not in streams.err
        return code, streams.out, streams.err

    return run


def last_line(out: str) -> str:
    return out.rstrip().splitlines()[-1]


def line_of(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), start=1) if text in line)


# What is judged


def test_a_right_answer_without_a_kernel_of_its_own_is_accepted_and_nothing_is_compiled(podium):
    code, out, _ = podium(TORCH)
    assert code == 0
    assert (
        last_line(out) == "accepted on CPU (all 2 test cases, within close); nothing to compile: no kernel of its own"
    )
    assert "rows=3 cols=5" in out and "rows=4 cols=8" in out


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize(
    ("words", "cases"),
    [
        (["--case", "1"], ["rows=64 cols=64"]),
        (["--case", "rows=3 cols=5"], ["rows=3 cols=5"]),
        (["-k", "4"], ["rows=4 cols=8"]),
    ],
)
def test_cases_that_are_asked_for_are_judged_alone(podium, words, cases):
    for found, cached in ((cases, False), (cases, True)):
        code, out, _ = podium(TORCH, *words, "--json")
        judgement = json.loads(out)["judgement"]
        assert code == 0 and (judgement["cases"], judgement["cached"]) == (found, cached)


@pytest.mark.slow(ci=True)
def test_cases_that_were_judged_alone_are_not_taken_for_all(podium):
    alone = json.loads(podium(TORCH, "-k", "cols=5", "--json")[1])["judgement"]
    assert alone["cases"] == ["rows=3 cols=5"]
    everything = json.loads(podium(TORCH, "--json")[1])["judgement"]
    assert not everything["cached"] and everything["cases"] == ["rows=3 cols=5", "rows=4 cols=8"]


def test_one_case_is_counted_in_the_singular(podium):
    out = podium(TORCH, "--case", "rows=3 cols=5")[1]
    assert "right on the one test case" in out and "accepted on CPU (the one test case, within close)" in out


def test_of_cases_that_are_wrong_together_it_shows_the_figures_and_what_moves_them(podium, toy_root):
    problem = toy_root / "problems" / "double" / "problem.yml"
    close = "close: {rtol: 1.0e-5, atol: 1.0e-6, max_mismatch: 0, rel_l2: 1.0e-5}"
    text = problem.read_text()
    assert close in text
    problem.write_text(text.replace(close, "close: {rel_l2: 0.1, row_gain: [0.99, 1.01]}"))
    (problem.parent / "mistakes.py").write_text("SIDES = {'row_gain': ('forgotten rows', 'rows counted twice')}\n")
    wrong = TORCH.replace("* 2", "* 2.06")
    code, out, _ = podium(wrong)
    assert code == 10 and re.search(r"row_gain +1\.030 .* rows counted twice\n", out)
    assert "all test cases" in out and "row gain" in out and "1.0300" in out
    assert json.loads(podium(wrong, "--json")[1])["judgement"]["totals"][0]["row_gain"] == pytest.approx(1.03)
    assert "row gain" not in podium(TORCH)[1]


def test_the_last_line_of_a_wrong_answer_says_what_is_wrong_before_how_often_and_names_no_case(podium):
    last = last_line(podium(TORCH.replace("* 2", "* 3"))[1])
    assert last.startswith("wrong answer on CPU: y: ") and "(2 of 2 test cases are wrong); " in last
    assert "rows=" not in last


def test_a_report_that_no_table_pushes_up_says_once_how_to_judge_the_case_again(podium):
    assert podium(TORCH.replace("* 2", "* 3"))[1].count(" replay double ") == 1


def test_at_the_first_wrong_case_it_stops_if_asked_to(podium):
    wrong = TORCH.replace("* 2", "* 3")
    for words, tried in ((["-x"], 1), ([], 2)):
        code, out, _ = podium(wrong, *words)
        assert code == 10 and out.count("  wrong ") == tried and out.count("  not tried  ") == 2 - tried


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--case", "2"], "double has no benchmark case 2"),
        (["--case", "9" * 5000], "double has no case"),
        (["--case", "rows=3 cols=6"], "double has no case 'rows=3 cols=6'"),
        (["-k", "depth"], "no case of double has 'depth'"),
    ],
)
def test_a_case_that_there_is_not_is_refused(podium, words, said):
    code, out, err = podium(TORCH, *words)
    assert (code, out) == (2, "") and said in err


@pytest.mark.slow
def test_kernels_are_compiled_as_the_cases_that_are_asked_for_launch_them(podium):
    code, out, _ = podium(TRITON, "--target", "gfx942", "--case", "rows=3 cols=5", "--json")
    ((kernel,),) = [target["kernels"] for target in json.loads(out)["targets"]]
    assert code == 0 and kernel["cases"] == ["rows=3 cols=5"]


@pytest.mark.slow
def test_a_wrong_answer_is_shown_with_its_report_and_compiled_all_the_same(podium):
    code, out, _ = podium(TRITON.replace("(2.0)", "(3.0)"), "--target", "gfx942")
    assert code == 10
    assert "rel_l2" in out and out.index("rel_l2") < out.index("double_kernel")
    assert last_line(out).startswith("wrong answer on CPU") and last_line(out).endswith("compiles for gfx942")
    next_step = out.rstrip().splitlines()[-3]
    assert next_step.startswith("To judge that case again, alone and with the same inputs: "), "the table is above"
    assert " replay double " in next_step and "reproduce: " not in out
    assert out.count(" replay double ") == 1


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("def custom_kernel(data)\n", 11, "SyntaxError"),
        ("def kernel(data):\n    return data[0] * 2\n", 11, "no custom_kernel"),
        ("def custom_kernel(data):\n    raise RuntimeError('my own')\n", 12, "my own"),
    ],
)
def test_other_failures_have_the_exit_codes_of_eval(podium, source, code, words):
    got, out, _ = podium(source)
    assert (got, words in out) == (code, True), out


@pytest.mark.slow(ci=True)
def test_a_call_over_the_time_limit_has_the_exit_code_of_eval(podium, limited):
    limited(call_s=1)
    code, out, _ = podium("import time\ndef custom_kernel(data):\n    time.sleep(600)\n")
    assert code == 13 and "limit of 1 s; it was in custom_kernel (line 3)" in out


@pytest.mark.slow
def test_of_a_file_that_hangs_the_verdict_is_told_at_once_and_the_compilers_are_given_up(podium, limited, monkeypatch):
    monkeypatch.setattr("harness.verbs.check.PATIENCE_S", 3.0)
    limited(call_s=2)
    code, out, err = podium("import triton\ndef custom_kernel(data):\n    while True:\n        pass\n")
    assert code == 13
    assert "timeout on CPU: a call with rows=3 cols=5 took longer than the limit of 2 s; it was in custom_kernel" in err
    assert "given up: the submission hangs in its test cases" in last_line(out) and "not tried  " in out


@pytest.mark.parametrize(
    ("switch", "said"),
    [
        ("torch.backends.cuda.matmul.allow_tf32 = True", "; not emulated: TF32 in torch's float32 products"),
        ("torch.set_float32_matmul_precision('high')", "; not emulated: TF32 in torch's float32 products"),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "; not emulated: TF32 in torch's float32 products"),
        (
            "torch.backends.cuda.matmul.allow_fp16_accumulation = True",
            "; not emulated: float16 accumulation in torch's products",
        ),
        ("torch.set_float32_matmul_precision('highest')", ""),
    ],
)
@pytest.mark.parametrize("reset", ["", "; torch.backends.cuda.matmul.fp32_precision = 'ieee'"])
def test_what_torch_computes_less_exactly_on_a_gpu_is_named_also_if_it_is_reset(podium, switch, said, reset):
    if "fp16" in switch and reset:
        reset = "; torch.backends.cuda.matmul.allow_fp16_accumulation = False"
    code, out, _ = podium("import torch\n" + TORCH.replace("    return", f"    {switch}{reset}\n    return"))
    assert code == 0
    assert last_line(out).startswith(f"accepted on CPU (all 2 test cases, within close{said});")


def test_a_traceback_names_the_submission_by_its_own_path(podium, toy_root):
    _, out, _ = podium("def custom_kernel(data):\n    raise RuntimeError('my own')\n")
    assert f'File "{toy_root / "mine.py"}", line 2' in out


def test_all_test_cases_are_judged_those_that_move_the_fewest_bytes_first(toy_root, podium):
    yml = toy_root / "problems" / "double" / "problem.yml"
    yml.write_text(yml.read_text().replace("cpu:\n  test:\n", "cpu:\n  test:\n    - {rows: 90, cols: 9}\n"))
    code, out, _ = podium(TORCH, "--json")
    assert code == 0
    assert json.loads(out)["judgement"]["cases"] == ["rows=3 cols=5", "rows=4 cols=8", "rows=90 cols=9"]


@pytest.mark.parametrize(
    ("source", "code"), [("import triton\ndef custom_kernel(data)\n", 11), ("import not_there\n", 12)]
)
def test_of_a_file_that_is_not_loaded_it_is_not_said_that_it_holds_no_kernels(podium, source, code):
    got, out, _ = podium(source)
    assert got == code and "nothing to compile" not in out


# Triton


@pytest.mark.slow
def test_a_triton_kernel_is_judged_and_compiled_for_every_target(podium):
    code, out, err = podium(TRITON)
    assert code == 0, out
    assert last_line(out) == (
        "accepted on CPU (all 2 test cases through Triton's interpreter, within close); "
        "compiles for gfx942, gfx950, gfx1100, sm_90"
    )
    table = [line for line in out.splitlines() if "double_kernel" in line]
    assert [next(t for t in ("gfx942", "gfx950", "gfx1100", "sm_90") if t in line) for line in table]
    commands = [line for line in out.splitlines() if "--target" in line]  # to be copied, so they are not wrapped
    assert len(commands) == 1
    assert max(len(line) for line in out.splitlines()[:-1] if line not in commands) <= 100
    assert "compiling for gfx942, gfx950, gfx1100, sm_90" in err and "compiling for" not in out


@pytest.mark.slow
def test_it_is_said_that_an_autotuner_s_first_configuration_alone_was_judged(podium):
    """Here the second is wrong: it writes zeros."""
    tuned = "@triton.autotune([triton.Config({'TIMES': 1}), triton.Config({'TIMES': 0})], key=['count'])\n@triton.jit"
    text = TRITON.replace("@triton.jit", tuned).replace("BLOCK: tl", "TIMES: tl.constexpr, BLOCK: tl")
    code, out, _ = podium(text.replace("x * FACTOR", "x * FACTOR * TIMES"), "--target", "sm_90")
    assert code == 0 and last_line(out).endswith("within close); compiles for sm_90"), out
    line = "Of an autotuner's configurations the first was judged here, the others were only compiled: double_kernel"
    assert line in out.splitlines()
    _, out, _ = podium(TRITON, "--target", "sm_90")
    assert "autotuner" not in out


@pytest.mark.slow
def test_it_is_said_in_how_many_cases_a_kernel_was_interpreted(podium):
    code, out, _ = podium(TRITON.replace("    y = ", "    if x.shape[0] == 3:\n        return x * 2\n    y = "))
    assert code == 0, out
    assert last_line(out).startswith(
        "accepted on CPU (all 2 test cases, 1 of them through Triton's interpreter, within close); compiles for gfx942"
    )


OTHER = TRITON[TRITON.index("@triton.jit") : TRITON.index("FACTOR:")].replace("double_kernel", "other_kernel")


@pytest.mark.slow(ci=True)
def test_a_kernel_that_a_shape_s_second_call_launches_is_compiled(podium):
    source = TRITON.replace("FACTOR:", OTHER + "known = set()\nFACTOR:", 1)
    source = source.replace("    double_kernel[", "    (other_kernel if x.shape in known else double_kernel)[")
    source = source.replace("    return y", "    known.add(x.shape)\n    return y")
    code, out, _ = podium(source, "--target", "sm_90", "--case", "rows=3 cols=5", "--json")
    (target,) = json.loads(out)["targets"]
    assert code == 0 and {kernel["kernel"] for kernel in target["kernels"]} == {"double_kernel", "other_kernel"}


@pytest.mark.slow(ci=True)
def test_a_kernel_that_a_cpu_s_cases_alone_launch_is_named_as_not_compiled(podium):
    source = TRITON.replace("FACTOR:", OTHER + "FACTOR:", 1)
    on_cpu = "    (other_kernel if x.device.type == 'cpu' else double_kernel)["
    code, out, _ = podium(source.replace("    double_kernel[", on_cpu), "--target", "sm_90")
    told = "in no test case here: double_kernel; interpreted, but compiled for no target: other_kernel"
    assert code == 0 and last_line(out).endswith(told)


@pytest.mark.slow(ci=True)
def test_a_switch_that_no_test_case_turns_on_is_named(podium):
    source = TRITON.replace("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr, ON: tl.constexpr = False)")
    source = source.replace("* FACTOR", "* (FACTOR + ON)")
    told = "Compiled, and judged in no test case here: double_kernel with ON=True"
    by_device = source.replace("BLOCK=128)", "BLOCK=128, ON=x.device.type != 'cpu')")
    assert told in podium(by_device, "--target", "sm_90")[1]
    assert "judged in no test case" not in podium(source, "--target", "sm_90")[1]


@pytest.mark.slow(ci=True)
def test_an_autotuner_s_configurations_are_compiled_for_each_case_whatever_its_key(podium):
    """A constexpr that the key lacks makes other kernels of them."""
    tuned = "@triton.autotune([triton.Config({'LARGE': False}), triton.Config({'LARGE': True})], key=[])\n@triton.jit"
    source = TRITON.replace("@triton.jit", tuned).replace("tl.constexpr):", "tl.constexpr, LARGE: tl.constexpr):")
    code, out, _ = podium(source.replace("128", "triton.next_power_of_2(x.shape[0])"), "--target", "sm_90", "--json")
    (target,) = json.loads(out)["targets"]
    found = {(kernel["configuration"]["BLOCK"], kernel["configuration"]["LARGE"]) for kernel in target["kernels"]}
    assert code == 0 and len({block for block, _ in found}) > 1
    assert found == {(block, large) for block, _ in found for large in (False, True)}


@pytest.mark.slow
def test_a_compiled_kernel_that_no_test_case_launches_is_named(podium):
    on_cpu = "    if x.device.type == 'cpu':\n        return x * 2\n    y = "
    code, out, _ = podium(TRITON.replace("    y = ", on_cpu), "--target", "sm_90")
    assert code == 0, out
    assert last_line(out) == (
        "accepted on CPU (all 2 test cases, within close); compiles for sm_90; "
        "compiled, but launched in no test case here: double_kernel"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden",
    [
        lambda text: text.replace("    y = ", "    if x.device.type != 'cpu':\n        return x * 2\n    y = "),
        lambda text: text.replace(
            "import triton\nimport triton.language as tl", "exec('import triton, triton.language as tl')"
        ),
    ],
    ids=["launched on a CPU alone", "imported where nothing sees it"],
)
def test_kernels_that_were_judged_and_not_compiled_are_a_flaw(podium, hidden):
    code, out, _ = podium(hidden(TRITON), "--target", "sm_90")
    assert code == 11, out
    assert last_line(out) == (
        "accepted on CPU (all 2 test cases through Triton's interpreter, within close); not for sm_90: "
        "double_kernel ran in Triton's interpreter, but no launch was found to compile for this chip"
    )


@pytest.mark.slow
def test_triton_imported_by_name_is_compiled(podium):
    by_name = "import importlib\ntriton, tl = map(importlib.import_module, ('triton', 'triton.language'))"
    code, out, _ = podium(TRITON.replace(IMPORTS, by_name), "--target", "sm_90")
    assert code == 0 and last_line(out).endswith("within close); compiles for sm_90")


@pytest.mark.slow
def test_json_is_exactly_one_document_with_what_the_table_shows_and_the_tools(podium):
    code, out, _ = podium(TRITON, "--json", "--target", "gfx950")
    document = json.loads(out)
    assert (code, document["exit_code"], document["judgement"]["verdict"]) == (0, 0, "accepted")
    (target,) = document["targets"]
    kernel, ragged = target["kernels"]
    assert (kernel["arguments"]["x_ptr"].split(",")[0], kernel["cases"]) == (
        "*fp32",
        ["rows=64 cols=64", "rows=4 cols=8"],
    )
    assert (ragged["arguments"]["count"], ragged["cases"]) == ("i32", ["rows=3 cols=5"])
    assert kernel["kernel"] == "double_kernel" and kernel["line"] == line_of(TRITON, "@triton.jit") + 1
    assert kernel["vgprs"] > 0 and kernel["spills"] == kernel["scratch_bytes"] == 0 and kernel["cases"]
    assert document["tools"]["interpreter"] is None and set(document["tools"]["hip_compilers"]) == set(
        hip.DEFAULT_TARGETS
    )


def test_a_place_that_compilers_cannot_write_to_is_told_before_anything_is_judged(podium):
    code, out, err = podium(TRITON, "--target", "gfx942", "--emit", "/proc/nowhere")
    assert (code, out) == (30, "") and "error: /proc/nowhere cannot be written: " in err and "judging" not in err


@pytest.mark.slow
def test_what_the_compilers_made_is_written_where_it_is_asked_for(podium, tmp_path):
    podium(TRITON, "--target", "gfx942", "--emit", str(tmp_path / "made"))
    assert [path for path in (tmp_path / "made").rglob("*.amdgcn") if "double_kernel" in path.read_text()]


LARGE_TILES = """\
@triton.jit
def double_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, 64)
    deep = tl.arange(0, 128)
    total = tl.zeros([64, 64], tl.float32)
    for start in range(0, count, 8192):
        left = start + row[:, None] * 128 + deep[None, :]
        right = start + deep[:, None] * 64 + row[None, :]
        a = tl.load(x_ptr + left, mask=left < count, other=0.0)
        b = tl.load(x_ptr + right, mask=right < count, other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    x = tl.load(x_ptr + at, mask=at < count) + 0 * tl.sum(total)
"""


@pytest.mark.slow
def test_shared_memory_over_the_limit_is_said_with_the_line_and_only_of_the_targets_it_is_over(podium):
    head, tail = TRITON.partition("@triton.jit")[0], TRITON[TRITON.index("    tl.store(") :]
    source = (head + LARGE_TILES + tail).replace("BLOCK=128)", "BLOCK=128, num_stages=3)")
    code, out, _ = podium(source, "--target", "gfx942", "--target", "gfx950")
    assert code == 11
    assert f"mine.py:{line_of(source, 'def double_kernel')}" in out and "LDS" in out and "65,536" in out
    assert "compiles for gfx950; not for gfx942" in last_line(out)


@pytest.mark.slow
def test_a_kernel_that_only_a_test_case_launches_is_compiled_as_well(podium):
    large = LARGE_TILES.replace("double_kernel", "large_kernel")
    body = TRITON[TRITON.index("    tl.store(") :].split("\n\n\n", 1)[0]
    source = TRITON.replace("FACTOR:", large + body + "\n\n\nFACTOR:", 1).replace(
        "    double_kernel[", "    (large_kernel if x.shape[1] == 5 else double_kernel)["
    )
    code, out, _ = podium(source.replace("BLOCK=128)", "BLOCK=128, num_stages=3)"), "--target", "gfx942")
    assert code == 11 and "large_kernel" in last_line(out) and "not for gfx942" in last_line(out)


@pytest.mark.slow
def test_what_triton_s_front_end_refuses_is_a_compile_error_on_a_cpu_too(podium):
    dot = "x + tl.sum(tl.dot(tl.zeros([4, 8], tl.float16), tl.zeros([8, 4], tl.float16)))"
    code, out, _ = podium(TRITON.replace("x * FACTOR", dot), "--target", "gfx942")
    assert code == 11 and last_line(out).startswith("compile error on CPU: CompilationError: double_kernel, line ")
    assert "K >= 16 (for sm_90)" in last_line(out) and last_line(out).endswith("compiles for gfx942")


@pytest.mark.slow(ci=True)
def test_what_compiles_nowhere_is_said_so_in_one_sentence(podium):
    code, out, _ = podium(TRITON.replace("x * FACTOR", "x.to(tl.int65)"), "--target", "gfx942", "--target", "sm_90")
    assert code == 11 and "; nor does it compile for gfx942, sm_90: " in last_line(out)
    flaw = next(number for number, line in enumerate(out.splitlines()) if line.startswith("gfx942, sm_90: "))
    assert out.splitlines()[flaw + 1] == "  in rows=64 cols=64 and 2 more"


@pytest.mark.slow
def test_older_chips_are_compiled_for_on_request(podium):
    code, out, _ = podium(TRITON, "--target", "gfx90a", "--target", "gfx908")
    assert code == 0 and last_line(out).endswith("compiles for gfx90a, gfx908")


@pytest.mark.slow
def test_an_instruction_that_the_target_lacks_is_said_with_the_line(podium):
    source = TRITON.replace("y_ptr + at, x * FACTOR", "y_ptr + at, special(x) * FACTOR").replace(
        "@triton.jit",
        "@triton.jit\ndef special(x):\n    return tl.inline_asm_elementwise(\n"
        '        "v_permlane32_swap_b32 $0, $1", "=v,v", [x], dtype=tl.float32, is_pure=True, pack=1\n    )\n\n\n'
        "@triton.jit",
        1,
    )
    code, out, _ = podium(source, "--target", "gfx942")
    assert code == 11 and "not for gfx942" in last_line(out) and "gfx942: " in out


@pytest.mark.slow
def test_a_launch_that_depends_on_data_cannot_be_followed_and_says_where(podium):
    source = TRITON.replace("    y = torch.empty_like(x)", "    y = torch.empty_like(x)\n    rows = int(x.sum())")
    code, out, _ = podium(source, "--target", "gfx942")
    assert code == 11 and f"mine.py:{line_of(source, 'int(x.sum())')}" in out


@pytest.mark.slow
def test_a_file_that_needs_the_network_when_imported_says_so_with_the_line(podium):
    fetch = "import socket\nsocket.create_connection(('podium.invalid', 80), timeout=1)\n"
    code, out, _ = podium(fetch + TRITON, "--target", "gfx942")
    assert code == 12 and "gaierror" in out and "mine.py:2" in out


@pytest.mark.slow
def test_a_compiler_that_dies_is_said_to_have_crashed(podium):
    source = "import os\nif not os.environ.get('TRITON_INTERPRET'):\n    os.abort()\n" + TRITON
    code, out, _ = podium(source, "--target", "gfx942")
    assert code == 11 and "gfx942: the compiler crashed (by SIGABRT)" in out


@pytest.mark.slow
def test_what_cannot_be_interpreted_says_so_and_is_compiled(podium):
    code, out, _ = podium(by_libdevice("copysign(x, x)"), "--target", "gfx942", "--no-run")
    assert code == 0 and "not judged on a CPU" in last_line(out) and "compiles for gfx942" in last_line(out)


@pytest.mark.slow
def test_what_cannot_be_interpreted_is_run_as_machine_code(podium):
    pytest.importorskip("tinygrad")
    code, out, _ = podium(by_libdevice("copysign(x, x)"), "--target", "gfx942")
    assert code == 0 and "accepted (emulated gfx942)" in last_line(out)
    code, out, _ = podium(by_libdevice("exp(x)"), "--target", "gfx942")
    assert code == 10 and "wrong answer as machine code" in last_line(out)


def by_libdevice(call: str) -> str:
    imported = "import triton.language as tl\nfrom triton.language.extra import libdevice"
    source = TRITON.replace("y_ptr + at, x * FACTOR", f"y_ptr + at, libdevice.{call} * FACTOR")
    return source.replace("import triton.language as tl", imported)


# Inline HIP and CUDA


def needing(target: str) -> str:
    lacking = hip.missing(target)
    if lacking is not None:
        pytest.skip(f"no compiler for {target} here: {lacking}")
    return target


ONLY_HOPPER = "    if torch.version.hip or x.device.type != 'cuda':\n        raise NoDevice('only for Hopper')\n"


@pytest.mark.slow
def test_a_file_that_refuses_other_devices_is_compiled_for_its_own_and_refused_for_the_others(podium):
    refusing = TRITON.replace("    y = torch", ONLY_HOPPER + "    y = torch")
    code, out, _ = podium("from harness.hip import NoDevice\n" + refusing, "--target", "gfx942", "--target", "sm_90")
    assert code == 0 and last_line(out) == "compiled, not run: sm_90; not for gfx942: only for Hopper"
    code, out, _ = podium("from harness.hip import NoDevice\n" + refusing, "--target", "gfx942")
    assert code == 30 and last_line(out).startswith("not for gfx942: only for Hopper")


def lazily(source: str) -> str:
    """HIP with its module made when it is first called, which is once it has seen the device."""
    for eager, lazy in {
        "module = Module(": "def module():\n    return Module(",
        "double_all = module.kernel(": "def double_all(*arguments, **launch):\n    kernel = module().kernel(",
        "int32])": "int32])\n    kernel(*arguments, **launch)",
    }.items():
        source = source.replace(eager, lazy)
    return "from harness.hip import NoDevice\n" + source


@pytest.mark.slow(ci=True)
def test_inline_cuda_that_refuses_other_devices_is_compiled_where_its_own_card_leads_it(podium):
    """To a module that it makes, and shared memory that it asks for, once it has seen the device."""
    refusing = lazily(HIP.replace("    y = torch", ONLY_HOPPER + "    y = torch"))
    code, out, _ = podium(refusing.replace("SHARED = 0", "SHARED = 5000"), "--target", needing("sm_90"))
    assert code == 0 and last_line(out) == "compiled, not run: sm_90"
    assert "double_all" in out and "4.88/227" in out and "only for Hopper" in out
    code, out, _ = podium(refusing, "--target", "gfx942", "--target", "sm_90")
    assert code == 0 and last_line(out) == "compiled, not run: sm_90; not for gfx942: only for Hopper"


@pytest.mark.slow
def test_a_source_that_names_its_targets_is_compiled_for_those_and_no_fault_for_others(podium):
    source = HIP.replace('""")', '"""' + f", targets=({needing('sm_90')!r},))", 1)
    code, out, _ = podium(source, "--target", "gfx942", "--target", "sm_90")
    assert code == 0 and last_line(out) == "compiled, not run: sm_90; not for gfx942: its source is for sm_90"
    code, out, _ = podium(source, "--target", "gfx942")
    assert code == 30 and last_line(out).startswith("not for gfx942: its source is for sm_90")


@pytest.mark.slow
def test_of_a_file_with_triton_and_inline_cuda_that_refuses_other_devices_both_are_compiled(podium):
    launch = "    double_kernel[(1,)](x, y, x.numel(), BLOCK=128)\n    double_all("
    kernels = lazily(HIP.replace("    y = torch", ONLY_HOPPER + "    y = torch").replace("    double_all(", launch))
    source = TRITON.partition("def custom_kernel")[0] + kernels
    code, out, _ = podium(source, "--target", needing("sm_90"))
    assert code == 0 and last_line(out) == "compiled, not run: sm_90"
    assert "double_kernel" in out and "double_all" in out
    code, out, _ = podium(source.replace("2 * x[i]", "2 * unheard_of[i]"), "--target", "sm_90")
    assert code == 11 and f"mine.py:{line_of(source, '2 * x[i]')}: error: " in out


def test_inline_hip_is_compiled_not_run_and_never_called_accepted(podium):
    code, out, _ = podium(HIP, "--target", needing("gfx942"), "--no-run")
    assert code == 0 and "accepted" not in out
    assert last_line(out) == "compiled, not run: gfx942"
    assert "double_all needs a GPU" in out


@pytest.mark.slow
def test_a_chip_that_is_not_emulated_is_said_to_be_none(podium):
    code, out, _ = podium(HIP, "--target", needing("gfx90a"))
    assert code == 0
    assert last_line(out) == "compiled, not run: gfx90a; gfx90a is not emulated; gfx942, gfx950, gfx1100 are"


@pytest.mark.slow(ci=True)
def test_inline_hip_is_run_in_the_emulator_for_a_target_that_is_named(podium):
    pytest.importorskip("tinygrad")
    pytest.importorskip("elftools")
    code, out, _ = podium(HIP, "--target", needing("gfx942"))
    assert code == 0 and last_line(out).startswith("accepted (emulated gfx942) (all 2 test cases")
    wrong = HIP.replace("2 * x[i]", "3 * x[i]")
    assert wrong != HIP
    code, out, _ = podium(wrong, "--target", "gfx942")
    assert code == 10 and last_line(out).startswith("wrong answer ")
    outside = HIP.replace("2 * x[i]", "2 * x[i + 100000000]")
    code, out, _ = podium(outside, "--target", "gfx942")
    assert code == 12 and "out-of-range access: double_all: it reads 4 bytes" in last_line(out)
    assert "argument 1" in last_line(out) and f"line {line_of(outside, '100000000')}" in last_line(out)


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("target", ["gfx942", pytest.param("gfx1100", marks=pytest.mark.slow)])
def test_tritons_machine_code_is_judged_beside_the_interpreter(podium, target):
    pytest.importorskip("tinygrad")
    pytest.importorskip("elftools")
    code, out, _ = podium(TRITON, "--target", target)
    last = last_line(out)
    assert code == 0 and "through Triton's interpreter" in last and f"accepted (emulated {target}) (all " in last


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("target", ["gfx942", "sm_90"])
def test_a_block_that_the_kernel_was_not_compiled_for_is_an_error(podium, target):
    code, out, _ = podium(HIP.replace("block=64", "block=128"), "--target", needing(target), "--no-run")
    said = "double_all is launched with 128 threads a block, and was compiled for up to 64"
    assert code == 11 and f"mine.py:{line_of(HIP, 'double_all(const')}: {said}" in out
    unbounded = HIP.replace("__launch_bounds__(64) ", "").replace("block=64", "block=2048")
    code, out, _ = podium(unbounded, "--target", target, "--no-run")
    assert code == 11 and "2,048 threads a block, and was compiled for up to 1,024" in out


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("target", ["gfx942", "sm_90"])
def test_a_signature_that_gives_a_kernel_less_than_it_takes_is_an_error(podium, target):
    """The driver would read the rest from memory that is no argument."""
    more = HIP.replace("int n) {", "int n, float* z) {")
    assert more != HIP
    code, out, _ = podium(more, "--target", needing(target), "--no-run")
    said = "double_all takes 4 arguments, and its signature has 3"
    assert code == 11 and f"mine.py:{line_of(more, 'double_all(const')}: {said}" in out
    wider = HIP.replace("int n) {", "long long n) {")
    code, out, _ = podium(wider, "--target", target, "--no-run")
    assert code == 11 and "double_all takes 8 bytes as argument 3, and its signature gives 4" in out
    narrower = HIP.replace("int n) {", "short n) {")  # reads the lower half, as it does of an int
    assert podium(narrower, "--target", target, "--no-run")[0] == 0


@pytest.mark.slow(ci=True)
def test_a_grid_that_is_no_multiple_of_the_cluster_is_an_error_and_so_is_a_cluster_of_more_than_16(podium):
    clustered = HIP.replace("__launch_bounds__(64)", "__cluster_dims__(2, 1, 1) __launch_bounds__(64)")
    assert clustered != HIP
    code, out, _ = podium(clustered.replace("grid=", "grid=1 | "), "--target", needing("sm_90"), "--no-run")
    assert code == 11 and "which is no multiple of its cluster of (2, 1, 1)" in out
    assert podium(clustered.replace("grid=", "grid=2 * "), "--target", "sm_90", "--no-run")[0] == 0
    large = clustered.replace("(2, 1, 1)", "(32, 1, 1)").replace("grid=", "grid=32 * ")
    code, out, _ = podium(large, "--target", "sm_90", "--no-run")
    assert code == 11 and "double_all has 32 blocks a cluster; there may be 16" in out


@pytest.mark.slow
def test_the_error_of_the_last_compiler_is_shown_and_not_what_it_informed_of_before(podium):
    full = HIP.replace('extern "C"', '__constant__ int table[20000];\nextern "C"').replace(
        "2 * x[i]", "table[i] * x[i]"
    )
    code, out, _ = podium(full, "--target", needing("sm_90"), "--no-run")
    assert code == 11 and "not for sm_90: " in last_line(out) and "too much global constant data" in last_line(out)


@pytest.mark.slow
def test_a_block_whose_threads_need_more_registers_than_there_are_is_an_error(podium):
    """Without launch bounds NVIDIA's compiler gives a thread up to 255 registers; a block of 1,024 can have 64 each."""
    hungry = HIP.replace("__launch_bounds__(64) ", "").replace(
        "    if (i < n) y[i] = 2 * x[i];",
        "    float kept[150];\n"
        "    for (int j = 0; j < 150; j++) kept[j] = x[(i + j) % n];\n"
        "    __syncthreads();\n"
        "    for (int j = 149; j >= 0; j--) y[(i + 7 * j) % n] = kept[j];",
    )
    code, out, _ = podium(hungry.replace("block=64", "block=1024"), "--target", needing("sm_90"), "--no-run")
    assert code == 11 and "1,024 threads a block, which need more registers than sm_90 has" in out
    assert podium(hungry, "--target", "sm_90", "--no-run")[0] == 0


def test_shared_memory_asked_for_at_the_launch_counts(podium):
    code, out, _ = podium(HIP.replace("SHARED = 0", "SHARED = 70000"), "--target", needing("gfx942"), "--no-run")
    assert code == 11
    assert f"mine.py:{line_of(HIP, 'double_all(const')}: double_all asks for 70,000 bytes of shared memory" in out


def test_an_error_in_the_source_has_the_line_of_the_file(podium):
    source = HIP.replace("2 * x[i]", "2 * unheard_of[i]")
    code, out, _ = podium(source, "--target", needing("gfx1100"))
    assert code == 11
    assert f"mine.py:{line_of(source, 'unheard_of')}: error: use of undeclared identifier 'unheard_of'" in out


def test_a_kernel_that_the_source_does_not_define_is_an_error(podium):
    code, out, _ = podium(HIP.replace('kernel("double_all"', 'kernel("double_some"'), "--target", needing("gfx942"))
    assert code == 11 and 'defines no extern "C" __global__ double_some' in out


def without(monkeypatch, tmp_path_factory, *packages):
    """Workers and compilers that find none of these packages, and no compiler of the system's."""
    place = tmp_path_factory.mktemp("shadow")
    (place / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({packages!r}))\n")
    environment = enclosure._clean_environment

    def poorer(*words):
        made = environment(*words)
        nowhere = dict.fromkeys(("PATH", "ROCM_PATH", "CUDA_HOME"), "/nowhere") if "ziglang" in packages else {}
        return {**made, **nowhere, "PYTHONPATH": f"{place}{os.pathsep}{made['PYTHONPATH']}"}

    monkeypatch.setattr(enclosure, "_clean_environment", poorer)


@pytest.mark.slow(ci=True)
def test_without_any_compiler_the_last_line_names_the_command_that_brings_one(podium, monkeypatch, tmp_path_factory):
    without(monkeypatch, tmp_path_factory, "ziglang")
    code, out, _ = podium(HIP, "--target", "gfx942")
    assert code == 30
    brings = ".venv/bin/python -m pip install 'ziglang>=0.15', or make setup-offline"
    assert last_line(out) == f"not compiled here for gfx942: no compiler: {brings}"


@pytest.mark.slow
def test_without_the_decoder_the_last_line_names_the_command_that_brings_it(podium, monkeypatch, tmp_path_factory):
    without(monkeypatch, tmp_path_factory, "tinygrad")
    code, out, _ = podium(HIP, "--target", needing("gfx942"))
    assert code == 0 and last_line(out).startswith("compiled, not run: gfx942; it needs a GPU: compiled for gfx942")
    assert "the decoder (tinygrad, pyelftools) is not installed; run `make setup-offline`" in last_line(out)
    code, out, _ = podium(TRITON, "--target", "gfx942")
    assert code == 0 and last_line(out).startswith("accepted on CPU (all 2 test cases through Triton's interpreter")
    assert "not run as machine code: the decoder" in last_line(out) and "run `make setup-offline`" in last_line(out)


def load_inline(source):
    return f"""\
from torch.utils.cpp_extension import load_inline
cuda = {source!r}
m = load_inline(name="m", cpp_sources="", cuda_sources=cuda, functions=["f"])
def custom_kernel(data):
    return m.f(data[0])
"""


def test_load_inline_with_headers_says_what_it_takes(podium):
    source = load_inline("#include <torch/extension.h>\n__global__ void f() {}")
    code, out, _ = podium(source, "--target", needing("gfx942"))
    assert code == 30 and "its CUDA sources, for load_inline, need a GPU: not run (line 3)" in out
    assert last_line(out) == (
        "not compiled here for gfx942: load_inline's sources include headers; torch builds them, with hipcc and a ROCm "
        "build of torch"
    )


def test_load_inline_of_device_code_alone_is_compiled_not_run_and_says_why(podium):
    code, out, _ = podium(load_inline("__global__ void f(float* x) { x[0] = 1; }"), "--target", needing("gfx942"))
    assert code == 0
    assert last_line(out) == (
        "compiled, not run: gfx942; its CUDA sources, for load_inline, need a GPU: not run (line 3)"
    )


@pytest.mark.slow(ci=True)
def test_cpp_that_is_neither_judged_nor_compiled_is_no_pass_and_the_last_line_says_what_to_install(podium, monkeypatch):
    environment = enclosure._clean_environment
    monkeypatch.setattr(enclosure, "_clean_environment", lambda *words: {**environment(*words), "CXX": "no-such"})
    source = 'from torch.utils.cpp_extension import load_inline\nm = load_inline("m", "", functions=["f"])\n'
    code, out, _ = podium(f"{source}def custom_kernel(data):\n    return m.f(data[0])\n", "--target", "sm_90")
    said = "its C++, for load_inline, cannot be built: no compiler no-such: apt install g++ python3-dev"
    assert code == 30 and last_line(out) == f"not judged on a CPU: {said}"


# What is kept


@pytest.mark.slow
def test_a_second_look_starts_no_process_and_says_so(podium, monkeypatch):
    first = podium(TRITON, "--target", "gfx942")

    def refuse(self, jobs):
        assert not list(jobs), "a process is started"

    monkeypatch.setattr(Processes, "start", refuse)
    code, out, _ = podium(TRITON, "--target", "gfx942")
    assert (code, out) == (0, first[1].rstrip() + " (cached)\n")


def test_a_changed_source_and_a_wrong_answer_are_looked_at_again(podium):
    podium(TORCH)
    assert "(cached)" in podium(TORCH)[1]
    assert "(cached)" not in podium(TORCH + "# changed\n")[1]
    wrong = TORCH.replace("* 2", "* 3")
    podium(wrong)
    code, out, _ = podium(wrong)
    assert code == 10 and "(cached)" not in out


def test_results_are_not_those_of_the_packages_that_were_here_before(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    before = tools.packages()
    (site / "helper.py").write_text("FACTOR = 2\n")
    installed = tools.packages()
    (site / "helper.py").write_text("FACTOR = 30\n")
    replaced = tools.packages()
    (site / "__pycache__").mkdir()
    assert len({before, installed, replaced}) == 3 and tools.packages() == replaced


@pytest.mark.slow(ci=True)
def test_an_unchanged_file_is_answered_without_torch(podium, toy_root):
    podium(TORCH)
    script = (
        "import sys; from harness.cli import main\n"
        f"code = main(['--root', {str(toy_root)!r}, 'check', 'double', {str(toy_root / 'mine.py')!r}])\n"
        "assert not {'torch', 'triton', 'scipy'} & set(sys.modules), 'imported'\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "(cached)" in done.stdout, done.stderr


def test_a_result_that_is_corrupt_counts_as_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = Kept({"source": "1"})
    document = Tools(triton="3.7.1", interpreter=None, hip_compilers={})
    kept.write("tools", document.model_dump())
    assert kept.read("tools", Tools) == document.model_copy(update={"cached": True})
    assert kept.read("others", Tools) is None and Kept({"source": "2"}).read("tools", Tools) is None
    (path,) = tmp_path.rglob("*.json")
    whole = path.read_bytes()
    for harm in (b"", whole[:-1], b"[]", b"null", b'{"triton": 1}', b"\xff"):
        path.write_bytes(harm)
        assert kept.read("tools", Tools) is None, harm


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = Kept({})
    kept.write("tools", {"triton": None})
    assert kept.read("tools", Tools) is None


# The command


@pytest.mark.parametrize("target", ["gfx94", "gfx906", "sm_80"])
def test_an_unknown_target_is_refused_by_name_and_those_there_are_are_said(podium, target):
    code, out, err = podium(TORCH, "--target", target)
    assert (code, out) == (2, "") and f"there is no target '{target}'" in err
    assert (
        all(known in err for known in ("gfx942", "gfx950", "gfx1100", "sm_90", "gfx90a", "gfx908"))
        and "did you mean" not in err
    )


@pytest.mark.slow
def test_nothing_is_left_behind(podium, toy_root):
    podium(TRITON, "--target", "gfx942")
    assert list((toy_root / "tmp").iterdir()) == []


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_stopped_it_takes_its_processes_along(toy_root, forking, stop):
    waits = "import os, time\nif not os.environ.get('TRITON_INTERPRET'):\n    time.sleep(600)\n"
    (toy_root / "mine.py").write_text(waits + TRITON)
    words = [sys.executable, "-m", "harness", "--root", str(toy_root), "check", "double", str(toy_root / "mine.py")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(toy_root / "cache")}
    process = subprocess.Popen(words, cwd=CHECKOUT, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while len(started := below(process.pid, "podium-worker")) < 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(stop)
    _, err = process.communicate(timeout=300)
    assert started and "Traceback" not in err
    deadline = time.monotonic() + 300
    while any(map(alive, started)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, started))
    if stop == signal.SIGINT:
        assert process.returncode == 130
    remove_abandoned()  # as the next to judge or to check does; Ctrl-C may come between a folder and its `with`
    assert list((toy_root / "tmp").iterdir()) == []


# The processes themselves


@pytest.fixture
def finished(a_program):
    def run(program: str, limit: int = 1, count: int = 1) -> dict[str, Finished]:
        """What came of `count` processes that run a program, `limit` at once."""
        name = a_program(program)
        with Processes(limit=limit) as processes:
            processes.start([Job(f"job{number}", (name, str(number))) for number in range(count)])
            return dict(processes.results())

    return run


@pytest.mark.slow(ci=True)
def test_what_a_process_prints_is_read_and_more_wait_than_there_is_room_for(finished):
    found = finished("import sys\nprint(sys.argv[1])\n", limit=2, count=5)
    assert {name: one.printed for name, one in found.items()} == {f"job{n}": f"{n}\n" for n in range(5)}
    assert all(one.trouble is None for one in found.values())


@pytest.mark.parametrize(
    ("program", "trouble"),
    [
        ("import os; os.abort()", "the compiler crashed (by SIGABRT)"),
        ("raise SystemExit('no such thing')", "the compiler crashed (with status 1): no such thing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "takes too much memory"),
    ],
)
def test_how_a_process_ended_is_said_in_a_sentence(finished, program, trouble):
    assert trouble in finished(program)["job0"].trouble


def test_a_process_that_takes_too_long_is_stopped(finished, monkeypatch):
    monkeypatch.setattr("harness.compile.processes.TIMEOUT_S", 0.5)
    assert "took longer than 0.5 s" in finished("import time; time.sleep(600)")["job0"].trouble


STEPS = """import os, time
for step in range({steps}):
    os.write(2, b'podium is at: step %d\\n' % step)
    {work}
"""


@pytest.mark.slow
def test_a_process_that_waits_for_a_processor_and_gets_on_is_not_stopped(finished, monkeypatch):
    monkeypatch.setattr("harness.compile.processes.TIMEOUT_S", 2.5)
    found = finished(STEPS.format(steps=14, work="time.sleep(0.3)"))["job0"]
    assert found.trouble is None and found.status == 0


@pytest.mark.slow(ci=True)
def test_one_that_gets_on_for_ever_is_stopped_by_its_processor_time(finished, monkeypatch):
    monkeypatch.setattr("harness.compile.processes.TIMEOUT_S", 1.5)
    found = finished(STEPS.format(steps=10**6, work="sum(range(3_000_000))"))["job0"]
    assert "took longer than 1.5 s, of processor time" in found.trouble


@pytest.mark.slow(ci=True)
def test_of_a_submission_that_hangs_what_does_not_get_on_is_given_up_and_no_more_are_begun(a_program):
    words = "import os, sys, time\n"
    tells = "for step in range(8):\n    os.write(2, b'podium is at: step %d\\n' % step)\n    time.sleep(0.5)\n"
    hangs = a_program(words + "os.write(2, b'podium is at: kernel slow\\n')\ntime.sleep(600)\n")
    programs = {"gets_on": a_program(words + tells + "print('done')\n"), "hangs": hangs, "waits": hangs}
    with Processes(limit=2) as processes:
        processes.start([Job(name, (program,)) for name, program in programs.items()])
        found = dict(processes.results(patience_s=2.5))
    assert found["gets_on"].printed == "done\n" and found["gets_on"].trouble is None
    said = "given up: the submission hangs in its test cases"
    assert [found[name].trouble for name in ("hangs", "waits")] == [f"{said}, and here at kernel slow", said]


def test_what_a_process_is_at_is_told_while_it_lasts_and_is_nothing_that_it_said(a_program, monkeypatch):
    monkeypatch.setattr("harness.compile.processes.TELL_S", 0.1)
    mark = "os.write(2, b'podium is at: kernel\\x1b[2Jslow\\n')"
    program = f"import os, time\n{mark}\ntime.sleep(1)\nraise SystemExit('no')\n"
    told = []
    with Processes(limit=1) as processes:
        processes.start([Job("job", (a_program(program),))])
        ((_, one),) = processes.results(lambda: told.append(processes.doing()))
    assert {"job": "kernel [2Jslow"} in told and set().union(*told) == {"job"}
    assert one.said.strip() == "no" and "slow" not in one.trouble


def test_leaving_the_block_kills_all_that_still_runs(a_program):
    name = a_program("import os, time\nos.fork()\ntime.sleep(600)\n")
    with Processes(limit=1) as processes:
        processes.start([Job("job", (name,))])
        deadline = time.monotonic() + 300
        while len(started := below(os.getpid())) < 3 and time.monotonic() < deadline:  # the keeper and two of its own
            time.sleep(0.05)
    assert len(started) >= 3 and not any(map(alive, started))


def test_a_process_sees_no_gpu_and_nothing_of_the_callers_environment(finished, monkeypatch):
    monkeypatch.setenv("A_SECRET", "1")
    program = "import os\nprint(os.environ.get('A_SECRET'), repr(os.environ['CUDA_VISIBLE_DEVICES']))\n"
    assert finished(program)["job0"].printed == "None ''\n"


# The table


def kernel(**changed: object) -> CompiledKernel:
    resources = {"vgprs": 64, "agprs": 0, "sgprs": 20, "spills": 0, "scratch_bytes": 0, "lds_bytes": 1024}
    return CompiledKernel(**{"kernel": "split_kv", "lds_limit": 65536, **resources, **changed})


def table_of(*kernels: CompiledKernel, width: int = 100) -> str:
    return table([Compilation(target="gfx942", kernels=kernels)], width)


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[0] == "│"]


def test_spills_and_scratch_are_marked_and_a_column_of_zeros_is_one_line():
    assert "no spills, no scratch" in table_of(kernel())
    header, row, below = rows_of(table_of(kernel(spills=12, scratch_bytes=64)))
    assert (row[header.index("spills")], below[header.index("spills")]) == ("12 !", "64 B !")
    assert "no spills" not in table_of(kernel(spills=12))


def test_rows_that_say_the_same_are_one_and_only_what_differs_is_named():
    small, large, other = (
        {"BLOCK": block, "STAGES": stages, "D": 576} for block, stages in ((32, 1), (64, 1), (64, 2))
    )
    same = table_of(kernel(configuration=small), kernel(configuration=large))
    assert [row[1] for row in rows_of(same)[1:]] == ["split_kv", "all 2 configurations"]
    apart = table_of(
        kernel(configuration=small), kernel(configuration=large, vgprs=90), kernel(configuration=other, vgprs=90)
    )
    assert [row[1] for row in rows_of(apart)[1:]] == [
        *("split_kv", "BLOCK=32 STAGES=1"),
        *("split_kv", "BLOCK=64 STAGES=1,2"),
    ]


def test_rows_that_differ_by_the_types_of_arguments_say_the_types():
    def launched(vgprs, q, scale, count="i32, 16-aligned"):
        return kernel(vgprs=vgprs, arguments={"q": f"*{q}, 16-aligned", "out": f"*{q}", "scale": scale, "n": count})

    single = table_of(launched(64, "bf16", "fp32"), launched(90, "fp32", "fp32", "1"), launched(90, "fp16", "fp32"))
    assert [row[1] for row in rows_of(single)[1:]] == ["split_kv", "*bf16", "split_kv", "*fp32,*fp16"]
    several = table_of(launched(64, "bf16", "fp32"), launched(90, "bf16", "*fp32"), launched(91, "fp16", "fp32"))
    assert " ".join(row[1] for row in rows_of(several)[1:]).startswith("split_kv q=*bf16 out=*bf16 scale=fp32 split_kv")
    assert "all" not in table_of(launched(64, "bf16", "fp32"), launched(64, "fp16", "fp32"))
    assert [row[1] for row in rows_of(table_of(launched(64, "bf16", "fp32"), launched(64, "fp16", "fp32")))[1:]] == [
        *("split_kv", "*bf16,*fp16")
    ]


def test_types_of_a_tuple_are_those_of_its_members():
    kernels = [
        kernel(vgprs=vgprs, arguments={"t": f"(*{q}, 16-aligned; 1)"}) for vgprs, q in ((64, "bf16"), (90, "fp32"))
    ]
    assert [row[1] for row in rows_of(table_of(*kernels))[1:]] == [
        *("split_kv", "(*bf16; integer)"),
        *("split_kv", "(*fp32; integer)"),
    ]


def test_where_only_the_case_differs_the_case_is_named_whole_so_that_it_can_be_asked_for():
    shown = table_of(kernel(cases=("batch=4 kv=1024",)), kernel(cases=("batch=4 kv=8192", "batch=4 kv=9"), vgprs=90))
    assert [row[1] for row in rows_of(shown)[1:]] == [
        *("split_kv", "in batch=4 kv=1024"),
        *("split_kv", "in batch=4 kv=8192 and 1 more"),
    ]


def test_a_case_that_does_not_fit_its_column_stands_once_below_the_table_by_its_number():
    long = "batch_size=16 num_q_heads=32 num_kv_heads=32 q_seq_len=1 seq_lens=[0,1,63,64,65,100,1999,2111]"
    kernels = [kernel(cases=("kv=1",)), *(kernel(cases=(long, "kv=9"), vgprs=vgprs) for vgprs in (90, 91))]
    shown = table_of(*kernels, width=100)
    assert [row[1] for row in rows_of(shown)[1:]] == [
        *("split_kv", "in kv=1"),
        *("split_kv", "in [1] and 1 more"),
        *("split_kv", "in [1] and 1 more"),
    ]
    assert shown.count(long) == 1 and shown.splitlines()[-1] == f"  [1] {long}"


def test_matrix_instructions_and_occupancy_are_told_in_few_words():
    instructions = {"v_mfma_f32_32x32x8_bf16_1k": 8, "v_mfma_f32_16x16x16_f16": 32}
    waves = {"waves_per_simd": 2, "of": 8, "limited_by": "LDS"}
    text = table_of(kernel(matrix_instructions=instructions, occupancy=waves))
    assert "32 mfma 16x16x16 f16" in text and "8 mfma 32x32x8 bf16" in text and "2/8 LDS" in text
    assert text.index("32 mfma") < text.index("8 mfma")
    hopper = {"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16": 4}
    text = table_of(kernel(vgprs=None, registers=168, matrix_instructions=hopper), width=120)
    assert "4 wgmma m64n128k16" in text and "168" in text


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["split_kv", "a_kernel_with_quite_a_long_name_that_does_not_fit_in_any_column", "m"]),
            st.dictionaries(st.sampled_from(["BLOCK_M", "num_warps", "KV_LORA_RANK"]), st.integers(0, 10**6)),
            st.integers(0, 512),
            st.integers(0, 10**4),
            st.dictionaries(
                st.sampled_from(["v_mfma_scale_f32_32x32x64_f8f6f4", "v_wmma_f32_16x16x16_bf16"]), st.just(128)
            ),
        ),
        max_size=6,
    )
)
def test_a_table_fits_100_columns_whatever_is_in_it(drawn):
    waves = {"waves_per_simd": 12, "of": 16, "limited_by": "VGPRs"}
    kernels = [
        kernel(
            kernel=name,
            configuration=config,
            vgprs=vgprs,
            sgprs=sgprs,
            spills=n,
            scratch_bytes=n,
            matrix_instructions=m,
            occupancy=waves,
        )
        for name, config, vgprs, n, m in drawn
        for sgprs in (48, 58)
    ]
    assert max(map(len, table_of(*kernels).splitlines()), default=0) <= 100
