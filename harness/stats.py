"""Estimators and intervals over latencies: pure functions of arrays, in nanoseconds unless said otherwise.

samples of one case in one process ─► interquartile mean
those, over the cases of a process  ─► geometric mean: the process's score
those, over fresh processes         ─► mean of logarithms with Student's t interval: the run's score
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.model import Estimate


def interquartile_mean(samples: Sequence[float]) -> float:
    """The mean of the middle half, weighting the samples at its edges by the part of them that lies inside.

    Raises ValueError without samples. Definition: https://en.wikipedia.org/wiki/Interquartile_mean
    """
    values = np.sort(np.asarray(samples, dtype=float))
    if values.size == 0:
        raise ValueError("no samples")
    edges = np.arange(values.size + 1)
    low, high = values.size / 4, values.size * 3 / 4
    weights = np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None)
    return float(np.average(values, weights=weights))


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log)). Raises ValueError without values or with one that is not positive."""
    array = np.asarray(values, dtype=float)
    if array.size == 0 or not (array > 0).all():
        raise ValueError("a geometric mean needs positive values")
    return float(np.exp(np.log(array).mean()))


def estimate(values: Sequence[float], confidence: float) -> Estimate:
    """The geometric mean of independent `values`, with Student's t interval of their logarithms.

    A single value has no interval. Raises ValueError as `geometric_mean` does.
    """
    centre = geometric_mean(values)
    logs = np.log(np.asarray(values, dtype=float))
    if logs.size < 2:
        return Estimate(latency_ns=centre)
    from scipy.special import stdtrit  # slow to import, and reading results does not need it

    quantile = float(stdtrit(logs.size - 1, 0.5 + confidence / 2))
    half_width = quantile * float(logs.std(ddof=1)) / logs.size**0.5
    return Estimate(
        latency_ns=centre, low_ns=centre * float(np.exp(-half_width)), high_ns=centre * float(np.exp(half_width))
    )
