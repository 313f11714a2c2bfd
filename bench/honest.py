"""What mla's limits over all calls leave to honest arithmetic: every rounding that is meant to pass, over many seeds.

    python bench/honest.py [--seeds 60] [--calls 8] [--benchmarks 3] [--jobs 1]

Each seed is a run: the CPU's test cases, each twice as the judge puts it and, apart from that, as often as it puts it to
an interpreted kernel, and `--calls` timed calls of each of the first `--benchmarks` benchmark cases, fewer than a run of
`eval --quick` makes. Answers are computed in plain torch and compared as the judge compares (bench/answers).

Columns: the least and the largest gain and row gain and the worst dim of what calls come to together; the worst value
over its limit, of single calls and over all calls; and how many seeds the tolerance refuses.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
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
from harness import catalog
from harness import device as devices
from harness.judge.trial import ALL_TESTS
from harness.model import Tolerance

INTERPRETED = "all test cases, interpreted"


def weights_in_fp8(weights: Tensor) -> Tensor:
    """exp(score - maximum) in e4m3 as it is, which makes zeros of what is below 2^-10."""
    return weights.to(torch.float8_e4m3fn).float()


def floored_mxfp4(x: Tensor) -> Tensor:
    """mxfp4 by the conversion of OCP Microscaling Formats v1.0, section 6.3: the scale's exponent is rounded down, so that
    magnitudes above 6 of up to 8 times the scale become 6."""
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


@dataclass(frozen=True)
class Honest:
    """An arithmetic that is meant to meet `tolerance`, held against the reference or against a8w8."""

    name: str
    tolerance: str
    arithmetic: Arithmetic
    fault: Fault = Fault()
    against: Arithmetic | None = None


BF16 = Arithmetic("bf16", weights=bf16)
BOTH_MXFP4 = Arithmetic("mxfp4", to_mxfp4)
ALL_MXFP4 = Arithmetic("mxfp4", to_mxfp4, to_mxfp4)
HONEST = [
    Honest("fp8 queries and cache, float32 weights", "exact", REFERENCE),
    Honest("fp8 queries and cache, bf16 weights", "exact", replace(REFERENCE, weights=bf16)),
    Honest("fp8 queries and cache, fp8 weights (a8w8)", "exact", A8W8),
    Honest("bf16 queries, fp8 cache", "exact", Arithmetic("fp8")),
    Honest("bf16 queries, fp8 cache, fp8 weights", "exact", Arithmetic("fp8", weights=weights_in_fp8)),
    Honest("bf16 throughout", "exact", BF16),
    Honest("bf16 throughout, held against a8w8", "exact", BF16, against=A8W8),
    Honest("mxfp4 cache, bf16 queries", "mxfp4", Arithmetic("mxfp4", weights=bf16)),
    Honest("mxfp4 cache, fp8 queries", "mxfp4", Arithmetic("mxfp4", to_fp8)),
    Honest("mxfp4 cache, fp8 queries and weights", "mxfp4", Arithmetic("mxfp4", to_fp8, weights_in_fp8)),
    Honest("mxfp4 cache and queries", "mxfp4", BOTH_MXFP4),
    Honest("mxfp4 cache, queries and weights", "mxfp4", ALL_MXFP4),
    Honest("fp8 keys, mxfp4 values", "mxfp4", Arithmetic("fp8"), Fault(values=to_mxfp4)),
    Honest("mxfp4 keys, fp8 queries, bf16 values", "mxfp4", Arithmetic("bf16", to_fp8), Fault(keys=to_mxfp4)),
    Honest("mxfp4 cache and queries, queries floored", "mxfp4", Arithmetic("mxfp4", floored_mxfp4)),
    Honest("mxfp4 cache and queries, held against a8w8", "mxfp4", BOTH_MXFP4, against=A8W8),
    Honest("mxfp4 cache, queries and weights, held against a8w8", "mxfp4", ALL_MXFP4, against=A8W8),
]


def stand(seed: int, benchmarks: int, calls: int) -> dict[str, Standing]:
    """Where each honest arithmetic stands in the run of one seed."""
    torch.set_num_threads(1)
    problem = catalog.load_problem(ROOT, "mla")
    standings = {honest.name: Standing() for honest in HONEST}
    for group in dealt(problem, devices.detect(ROOT, "cpu"), seed, problem.cpu.benchmark[:benchmarks], calls):
        for number, (case, call) in enumerate(group.calls):
            tolerances = problem.tolerances_for(case)
            apart = {}
            for honest in HONEST:
                for arithmetic in filter(None, (honest.arithmetic, honest.against)):
                    key = arithmetic.cache, arithmetic.queries
                    if key not in apart:
                        apart[key] = pieces("mla", case, call, arithmetic)
            a8w8 = answer(call, apart["fp8", to_fp8], Fault(), A8W8)
            ((output, _),) = call.expectation.outputs.items()
            other = replace(call, expectation=replace(call.expectation, outputs={output: a8w8}))
            for honest in HONEST:
                held = other if honest.against else call
                parts = apart[honest.arithmetic.cache, honest.arithmetic.queries]
                out = answer(call, parts, honest.fault, honest.arithmetic)
                limits = {honest.tolerance: tolerances[honest.tolerance]}
                for what in tallied(group.what, number):
                    standings[honest.name].add(what, held, limits, out)
    return standings


def tallied(what: str, number: int) -> Iterator[str]:
    """Under which names a group's call of that number counts. An interpreted kernel is put the first test case twice and
    the others once (judge/entrant)."""
    yield what
    if what == ALL_TESTS and (number < TEST_CALLS or number % TEST_CALLS == 0):
        yield INTERPRETED


def row(honest: Honest, standings: list[Standing]) -> dict[str, Any]:
    """What the runs of all seeds come to."""
    tallies = [tally for standing in standings for tally, _ in standing.groups.values()]
    gains, row_gains, dims = (
        [value for tally in tallies if (value := getattr(tally, name)) is not None]
        for name in ("gain", "row_gain", "dim_rel_l2")
    )
    return {
        "arithmetic": honest.name,
        "tolerance": honest.tolerance,
        "gain": f"{min(gains):.4f} to {max(gains):.4f}",
        "row gain": f"{min(row_gains):.4f} to {max(row_gains):.4f}",
        "worst dim": max(dims),
        "one call / limit": max(standing.single[honest.tolerance] for standing in standings),
        "all calls / limit": max(standing.over_all(honest.tolerance) for standing in standings),
        "refused": sum(standing.rejected(honest.tolerance) for standing in standings),
    }


def by_group(honest: Honest, standings: list[Standing]) -> dict[str, dict[str, float]]:
    """The same of each group, in numbers."""
    found = {}
    for what in standings[0].groups:
        tallies = [standing.groups[what][0] for standing in standings]
        limits: dict[str, Tolerance] = standings[0].groups[what][1]
        ratios = [excess.ratio for tally in tallies if (excess := tally.excess(limits[honest.tolerance])) is not None]
        found[what] = {
            f"{end} {name}": pick(getattr(tally, name) or 0.0 for tally in tallies)
            for name in ("gain", "row_gain", "dim_rel_l2")
            for end, pick in (("least", min), ("most", max))
        } | {"most over limit": max(ratios)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=8, help="timed calls of a benchmark case")
    parser.add_argument("--benchmarks", type=int, default=3, help="CPU benchmark cases, from the first on")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    started = time.monotonic()
    with get_context("spawn").Pool(given.jobs) as pool:
        work = [(seed, given.benchmarks, given.calls) for seed in range(given.seeds)]
        runs = pool.starmap(stand, work, chunksize=1)
    standings = {honest.name: [run[honest.name] for run in runs] for honest in HONEST}
    rows = [row(honest, standings[honest.name]) for honest in HONEST]
    refused = sum(line["refused"] for line in rows)
    headline = f"{refused} of {given.seeds * len(HONEST)} honest runs are refused"
    groups = {honest.name: by_group(honest, standings[honest.name]) for honest in HONEST}
    facts = {"seeds": given.seeds, "calls": given.calls, "seconds": round(time.monotonic() - started, 1)}
    report("honest", devices.detect(ROOT, "cpu"), headline, rows, groups=groups, **facts)


if __name__ == "__main__":
    main()
