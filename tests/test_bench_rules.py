"""The rules that E2 and the simulation compare are what they are said to be."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from bench import coverage, e2_same_and_slower, fewer_calls, rules, stopping
from harness.catalog.config import load_config
from harness.ranking import stats
from harness.records.run_file import load_run

samples = st.lists(st.floats(1e3, 1e6), min_size=4, max_size=60).map(np.array)


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    monkeypatch.setattr(e2_same_and_slower, "DRAWS", 250)


@given(samples)
def test_the_mean_of_one_process_has_student_s_interval(values):
    found = rules.mean_of_one(values)
    half = (found.high - found.low) / 2
    assert found.centre == pytest.approx(values.mean())
    quantile = stdtrit(len(values) - 1, 0.975)
    assert half == pytest.approx(quantile * statistics.stdev(values) / math.sqrt(len(values)), abs=1e-6)


@given(samples)
def test_the_loop_stops_where_a_loop_that_looks_after_each_sample_does(values):
    taken = []
    for value in values:
        taken.append(value)
        if len(taken) >= 3 and statistics.stdev(taken) / math.sqrt(len(taken)) < 0.001 * statistics.mean(taken):
            break
    assert rules.stop_at_standard_error(values).centre == pytest.approx(statistics.mean(taken), rel=1e-9)


def test_the_loop_stops_each_trial_by_itself():
    steady, restless = [100.0] * 10, [100.0, 200.0] * 5
    found = rules.stop_at_standard_error(np.array([[*steady, 1e6], [*restless, 100.0]]))
    assert found.centre == pytest.approx([100.0, statistics.mean([*restless, 100.0])])


@given(samples)
def test_the_median_s_interval_is_of_samples_around_it(values):
    found = rules.median_of_one(values)
    assert found.centre == statistics.median(values)
    assert found.low <= found.centre <= found.high
    assert {float(found.low), float(found.high)} <= set(values.tolist())


def test_the_median_s_interval_covers_as_often_as_it_says():
    values = np.random.default_rng(3).exponential(1.0, (4000, 60))
    assert 0.94 <= rules.median_of_one(values).covers(math.log(2)).mean() <= 0.98


@pytest.fixture(scope="module")
def config(pytestconfig):
    return load_config(pytestconfig.rootpath)


def test_of_the_rules_that_stop_ours_is_the_judge_s_and_compare_s(config):
    logs = 0.012 * np.random.default_rng(5).standard_normal((2, 40, 8))
    made = [stopping.RULES["number and spread by the first (ours)"](each, config.gpu, 0.95) for each in logs]
    assert {5, 6, 7, 8} == set(made[0].count)
    ratios = stopping._welch(*made, 0.95)
    for trial in range(40):
        scores = []
        for side in (0, 1):
            values = np.exp(logs[side, trial]).tolist()
            target = config.gpu.target_half_width
            near, wanted = (stats.enough(values[:5], 0.95, width) for width in (2 * target, target))
            number = 5 if near > 8 else min(wanted, 8)
            estimate = stats.estimate(values[:number], 0.95, 5)
            assert number == made[side].count[trial]
            assert math.log(estimate.latency_ns) == pytest.approx(made[side].mean[trial])
            half_width = math.log(estimate.high_ns / estimate.latency_ns)
            assert half_width == pytest.approx(made[side].half_width(0.95)[trial])
            scores.append(values[:number])
        ratio = stats.ratio_of_scores(*scores, 0.95, (5, 5))
        assert math.log(ratio.high / ratio.value) == pytest.approx(ratios[trial])


@pytest.mark.slow(ci=True)
def test_of_the_rules_that_stop_only_those_that_look_at_the_mean_s_own_spread_cover_less_than_they_say(config):
    rows = rows_by(stopping.simulate(config.gpu, 0.95, 20_000, 3), "scatter %", "rule")
    ours = [row["covers %"] for (_, rule), row in rows.items() if "ours" in rule]
    assert len(ours) == len(stopping.SCATTERS) and min(ours) > 94.6  # a standard error is 0.15, and they are six
    assert rows[1.2, "look after each"]["covers %"] < 94.4 and rows[1.2, "number by the first"]["covers %"] < 94.4
    assert rows[0.8, "number and spread by the first (ours)"]["ratio covers %"] > 94.6


def test_ours_is_what_the_judge_computes():
    values = np.random.default_rng(4).normal(100, 3, (2, 5, 30))
    found = rules.interquartile_mean_of_fresh(values)
    made = stats.estimate([stats.interquartile_mean(process) for process in values[1]], 0.95)
    assert (found.centre[1], found.low[1], found.high[1]) == (made.latency_ns, made.low_ns, made.high_ns)


def rows_by(rows, *columns):
    return {tuple(row[column] for column in columns): row for row in rows}


@pytest.mark.slow(ci=True)
def test_a_simulation_with_one_seed_is_the_same_every_time():
    assert coverage.simulate(20, 7) == coverage.simulate(20, 7) != coverage.simulate(20, 8)


@pytest.mark.slow(ci=True)
def test_without_process_effects_and_drift_one_process_covers(monkeypatch):
    monkeypatch.setattr(coverage, "PROCESS", 0.0)
    monkeypatch.setattr(coverage, "DRIFT", 0.0)
    monkeypatch.setattr(coverage, "SPIKE_CHANCE", 0.0)
    row = rows_by(coverage.simulate(400, 1), "rule", "tau s")["mean of one process", 1.0]
    assert row["covers %"] >= 92 and row["B first %"] == 0


def test_drift_has_its_variance_and_its_correlation_across_processes():
    shape = (4000, 2, 50)
    for tau_s in (1.0, 10.0, 1000.0):
        drift = coverage._drift(np.random.default_rng(5), shape, tau_s)
        assert drift[:, 1, 20].std() == pytest.approx(1, abs=0.05)
        apart = np.corrcoef(drift[:, 0, 7], drift[:, 1, 7])[0, 1]
        assert apart == pytest.approx(math.exp(-coverage.PROCESS_S / tau_s), abs=0.05)


def made_up(processes, slowdown, between=0.0, seed=6):
    """Samples as E2 has them: `between` is the standard deviation of a process's factor, common to its variants."""
    rng = np.random.default_rng(seed)
    factors = np.exp(between * rng.normal(size=processes))
    return {
        ("judge", variant): [
            (1e5 * (1 + slowdown * extra) * factor * (1 + 1e-4 * rng.normal(size=40))).tolist() for factor in factors
        ]
        for variant, extra in e2_same_and_slower.EXTRA.items()
    }


