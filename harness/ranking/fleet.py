"""Ranks over several cards of one model: what the card adds to a run's interval.

    y[k, c] = mean[k] + card[c] + pair[k, c] + error[k, c]        logarithms of scores; kernel k judged on card c

Cards differ by 0.3 to 2 %, and not by one factor: one card is 1.9 % faster than another for one kernel, 0.3 % for the
next. So nothing is corrected by card. Card and pair are both random, and a run on some card is as far from its kernel's
mean over the fleet as sqrt(var(card) + var(pair)) says: that is the component.

It is estimated by the analysis of variance of two crossed factors without replication (Searle, Casella and McCulloch,
Variance Components, 1992, chapter 4). Per kernel the spread over cards is on average

    (MS_card + (kernels - 1) MS_rest) / kernels = var(card) + var(pair) + var(error)

whose last part each run's own interval tells. Degrees of freedom are Satterthwaite's
(https://doi.org/10.2307/3002019). One variance is assumed for all kernels: where small ones vary more than large ones,
theirs is underestimated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.model import Estimate
from harness.ranking.stats import t_quantile

LEAST_KERNELS, LEAST_CARDS = 2, 3
"""Two cards have one degree of freedom where only cards differ, and Satterthwaite's takes it for more: in a simulation
89 % of the intervals held what 95 % were to hold (bench/fleet_interval.py)."""


@dataclass(frozen=True)
class Component:
    """The between-card variance of a log-score, its degrees of freedom, and what it was found from."""

    variance: float
    freedom: float
    kernels: int
    cards: int

    @property
    def percent(self) -> float:
        """The standard deviation."""
        return 100 * math.expm1(self.variance**0.5)

    def reach(self, confidence: float) -> float:
        """How far apart (a log-ratio) one kernel's runs on two cards are, at most, with `confidence`."""
        return t_quantile(self.freedom, confidence) * (2 * self.variance) ** 0.5 if self.variance > 0 else 0.0


def component(log_scores: Sequence[Sequence[float]], squared_errors: Sequence[Sequence[float]]) -> Component:
    """Of the log-scores [kernel][card], each with its squared standard error.

    Raises ValueError for fewer than LEAST_KERNELS or LEAST_CARDS, or a table that is not full.
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
    return Component(max(total - float(errors.mean()), 0.0), freedom, kernels, cards)


def widened(score: Estimate, freedom: float, found: Component, confidence: float) -> Estimate:
    """`score`, whose interval has so many degrees of freedom, with one that also holds the kernel's mean over the
    fleet. One without an interval stays without."""
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
