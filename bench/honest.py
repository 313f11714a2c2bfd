"""What mla's tolerances leave to honest arithmetic, and by how much they refuse what is wrong, over many seeds.

    python bench/honest.py [--seeds 60] [--calls 8] [--benchmarks 3] [--jobs 1] [--wrong]

Each seed is a run: the CPU's test cases, each twice as the judge puts it and, apart from that, as often as it puts it
to an interpreted kernel, and `--calls` timed calls of each of the first `--benchmarks` benchmark cases, fewer than a
run of `eval --quick` makes. Answers are computed in plain torch and compared as the judge compares (bench/answers).

Columns: the range of what calls come to together (gains, the parts of problems/mla/reference.py), and the scatter of
rows; a value over its limit, of single calls and over all calls; and how many seeds the tolerance refuses. Of what is
honest that value is the largest of all seeds, of what is wrong (`--wrong`) the least; of a run it is the worst of its
groups.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import Tensor

from bench.answers import (
    REFERENCE,
    TEST_CALLS,
    Arithmetic,
    Change,
    Fault,
    Standing,
    answer,
    dealt,
    pieces,
    to_bits,
    to_fp8,
    to_mxfp4,
)
from bench.experiment import ROOT, report
from bench.faults import NAMED
from harness import catalog
from harness.judge.tally import Tally
from harness.judge.trial import ALL_TESTS
from harness.machine import device as devices

INTERPRETED = "all test cases, interpreted"


def weights_in_fp8(weights: Tensor) -> Tensor:
    """exp(score - maximum) in e4m3 as it is, which makes zeros of what is below 2^-10."""
    return weights.to(torch.float8_e4m3fn).float()


def floored_mxfp4(x: Tensor) -> Tensor:
    """mxfp4 by the conversion of OCP Microscaling Formats v1.0, section 6.3: the scale's exponent is rounded down, so
    that magnitudes of 6 to 8 times the scale become 6."""
    width = x.shape[-1]
    blocks = torch.nn.functional.pad(x, (0, -width % 32)).unflatten(-1, (-1, 32))
    _, exponent = torch.frexp(blocks.abs().amax(dim=-1, keepdim=True))
    scale = torch.exp2(exponent - 3.0)
    magnitude = (blocks / scale).abs()
    step = torch.exp2(torch.floor(torch.log2(magnitude.clamp(min=1.0))) - 1)
    rounded = (torch.round(magnitude / step) * step).clamp(max=6.0).copysign(blocks)
    return (rounded * scale).flatten(-2)[..., :width]


def bf16(x: Tensor) -> Tensor:
    return to_bits(x, 7)


A8W8 = replace(REFERENCE, weights=weights_in_fp8)
"""What AMD's aiter computes, the reference on its GPUs."""


NO_FAULT = Fault()


@dataclass(frozen=True)
class Way:
    """A way to compute answers, judged by `tolerance`, against the reference or against a8w8."""

    name: str
    tolerance: str
    arithmetic: Arithmetic
    fault: Fault = NO_FAULT
    against: Arithmetic | None = None


BF16 = Arithmetic("bf16", weights=bf16)
BOTH_MXFP4 = Arithmetic("mxfp4", to_mxfp4)
ALL_MXFP4 = Arithmetic("mxfp4", to_mxfp4, to_mxfp4)
HONEST = [
    Way("fp8 queries and cache, float32 weights", "exact", REFERENCE),
    Way("fp8 queries and cache, bf16 weights", "exact", replace(REFERENCE, weights=bf16)),
    Way("fp8 queries and cache, fp8 weights (a8w8)", "exact", A8W8),
    Way("bf16 queries, fp8 cache", "exact", Arithmetic("fp8")),
    Way("bf16 queries, fp8 cache, fp8 weights", "exact", Arithmetic("fp8", weights=weights_in_fp8)),
    Way("bf16 throughout", "exact", BF16),
    Way("bf16 throughout, held against a8w8", "exact", BF16, against=A8W8),
    Way("bf16 throughout, scores too", "mxfp4", BF16, Fault(scores=bf16)),
    Way("mxfp4 cache, bf16 queries", "mxfp4", Arithmetic("mxfp4", weights=bf16)),
    Way("mxfp4 cache, fp8 queries", "mxfp4", Arithmetic("mxfp4", to_fp8)),
    Way("mxfp4 cache, fp8 queries and weights", "mxfp4", Arithmetic("mxfp4", to_fp8, weights_in_fp8)),
    Way("mxfp4 cache and queries", "mxfp4", BOTH_MXFP4),
    Way("mxfp4 cache, queries and weights", "mxfp4", ALL_MXFP4),
    Way("fp8 keys, mxfp4 values", "mxfp4", Arithmetic("fp8"), Fault(values=to_mxfp4)),
    Way("mxfp4 keys, fp8 queries, bf16 values", "mxfp4", Arithmetic("bf16", to_fp8), Fault(keys=to_mxfp4)),
    Way("mxfp4 cache and queries, queries floored", "mxfp4", Arithmetic("mxfp4", floored_mxfp4)),
    Way("fp8 keys, mxfp4 values, held against a8w8", "mxfp4", Arithmetic("fp8"), Fault(values=to_mxfp4), against=A8W8),
    Way("mxfp4 cache and queries, held against a8w8", "mxfp4", BOTH_MXFP4, against=A8W8),
    Way("mxfp4 cache, queries and weights, held against a8w8", "mxfp4", ALL_MXFP4, against=A8W8),
]


