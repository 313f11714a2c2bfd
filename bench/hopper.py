"""Scores as Hopper's fp8 matrix instruction (wgmma on e4m3 or e5m2) adds them: a model in plain torch.

    products(order)(queries, keys, key_step) ─► q k^T, the dims taken in the order given, 32 at a time

For each 32 dims the products and the accumulator are aligned to the largest of them, and each is cut off 13 bits below
its leading bit. The rest is added exactly, and the sum keeps 13 bits of mantissa. So small values beside a large
accumulator are lost, and the order of the dims matters.

Source: DeepSeek-V3's technical report (arXiv 2412.19437, section 3.5.2): 32 products are shifted to the largest
exponent, 14 bits of each are added and the rest is cut off, and the accumulator has 14 bits. This model assumes that
the accumulator is aligned with the products. With that, rope dims that come first cost about as much as seen on an H200
(problems/mla/rope-dims-last.md). It also assumes that the shift goes by the normalised product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bench.answers import Product, to_bits

SLICE = 32
"""Dims of one instruction: 32 bytes of each operand (PTX ISA, wgmma.mma_async, shape m64nNk32)."""

BITS = 13
"""Bits kept below the leading bit of the largest addend."""

CODE_BITS = 3
"""Mantissa bits of e4m3. e5m2 and the format that mxfp4 is widened to have fewer."""

LARGEST_CODE = 224.0
"""The largest code of queries, in each flavour of fp8."""

KEYS = 512
"""This many keys at a time stay in a processor's cache."""

LATENT_DIMS, ALL_DIMS = 512, 576
ROPE_LAST = [slice(0, LATENT_DIMS), slice(LATENT_DIMS, ALL_DIMS)]
ROPE_FIRST = ROPE_LAST[::-1]


def products(order: Sequence[slice]) -> Product:
    """Returns a function for the scores `[n, m, s]` of queries `[n, m, D]`, rounded as by `by_head`, and keys
    `[n, s, D]`, before the softmax scale. `key_step` is the keys' scale: codes are multiplied."""
    firsts = [first for part in order for first in range(part.start, part.stop, SLICE)]

    def product(queries: Tensor, keys: Tensor, key_step: float) -> Tensor:
        step = _step(queries)  # the same as before rounding: the largest code belongs to the largest element
        q, k = to_bits(queries / step, CODE_BITS), to_bits(keys / key_step, CODE_BITS)
        found = [_added(q, some, firsts) for some in k.split(KEYS, dim=-2)]
        return torch.cat(found, dim=-1) * step * key_step

    return product


def by_head(queries: Tensor) -> Tensor:
    """Queries in e4m3 with a scale for each head, as the bundled kernels round them."""
    step = _step(queries)
    return (queries / step).to(torch.float8_e4m3fn).float() * step


def _step(queries: Tensor) -> Tensor:
    return queries.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / LARGEST_CODE


def _added(queries: Tensor, keys: Tensor, firsts: Sequence[int]) -> Tensor:
    total = queries.new_zeros(*queries.shape[:2], keys.shape[1])
    for first in firsts:
        dims = slice(first, first + SLICE)
        each = queries[:, :, None, dims] * keys[:, None, :, dims]
        largest = torch.maximum(each.abs().amax(dim=-1), total.abs())
        unit = torch.exp2(_exponent(largest) - BITS)
        total = (each / unit[..., None]).trunc_().sum(dim=-1).add_((total / unit).trunc_()).mul_(unit)
        unit = torch.exp2(_exponent(total) - BITS)
        total = (total / unit).trunc_() * unit
    return total


def _exponent(x: Tensor) -> Tensor:
    """The exponent of the leading bit; arbitrary for zero."""
    return torch.frexp(x).exponent.float() - 1
