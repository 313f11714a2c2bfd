"""The rules by which harnesses compute a latency from samples, ours among them, each with its 95 % interval.

    one process, samples [.., n]               mean_of_one · stop_at_standard_error · median_of_one
    fresh processes, samples [.., processes, n]    mean_of_fresh · interquartile_mean_of_fresh (ours)

Every rule takes an array whose leading axes are trials, and returns Estimates, which are arrays of that shape.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, stdtrit

from harness.ranking import stats

CONFIDENCE = 0.95

RELATIVE_STANDARD_ERROR = 0.001
LEAST_SAMPLES = 3
"""When the loop of GPU MODE's competitions stops: `i > 1` and `stats.err / stats.mean < 0.001`
(github.com/gpu-mode/reference-kernels, eval.py)."""

Array = NDArray[np.float64]


class Estimates(NamedTuple):
    """What a rule makes of the samples: its centre and the ends of its interval."""

    centre: Array
    low: Array
    high: Array

    def covers(self, truth: float | Array) -> Array:
        return (self.low <= truth) & (truth <= self.high)


def mean_of_one(samples: Array) -> Estimates:
    """The mean of one process's samples, with Student's t interval as if they were independent."""
    count = samples.shape[-1]
    return _student(samples.mean(-1), samples.std(-1, ddof=1), np.full(samples.shape[:-1], count))


def stop_at_standard_error(samples: Array) -> Estimates:
    """The mean of one process's samples up to where its standard error falls below 0.1 %, looked at after each."""
    counts = np.arange(1, samples.shape[-1] + 1)
    shifted = samples - samples[..., :1]  # keeps the sums of squares from cancelling
    means = shifted.cumsum(-1) / counts
    variances = np.maximum((shifted**2).cumsum(-1) - counts * means**2, 0) / np.maximum(counts - 1, 1)
    means = means + samples[..., :1]
    done = (np.sqrt(variances / counts) < RELATIVE_STANDARD_ERROR * means) & (counts >= LEAST_SAMPLES)
    last = np.where(done.any(-1), done.argmax(-1), samples.shape[-1] - 1)
    mean, variance = (np.take_along_axis(values, last[..., None], -1)[..., 0] for values in (means, variances))
    return _student(mean, np.sqrt(variance), last + 1)


def median_of_one(samples: Array) -> Estimates:
    """The median of one process's samples, with the order statistics that enclose it (binomial, distribution-free)."""
    count = samples.shape[-1]
    ordered = np.sort(samples, -1)
    below = bdtr(np.arange(count + 1), count, 0.5)
    low = max(int(np.searchsorted(below, (1 - CONFIDENCE) / 2)) - 1, 0)
    return Estimates(np.median(samples, -1), ordered[..., low], ordered[..., count - 1 - low])


def mean_of_fresh(samples: Array) -> Estimates:
    """The mean over processes of their means, with Student's t interval over the processes."""
    means = samples.mean(-1)
    return _student(means.mean(-1), means.std(-1, ddof=1), np.full(means.shape[:-1], means.shape[-1]))


def interquartile_mean_of_fresh(samples: Array) -> Estimates:
    """Ours: what `harness.ranking.stats` makes of an interquartile mean a process."""
    trials = samples.reshape(-1, *samples.shape[-2:])
    made = [stats.estimate([stats.interquartile_mean(process) for process in trial], CONFIDENCE) for trial in trials]
    columns = [[getattr(one, name) for one in made] for name in ("latency_ns", "low_ns", "high_ns")]
    return Estimates(*(np.asarray(column, dtype=float).reshape(samples.shape[:-2]) for column in columns))


def _student(mean: Array, deviation: Array, counts: NDArray[np.int64]) -> Estimates:
    half_width = stdtrit(counts - 1, 0.5 + CONFIDENCE / 2) * deviation / np.sqrt(counts)
    return Estimates(mean, mean - half_width, mean + half_width)