def _named(name: str, strength: float) -> Fault:
    (corruption,) = [each for each in NAMED if each.name == name]
    return corruption.fault(strength)


BF16_QUERIES = Arithmetic("fp8")
MXFP4_KEYS = Arithmetic("mxfp4", weights=bf16)
WRONG = [
    *[
        Way(f"{name} {strength:g}", "exact", BF16_QUERIES, _named(name, strength))
        for name, strength in [
            ("output × s", 1.01),
            ("softmax scale × s", 1.02),
            ("best share of the keys, softmax over these", 0.9),
            ("best share of the keys, denominators of all", 0.75),
            ("rope dims forgotten", 4),
            ("output dims never written", 1),
            ("best share of the keys, output × s", 0.9),
            ("rope dims forgotten, the others × s", 4),
            ("even heads × 1 + s, odd ones × 1 - s", 0.05),
            ("the lighter half × 1 + s in even heads, × 1 - s in odd ones", 0.5),
            ("the last 32 dims × s", 0.9),
            ("even dims × 1 + s, odd ones × 1 - s", 0.1),
            ("output × 1.02, rows × 1 + s or 1 - s at random", 0.05),
        ]
    ],
    *[
        Way(f"{name} {strength:g}, {cache}", "mxfp4", arithmetic, _named(name, strength))
        for name, strength in [
            ("output × s", 1.05),
            ("output × s < 1", 0.9),
            ("softmax scale × s", 1.0607),
            ("softmax scale × s", 1.12),
            ("best share of the keys, softmax over these", 0.5),
            ("best share of the keys, softmax over these", 0.75),
            ("best share of the keys, denominators of all", 0.5),
            ("rope dims forgotten", 8),
            ("rope dims forgotten", 16),
            ("output dims never written", 1),
            ("rope dims forgotten, the others × s", 8),
            ("rope dims forgotten, the others × s", 16),
            ("even heads × 1 + s, odd ones × 1 - s", 0.1),
            ("the lighter half × 1 + s in even heads, × 1 - s in odd ones", 1.0),
            ("the last 32 dims × s", 0.7),
            ("even dims × 1 + s, odd ones × 1 - s", 0.25),
            ("output × 1.02, rows × 1 + s or 1 - s at random", 0.165),
            ("latent scales guessed from the codes", 1),
        ]
        for cache, arithmetic in [("fp8 cache", BF16_QUERIES), ("mxfp4 cache", MXFP4_KEYS)]
    ],
]


def stand(seed: int, benchmarks: int, calls: int, ways: Sequence[Way]) -> dict[str, Standing]:
    """Where each way stands in the run of one seed."""
    torch.set_num_threads(1)
    problem = catalog.load_problem(ROOT, "mla")
    standings = {way.name: Standing() for way in ways}
    for group in dealt(problem, devices.detect(ROOT, "cpu"), seed, problem.cpu.benchmark[:benchmarks], calls):
        for number, (case, call) in enumerate(group.calls):
            tolerances = problem.tolerances_for(case)
            apart = {
                key: pieces("mla", case, call, Arithmetic(*key))
                for key in dict.fromkeys(map(_operands, (REFERENCE, *(way.arithmetic for way in ways))))
            }
            a8w8 = answer(call, apart[_operands(A8W8)], NO_FAULT, A8W8)
            ((output, _),) = call.expectation.outputs.items()
            other = replace(call, expectation=replace(call.expectation, outputs={output: a8w8}))
            for way in ways:
                held = other if way.against else call
                out = answer(call, apart[_operands(way.arithmetic)], way.fault, way.arithmetic)
                limits = {way.tolerance: tolerances[way.tolerance]}
                standings[way.name].add(tallied(group.what, number), held, limits, out)
    return standings


