"""The estimators are what their definitions say, and the interval covers as often as it claims."""

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.model import Estimate
from harness.model.eligibility import is_wider
from harness.ranking.stats import (
    enough,
    estimate,
    geometric_mean,
    interquartile_mean,
    noise_floor,
    noise_floor_apart,
    ratio_of_pairs,
    ratio_of_scores,
)

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


@given(latencies, st.integers(1, 40))
def test_the_mean_of_equal_values_is_that_value(value, count):
    assert interquartile_mean([value] * count) == value


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
    assume(made.high_ns < 1e300 and made.low_ns > 1e-300)  # beyond, an interval ends where floats do
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


def test_with_first_the_spread_and_its_degrees_of_freedom_are_theirs_and_the_centre_is_of_all():
    first, rest = [100.0, 110.0, 120.0], [90.0, 200.0]
    half = 4.302653 * statistics.stdev(map(math.log, first)) / math.sqrt(5)
    made = estimate(first + rest, 0.95, 3)
    assert made.latency_ns == pytest.approx(geometric_mean(first + rest))
    assert made.high_ns == pytest.approx(made.latency_ns * math.exp(half), rel=1e-6)
    assert estimate(first, 0.95, 5) == estimate(first, 0.95), "where there are no more than the first"
    assert estimate(first, 0.95, 1).low_ns is None


@given(st.lists(st.floats(100, 110), min_size=3, max_size=6), st.floats(0.5, 0.99), st.floats(0.003, 0.1))
def test_enough_values_and_no_fewer_make_an_interval_as_narrow_as_is_asked(values, confidence, half_width):
    number = enough(values, confidence, half_width)
    quantile = math.log(estimate(values, confidence).high_ns / geometric_mean(values)) * len(values) ** 0.5
    assert quantile / number**0.5 <= math.log1p(half_width) * (1 + 1e-9)
    assert number == len(values) or quantile / (number - 1) ** 0.5 > math.log1p(half_width) * (1 - 1e-9)


def test_a_single_value_does_not_say_how_many_are_enough():
    with pytest.raises(ValueError, match="no spread"):
        enough([1.0], 0.95, 0.01)


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


scores = st.lists(st.floats(1.0, 1e9), min_size=2, max_size=9)


@given(scores, scores, st.floats(1e-3, 1e3))
def test_a_ratio_turns_over_with_its_interval_and_scales(new, old, scale):
    for function, left, right in ((ratio_of_scores, new, old), (ratio_of_pairs, *zip(*zip(new, old)))):
        made, over = function(left, right, 0.95), function(right, left, 0.95)
        assert made.low <= made.value <= made.high
        assert over.value == pytest.approx(1 / made.value, rel=1e-9)
        assert over.low == pytest.approx(1 / made.high, rel=1e-6) and over.high == pytest.approx(1 / made.low, rel=1e-6)
        scaled = function([scale * value for value in left], right, 0.95)
        assert scaled.value == pytest.approx(scale * made.value, rel=1e-9)
        assert scaled.high / scaled.low == pytest.approx(made.high / made.low, rel=1e-6)


def test_the_ratio_of_scores_is_welch_s_interval():
    """Against scipy's own Welch interval of the difference of the logarithms' means."""
    from scipy.stats import ttest_ind

    new, old = [103.0, 104.0, 102.5, 103.2], [100.0, 101.5, 99.0]
    known = ttest_ind(np.log(new), np.log(old), equal_var=False).confidence_interval(0.9)
    made = ratio_of_scores(new, old, 0.9)
    assert [made.low, made.high] == pytest.approx([math.exp(known.low), math.exp(known.high)], rel=1e-9)


@pytest.mark.parametrize("new, old", [([5.0], [4.0]), ([5.0], [4.0, 4.0]), ([5.0, 5.0], [4.0])])
def test_one_process_of_either_gives_a_ratio_without_an_interval(new, old):
    made = ratio_of_scores(new, old, 0.95)
    assert made.value == pytest.approx(1.25) and made.low is None and made.high is None


def test_equal_processes_have_a_ratio_of_no_width():
    made = ratio_of_scores([2.0] * 3, [1.0] * 5, 0.95)
    assert made.low == made.value == made.high == 2.0


def test_pairs_must_be_pairs():
    with pytest.raises(ValueError):
        ratio_of_pairs([1.0, 2.0], [1.0], 0.95)
    with pytest.raises(ValueError):
        ratio_of_pairs([], [], 0.95)


