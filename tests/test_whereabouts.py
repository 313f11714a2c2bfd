"""Whoever takes too long is told where: the submission's own frames, out of Python, C or an import."""

from pathlib import Path

import pytest
from test_judging import judge

from harness.judge.whereabouts import LONGEST_NAME, SHOWN, Whereabouts, frames, is_kernel
from harness.model import Verdict

STACK = """Current thread 0x00007f1 (most recent call first):
  File "/lib/threading.py", line 320 in wait
  File "/scratch/submission.py", line 5 in wait_for
  File "/scratch/submission.py", line 11 in custom_kernel
  File "/podium/harness/worker/calls.py", line 75 in stopped
"""

HANGS = {
    "python": (
        "def spin():\n    while True:\n        pass\n\ndef custom_kernel(data):\n    spin()\n",
        "spin",
        (2, 3),
        6,
    ),
    "a system call": (
        "import time\n\ndef spin():\n    time.sleep(600)\n\ndef custom_kernel(data):\n    spin()\n",
        "spin",
        (4,),
        7,
    ),
}


def test_of_a_stack_the_files_own_frames_are_told_the_innermost_last():
    assert frames(STACK, Path("/scratch/submission.py")) == [(11, "custom_kernel"), (5, "wait_for")]
    assert frames(STACK, Path("/scratch/other.py")) == frames("nonsense", Path("/scratch/submission.py")) == []
    deep = '  File "/s.py", line 1 in inner\n' + '  File "/s.py", line 7 in f\n' * 900
    assert frames(deep, Path("/s.py"))[-1] == (1, "inner") and len(frames(deep, Path("/s.py"))) == SHOWN


def test_lines_and_names_that_no_file_has_are_cut_or_passed_over():
    path = Path("/scratch/submission.py")
    assert frames(f'  File "{path}", line {"9" * 5000} in f\n', path) == []
    assert frames(f'  File "{path}", line ١٢ in f\n', path) == []  # int() takes such digits, too
    assert frames(f'  File "{path}", line 12 in {"f" * 60_000}\n', path) == [(12, "f" * LONGEST_NAME)]


def test_what_triton_compiles_is_told_from_what_calls_it(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "@triton.autotune(configs, key=['n'])\n@triton.jit\ndef tuned(x):\n    pass\n\n"
        "@jit(noinline=True)\n@other\ndef helper(x):\n    pass\n\n"
        "def custom_kernel(data):\n    tuned[(1,)](data)\n"
    )
    assert [is_kernel(name, path) for name in ("tuned", "helper", "custom_kernel", "tune")] == [
        True,
        True,
        False,
        False,
    ]
    assert not is_kernel("tuned", tmp_path / "gone.py")


@pytest.mark.slow
def test_a_time_out_in_an_interpreted_kernel_says_so_and_sends_nobody_below_the_smallest_case(
    toy_root, limited, in_triton
):
    limited(call_s=2)
    advice = {
        "n > 20": "try a smaller case, or look for a loop that does not end",
        "n < 20": "look for a loop that does not end, for this is the smallest case",
    }
    for condition, said in advice.items():
        endless = in_triton.replace("    i = tl", f"    while {condition}:\n        pass\n    i = tl", 1)
        run = judge(toy_root, endless, timed=False)
        assert run.ending.verdict is Verdict.TIMEOUT
        assert run.ending.message.endswith(f"slowly here: {said}")


def test_who_is_gone_or_says_nothing_is_nowhere():
    where = Whereabouts()
    where.hand_over()
    assert where.ask(2**22 + 1, Path("/s.py")) == []
    where.close()


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("kind", HANGS)
def test_a_call_over_the_limit_is_told_with_the_line_where_it_was(toy_root, limited, kind):
    source, name, lines, outer = HANGS[kind]
    limited(call_s=1)
    run = judge(toy_root, source, timed=False)
    assert run.ending.verdict is Verdict.TIMEOUT
    message = "a call with rows=4 cols=8 took longer than the limit of 1 s; it was in {} (line {})"
    assert run.ending.message in [message.format(name, line) for line in lines]
    path = toy_root / "submissions" / "double" / "subject.py"
    assert f'  File "{path}", line {outer}, in custom_kernel\n    spin()\n' in run.ending.detail
    assert "reproduce: " in run.ending.detail and "most recent call first" not in run.output


@pytest.mark.slow
def test_an_import_over_the_limit_is_told_with_its_line(toy_root, limited):
    limited(load_s=10)
    run = judge(toy_root, "import time\ntime.sleep(600)\n", timed=False)
    assert run.ending.verdict is Verdict.TIMEOUT
    assert run.ending.message == "loading took longer than the limit of 10 s; it was in <module> (line 2)"


@pytest.mark.slow
def test_one_that_will_not_say_where_it_is_gets_its_verdict_all_the_same(toy_root, limited):
    limited(call_s=1)
    deaf = "import signal, time\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
    deaf += "def custom_kernel(data):\n    time.sleep(600)\n"
    run = judge(toy_root, deaf, timed=False)
    assert run.ending.verdict is Verdict.TIMEOUT and run.ending.message.endswith("took longer than the limit of 1 s")
