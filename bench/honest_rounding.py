"""Honest ways to round, by problem: attention in float32 except where it rounds.

mla's are in bench/mla_ways. Values are rounded to the dtype of the case, or to bfloat16 for fmha, whose output alone is
float16.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from bench.answers import Fault, to_bits
from bench.entries import Simulated
from harness.model import Case, Problem

BITS = {"float32": 23, "float16": 10, "bfloat16": 7, "exact": 7}
"""Of mantissa, by the dtype of the cases; prefill's and fmha's is bfloat16, and no parameter says so."""

SCALED_QUERIES = "weights, and queries scaled before"
"""Not with fmha's scores, which are up to 64 times as large: what rounding q costs there is no longer small."""


def entries(problem: Problem) -> list[Simulated]:
    (tolerance,) = problem.tolerances

    def by_case(rounding: str) -> Callable[[Case], Fault]:
        return lambda case: roundings(BITS[str(case.parameters.get("dtype", "exact"))])[rounding]

    names = [name for name in roundings(7) if problem.name != "fmha" or name != SCALED_QUERIES]
    return [Simulated(f"rounded: {name}", tolerance, by_case(name)) for name in names]


def roundings(bits: int) -> dict[str, Fault]:
    """To so many bits of mantissa."""

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
        SCALED_QUERIES: Fault(queries=scaled, weights=to_dtype, all_denominators=True),
    }