@given(scores, st.data())
def test_what_disturbs_both_of_a_pair_alike_does_not_touch_their_ratio(old, data):
    """Each pair in weather of its own: the ratio of pairs is exact where that of scores would be lost."""
    weather = data.draw(st.lists(st.floats(0.5, 2.0), min_size=len(old), max_size=len(old)))
    new = [1.03 * value * factor for value, factor in zip(old, weather, strict=True)]
    made = ratio_of_pairs(new, [value * factor for value, factor in zip(old, weather, strict=True)], 0.95)
    assert [made.low, made.value, made.high] == pytest.approx([1.03] * 3, rel=1e-6)


@pytest.mark.parametrize(
    "function, sizes", [(ratio_of_scores, (5, 5)), (ratio_of_scores, (3, 8)), (ratio_of_pairs, (8, 8))]
)
def test_the_interval_of_a_ratio_covers_the_truth_as_often_as_it_says(function, sizes):
    random = np.random.default_rng(20240602)
    trials, covered = 4000, 0
    for _ in range(trials):
        new, old = (
            truth * np.exp(0.01 * random.standard_normal(n)) for truth, n in zip((1.03, 1.0), sizes, strict=True)
        )
        made = function(new.tolist(), old.tolist(), 0.95)
        covered += made.low <= 1.03 <= made.high
    assert abs(covered / trials - 0.95) < 0.015


def test_nine_of_ten_equal_duels_lie_within_the_noise_floor_of_a_calibration():
    """Of 100 calibrations of 16 pairs at least 85 have a floor that holds 9 of 10 duels; none is far too high."""
    random = np.random.default_rng(20240603)
    duels = [ratio_of_pairs(np.exp(0.01 * random.standard_normal(8)), [1.0] * 8, 0.95) for _ in range(2000)]
    reaches = np.array([max(-math.log(made.low), math.log(made.high)) for made in duels])
    calibrations = 0.01 * random.standard_normal((100, 16))
    floors = np.array([noise_floor(ratios.tolist(), 8, 0.95) for ratios in calibrations])
    assert sum((reaches <= floor).mean() >= 0.9 for floor in floors) >= 85
    assert np.median(floors) < 1.5 * np.quantile(reaches, 0.95)


@given(st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=20), st.integers(2, 12))
def test_the_noise_floor_is_no_less_for_more_noise_and_blind_to_sign_and_order(log_ratios, pairs):
    floor = noise_floor(log_ratios, pairs, 0.95)
    assert floor >= 0
    assert noise_floor([2 * ratio for ratio in log_ratios], pairs, 0.95) == pytest.approx(2 * floor, abs=1e-12)
    assert noise_floor([-ratio for ratio in log_ratios], pairs, 0.95) == pytest.approx(floor, abs=1e-12)


def test_which_of_a_pair_was_called_first_means_nothing_to_the_noise_floor():
    one_sided = [0.02, 0.03] * 4
    assert noise_floor(one_sided, 4, 0.95) == pytest.approx(noise_floor([0.02, -0.03] * 4, 4, 0.95), rel=0.02)


def test_the_floor_of_runs_apart_holds_nearly_all_of_them_and_not_half():
    assert noise_floor_apart([100.0] * 20 + [110.0] * 4, 4, 0.95) == pytest.approx(math.log(1.1))


def test_a_device_without_noise_has_no_floor():
    assert noise_floor([0.0] * 8, 8, 0.95) == 0
    assert noise_floor_apart([5.0] * 10, 5, 0.95) == 0


def test_drift_between_runs_is_in_the_floor_of_runs_apart():
    steady = [100.0, 101.0] * 6
    drifting = [value * 1.01**number for number, value in enumerate(steady)]
    assert noise_floor_apart(drifting, 4, 0.95) > noise_floor_apart(steady, 4, 0.95) + 4 * math.log(1.01)


@pytest.mark.parametrize("call", [lambda: noise_floor([0.1], 8, 0.95), lambda: noise_floor([0.1, 0.2], 1, 0.95)])
def test_too_little_gives_no_noise_floor(call):
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize("scores, processes", [([1.0] * 5, 3), ([1.0] * 5, 1), ([], 2)])
def test_less_than_two_runs_give_no_noise_floor(scores, processes):
    with pytest.raises(ValueError):
        noise_floor_apart(scores, processes, 0.95)


@pytest.mark.parametrize(("high", "limit", "wider"), [(1.2, 0.1, True), (1.05, 0.1, False), (9.0, None, False)])
def test_an_interval_is_wider_than_a_share_of_its_centre(high, limit, wider):
    assert is_wider(Estimate(latency_ns=1.0, low_ns=0.9, high_ns=high), limit) is wider


def test_an_estimate_without_an_interval_is_not_wider():
    assert not is_wider(Estimate(latency_ns=1.0), 0.1)