def _operands(arithmetic: Arithmetic) -> tuple[str, Change]:
    return arithmetic.cache, arithmetic.queries


def tallied(what: str | None, number: int) -> list[str]:
    """Under which names a group's call of that number counts. An interpreted kernel is put the first test case twice
    and the others once (judge/entrant)."""
    if what == ALL_TESTS and (number < TEST_CALLS or number % TEST_CALLS == 0):
        return [ALL_TESTS, INTERPRETED]
    return [] if what is None else [what]


FIGURES = (
    "gain",
    "row_gain",
    "head_gain",
    "dim_gain",
    "lighter_half",
    "lightest_tenth",
    "rope",
    "rope_slice",
    "moved_rope",
)


def row(way: Way, standings: Sequence[Standing], honest: bool) -> dict[str, Any]:
    """What the runs of all seeds come to."""
    tallies = [tally for standing in standings for tally, _ in standing.groups.values()]
    worst = max if honest else min
    over = {name: worst(standing.limits(way.tolerance).get(name, 0.0) for standing in standings) for name in
            sorted({name for standing in standings for name in standing.limits(way.tolerance)})}  # fmt: skip
    return {
        "arithmetic": way.name,
        "tolerance": way.tolerance,
        **figures(tallies),
        "one call / limit": worst(standing.single[way.tolerance] for standing in standings),
        "all calls / limit": worst(standing.over_all(way.tolerance) for standing in standings),
        "nearest limit": max(over, key=lambda name: over[name]),
        "refused": sum(standing.rejected(way.tolerance) for standing in standings),
    }


def figures(tallies: Sequence[Tally]) -> dict[str, str]:
    """The range of each figure, of heads, dims and slices that of all of them; behind a ~ the most by which rows
    scatter about it."""
    found = {}
    for name in FIGURES:
        ratios = [each for tally in tallies if (each := tally.ratios(name)) is not None]
        values = torch.cat([each.value for each in ratios])
        spread = max(float(each.spread.max()) for each in ratios)
        found[name] = f"{_span(values[~values.isnan()].tolist())} ~{spread:.3f}"
    found["dim_rel_l2"] = _span(tally.dim_rel_l2 for tally in tallies)
    found["row_rms"] = _span(tally.row_rms for tally in tallies)
    return found


def _span(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.3f} to {max(known):.3f}"


def by_group(way: Way, standings: Sequence[Standing]) -> dict[str, dict[str, str]]:
    """The same of each group."""
    found = {}
    for what in standings[0].groups:
        tallies = [standing.groups[what][0] for standing in standings]
        limits = standings[0].groups[what][1][way.tolerance]
        over = [excess.ratio for tally in tallies if (excess := tally.excess(limits)) is not None]
        found[what] = {**figures(tallies), "over limit": _span(over)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=8, help="timed calls of a benchmark case")
    parser.add_argument("--benchmarks", type=int, default=3, help="CPU benchmark cases, from the first on")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--wrong", action="store_true", help="what is to be refused, in the place of what is honest")
    given = parser.parse_args()
    started = time.monotonic()
    ways = WRONG if given.wrong else HONEST
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        waiting = [pool.submit(_stand, seed, given.benchmarks, given.calls, given.wrong) for seed in range(given.seeds)]
        runs = [each.result() for each in waiting]
    standings = {way.name: [run[way.name] for run in runs] for way in ways}
    rows = [row(way, standings[way.name], not given.wrong) for way in ways]
    refused = sum(line["refused"] for line in rows)
    headline = f"{refused} of {given.seeds * len(ways)} {'wrong' if given.wrong else 'honest'} runs are refused"
    groups = {way.name: by_group(way, standings[way.name]) for way in ways}
    facts = {"seeds": given.seeds, "calls": given.calls, "seconds": round(time.monotonic() - started, 1)}
    report("honest", devices.detect(ROOT, "cpu"), headline, rows, groups=groups, **facts)


def _stand(seed: int, benchmarks: int, calls: int, wrong: bool) -> dict[str, Standing]:
    return stand(seed, benchmarks, calls, WRONG if wrong else HONEST)


if __name__ == "__main__":
    main()
