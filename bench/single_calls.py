"""Makes the tables of single calls in problems/mla/calibration.md: the figures of honest arithmetic, and the canaries.

    python bench/single_calls.py [--seeds 60]

Honest arithmetic: the worst of all calls, one per seed of each of CASES and of some seeds of each of LONG_CASES, with
all rows. Canaries (the controls in controls/wrong_answer, and a simulated one): the least of all seeds. The first two
columns are single plain calls of at least 128 tokens of CASES. The others are a run's worst value over its limit for
the test cases, as in bench/honest; they decide. A value above 1 is a rejection.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from bench import honest, mla_ways
from bench.entries import Desk, Entry, Kernel, Simulated
from bench.experiment import ROOT, report
from bench.faults import NAMED
from harness import catalog
from harness.judge.checked_call import differences
from harness.judge.inputs import Dealer
from harness.judge.reference import Reference
from harness.judge.seeds import Seeds
from harness.machine import device as devices
from harness.model import Case, Problem
from harness.model.case import CaseValue

CASES: list[tuple[int, int | list[int], str]] = [
    (4, [0, 1, 37, 70], "plain"),
    (3, [257, 1, 129], "plain"),
    (1, 1, "plain"),
    (2, 128, "plain"),
    (1, 1024, "plain"),
    (4, 1024, "plain"),
    (1, 8192, "plain"),
    (2, 128, "large"),
    (1, 1024, "rising"),
    (2, 1024, "shuffled"),
]
LONG_CASES = {(4, 8192, "plain"): 5, (64, 1024, "plain"): 8}
"""One seed of so many."""

LEAST_TOKENS = 128
"""Of the calls in the canaries' table: in shorter ones less is left out."""

CANARIES = {
    "zeros": "zeros",
    "mean(V)": "mean_of_values",
    "every second token": "every_second_token",
    "first 7/8 only": "first_seven_eighths",
    "last 1 % dropped": "last_percent_dropped",
    "the last token of each 64 dropped": "one_token_in_64_dropped",
    "splits averaged without their log-sum-exp": "splits_averaged",
    "rope dims left out of the scores": "rope_ignored",
    "softmax scale 1/√512": "scale_of_512_dims",
    "values from dim 64": "values_from_dim_64",
    "fp8 cache without its scale": "unscaled_fp8",
    "mxfp4 nibbles swapped": "nibbles_swapped",
    "the previous call's output": "previous_output",
    "the half of the keys that scores best by half of the dims": "better_half_of_keys",
}
"""By the control that computes it."""


@dataclass
class Range:
    """The least and the greatest of some calls' elements missed, rel L2 and worst row."""

    least: list[float] = field(default_factory=lambda: [math.inf] * 3)
    most: list[float] = field(default_factory=lambda: [0.0] * 3)

    def add(self, figures: Sequence[float]) -> None:
        self.least = list(map(min, self.least, figures))
        self.most = list(map(max, self.most, figures))


def cases(seed: int) -> Iterator[Case]:
    for batch_size, lengths, scores in CASES:
        yield _case(batch_size, lengths, scores)
    for case, share in LONG_CASES.items():
        if seed % share == 0:
            yield _case(*case)


def _case(batch_size: int, lengths: int | list[int], scores: str) -> Case:
    own: dict[str, CaseValue] = {"batch_size": batch_size, "q_seq_len": 1, "kv_seq_len": lengths}
    return Case(parameters=own if scores == "plain" else {**own, "scores": scores})


def measured(problem: Problem, reference: Reference, seed: int, case: Case, entries: Sequence[Entry]) -> dict[str, Any]:
    """By the name of each entry: elements missed by the strictest tolerance, rel L2 and the worst row of a call."""
    tolerances = problem.tolerances_for(case)
    strictest = next(iter(tolerances))
    found = {}
    with closing(Dealer(reference, case, Seeds(f"{seed:032x}", "single", case))) as dealer:
        before, call = (dealer.deal(everything=True) for _ in range(2))
    first, second = (
        Desk(problem.name, case, replace(each, expectation=replace(each.expectation, state={}, exact=None)))
        for each in (before, call)
    )
    for entry in entries:
        if isinstance(entry, Kernel):
            entry.answered(first)  # some remember it
        held, outcome = entry.answered(second)
        (difference, *_) = differences(held, *outcome, tolerances)
        missed = difference.mismatches.get(strictest, 0) / max(difference.elements, 1)
        found[entry.name] = missed, difference.rel_l2, difference.worst_row
    return found


def canaries(problem: Problem) -> dict[str, Entry]:
    folder, loosest = problem.folder / "controls" / "wrong_answer", list(problem.tolerances)[-1]
    files: dict[str, Entry] = {
        name: replace(Kernel.of(folder / f"{stem}.py", loosest), name=name) for name, stem in CANARIES.items()
    }
    (dropped,) = [each for each in NAMED if each.name == "last keys dropped"]
    return {**files, "last token dropped": Simulated("last token dropped", loosest, lambda _: dropped.fault(1))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    started, device, problem = time.monotonic(), devices.detect(ROOT, "cpu"), catalog.load_problem(ROOT, "mla")
    reference = Reference(problem, device)
    calls: dict[str, Range] = {}
    over: dict[str, dict[str, float]] = {}
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        wrong = canaries(problem)
        for case in cases(seed):
            long = case.key in {_case(*each).key for each in LONG_CASES}
            shown = not long and "scores" not in case.parameters and _shortest(case) >= LEAST_TOKENS
            entries = [*mla_ways.HONEST, *(wrong.values() if shown else ())]
            for name, figures in measured(problem, reference, seed, case, entries).items():
                calls.setdefault(name, Range()).add(figures)
        for name, standing in honest.stand(problem, seed, 0, 0, list(canaries(problem).values())).items():
            own = over.setdefault(name, dict.fromkeys(problem.tolerances, math.inf))
            for tolerance in problem.tolerances:
                own[tolerance] = min(own[tolerance], standing.nearest(tolerance).ratio)
    seconds = round(time.monotonic() - started, 1)
    headline = (
        f"{len(over)} canaries, {sum(min(each.values()) <= 1 for each in over.values())} of them not always refused"
    )
    report("single_calls", device, headline, table(calls, over), seeds=given.seeds, seconds=seconds)


def table(calls: Mapping[str, Range], over: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    rows = []
    for name, found in calls.items():
        missed, rel_l2, row = found.least if name in over else found.most
        rows.append({"what": name, "missed": missed, "rel L2": rel_l2, "worst row": row, **over.get(name, {})})
        if name not in over:
            rows[-1] |= {"least missed": found.least[0], "least rel L2": found.least[1]}
    return rows


def _shortest(case: Case) -> int:
    lengths = case.parameters["kv_seq_len"]
    return min(lengths) if isinstance(lengths, list) else int(lengths)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
