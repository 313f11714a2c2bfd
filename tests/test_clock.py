"""The judge's clock: how long a GPU sleeps, and what is made of time that a call took outside its interval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.clock import (
    FIRST_SLEEP_US,
    HIDDEN_NS,
    IDLE_EXCESS_NS,
    MAX_SLEEP_US,
    MIN_SLEEP_US,
    Sleep,
    Turnarounds,
    hidden_ns,
    objection,
)


def slept(*host_us, labels=()):
    sleep = Sleep()
    for us in host_us:
        sleep.learn(int(us * 1e3), labels)
    return sleep.us


def test_before_anything_is_known_the_gpu_sleeps_long_enough_for_most():
    assert Sleep().us == FIRST_SLEEP_US


@pytest.mark.parametrize("host_us, us", [(100, 150), (200, 300), (1, MIN_SLEEP_US), (1e6, MAX_SLEEP_US)])
def test_the_sleep_is_half_as_long_again_as_the_host_within_bounds(host_us, us):
    assert slept(host_us, host_us) == us


def test_one_slow_call_among_several_does_not_stretch_the_sleep():
    assert slept(100, 1e6, 100, 100, 100) == 150


def test_each_call_that_was_not_hidden_doubles_the_sleep_three_times_at_most():
    assert [slept(*[100] * n, labels=["host-bound"]) for n in (1, 2, 3, 4)] == [300, 600, 1200, 1200]


def turnarounds(besides, latency=1e6):
    calls = Turnarounds()
    for ns in besides:
        calls.add(latency + ns, latency)
    return calls


BESIDES = st.lists(st.floats(1e3, 1e8), min_size=1, max_size=30)


@given(BESIDES, st.floats(1, 1e9), st.floats(1, 1e9))
def test_nothing_is_hidden_in_calls_that_take_as_long_beside_their_latency_as_idle_ones(besides, latency, idle_latency):
    assert hidden_ns(turnarounds(besides, latency), turnarounds(besides, idle_latency)) <= 1


@given(BESIDES, st.lists(st.floats(0, 1e9), min_size=1, max_size=30), st.floats(0, 1e8))
def test_work_in_every_call_is_seen_however_slow_some_calls_are(idle, delays, work):
    slowest = max(idle)
    calls = turnarounds([slowest + work + delay for delay in delays])
    assert hidden_ns(calls, turnarounds(idle)) >= work - 1
    assert hidden_ns(turnarounds([slowest, *(slowest + delay for delay in delays)]), turnarounds([slowest])) <= 1


@pytest.mark.parametrize("kind", HIDDEN_NS)
def test_work_outside_the_interval_in_every_process_is_objected_to(kind):
    much = 2 * HIDDEN_NS[kind]
    assert "outside the timed interval" in objection(kind, 1e5, [much] * 5, [0.0] * 5)
    assert objection(kind, 1e5, [much] * 4 + [0.0], [0.0] * 5) is None, "noise in some processes is not work"
    assert objection(kind, 1e5, [-much] * 5, [-much] * 5) is None
    assert objection(kind, 10 * much, [much] * 5, [0.0] * 5) is None, "a small share of a long call"


@pytest.mark.parametrize("kind", IDLE_EXCESS_NS)
def test_work_in_every_call_idle_ones_too_is_objected_to(kind):
    much = 2 * IDLE_EXCESS_NS[kind]
    assert "computes nothing" in objection(kind, 1e5, [0.0] * 5, [much] * 5)
    assert objection(kind, 1e5, [0.0] * 5, [much] * 4 + [0.0]) is None


def test_a_run_without_the_clock_s_findings_is_not_objected_to():
    assert objection("cuda", 1e5, [], []) is None
