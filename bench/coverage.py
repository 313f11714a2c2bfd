"""Simulates how often a rule orders two submissions wrongly, and how often its interval contains the truth.

    python bench/coverage.py [--trials 4000] [--seed 1]

It shows the consequences of a model of the noise. E2 shows, on hardware, whether the model is right.

The model. A sample is  truth x (1 + process) x (1 + drift(t)) x (1 + jitter + spike):

    process   normal, 0.3 %: one draw a process
    drift     normal, 0.3 %, an Ornstein-Uhlenbeck process in time: correlation exp(-|t1 - t2| / tau)
    jitter    normal, 0.5 %: one draw a sample
    spike     with a chance of 1 % a sample, exponential with a mean of 10 %, else 0

Samples are taken every 0.5 ms; a process begins 5 s after the previous one. Five fresh processes take 100 samples each.
A rule for one process gets 500 samples of one process. Runs are far apart in time, so their drifts are independent. In
a duel eight pairs of processes take 100 samples each, a pair in turns (ABBA), so both have the same drift.

tau decides how much five processes are worth: at 1 s each has its own drift, at 1000 s all five share one. The truth
for a rule is its value for endless samples without process effects and drift, so no rule is charged with its own
definition.

Columns: B, which is 0.5 % slower, is put first; the intervals say that B is faster (certainly wrong) or slower
(certainly right); the 95 % interval contains the truth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from tabulate import tabulate

from bench import rules
from harness.ranking import stats

PROCESS, DRIFT, JITTER = 0.003, 0.003, 0.005
SPIKE_CHANCE, SPIKE_MEAN = 0.01, 0.1
SAMPLE_S, PROCESS_S = 0.5e-3, 5.0
PROCESSES, SAMPLES, PAIRS = 5, 100, 8
SLOWER = 0.005
TAUS_S = (1.0, 10.0, 100.0, 1000.0)

Rule = Callable[[rules.Array], rules.Estimates]
ONE: dict[str, Rule] = {
    "mean of one process": rules.mean_of_one,
    "stop at 0.1 % standard error": rules.stop_at_standard_error,
    "median of one process": rules.median_of_one,
}
FRESH: dict[str, Rule] = {
    "mean over five processes": rules.mean_of_fresh,
    "interquartile mean over five (ours)": rules.interquartile_mean_of_fresh,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    started = time.monotonic()
    rows = simulate(given.trials, given.seed)
    error = 50 / given.trials**0.5
    print(f"simulation, {given.trials} trials, seed {given.seed}: standard error at most {error:.1f} points")
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=("", "g", ".1f", ".1f", ".1f", ".1f")))
    facts = {"trials": given.trials, "seed": given.seed, "seconds": round(time.monotonic() - started, 1)}
    print(json.dumps({"bench": "coverage", **facts, "rows": rows}))


def simulate(trials: int, seed: int) -> list[dict[str, str | float]]:
    """A row a rule and tau; one for a rule for one process, whose quarter of a second sees next to nothing of tau."""
    rng = np.random.default_rng(seed)
    rows = []
    for name, rule in ONE.items():
        runs = [_samples(rng, trials, 1, PROCESSES * SAMPLES, TAUS_S[0])[:, 0] for _ in range(2)]
        rows.append(_row(name, TAUS_S[0], rule, runs, _truth(rule, rng, fresh=False)))
    for name, rule in FRESH.items():
        truth = _truth(rule, rng, fresh=True)
        for tau_s in TAUS_S:
            runs = [_samples(rng, trials, PROCESSES, SAMPLES, tau_s) for _ in range(2)]
            rows.append(_row(name, tau_s, rule, runs, truth))
    return rows + [_duel(rng, trials, tau_s) for tau_s in TAUS_S]


def _samples(rng: np.random.Generator, trials: int, processes: int, samples: int, tau_s: float) -> rules.Array:
    """Latencies over the truth, `[trials, processes, samples]`."""
    shape = (trials, processes, samples)
    process = PROCESS * rng.standard_normal((trials, processes, 1))
    return (1 + process) * (1 + DRIFT * _drift(rng, shape, tau_s)) * _each(rng, shape)


def _drift(rng: np.random.Generator, shape: tuple[int, int, int], tau_s: float) -> rules.Array:
    """A stationary Ornstein-Uhlenbeck process of variance 1 at the samples' times, of that shape."""
    from scipy.signal import lfilter  # slow to import, and every process of the tests imports this module

    _, processes, samples = shape
    step = np.exp(-SAMPLE_S / tau_s)
    pause = np.exp(-(PROCESS_S - (samples - 1) * SAMPLE_S) / tau_s)
    drift = rng.standard_normal(shape)
    state = drift[:, 0, 0]
    for process in range(processes):
        if process:
            state = pause * state + np.sqrt(1 - pause**2) * drift[:, process, 0]
        drift[:, process, 0] = state
        innovations = np.sqrt(1 - step**2) * drift[:, process, 1:]
        drift[:, process, 1:], _ = lfilter([1.0], [1.0, -step], innovations, axis=-1, zi=step * state[:, None])
        state = drift[:, process, -1]
    return drift


