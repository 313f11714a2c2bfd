"""The limit on a whole evaluation: when it is over, what is said of it, and what does not count."""

import pytest

from harness.errors import ProblemError
from harness.judge.deadline import Deadline
from harness.judge.reply import Fault
from harness.model import Verdict


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_what_is_left_shrinks_to_nothing_and_no_further(clock):
    deadline = Deadline(1800, clock)
    left = []
    for after_s in (0, 59, 1700, 40, 1, 3600):
        clock.now_s += after_s
        left.append(deadline.left_s())
    assert left == [1800, 1741, 41, 1, 0, 0]


def test_calls_that_are_each_short_enough_are_ended_all_the_same(clock):
    deadline, calls = Deadline(1800, clock), 0
    with pytest.raises(Fault) as fault:
        while calls < 1000:
            deadline.check()
            clock.now_s += 59
            calls += 1
    assert calls == 31 and fault.value.ending.verdict is Verdict.TIMEOUT
    assert fault.value.ending.message == "the evaluation took longer than the limit of 1800 s on all of it together"


def test_waiting_for_the_device_does_not_count_even_when_it_ends_badly(clock):
    deadline = Deadline(10, clock)
    with deadline.stopped():
        clock.now_s += 3600
    with pytest.raises(KeyboardInterrupt), deadline.stopped():
        clock.now_s += 3600
        raise KeyboardInterrupt
    clock.now_s += 4
    deadline.check()
    assert deadline.left_s() == 6


def test_the_real_clock_runs():
    assert 0 < Deadline(1000).left_s() <= 1000
    with pytest.raises(Fault, match=r"limit of 1e-09 s"):
        Deadline(1e-9).check()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("{load_s: 20, call_s: 3, evaluation_s: 0}", "limits.evaluation_s"),
        ("{load_s: 20, call_s: 3, evaluation_s: .inf}", "limits.evaluation_s"),
        ("{load_s: 20, call_s: 3, evaluation_s: 19}", r"evaluation_s \(19\) is below load_s \(20\)"),
        ("{load_s: 20, call_s: 30, evaluation_s: 29}", r"evaluation_s \(29\) is below call_s \(30\)"),
        ("{load_s: 20, call_s: 10001, evaluation_s: 20000}", "limits.call_s"),
    ],
)
def test_a_limit_on_the_whole_that_is_none_or_below_its_parts_is_refused(toy_root, limits, words):
    from harness import catalog

    path = toy_root / "problems" / "double" / "problem.yml"
    path.write_text(path.read_text().replace("{load_s: 600, call_s: 300}", limits))
    with pytest.raises(ProblemError, match=words):
        catalog.load_problem(toy_root, "double")


def test_an_evaluation_says_at_its_start_how_long_it_may_take(toy_root, limited, capsys):
    from harness.cli import main

    (toy_root / "submissions" / "double" / "one.py").write_text("def custom_kernel(data):\n    return data[0] * 2\n")
    limited(load_s=500, call_s=70, evaluation_s=1700)
    assert main(["--root", str(toy_root), "eval", "double", "--quick", "--device", "cpu"]) == 0
    told = capsys.readouterr().err
    sentence = "an evaluation may take 1700 s, of which loading 500 s and each call 70 s"
    assert sentence in told and told.index(sentence) < told.index("one: loading")
