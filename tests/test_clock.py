"""The judge's clock: what is made of time that a call took outside its interval."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import stats
from harness.judge.clock import (
    MARGINS,
    MOST_SET_ASIDE,
    Doubts,
    Sitting,
    Turnarounds,
    find,
    objection,
)
from harness.judge.neighbours import Crowding


def turnarounds(besides, latency=1e6):
    return Turnarounds([latency + ns for ns in besides], [latency] * len(besides))


TIMES = st.lists(st.floats(1e3, 1e8), min_size=2, max_size=30)


def idle_calls(flushed=(50e3,) * 4, unflushed=(20e3,) * 2):
    """Those of a process without the submission, by what they take besides their latencies."""
    return Sitting(idle=turnarounds(flushed, 100.0), idle_unflushed=turnarounds(unflushed, 100.0))


def timed(latencies, claims=None, hidden=0.0, idle_excess=0.0, warm=None):
    """A sitting beside `idle_calls()`: what its calls really take and what the worker claims, with so much work beside
    the interval, or in idle calls too; `warm` is what it takes with warm caches."""
    claims = list(claims or latencies)
    warm = float(np.median(latencies)) if warm is None else warm
    apart = idle_calls([50e3 + idle_excess] * 4, [20e3 + idle_excess] * 2)
    return Sitting(
        Turnarounds([latency + hidden + 50e3 for latency in latencies], claims),
        apart.idle,
        Turnarounds([warm + hidden + 20e3] * 2, [float(np.median(claims))] * 2),
        apart.idle_unflushed,
    )


def hidden_ns(kind, sitting, apart=None):
    return find(kind, sitting, apart or idle_calls()).hidden_ns


KINDS = st.sampled_from(sorted(MARGINS))


@given(KINDS, TIMES, st.floats(0, 1))
def test_an_honest_submission_hides_nothing_be_its_caches_warm_or_cold(kind, latencies, warmth):
    middle = stats.interquartile_mean(latencies)
    found = hidden_ns(kind, timed(latencies, warm=warmth * min(middle, np.median(latencies))))
    assert found <= max(float(np.median(latencies)) - middle, 0) + 1


@given(KINDS, st.floats(1e3, 1e8), st.floats(1e3, 1e8))
def test_work_outside_the_interval_is_found_to_the_full(kind, latency, work):
    assert hidden_ns(kind, timed([latency] * 8, hidden=work)) == pytest.approx(work, abs=1)


@given(KINDS, st.floats(2e6, 100e6), st.integers(1, 8))
def test_it_does_not_matter_in_which_calls_a_worker_lies(kind, latency, lies):
    """What counts is what it is scored by: an interquartile mean of 12, in which 4 lies are the first to tell."""
    claims = [1.0] * lies + [latency] * (12 - lies)
    scored = stats.interquartile_mean(claims)
    assert hidden_ns(kind, timed([latency] * 12, claims, warm=0.0)) == pytest.approx(latency - scored, abs=1)


@given(KINDS, st.floats(2e6, 100e6))
def test_work_in_the_place_of_the_flush_shows_in_calls_without_one(kind, latency):
    """Its calls with a flush take no longer than they should, and it claims a microsecond."""
    assert hidden_ns(kind, timed([1e3] * 8, warm=latency)) >= latency - 2e3


@given(KINDS, st.floats(1e8, 1e9), st.floats(1e9, 1e10), st.booleans())
def test_idle_calls_made_slow_hide_no_more_than_idle_calls_may_be_slower(kind, work, excess, with_a_flush):
    sitting = timed([1e3] * 8, hidden=work)
    slow = turnarounds([50e3 + excess] * 3 + [50e3], 100.0)  # and one as quick as it should be
    cheat = replace(sitting, idle=slow, idle_unflushed=turnarounds([20e3 + excess] * 2, 100.0))
    one_kind = replace(cheat, idle=sitting.idle) if with_a_flush else cheat
    assert hidden_ns(kind, one_kind) >= work - MARGINS[kind].idle(1e3) - 2e3
    assert objection(kind, one_kind, idle_calls()).certain


@given(KINDS, st.floats(1e3, 2e5))
def test_a_machine_that_becomes_slower_is_allowed_for_within_bounds(kind, excess):
    """All calls take longer, idle ones too."""
    assert hidden_ns(kind, timed([1e5] * 8, hidden=excess, idle_excess=excess)) <= 1
    found = find(kind, timed([1e5] * 8, idle_excess=excess), idle_calls())
    assert found.idle_excess_ns == pytest.approx(excess, abs=1) and found.latency_ns == 1e5


@given(KINDS, st.floats(1e4, 1e6))
def test_what_idle_calls_scatter_by_without_the_submission_is_put_down_to_noise(kind, scatter):
    unsteady = idle_calls([50e3, 50e3, 50e3, 50e3 + 2 * scatter, 50e3 + 2 * scatter], [20e3, 20e3 + scatter])
    steady = find(kind, timed([1e5] * 8, hidden=2 * scatter), idle_calls())
    assert find(kind, timed([1e5] * 8, hidden=2 * scatter), unsteady).hidden_ns < steady.hidden_ns - scatter / 4


def test_of_idle_calls_timed_twice_the_slower_of_each_kind_count():
    slower = idle_calls([50e3] * 4, [90e3] * 2).slower(idle_calls([70e3] * 4, [20e3] * 2), "cuda")
    assert slower.idle.besides_ns == [70e3] * 4 and slower.idle_unflushed.besides_ns == [90e3] * 2


def test_a_sitting_bears_the_labels_of_more_calls_than_its_mean_leaves_out():
    calls = turnarounds([1.0] * 8)
    assert Sitting(calls, borne=Counter({"host-bound": 2})).labels == set()
    assert Sitting(calls, borne=Counter({"host-bound": 3})).labels == {"host-bound"}


STEADY, SCATTERED = [1e5] * 8, [1e7, 2e7, 3e7, 4e7] * 2


@pytest.mark.parametrize("kind", MARGINS)
def test_work_outside_the_interval_is_objected_to(kind):
    much = 2 * MARGINS[kind].hidden_ns
    found = objection(kind, timed(STEADY, hidden=much), idle_calls())
    assert "outside the timed interval, beside 100.0 us in it" in found.words and found.certain
    assert objection(kind, timed(STEADY), idle_calls()) is objection(kind, timed(SCATTERED), idle_calls()) is None
    assert objection(kind, timed([10 * much] * 8, hidden=much / 2), idle_calls()) is None, (
        "a small share of a long call"
    )


@pytest.mark.parametrize("kind", MARGINS)
def test_while_others_take_the_processors_nothing_is_certain(kind):
    """It may have waited for them: the more so the fewer calls the judge's clock has seen."""
    sitting = timed([100.0] * 8, hidden=1e9)
    for crowding, certain in ((None, True), (Crowding(0.1, 0.0), True), (Crowding(0.6, 0.7), True)):
        assert objection(kind, replace(sitting, crowding=crowding), idle_calls()).certain == certain
    found = objection(kind, replace(sitting, crowding=Crowding(0.6, 0.1)), idle_calls())
    assert not found.certain and found.words.endswith("other processes took 60% of the processors meanwhile")