def _each(rng: np.random.Generator, shape: tuple[int, ...]) -> rules.Array:
    """What varies from sample to sample: jitter and spikes."""
    spikes = (rng.random(shape) < SPIKE_CHANCE) * rng.exponential(SPIKE_MEAN, shape)
    return 1 + JITTER * rng.standard_normal(shape) + spikes


def _truth(rule: Rule, rng: np.random.Generator, fresh: bool) -> float:
    """What `rule` gives for a million samples without process effects and drift.

    The loop that stops would stop: of it, the mean, which is what its samples are averaged to.
    """
    many = _each(rng, (1_000_000,))
    if rule is rules.stop_at_standard_error:
        return float(many.mean())
    return float(rule(many.reshape(1, 2, -1) if fresh else many[None]).centre[0])


def _row(name: str, tau_s: float, rule: Rule, runs: list[rules.Array], truth: float) -> dict[str, str | float]:
    a, b = rule(runs[0]), rule((1 + SLOWER) * runs[1])
    return {
        "rule": name,
        "tau s": tau_s,
        "B first %": 100 * float((b.centre < a.centre).mean()),
        "certainly wrong %": 100 * float((b.high < a.low).mean()),
        "certainly right %": 100 * float((a.high < b.low).mean()),
        "covers %": 50 * float(a.covers(truth).mean() + b.covers((1 + SLOWER) * truth).mean()),
    }


def _duel(rng: np.random.Generator, trials: int, tau_s: float) -> dict[str, str | float]:
    """Pairs of processes in turns: a t interval on the logarithms of their ratios, as `compare --duel` makes it."""
    shape = (trials, PAIRS, 2 * SAMPLES)
    turns = (1 + DRIFT * _drift(rng, shape, tau_s)) * _each(rng, shape)
    first, second, third, fourth = np.split(turns, 4, axis=-1)
    process = 1 + PROCESS * rng.standard_normal((2, trials, PAIRS, 1))
    a = process[0] * np.concatenate([first, fourth], axis=-1)
    b = (1 + SLOWER) * process[1] * np.concatenate([second, third], axis=-1)
    centres = [np.apply_along_axis(stats.interquartile_mean, -1, side) for side in (a, b)]
    made = [stats.estimate(ratios, rules.CONFIDENCE) for ratios in centres[1] / centres[0]]
    ratio, low, high = (np.array([getattr(one, f"{end}_ns") for one in made]) for end in ("latency", "low", "high"))
    return {
        "rule": "duel of eight pairs",
        "tau s": tau_s,
        "B first %": 100 * float((ratio < 1).mean()),
        "certainly wrong %": 100 * float((high < 1).mean()),
        "certainly right %": 100 * float((low > 1).mean()),
        "covers %": 100 * float(((low <= 1 + SLOWER) & (high >= 1 + SLOWER)).mean()),
    }


if __name__ == "__main__":
    main()
