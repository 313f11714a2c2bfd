"""Before a case is interpreted that takes long it is said so, and it is interpreted no more often than it must be."""

import shutil
from pathlib import Path

import pytest
from test_cli import submit

from harness import catalog
from harness.catalog.choice import choose
from harness.catalog.config import load_config
from harness.judge import entrant
from harness.judge.evaluate import evaluate
from harness.machine.device import detect
from harness.verbs.forewarning import of_interpreting

ROOT = Path(__file__).resolve().parents[1]

SMALL = "batch_size=2 seq_len=100 num_q_heads=2 num_kv_heads=1 head_dim=64 causal=False"

TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)

def custom_kernel(data):
    x = data[0]
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    print("called")
    return y
"""


@pytest.mark.parametrize("verb", ["check", "eval"])
def test_a_file_of_another_problem_is_named_before_it_is_judged_as_one_of_this(podium, toy_root, verb):
    shutil.copytree(toy_root / "problems" / "double", toy_root / "problems" / "triple")
    wrong = toy_root / "submissions" / "triple" / "wrong.py"
    wrong.parent.mkdir()
    wrong.write_text("def custom_kernel(data):\n    return 3 * data[0]\n")
    said = f"{wrong} lies among the submissions of triple, and is judged as one of double"
    code, _, err = podium(verb, "double", str(wrong))
    assert code == 10 and said in err.splitlines()


def test_a_file_in_its_place_or_in_no_problem_s_is_not_warned_of():
    problem = catalog.load_problem(ROOT, "mla")
    for path, warned in [
        ("submissions/mla/torch_bf16.py", False),
        ("submissions/fmha/torch_bf16.py", True),
        ("mine/fmha/torch_bf16.py", False),
        ("submissions/notes/torch_bf16.py", False),
        ("torch_bf16.py", False),
    ]:
        submission = catalog.load_submission(problem, ROOT / "submissions/mla/torch_bf16.py")
        found = catalog.of_another_problem(ROOT, problem, submission.model_copy(update={"path": path}))
        assert (found is not None) == warned, path


@pytest.mark.parametrize(
    ("problem", "name", "case", "told"),
    [
        ("prefill", "triton_flash", "3", "52 times the work of the largest test case"),
        ("kv_replicate", "triton_fused", "1", "218 times the work of the largest test case"),
        (
            "prefill",
            "triton_flash",
            "batch_size=2 seq_len=100 num_q_heads=2 num_kv_heads=1 head_dim=64 causal=False",
            None,
        ),
        ("prefill", "torch_sdpa", "3", None),
    ],
)
def test_a_triton_file_is_forewarned_of_a_case_much_larger_than_those_for_a_cpu(problem, name, case, told):
    whole = catalog.load_problem(ROOT, problem)
    submission = catalog.load_submission(whole, ROOT / "submissions" / problem / f"{name}.py")
    chosen, line = of_interpreting(ROOT, whole, choose(whole, "cpu", [case], []), submission)
    assert (line is None) == (told is None) and (told or "") in (line or "")
    if line:
        smaller = line.partition("--case '")[2].rstrip("'")
        assert smaller in {each.label for each in whole.cpu.test}
        times = int(told.split()[0])
        may_s = min(times * whole.limits.call_s, 10_000)
        assert abs(chosen.limits.call_s - may_s) < whole.limits.call_s and f"{chosen.limits.call_s:g} s" in line
        assert chosen.limits.evaluation_s >= whole.limits.evaluation_s * (times - 1)
        assert chosen.limits.load_s == whole.limits.load_s
    else:
        assert chosen.limits == whole.limits


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("verb", ["check", "eval"])
def test_it_is_told_before_anything_is_judged(podium, toy_root, verb):
    path = submit(toy_root, "mine", TRITON)
    more = ["--target", "sm_90"] if verb == "check" else []
    code, _, told = podium(verb, "double", str(path), "--case", "1", *more)
    lines = told.splitlines()
    assert code == 0 and lines[0].startswith("Triton kernels are interpreted here"), told
    assert "rows=64 cols=64 is 128 times" in lines[0] and "--case 'rows=4 cols=8'" in lines[0]


def slow_beside_its_limit(root):
    """The path of a right kernel that takes two seconds on the benchmark case, where a call has one."""
    problem = root / "problems" / "double" / "problem.yml"
    problem.write_text(problem.read_text().replace("call_s: 300", "call_s: 1"))
    slow = TRITON.replace("x = data[0]\n", "x = data[0]\n    __import__('time').sleep(x.numel() // 2000)\n")
    return submit(root, "mine", slow)


@pytest.mark.slow(ci=True)
def test_a_right_kernel_may_take_as_much_longer_as_its_case_has_more_work(podium, toy_root):
    """On a case of 128 times the work of the largest test case, with a second for a call: it takes two."""
    path = slow_beside_its_limit(toy_root)
    code, out, _ = podium("check", "double", str(path), "--case", "1", "--target", "sm_90")
    assert code == 0 and "right" in out, out


def test_a_case_beyond_all_patience_may_take_what_a_call_may_take_at_most(toy_root):
    whole = catalog.load_problem(toy_root, "double")
    limits = whole.limits.model_copy(update={"call_s": 9000.0, "evaluation_s": 9000.0, "test_s": 7.0})
    whole = whole.model_copy(update={"limits": limits})
    submission = catalog.load_submission(whole, submit(toy_root, "mine", TRITON))
    chosen, line = of_interpreting(toy_root, whole, choose(whole, "cpu", ["1"], []), submission)
    assert (chosen.limits.call_s, chosen.limits.test_s) == (10_000, 7 * 128) and "10000 s" in line


def test_a_benchmark_case_is_interpreted_once(toy_root):
    problem = catalog.load_problem(toy_root, "double")
    submission = catalog.load_submission(problem, submit(toy_root, "mine", TRITON))
    chosen = choose(problem, "cpu", ["1"], [])
    run = evaluate(chosen, submission, detect(toy_root, "cpu"), load_config(toy_root), chosen=True)
    assert run.ending.message.endswith("through Triton's interpreter") and run.output.count("called") == 1


def test_after_a_long_call_it_is_said_how_long_the_next_takes(toy_root, monkeypatch):
    monkeypatch.setattr(entrant, "LONG_S", 0.0)
    problem = catalog.load_problem(toy_root, "double")
    source = "def custom_kernel(data):\n    return data[0] * 2\n"
    submission = catalog.load_submission(problem, submit(toy_root, "mine", source))
    lines = []
    evaluate(problem, submission, detect(toy_root, "cpu"), load_config(toy_root), timed=False, narrate=lines.append)
    assert lines.count("1 more of this case, with other values: about 1 s") == 2


@pytest.mark.slow(ci=True)
def test_what_check_gave_a_case_of_time_its_replay_has_as_well(podium, toy_root):
    path = slow_beside_its_limit(toy_root)
    code, out, told = podium("replay", "double", str(path), "rows=64 cols=64", "--seed", "1", "--device", "cpu")
    assert code == 0 and "is right" in out, out
    assert told.startswith("Triton kernels are interpreted here"), told
