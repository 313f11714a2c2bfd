"""Ranks over several cards of one model: what the card adds to a run's interval.

    y[k, c] = mean[k] + card[c] + pair[k, c] + error[k, c]        logarithms of scores; kernel k judged on card c

Cards differ by 0.3 to 2 %, but not by one common factor: one card is 1.9 % faster than another for one kernel and 0.3 %
faster for the next. So scores are not corrected by card. Card and pair are both random effects. The standard deviation
of a run on some card about its kernel's mean over the fleet is sqrt(var(card) + var(pair)). That variance is the
component.

It is estimated by the analysis of variance of two crossed factors without replication (Searle, Casella and McCulloch,
Variance Components, 1992, chapter 4). The mean variance of a kernel over the cards is

    (MS_card + (kernels - 1) MS_rest) / kernels = var(card) + var(pair) + var(error)

Each run's own interval gives var(error). Of a kernel at most its own variance over the cards is subtracted: one noisy
kernel would otherwise take away what the cards add to all others. The degrees of freedom are Satterthwaite's
(https://doi.org/10.2307/3002019).
One variance is assumed for all kernels. If small kernels vary more than large ones, their variance is underestimated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.model import Estimate
from harness.ranking.stats import Ratio, t_quantile

LEAST_KERNELS, LEAST_CARDS = 2, 3
"""The smallest table that a component is estimated from. Two cards are too few: with one degree of freedom for the
cards, Satterthwaite's formula takes it for more. In a simulation 89 % of the 95 % intervals held the true value
(bench/fleet_interval.py)."""


@dataclass(frozen=True)
class Component:
    """The between-card variance of a log-score, its degrees of freedom, and the numbers of kernels and cards it was
    estimated from."""

    variance: float
    freedom: float
    kernels: int
    cards: int

    @property
    def percent(self) -> float:
        """The standard deviation in percent."""
        return 100 * math.expm1(self.variance**0.5)

    def reach(self, confidence: float) -> float:
        """The largest log-ratio between runs of one kernel on two cards, with `confidence`."""
        return t_quantile(self.freedom, confidence) * (2 * self.variance) ** 0.5 if self.variance > 0 else 0.0


USUAL = Component(variance=math.log(1.0086) ** 2, freedom=6.2, kernels=4, cards=4)
"""Taken where several cards judged a board's runs and nobody has measured what they add: what four H100s of one host
added (2026-11-27, docs/cluster.md). Four H200s differed by 0.3 to 2 %, which is as much."""


def component(log_scores: Sequence[Sequence[float]], squared_errors: Sequence[Sequence[float]]) -> Component:
    """Estimate the component from log-scores [kernel][card], each with its squared standard error.

    Raises ValueError for fewer than LEAST_KERNELS kernels or LEAST_CARDS cards, or for an incomplete table.
    """
    scores, errors = np.asarray(log_scores, dtype=float), np.asarray(squared_errors, dtype=float)
    if (
        scores.ndim != 2
        or scores.shape != errors.shape
        or scores.shape[0] < LEAST_KERNELS
        or scores.shape[1] < LEAST_CARDS
    ):
        raise ValueError(f"it takes {LEAST_KERNELS} kernels, each judged on the same cards, and {LEAST_CARDS} of these")
    kernels, cards = scores.shape
    of_cards = scores.mean(axis=0)
    rest = scores - scores.mean(axis=1, keepdims=True) - of_cards + scores.mean()
    ms_card = kernels * float(((of_cards - scores.mean()) ** 2).sum()) / (cards - 1)
    ms_rest = float((rest**2).sum()) / ((kernels - 1) * (cards - 1))
    parts = np.array([ms_card / kernels, ms_rest * (kernels - 1) / kernels])
    total = float(parts.sum())
    freedoms = np.array([cards - 1, (kernels - 1) * (cards - 1)])
    freedom = total**2 / float((parts**2 / freedoms).sum()) if total > 0 else float(freedoms.sum())
    by_kernel = scores.var(axis=1, ddof=1)  # their mean is `total`
    errors_of = np.minimum(errors.mean(axis=1), by_kernel)
    return Component(max(total - float(errors_of.mean()), 0.0), freedom, kernels, cards)


def widened(score: Estimate, freedom: float, found: Component, confidence: float) -> Estimate:
    """`score` with an interval that also covers the kernel's mean over the fleet. `freedom`: the degrees of freedom of
    the score's own interval. A score without an interval stays without."""
    if score.low_ns is None or score.high_ns is None:
        return score
    own = (math.log(score.high_ns / score.latency_ns) / t_quantile(freedom, confidence)) ** 2
    total = own + found.variance
    if found.variance == 0 or total == 0:
        return score
    both = total**2 / (own**2 / freedom + found.variance**2 / found.freedom)
    half_width = t_quantile(both, confidence) * total**0.5
    half_width = max(half_width, math.log(score.high_ns / score.latency_ns))
    factor = math.exp(min(half_width, 700.0))
    low, high = score.latency_ns / factor, score.latency_ns * factor
    return Estimate(
        latency_ns=score.latency_ns, low_ns=max(low, sys.float_info.min), high_ns=min(high, sys.float_info.max)
    )


def of_two_cards(ratio: Ratio, found: Component | None, confidence: float) -> Ratio:
    """`ratio` of runs on two cards, with an interval that also covers what the cards add. Either end moves away from
    the value by the root of the sum of squares. Unchanged without `found` or without an interval."""
    if found is None or ratio.low is None or ratio.high is None:
        return ratio
    reach = found.reach(confidence)
    down, up = (math.hypot(math.log(end / ratio.value), reach) for end in (ratio.low, ratio.high))
    return Ratio(ratio.value, ratio.value * math.exp(-down), ratio.value * math.exp(up))
