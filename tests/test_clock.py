"""The judge's clock: how long a GPU sleeps, and what is made of time that a call took outside its interval."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.clock import (
    HIDDEN_NS,
    IDLE_EXCESS_NS,
    LEAST_PATIENCE_S,
    MOST_SET_ASIDE,
    PATIENCE_S,
    UNFLUSHED_LEAST,
    Doubts,
    Sitting,
    Turnarounds,
    excess_ns,
    flushes,
    objection,
    patience_s,
)
from harness.judge.session import Fault
from harness.model import Case, Verdict


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


def test_a_sitting_bears_the_labels_of_more_calls_than_its_mean_leaves_out():
    calls = turnarounds([1.0] * 8)
    assert Sitting(calls, borne=Counter({"host-bound": 2})).labels == set()
    assert Sitting(calls, borne=Counter({"host-bound": 3})).labels == {"host-bound"}


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
    assert objection("cuda", cheat, cheat.idle).certain


STEADY, SCATTERED = [1e5] * 8, [1e7, 2e7, 3e7, 4e7] * 2


def timed(latencies, hidden=0.0, idle_excess=0.0):
    """A sitting and idle calls apart from it, with so much work beside the interval, or in every call."""
    calls = Turnarounds([latency + hidden + idle_excess + 50e3 for latency in latencies], list(latencies))
    warm = turnarounds([20e3 + hidden + idle_excess] * 2, float(np.median(latencies)))
    idle, idle_warm = turnarounds([50e3 + idle_excess] * 4, 100.0), turnarounds([20e3 + idle_excess] * 2, 100.0)
    return Sitting(calls, idle, warm, idle_warm), turnarounds([50e3] * 4, 100.0)


@pytest.mark.parametrize("kind", HIDDEN_NS)
def test_work_outside_the_interval_is_objected_to(kind):
    much = 2 * HIDDEN_NS[kind]
    found = objection(kind, *timed(STEADY, hidden=much))
    assert "outside the timed interval, beside 100.0 us in it" in found.words and found.certain
    assert objection(kind, *timed(STEADY)) is objection(kind, *timed(SCATTERED)) is None
    assert objection(kind, *timed([10 * much] * 8, hidden=much)) is None, "a small share of a long call"


@pytest.mark.parametrize("kind", IDLE_EXCESS_NS)
def test_work_in_every_call_idle_ones_too_is_objected_to(kind):
    found = objection(kind, *timed(STEADY, idle_excess=2 * IDLE_EXCESS_NS[kind]))
    assert "computes nothing" in found.words and found.certain


@pytest.mark.parametrize("kind", HIDDEN_NS)
def test_where_the_latencies_scatter_more_than_the_margin_nothing_is_certain(kind):
    assert not objection(kind, *timed(SCATTERED, hidden=1e9)).certain
    jitter = [1e3, 2e3, 3e3, 4e3] * 2
    assert objection(kind, *timed(jitter, hidden=1e9)).certain, "too little to explain as much"


CASES = [Case(parameters={"rows": rows}) for rows in (1, 2)]
HONEST, HIDING, SCATTERING = timed(STEADY), timed(STEADY, hidden=1e9), timed(SCATTERED, hidden=1e9)


def about(doubts, *timings):
    found = dict(zip((case.key for case in CASES), timings, strict=True))
    sittings, apart = ({key: pair[i] for key, pair in found.items()} for i in (0, 1))
    return doubts.about(CASES, sittings, apart)


def test_work_hidden_in_one_case_of_three_processes_is_a_verdict_however_many_lie_between():
    doubts = Doubts("cuda")
    assert about(doubts, HONEST, HONEST) is None
    assert about(doubts, HONEST, HIDING).startswith("rows=2: 1,000,000 us a call were spent outside")
    assert about(doubts, HIDING, HIDING).startswith("rows=1: ")
    assert about(doubts, HONEST, HONEST) is None
    with pytest.raises(Fault, match=r"rows=2: .* outside the timed interval") as raised:
        about(doubts, HONEST, HIDING)
    assert raised.value.ending.verdict is Verdict.INTEGRITY_VIOLATION


def test_what_scatters_is_objected_to_and_never_a_verdict():
    doubts = Doubts("cuda")
    assert all(about(doubts, SCATTERING, HONEST) for _ in range(20))


def test_a_run_s_processes_are_not_timed_again_for_ever():
    doubts = Doubts("cuda")
    assert [doubts.set_aside() for _ in range(6)] == [True] * MOST_SET_ASIDE + [False] * (6 - MOST_SET_ASIDE)
