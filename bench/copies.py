"""Faults of kernels for kv_replicate: right copies of K and V with something changed.

NAMED     the corruptions of the table (bench/corruptions)
GRID      the faults from which ten further ones are drawn
Copies    a run's calls, answered with one fault

A fault's strength is the number of elements, tokens, dims, heads or bits that it changes, the weakest first. Some
faults change nothing in a case that lacks the place. A run is rejected if one of its calls is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.answers import Group
from bench.faults import Corruption
from bench.standing import Standing
from harness.judge.inputs import Call
from harness.model import Case, Problem

INTEGERS = {2: torch.int16, 4: torch.int32}
EXPONENT = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
"""IEEE 754 and bfloat16: all ones is NaN or infinity, all zeros a subnormal or zero."""


@dataclass(frozen=True)
class Copied:
    """One of K and V as integers: `out` `[B, S, Hq, D]` is a right copy, to be changed; `held` is what lay there before
    it; `source` `[B, S, Hkv, D]` was to be copied."""

    out: Tensor
    held: Tensor
    source: Tensor
    exponent: int

    @property
    def mantissa(self) -> int:
        return (self.exponent & -self.exponent) - 1

    @property
    def special(self) -> Tensor:
        """Where there is NaN or infinity."""
        return (self.out & self.exponent) == self.exponent

    @property
    def nan(self) -> Tensor:
        return self.special & ((self.out & self.mantissa) != 0)

    @property
    def group(self) -> int:
        return self.out.shape[2] // self.source.shape[2]


Rewrite = Callable[[Copied], None]


def nothing(_: Copied) -> None:
    """A right copy."""


class Copies:
    """The calls of a run of kv_replicate. What is done to K is done to V."""

    def __init__(self, problem: Problem, groups: Sequence[Group]) -> None:
        self.problem = problem
        self._calls = [(group.what, case, call) for group in groups for case, call in group.calls]

    def standing(self, rewrite: Rewrite) -> Standing:
        """Where copies that are so changed stand."""
        standing = Standing()
        for what, case, call in self._calls:
            standing.add(
                [what] if what else [], call, self.problem.tolerances_for(case), *_rewritten(case, call, rewrite)
            )
        return standing

    def ideal(self) -> Standing:
        return self.standing(nothing)


def _rewritten(case: Case, call: Call, rewrite: Rewrite) -> list[Tensor]:
    poured = dict(zip(call.input_names, (tensor for tensor, _ in call.places), strict=True))
    changed = []
    for name, expected in call.expectation.outputs.items():
        out = expected.clone()
        integers = INTEGERS[out.itemsize]
        held, source = poured[name].view(integers), poured[name.removesuffix("_out")].view(integers)
        rewrite(Copied(out.view(integers), held, source, EXPONENT[out.dtype]))
        changed.append(out)
    return changed


def _bits_flipped(mask: int) -> Callable[[float], Rewrite]:
    """That bit of the last so many elements; -1 stands for the sign."""

    def of(count: float) -> Rewrite:
        def rewrite(copied: Copied) -> None:
            flat = copied.out.view(-1)
            flat[-int(count) :] ^= torch.iinfo(flat.dtype).min if mask < 0 else mask

        return rewrite

    return of


def _as_held(axis: int) -> Callable[[float], Rewrite]:
    """The last so many along an axis are never written."""

    def of(count: float) -> Rewrite:
        def rewrite(copied: Copied) -> None:
            size = copied.out.shape[axis]
            first = max(size - int(count), 0)
            copied.out.narrow(axis, first, size - first).copy_(copied.held.narrow(axis, first, size - first))

        return rewrite

    return of


def _next_head(count: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        heads = torch.arange(copied.out.shape[2]) // copied.group
        heads[: int(count)] = (heads[: int(count)] + 1) % copied.source.shape[2]
        copied.out.copy_(copied.source[:, :, heads])

    return rewrite


def _quiet(_: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        copied.out.copy_(torch.where(copied.nan, copied.out | (copied.mantissa + 1) // 2, copied.out))

    return rewrite


def _flushed(_: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        small = (copied.out & copied.exponent) == 0
        copied.out.copy_(torch.where(small, copied.out & ~copied.mantissa, copied.out))

    return rewrite


def _cut(bits: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        copied.out.copy_(torch.where(copied.special, copied.out, copied.out & -(1 << int(bits))))

    return rewrite


def _payload_cut(bits: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        shorter = copied.out & -(1 << int(bits))
        still = copied.nan & ((shorter & copied.mantissa) != 0)
        copied.out.copy_(torch.where(still, shorter, copied.out))

    return rewrite


def _late(tokens: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        count = min(int(tokens), copied.out.shape[1] - 1)
        copied.out[:, 1 : count + 1] = copied.out[:, :count].clone()

    return rewrite


def _first_sequence(tokens: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        copied.out[:, : int(tokens)] = copied.out[:1, : int(tokens)].clone()

    return rewrite


def _unsigned_zeros(dims: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        some = copied.out[..., : int(dims)]
        some.masked_fill_((some << 1) == 0, 0)

    return rewrite


def _finite(heads: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        some, infinite = copied.out[:, :, : int(heads)], copied.special & ~copied.nan
        some.sub_(infinite[:, :, : int(heads)].to(some.dtype))  # the largest number is the integer before

    return rewrite


def _every_nth_token(nth: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        copied.out[:, int(nth) - 1 :: int(nth)] = copied.held[:, int(nth) - 1 :: int(nth)]

    return rewrite


def _swapped(pairs: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        count = min(2 * int(pairs), copied.out.shape[3] // 2 * 2)
        copied.out[..., :count] = copied.out[..., :count].unflatten(-1, (-1, 2)).flip(-1).flatten(-2)

    return rewrite


def _heads_modulo(tokens: float) -> Rewrite:
    def rewrite(copied: Copied) -> None:
        heads = torch.arange(copied.out.shape[2]) % copied.source.shape[2]
        copied.out[:, : int(tokens)] = copied.source[:, : int(tokens), heads]

    return rewrite


COPIES = ("kv_replicate",)
FEW = (1, 2, 4, 8)

NAMED = [
    Corruption("n elements with the lowest bit wrong", (1, 4, 16, 64), _bits_flipped(1), COPIES),
    Corruption("the last n tokens not written", FEW, _as_held(1), COPIES),
    Corruption("the last n query heads not written", FEW, _as_held(2), COPIES),
    Corruption("the last n dims not written", FEW, _as_held(3), COPIES),
    Corruption("n query heads with the next KV head", FEW, _next_head, COPIES),
    Corruption("signalling NaNs made quiet", (1,), _quiet, COPIES),
    Corruption("subnormals as zero", (1,), _flushed, COPIES),
]

GRID = [
    Corruption("n elements with the sign wrong", (1, 4, 16, 64), _bits_flipped(-1), COPIES),
    Corruption("the lowest n bits of numbers cut off", (1, 2, 3, 4), _cut, COPIES),
    Corruption("the lowest n bits of NaNs cut off", (1, 2, 4, 6), _payload_cut, COPIES),
    Corruption("n tokens one token late", FEW, _late, COPIES),
    Corruption("n tokens of the first sequence in all", FEW, _first_sequence, COPIES),
    Corruption("zeros without a sign in n dims", (1, 4, 16, 64), _unsigned_zeros, COPIES),
    Corruption("infinities as the largest number in n heads", FEW, _finite, COPIES),
    Corruption("every nth token not written", (16, 8, 4, 2), _every_nth_token, COPIES),
    Corruption("n pairs of dims swapped", FEW, _swapped, COPIES),
    Corruption("query head h from KV head h % Hkv in n tokens", FEW, _heads_modulo, COPIES),
]
