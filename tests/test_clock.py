"""The judge's clock: how long a GPU sleeps, and what is made of time that a call took outside its interval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.clock import (
    HIDDEN_NS,
    IDLE_EXCESS_NS,
    LEAST_PATIENCE_S,
    PATIENCE_S,
    UNFLUSHED_LEAST,
    Sitting,
    Turnarounds,
    excess_ns,
    flushes,
    objection,
    patience_s,
)


def test_the_judge_waits_for_whoever_has_been_ready_once_and_not_for_whoever_never_was():
    assert patience_s([False, True, False]) == PATIENCE_S
    assert patience_s([False] * 5) == LEAST_PATIENCE_S < PATIENCE_S


@given(st.integers(1, 400))
def test_some_calls_of_a_sitting_come_without_a_flush_and_the_samples_asked_for_with_one(count):
    plan = flushes(count)
    assert plan.count(True) == count and plan.count(False) == max(UNFLUSHED_LEAST, count // 8)


def test_nobody_knows_which_calls_come_without_a_flush():
    assert len({tuple(flushes(20)) for _ in range(20)}) > 10


def turnarounds(besides, latency=1e6):
    return Turnarounds([latency + ns for ns in besides], [latency] * len(besides))


BESIDES = st.lists(st.floats(1e3, 1e8), min_size=1, max_size=30)


@given(BESIDES, st.floats(1, 1e9), st.floats(1, 1e9))
def test_nothing_is_hidden_in_calls_that_take_as_long_beside_their_latency_as_idle_ones(besides, latency, idle_latency):
    assert excess_ns("cpu", turnarounds(besides, latency), turnarounds(besides, idle_latency)) <= 1


@given(BESIDES, st.lists(st.floats(0, 1e9), min_size=1, max_size=30), st.floats(0, 1e8))
def test_work_in_every_call_is_seen_however_slow_some_calls_are(idle, delays, work):
    slowest = max(idle)
    calls = turnarounds([slowest + work + delay for delay in delays])
    assert excess_ns("cpu", calls, turnarounds(idle)) >= work - 1
    assert excess_ns("cpu", turnarounds([slowest, *(slowest + delay for delay in delays)]), turnarounds([slowest])) <= 1


def sitting(latency, cold, warm, claimed=None, base=50e3, base_unflushed=20e3):
    """`cold` and `warm`: what the calls with a flush and without take besides the same for idle ones."""
    claimed = latency if claimed is None else claimed
    return Sitting(
        turnarounds([base + cold + latency - claimed] * 8, claimed),
        turnarounds([base] * 4, 100.0),
        turnarounds([base_unflushed + warm] * 2, 0.0),
        turnarounds([base_unflushed] * 2, 100.0),
    )


KINDS = st.sampled_from(["cpu", "cuda", "rocm"])


@given(KINDS, st.floats(10e3, 100e6), st.floats(0, 1))
def test_an_honest_submission_hides_nothing_be_its_caches_warm_or_cold(kind, latency, warmth):
    assert sitting(latency, 0.0, warmth * latency).hidden_ns(kind) <= 1


@given(KINDS, st.floats(2e6, 100e6))
def test_work_in_the_place_of_the_flush_shows_in_calls_without_one(kind, latency):
    """Its calls with a flush take no longer than they should, and it claims a microsecond."""
    cheat = Sitting(
        turnarounds([50e3] * 8, 1e3),
        turnarounds([50e3] * 4, 100.0),
        turnarounds([20e3] * 2, latency),
        turnarounds([20e3] * 2, 100.0),
    )
    assert excess_ns(kind, cheat.calls, cheat.idle) <= 1e3 and cheat.hidden_ns(kind) >= latency - 2e3
    assert objection("cuda", 1e3, [[1e3] * 8] * 5, [cheat.hidden_ns(kind)] * 5, [0.0] * 5).certain


STEADY, SCATTERED = [1e5] * 8, [1e7, 2e7, 3e7, 4e7] * 2


@pytest.mark.parametrize("kind", HIDDEN_NS)
def test_work_outside_the_interval_in_every_process_is_objected_to(kind):
    much = 2 * HIDDEN_NS[kind]
    found = objection(kind, 1e5, [STEADY] * 5, [much] * 5, [0.0] * 5)
    assert "outside the timed interval" in found.words and found.certain
    assert objection(kind, 1e5, [STEADY] * 5, [much] * 4 + [0.0], [0.0] * 5) is None, "noise in some is not work"
    assert objection(kind, 1e5, [STEADY] * 5, [-much] * 5, [-much] * 5) is None
    assert objection(kind, 10 * much, [STEADY] * 5, [much] * 5, [0.0] * 5) is None, "a small share of a long call"


@pytest.mark.parametrize("kind", IDLE_EXCESS_NS)
def test_work_in_every_call_idle_ones_too_is_objected_to(kind):
    much = 2 * IDLE_EXCESS_NS[kind]
    found = objection(kind, 1e5, [STEADY] * 5, [0.0] * 5, [much] * 5)
    assert "computes nothing" in found.words and found.certain
    assert objection(kind, 1e5, [STEADY] * 5, [0.0] * 5, [much] * 4 + [0.0]) is None


@pytest.mark.parametrize("kind", HIDDEN_NS)
def test_where_all_processes_were_disturbed_nobody_is_accused(kind):
    much = 2 * HIDDEN_NS[kind]
    assert not objection(kind, 1e5, [SCATTERED] * 3, [much] * 3, [0.0] * 3).certain
    assert objection(kind, 1e5, [SCATTERED] * 2 + [STEADY], [much] * 2 + [0.0], [0.0] * 3) is None
    assert objection(kind, 1e5, [SCATTERED] * 2 + [STEADY], [0.0] * 2 + [much], [0.0] * 3).certain
    jitter = [1e3, 2e3, 3e3, 4e3] * 2
    assert objection(kind, 1e5, [jitter] * 3, [much] * 3, [0.0] * 3).certain, "too little to explain as much"


def test_a_run_without_the_clock_s_findings_is_not_objected_to():
    assert objection("cuda", 1e5, [], [], []) is None