def test_where_nothing_but_the_slowdown_differs_the_faster_is_always_first():
    for row in e2_same_and_slower.analyse(made_up(12, 1.0), 5, np.random.default_rng(1)):
        assert row["B 0.3 first %"] == row["B 1.0 first %"] == 0 and row["B 1.0 told slower %"] == 100, row["rule"]


def test_where_b_is_no_slower_it_is_first_half_of_the_time():
    rows = rows_by(e2_same_and_slower.analyse(made_up(40, 0.0, 0.003), 5, np.random.default_rng(1)), "rule")
    assert 25 < rows[("mean of one process",)]["B 0.5 first %"] < 75


def test_process_effects_fool_an_interval_from_one_process_and_not_ours():
    rows = rows_by(e2_same_and_slower.analyse(made_up(40, 1.0, 0.01), 5, np.random.default_rng(1)), "rule")
    assert rows[("mean of one process",)]["covers %"] < 20
    assert rows[("interquartile mean over five processes (ours)",)]["covers %"] > 85


def test_the_two_sides_of_a_comparison_never_share_a_process():
    for row in e2_same_and_slower.analyse(made_up(40, 1.0, 0.02), 5, np.random.default_rng(1)):
        assert row["B 0.3 first %"] > 20, "what two submissions on a board do not share must not cancel"


def test_too_few_processes_give_no_row_for_fresh_processes():
    rows = e2_same_and_slower.analyse(made_up(9, 1.0), 5, np.random.default_rng(1))
    assert {row["rule"] for row in rows} == {"mean of one process", "stop at 0.1 % standard error"}


def test_the_spread_says_how_much_slower_each_variant_came_out():
    (row,) = e2_same_and_slower.spread(made_up(10, 1.0))
    assert row["B 1.0 over A %"] == pytest.approx(1.0, abs=0.02)
    assert row["within a process %"] == pytest.approx(0.01, rel=0.3)


def test_a_published_run_with_all_its_calls_has_its_own_score_and_with_fewer_another():
    run = load_run(sorted((fewer_calls.ROOT / "results" / "published" / "mla").glob("nvidia-h100*/*.json"))[0])
    whole, first = fewer_calls.scores(run, None), fewer_calls.scores(run, 1)
    assert math.exp(statistics.fmean(whole)) == pytest.approx(run.score.latency_ns, rel=1e-9)
    assert len(first) == len(whole) and first != whole
    assert fewer_calls.row(run)["score 8"] == pytest.approx(1, abs=0.02)
