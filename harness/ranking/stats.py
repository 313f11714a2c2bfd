"""Estimators and intervals over latencies: pure functions of arrays, in nanoseconds unless said otherwise.

samples of one case in one process    ─► interquartile mean
these means over a process's cases    ─► geometric mean: the process's score
these scores over fresh processes     ─► mean of logarithms with Student's t interval: the run's score
two runs' processes                   ─► ratio of their scores, with Welch's t interval
pairs of processes timed in turns     ─► ratio of their scores, with Student's t interval of the pairs' log-ratios
ratios of a source to itself          ─► noise floor: how far such intervals reach if nothing differs
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.model import Estimate

RESAMPLES = 20_000
"""Resamples of the noise floor. They suffice that another seed changes a 95 % quantile by less than a hundredth of
itself."""

SPREAD_CONFIDENCE = 0.8
"""In four of five calibrations, the upper limit of this confidence for the spread is above the true spread."""


@dataclass(frozen=True)
class Ratio:
    """One latency over another, with its confidence interval. `low` and `high` are None if there are too few values for
    an interval."""

    value: float
    low: float | None = None
    high: float | None = None


def interquartile_mean(samples: Sequence[float]) -> float:
    """The mean of the middle half. A sample at the edge counts with the part of it that lies inside.

    Raises ValueError without samples. Definition: https://en.wikipedia.org/wiki/Interquartile_mean
    """
    values = np.sort(np.asarray(samples, dtype=float))
    if values.size == 0:
        raise ValueError("no samples")
    edges = np.arange(values.size + 1)
    low, high = values.size / 4, values.size * 3 / 4
    weights = np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None)
    inside = values[weights > 0]
    return float(np.average(values, weights=weights).clip(inside[0], inside[-1]))  # rounding may leave this range


def centre_of_cases(latencies: Sequence[float], ranking: str) -> float:
    """A process's score from its cases' latencies: their geometric mean, or their arithmetic mean if `ranking` is
    "mean"."""
    return sum(latencies) / len(latencies) if ranking == "mean" else geometric_mean(latencies)


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log)). Raises ValueError without values or if a value is not positive."""
    array = np.asarray(values, dtype=float)
    if array.size == 0 or not (array > 0).all():
        raise ValueError("a geometric mean needs positive values")
    return float(np.exp(np.log(array).mean()))


def estimate(values: Sequence[float], confidence: float, first: int | None = None) -> Estimate:
    """The geometric mean of independent `values`, with Student's t interval of their logarithms.

    With `first`, the spread and its degrees of freedom come from the first `first` values alone. This is needed where
    those values decided how many followed (`enough`), so that the interval still has its stated coverage. It is Stein's
    two-stage interval (1945, https://doi.org/10.1214/aoms/1177731088). With the spread of all values, the interval of 5
    and up to 3 more covers in as little as 93.5 % instead of 95 % (`bench/stopping.py`, a simulation).

    A single value has no interval. Raises ValueError as `geometric_mean` does.
    """
    centre = geometric_mean(values)
    variance, freedom = _spread(values, first)
    if freedom < 1:
        return Estimate(latency_ns=centre)
    half_width = t_quantile(freedom, confidence) * float(variance / len(values)) ** 0.5
    # A worker may claim 1e-300 ns: the interval is clipped to what a float can hold.
    with np.errstate(over="ignore"):
        low, high = centre * float(np.exp(-half_width)), centre * float(np.exp(half_width))
    return Estimate(latency_ns=centre, low_ns=max(low, sys.float_info.min), high_ns=min(high, sys.float_info.max))


def enough(values: Sequence[float], confidence: float, half_width: float) -> int:
    """The number of values that an interval (`estimate`) needs to reach at most `half_width` of the centre to either
    side. `values` are the first of them and count. Raises ValueError as `geometric_mean` does, or for a single value.
    """
    geometric_mean(values)
    variance, freedom = _spread(values, None)
    if freedom < 1:
        raise ValueError("a single value has no spread")
    needed = t_quantile(freedom, confidence) ** 2 * variance / math.log1p(half_width) ** 2
    return max(len(values), math.ceil(min(needed, sys.maxsize)))


