"""Simulates how often an interval with the between-card component contains the kernel's mean over the fleet.

    .venv/bin/python -m bench.fleet_interval [--runs 4000]

Effects of cards and of pairs of kernel and card are drawn from normal distributions. A fleet is calibrated on some
cards with some kernels. Then another kernel is judged on another card of the fleet. Prints in how many of 100 runs its
interval contains its mean over all cards, with the component and without, and the median width of both.
"""

import argparse
import math

import numpy as np

from harness.model import Estimate
from harness.ranking import fleet, stats

PROCESSES = 5
CONFIDENCE = 0.95


def simulate(
    runs: int,
    kernels: int,
    cards: int,
    of_card: float,
    of_pair: float,
    of_process: float,
    small: float = 1.0,
    seed: int = 0,
) -> tuple[float, float, float, float]:
    """Coverage with the component and without, and the median half-widths (log-ratios) of both.

    `of_card`, `of_pair`, `of_process`: standard deviations of logarithms. `small`: every second kernel's pairs vary so
    many times as much as the others', and the judged one's too in every second run.
    """
    random = np.random.default_rng(seed)
    held = held_without = 0
    widths: list[float] = []
    widths_without: list[float] = []
    for number in range(runs):
        by_kernel = np.where(np.arange(kernels) % 2, small, 1.0)[:, None, None] * of_pair
        means = random.normal(0, of_card, (1, cards, 1)) + by_kernel * random.normal(0, 1, (kernels, cards, 1))
        logs = means + random.normal(0, of_process, (kernels, cards, PROCESSES))
        found = fleet.component(logs.mean(axis=2), logs.var(axis=2, ddof=1) / PROCESSES)
        own = of_pair * (small if number % 2 else 1.0)
        one = random.normal(0, of_card) + random.normal(0, own) + random.normal(0, of_process, PROCESSES)
        score = stats.estimate(np.exp(one).tolist(), CONFIDENCE)
        wide = fleet.widened(score, PROCESSES - 1, found, CONFIDENCE)
        held += _holds(wide)
        held_without += _holds(score)
        widths.append(math.log((wide.high_ns or 1) / wide.latency_ns))
        widths_without.append(math.log((score.high_ns or 1) / score.latency_ns))
    return held / runs, held_without / runs, float(np.median(widths)), float(np.median(widths_without))


def _holds(score: Estimate) -> bool:
    return score.low_ns is not None and score.high_ns is not None and score.low_ns <= 1 <= score.high_ns


SCENES = {
    "pairs alone, 1 %": (0.0, 0.01, 0.002, 1.0),
    "cards alone, 1 %": (0.01, 0.0, 0.002, 1.0),
    "cards 0.5 %, pairs 0.8 %": (0.005, 0.008, 0.002, 1.0),
    "cards 0.2 %, pairs 0.2 %": (0.002, 0.002, 0.002, 1.0),
    "no difference": (0.0, 0.0, 0.002, 1.0),
    "pairs 0.3 %, small kernels five times": (0.001, 0.003, 0.002, 5.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000)
    runs = parser.parse_args().runs
    print(f"{runs} runs a line; the interval is to hold in {CONFIDENCE:.0%}")
    print(f"{'':40}{'kernels':>8}{'cards':>6}{'with':>9}{'without':>9}{'width':>9}{'without':>9}")
    for name, (card, pair, process, small) in SCENES.items():
        for kernels, cards in ((2, 3), (4, 3), (4, 4), (6, 8)):
            with_, without, wide, narrow = simulate(runs, kernels, cards, card, pair, process, small)
            print(f"{name:40}{kernels:8}{cards:6}{with_:9.1%}{without:9.1%}{wide:9.2%}{narrow:9.2%}")


if __name__ == "__main__":
    main()
