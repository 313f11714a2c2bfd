"""Simulates how many processes a run takes, and how often its interval then contains the truth.

    python bench/stopping.py [--trials 100000] [--seed 1]

A run times `processes` fresh processes and, if they differ much, up to `extra_processes` more (configs/eval.yml, gpu).
Scatter is the standard deviation of the logarithms of their scores, which are normal and independent here. Rules:

    the first, no more            never an extra process
    all, always                   always every extra process
    look after each               one more while Student's interval of all so far is too wide
    number by the first           the spread of the first decides once how many more; Student's interval of all
    number and spread by the first    the same, and the interval has the spread of the first alone: ours (Stein 1945)

A run stops early more often if its processes happen to lie close together. Then their spread is too small, and so is an
interval made from it. The spread of the first processes, with its own degrees of freedom, is independent of the mean of
all, whatever it decided.

Columns: how often the 95 % interval contains the truth; how often that of the ratio of two such runs does (Welch); the
processes of a run; the half-width of its interval.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from tabulate import tabulate

from harness.catalog.config import Sampling, load_config
from harness.judge.trial import NEAR

ROOT = Path(__file__).resolve().parents[1]
SCATTERS = (0.001, 0.003, 0.005, 0.008, 0.012, 0.02)

Array = NDArray[np.float64]


class Runs(NamedTuple):
    """Of each trial the mean of its logarithms, how many there are, and the variance for the interval with its degrees
    of freedom."""

    mean: Array
    count: Array
    variance: Array
    freedom: Array

    def half_width(self, confidence: float) -> Array:
        return np.asarray(stdtrit(self.freedom, 0.5 + confidence / 2) * np.sqrt(self.variance / self.count))


Rule = Callable[[Array, Sampling, float], Runs]


def first_alone(logs: Array, sampling: Sampling, confidence: float) -> Runs:
    return _of(logs, np.full(len(logs), sampling.processes))


def all_always(logs: Array, sampling: Sampling, confidence: float) -> Runs:
    return _of(logs, np.full(len(logs), logs.shape[1]))


def look_after_each(logs: Array, sampling: Sampling, confidence: float) -> Runs:
    counts = np.full(len(logs), logs.shape[1])
    for count in range(logs.shape[1] - 1, sampling.processes - 1, -1):
        narrow = _of(logs, np.full(len(logs), count)).half_width(confidence) <= np.log1p(sampling.target_half_width)
        counts[narrow] = count
    return _of(logs, counts)


def number_by_first(logs: Array, sampling: Sampling, confidence: float) -> Runs:
    return _of(logs, _enough(logs, sampling, confidence))


def number_and_spread_by_first(logs: Array, sampling: Sampling, confidence: float) -> Runs:
    """`stats.enough` and `stats.estimate`, of many trials at once."""
    made = _of(logs, _enough(logs, sampling, confidence))
    first = first_alone(logs, sampling, confidence)
    return Runs(made.mean, made.count, first.variance, first.freedom)


RULES: dict[str, Rule] = {
    "the first, no more": first_alone,
    "all, always": all_always,
    "look after each": look_after_each,
    "number by the first": number_by_first,
    "number and spread by the first (ours)": number_and_spread_by_first,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    started, config = time.monotonic(), load_config(ROOT)
    rows = simulate(config.gpu, config.confidence, given.trials, given.seed)
    error = 100 * (config.confidence * (1 - config.confidence) / given.trials) ** 0.5
    sampling = f"{config.gpu.processes} processes and up to {config.gpu.extra_processes} more"
    sampling += f" for a half-width of {100 * config.gpu.target_half_width:g} %"
    print(f"simulation, {sampling}; {given.trials} trials, seed {given.seed}: standard error {error:.2f} points")
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=("", ".1f", ".1f", ".1f", ".1f", ".2f")))
    facts = {"trials": given.trials, "seed": given.seed, "seconds": round(time.monotonic() - started, 1)}
    print(json.dumps({"bench": "stopping", **facts, "rows": rows}))


def simulate(sampling: Sampling, confidence: float, trials: int, seed: int) -> list[dict[str, str | float]]:
    """A row a scatter and rule. All rules see the same draws."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, str | float]] = []
    for scatter in SCATTERS:
        draws = scatter * rng.standard_normal((2, trials, sampling.processes + sampling.extra_processes))
        for name, rule in RULES.items():
            new, old = (rule(logs, sampling, confidence) for logs in draws)
            half_widths = np.concatenate([made.half_width(confidence) for made in (new, old)])
            means, counts = (np.concatenate(both) for both in ((new.mean, old.mean), (new.count, old.count)))
            row = {
                "rule": name,
                "scatter %": 100 * scatter,
                "covers %": 100 * float((np.abs(means) <= half_widths).mean()),
                "ratio covers %": 100 * float((np.abs(new.mean - old.mean) <= _welch(new, old, confidence)).mean()),
                "processes": float(counts.mean()),
                "half-width %": 100 * float(half_widths.mean()),
            }
            rows.append(row)
    return rows


def _enough(logs: Array, sampling: Sampling, confidence: float) -> NDArray[np.int64]:
    first = first_alone(logs, sampling, confidence)
    quantile = stdtrit(first.freedom, 0.5 + confidence / 2)
    near, wanted = (
        np.ceil(quantile**2 * first.variance / np.log1p(width) ** 2)
        for width in (NEAR * sampling.target_half_width, sampling.target_half_width)
    )
    wanted = np.where(near > logs.shape[1], 0, wanted)
    return np.clip(wanted, sampling.processes, logs.shape[1]).astype(np.int64)


def _of(logs: Array, counts: NDArray[np.int64]) -> Runs:
    """Of each trial its first so many logarithms."""
    taken = np.arange(logs.shape[1]) < counts[:, None]
    mean = logs.mean(axis=1, where=taken)
    variance = logs.var(axis=1, ddof=1, where=taken)
    return Runs(mean, counts.astype(float), variance, counts - 1.0)


def _welch(new: Runs, old: Runs, confidence: float) -> Array:
    """The half-width of Welch's interval of the difference, as in `stats.ratio_of_scores`."""
    parts = np.stack([made.variance / made.count for made in (new, old)])
    total = parts.sum(axis=0)
    freedom = 1 / ((parts / total) ** 2 / np.stack([new.freedom, old.freedom])).sum(axis=0)
    return np.asarray(stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt(total))


if __name__ == "__main__":
    main()
