"""Ways to compute mla's answers: honest arithmetic, wrong arithmetic, and wrong arithmetic that is accepted all the
same.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bench import hopper
from bench.answers import REFERENCE, Arithmetic, Fault, to_bits, to_fp8, to_mxfp4
from bench.entries import A8W8, Way, weights_in_fp8
from bench.faults import NAMED


def floored_mxfp4(x: Tensor) -> Tensor:
    """mxfp4 by the conversion of OCP Microscaling Formats v1.0, section 6.3. The scale's exponent is rounded down, so
    magnitudes of 6 to 8 times the scale become 6."""
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


BF16 = Arithmetic("bf16", weights=bf16)
BOTH_MXFP4 = Arithmetic("mxfp4", to_mxfp4)
ALL_MXFP4 = Arithmetic("mxfp4", to_mxfp4, to_mxfp4)
ROPE_LAST = hopper.products(hopper.ROPE_LAST)
HOPPER_FP8 = Arithmetic("fp8", hopper.by_head, bf16, ROPE_LAST)
HOPPER_MXFP4 = Arithmetic("mxfp4", hopper.by_head, bf16, ROPE_LAST)
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
    Way("fp8 cache and queries, scores by Hopper's fp8, rope dims last", "exact", HOPPER_FP8),
    Way("mxfp4 cache, fp8 queries, scores by Hopper's fp8, rope dims last", "mxfp4", HOPPER_MXFP4),
]


def _named(name: str, strength: float) -> Fault:
    (corruption,) = [each for each in NAMED if each.name == name]
    return corruption.fault(strength)


BF16_QUERIES = Arithmetic("fp8")
MXFP4_KEYS = Arithmetic("mxfp4", weights=bf16)
ROPE_FIRST = hopper.products(hopper.ROPE_FIRST)
WRONG = [
    Way("fp8 cache, Hopper's fp8, rope dims first", "exact", replace(HOPPER_FP8, product=ROPE_FIRST)),
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
            ("dims of one head never written", 1),
            ("dims of one head never written", 16),
            ("last keys counted twice", 1),
            ("the first key of each n counted twice", 64),
            ("the last key of each n counted twice", 64),
            ("a last tile of n keys that begins early", 64),
            ("a last tile of n keys that begins early", 128),
        ]
        for cache, arithmetic in [("fp8 cache", BF16_QUERIES), ("mxfp4 cache", MXFP4_KEYS)]
    ],
]

PASSES = [
    Way(
        "16 latent dims left out of scores by turns",
        "mxfp4",
        MXFP4_KEYS,
        _named("latent dims left out of scores by turns", 16),
    ),
    Way(
        "a quarter of the keys, the lightest, in pairs",
        "exact",
        BF16_QUERIES,
        _named("lightest keys left out in pairs", 0.25),
    ),
    Way(
        "three quarters of the keys, the lightest, in pairs",
        "mxfp4",
        MXFP4_KEYS,
        _named("lightest keys left out in pairs", 0.75),
    ),
]
"""Approximations below the noise that is allowed: problems/mla/calibration.md."""
