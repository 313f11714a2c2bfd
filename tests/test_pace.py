"""Of a case's calls nobody knows which come without a flush, and a submission that waits is not waited for."""

from hypothesis import given
from hypothesis import strategies as st

from harness.judge.pace import LEAST_PATIENCE_S, PATIENCE_S, UNFLUSHED_LEAST, Pace, flushes, waits_for_device


def test_the_judge_waits_for_whoever_has_been_ready_once_and_not_for_whoever_never_was():
    assert Pace(1, waits_for_device([False, True, False])).patience_s == PATIENCE_S
    assert Pace(1, waits_for_device([False] * 5)).patience_s == LEAST_PATIENCE_S < PATIENCE_S


@given(st.integers(1, 400))
def test_some_calls_of_a_sitting_come_without_a_flush_and_the_samples_asked_for_with_one(count):
    plan = flushes(count)
    assert plan.count(True) == count and plan.count(False) == max(UNFLUSHED_LEAST, count // 8)


def test_nobody_knows_which_calls_come_without_a_flush():
    assert len({tuple(flushes(20)) for _ in range(20)}) > 10