@pytest.mark.parametrize("kind", sorted(MARGINS))
def test_where_the_latencies_scatter_more_than_the_margin_nothing_is_certain(kind):
    assert not objection(kind, timed(SCATTERED, hidden=1e9), idle_calls()).certain
    jitter = [1e3, 2e3, 3e3, 4e3] * 2
    assert objection(kind, timed(jitter, hidden=1e9), idle_calls()).certain, "too little to explain as much"


CASES = ("one", "other")
HONEST, HIDING, SCATTERING = timed(STEADY), timed(STEADY, hidden=1e9), timed(SCATTERED, hidden=1e9)


def counted(doubts, *sittings):
    """Which cases a process is objected to for, and the one that is now a verdict."""
    apart = dict.fromkeys(CASES, idle_calls())
    found = doubts.objections(dict(zip(CASES, sittings, strict=True)), apart, 0.0)
    return list(found), doubts.count(found)


def test_work_hidden_in_one_case_of_three_processes_is_a_verdict_however_many_lie_between():
    doubts = Doubts("cuda")
    assert counted(doubts, HONEST, HONEST) == ([], None)
    assert counted(doubts, HONEST, HIDING) == (["other"], None)
    assert counted(doubts, HIDING, HIDING) == (["one", "other"], None)
    assert counted(doubts, HONEST, HONEST) == ([], None)
    assert counted(doubts, HONEST, HIDING) == (["other"], "other")


def test_among_many_processes_three_objections_are_no_verdict_and_a_third_of_them_is():
    """A long duel meets three of them by chance."""
    doubts = Doubts("cuda")
    assert all(counted(doubts, HONEST, HONEST) == ([], None) for _ in range(20))
    found = [counted(doubts, HONEST, HIDING)[1] for _ in range(10)]
    assert found == [None] * 9 + ["other"]  # 10 of 30


def test_a_long_duel_has_more_pairs_to_play_again():
    doubts = Doubts("cuda")
    for _ in range(40):
        counted(doubts, HONEST, HONEST)
    assert [doubts.set_aside() for _ in range(12)] == [True] * 10 + [False] * 2


def test_what_scatters_is_objected_to_and_never_a_verdict():
    doubts = Doubts("cuda")
    assert all(counted(doubts, SCATTERING, HONEST) == (["one"], None) for _ in range(20))


def test_a_run_s_processes_are_not_timed_again_for_ever():
    doubts = Doubts("cuda")
    assert [doubts.set_aside() for _ in range(6)] == [True] * MOST_SET_ASIDE + [False] * (6 - MOST_SET_ASIDE)
