"""The estimators are what their definitions say, and the interval covers as often as it claims."""

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.stats import estimate, geometric_mean, interquartile_mean

latencies = st.floats(1e-3, 1e12)
samples = st.lists(latencies, min_size=1, max_size=40)


def interquartile_mean_by_definition(values):
    """Each sample four times, the lowest and the highest quarter of those left out, the mean of the rest."""
    repeated = sorted(Fraction(value) for value in values for _ in range(4))
    middle = repeated[len(values) : 3 * len(values)]
    return float(sum(middle) / len(middle))


@given(samples)
def test_the_interquartile_mean_is_what_its_definition_says(values):
    assert interquartile_mean(values) == pytest.approx(interquartile_mean_by_definition(values), rel=1e-12)


@pytest.mark.parametrize(
    "values, mean",
    [([7], 7), ([1, 3], 2), ([1, 2, 9], (0.25 + 2 + 0.25 * 9) / 1.5), ([1, 2, 4, 99], 3), (range(1, 10), 5)],
)
def test_the_interquartile_mean_of_a_few(values, mean):
    assert interquartile_mean(list(values)) == pytest.approx(mean)


@given(samples, st.randoms(use_true_random=False), st.floats(1e-3, 1e3))
def test_order_does_not_matter_and_scale_comes_out(values, random, scale):
    shuffled = random.sample(values, len(values))
    assert interquartile_mean(shuffled) == interquartile_mean(values)
    assert interquartile_mean([scale * value for value in values]) == pytest.approx(scale * interquartile_mean(values))


@given(st.lists(latencies, min_size=4, max_size=40), st.data())
def test_a_quarter_of_outliers_however_wild_stay_outside(values, data):
    spikes = data.draw(st.integers(1, len(values) // 4))
    spoilt = sorted(values)[: len(values) - spikes] + [1e300] * spikes
    assert interquartile_mean(spoilt) <= max(values)


@pytest.mark.parametrize("function", [interquartile_mean, geometric_mean])
def test_no_values_have_no_mean(function):
    with pytest.raises(ValueError):
        function([])


@given(st.lists(latencies, min_size=1, max_size=20))
def test_the_geometric_mean_is_the_root_of_the_product(values):
    assert geometric_mean(values) == pytest.approx(statistics.geometric_mean(values), rel=1e-9)


def test_the_geometric_mean_of_a_few():
    assert geometric_mean([1, 4, 16]) == pytest.approx(4) and geometric_mean([2]) == pytest.approx(2)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_latency_that_is_none_has_no_geometric_mean(bad):
    with pytest.raises(ValueError):
        geometric_mean([1.0, bad])
    with pytest.raises(ValueError):
        estimate([1.0, bad], 0.95)


def test_a_single_process_gives_no_interval():
    only = estimate([5.0], 0.95)
    assert only.latency_ns == pytest.approx(5.0) and only.low_ns is None and only.high_ns is None


def test_the_interval_is_student_s_on_the_logarithms():
    values = [100.0, 110.0, 120.0]
    logs = [math.log(value) for value in values]
    # 4.302653: the 97.5 % quantile of Student's t with two degrees of freedom, from any printed table.
    half = 4.302653 * statistics.stdev(logs) / math.sqrt(3)
    made = estimate(values, 0.95)
    assert made.latency_ns == pytest.approx(math.exp(statistics.mean(logs)))
    assert made.low_ns == pytest.approx(made.latency_ns * math.exp(-half), rel=1e-6)
    assert made.high_ns == pytest.approx(made.latency_ns * math.exp(half), rel=1e-6)


@given(st.lists(latencies, min_size=2, max_size=8), st.floats(0.1, 0.99), st.floats(1e-3, 1e3))
def test_the_interval_holds_its_centre_and_scales(values, confidence, scale):
    made = estimate(values, confidence)
    assert made.low_ns <= made.latency_ns <= made.high_ns
    scaled = estimate([scale * value for value in values], confidence)
    assert scaled.low_ns == pytest.approx(scale * made.low_ns, rel=1e-6)
    assert scaled.high_ns == pytest.approx(scale * made.high_ns, rel=1e-6)


def test_more_confidence_is_a_wider_interval():
    values = [100.0, 101.0, 103.0]
    narrow, wide = estimate(values, 0.5), estimate(values, 0.99)
    assert wide.low_ns < narrow.low_ns < narrow.high_ns < wide.high_ns


def test_equal_processes_have_an_interval_of_no_width():
    made = estimate([123.0] * 5, 0.95)
    assert made.low_ns == made.latency_ns == made.high_ns


@pytest.mark.parametrize("processes, confidence", [(5, 0.95), (5, 0.8), (3, 0.95)])
def test_the_interval_covers_the_truth_as_often_as_it_says(processes, confidence):
    """Lognormal noise over fresh processes: coverage within 1.5 points over 6000 trials (four standard errors)."""
    random = np.random.default_rng(20240601)
    truth, trials = 812_000.0, 6000
    covered = 0
    for values in truth * np.exp(0.02 * random.standard_normal((trials, processes))):
        made = estimate(values.tolist(), confidence)
        covered += made.low_ns <= truth <= made.high_ns
    assert abs(covered / trials - confidence) < 0.015
