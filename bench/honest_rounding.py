"""What the tolerances of prefill and kv_decode leave to honest rounding, over many seeds.

    python bench/honest_rounding.py [PROBLEM ...] [--seeds 10] [--calls 2]

Each seed is a run: the CPU's test cases, each twice, and of prefill `--calls` timed calls of its last benchmark and its
probes (bench/corruptions). Answers are computed in float32 but for what is rounded, and compared as the judge compares.
Told is a value over its limit, the largest of all seeds, and how many seeds the tolerance refuses.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import Tensor

from bench.answers import Fault, to_bits
from bench.corruptions import runs
from bench.experiment import ROOT, report
from harness import catalog
from harness.machine import device as devices

BITS = {"float32": 23, "float16": 10, "bfloat16": 7, "exact": 7}
"""Of mantissa, by the dtype of the cases; prefill's is bfloat16, and no parameter says so."""


def roundings(bits: int) -> dict[str, Fault]:
    """Ways to round that are no fault, to so many bits."""

    def to_dtype(x: Tensor) -> Tensor:
        return to_bits(x, bits)

    def normalised(weights: Tensor) -> Tensor:
        total = weights.sum(dim=-1, keepdim=True)
        return to_dtype(weights / total) * total

    def scaled(queries: Tensor) -> Tensor:
        scale = math.log2(math.e) / math.sqrt(queries.shape[-1])
        return to_dtype(queries * scale) / scale

    return {
        "float32 inside": Fault(),
        "weights": Fault(weights=to_dtype, all_denominators=True),
        "weights, summed after rounding": Fault(weights=to_dtype),
        "weights, normalised before": Fault(weights=normalised, all_denominators=True),
        "weights, and queries scaled before": Fault(queries=scaled, weights=to_dtype, all_denominators=True),
    }


def rows(name: str, seeds: int, calls: int) -> list[dict[str, Any]]:
    problem, device = catalog.load_problem(ROOT, name), devices.detect(ROOT, "cpu")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    (tolerance,) = problem.tolerances
    for seed in range(seeds):
        for dtype, run in runs(problem, device, seed, 0, calls).items():
            for rounding, fault in roundings(BITS[dtype]).items():
                standing = run.standing(fault)
                start = {"problem": name, "dtype": dtype, "rounded": rounding, "one call / limit": 0.0}
                row = found.setdefault((dtype, rounding), {**start, "all calls / limit": 0.0, "refused": 0})
                row["one call / limit"] = max(row["one call / limit"], standing.single[tolerance])
                row["all calls / limit"] = max(row["all calls / limit"], standing.over_all(tolerance))
                row["refused"] += standing.rejected(tolerance)
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", default=["prefill", "kv_decode"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=2, help="timed calls of prefill's longest benchmark")
    given = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    found = [row for name in given.problems for row in rows(name, given.seeds, given.calls)]
    headline = f"{sum(row['refused'] for row in found)} of {given.seeds * len(found)} honest runs are refused"
    facts = {"seeds": given.seeds, "calls": given.calls, "seconds": round(time.monotonic() - started, 1)}
    report("honest_rounding", devices.detect(ROOT, "cpu"), headline, found, **facts)


if __name__ == "__main__":
    main()