def ratio_of_scores(
    new: Sequence[float],
    old: Sequence[float],
    confidence: float,
    first: tuple[int | None, int | None] = (None, None),
) -> Ratio:
    """`new` over `old`: the ratio of the geometric means of two lists of scores of independent processes.

    The interval is Welch's on the logarithms, whose spread may differ between the two
    (https://doi.org/10.1093/biomet/34.1-2.28). It needs two processes of each. `first`: how many of the first values of
    `new` and of `old` give the spread, as in `estimate`. Raises ValueError as `geometric_mean` does.
    """
    value = geometric_mean(new) / geometric_mean(old)
    spreads = [_spread(values, count) for values, count in zip((new, old), first, strict=True)]
    freedoms = np.array([freedom for _, freedom in spreads])
    if freedoms.min() < 1:
        return Ratio(value)
    parts = np.array([variance for variance, _ in spreads]) / np.array([len(new), len(old)])
    total = float(parts.sum())
    if total == 0:
        return Ratio(value, value, value)
    # Welch and Satterthwaite's degrees of freedom. They are computed from shares of the variance, which cannot
    # underflow.
    freedom = 1 / float(((parts / total) ** 2 / freedoms).sum())
    return _with_interval(value, freedom, total**0.5, confidence)


def ratio_of_pairs(new: Sequence[float], old: Sequence[float], confidence: float) -> Ratio:
    """`new` over `old`, value by value. Each pair was timed in turns, so a disturbance affected both.

    The result is the geometric mean of the ratios with Student's t interval of their logarithms, which needs two pairs.
    Raises ValueError as `geometric_mean` does, or if the lists differ in length.
    """
    if len(new) != len(old):
        raise ValueError(f"{len(new)} values cannot be paired with {len(old)}")
    ratios = estimate(np.divide(new, old).tolist(), confidence)
    return Ratio(ratios.latency_ns, ratios.low_ns, ratios.high_ns)


def noise_floor(log_ratios: Sequence[float], pairs: int, confidence: float) -> float:
    """How far from 0 (a log-ratio) the interval of a duel of `pairs` pairs reaches if nothing differs.

    `log_ratios` are of pairs in which a source was timed against itself. Duels are resampled from them with random
    signs, because the order within a pair means nothing. A share `confidence` of their t intervals lies within the
    floor. A few log-ratios may by luck show less than the true spread. So the floor is scaled to the upper limit of the
    spread with SPREAD_CONFIDENCE
    (https://en.wikipedia.org/wiki/Standard_deviation#Confidence_interval_of_a_sampled_standard_deviation). Raises
    ValueError with fewer than two log-ratios or pairs.
    """
    known = np.asarray(log_ratios, dtype=float)
    if known.size < 2 or pairs < 2:
        raise ValueError("a noise floor takes two pairs, and duels of two")
    random = np.random.default_rng(0)
    duels = random.choice(known, (RESAMPLES, pairs)) * random.choice([-1.0, 1.0], (RESAMPLES, pairs))
    half_widths = t_quantile(pairs - 1, confidence) * duels.std(axis=1, ddof=1) / pairs**0.5
    reach = float(np.quantile(np.abs(duels.mean(axis=1)) + half_widths, confidence))
    from scipy.special import chdtri

    return reach * float(((known.size - 1) / chdtri(known.size - 1, SPREAD_CONFIDENCE)) ** 0.5)


def noise_floor_apart(scores: Sequence[float], processes: int, confidence: float) -> float:
    """How far from 0 (a log-ratio) the interval of two runs of `processes` processes reaches if nothing differs.

    `scores` are of fresh processes of one source, in the order they were taken. They are cut into stretches of
    `processes` scores. Every two stretches stand for two runs, including the drift of the machine between them. Raises
    ValueError if there are fewer than two stretches.
    """
    runs = [scores[start : start + processes] for start in range(0, len(scores) - processes + 1, processes)]
    if processes < 2 or len(runs) < 2:
        raise ValueError(f"{len(scores)} processes are not two runs of {processes}, and at least 2")
    reaches = []
    for number, new in enumerate(runs):
        for old in runs[:number]:
            ratio = ratio_of_scores(new, old, confidence)
            assert ratio.low is not None and ratio.high is not None
            reaches.append(max(abs(np.log(ratio.low)), abs(np.log(ratio.high))))
    return float(np.quantile(reaches, confidence))


def _with_interval(value: float, freedom: float, standard_error: float, confidence: float) -> Ratio:
    """`value` with the t interval of its logarithm."""
    factor = float(np.exp(t_quantile(freedom, confidence) * standard_error))
    return Ratio(value, value / factor, value * factor)


def _spread(values: Sequence[float], first: int | None) -> tuple[float, int]:
    """The variance of the logarithms of the `first` values (None: of all), and its degrees of freedom: 0 for one
    value."""
    logs = np.log(np.asarray(values[:first], dtype=float))
    return (float(logs.var(ddof=1)), logs.size - 1) if logs.size > 1 else (0.0, 0)


def t_quantile(freedom: float, confidence: float) -> float:
    """The two-sided quantile of Student's t: its absolute value stays below this with probability `confidence`."""
    from scipy.special import stdtrit  # slow to import, and reading results does not need it

    return float(stdtrit(freedom, 0.5 + confidence / 2))
