"""Wrong answers that are accepted all the same, as far as they can be simulated: the READMEs' lists, one line each.

Most use knowledge of the inputs' distribution and would fail on other data. mla's approximations below the noise are in
bench/mla_ways.PASSES.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.answers import Fault, Piece, largest
from bench.entries import Simulated
from harness.model import Problem

PLAIN = 8.0
"""No element of q or k exceeds this if scores are not moved."""

PLAIN_ROPE = 5.5
"""No rope element of mla's query exceeds this unless it moves the scores."""

LARGE_VALUE = 64.0
"""No element of fmha's v exceeds this except outliers."""


def entries(problem: Problem) -> list[Simulated]:
    strictest = next(iter(problem.tolerances))
    return [
        Simulated(name, strictest, lambda _, fault=fault: fault) for name, fault in PASSES.get(problem.name, {}).items()
    ]


def _maximum_if(moved: Tensor) -> Fault:
    return Fault(maximum=lambda scores: torch.where(moved, largest(scores), 0.0))


def _both_operands(piece: Piece) -> Fault:
    largest_of = [x.abs().amax(dim=(-1, -2), keepdim=True) for x in (piece.queries, piece.keys)]
    return _maximum_if(torch.maximum(*largest_of) > PLAIN)


def _usual_rope(piece: Piece) -> Fault:
    return _maximum_if(piece.queries[..., 512:].abs().amax(dim=-1, keepdim=True) > PLAIN_ROPE)


def _every(nth: int, above: int) -> Fault:
    """Of rows of up to `above` keys all: there a level may have no key among every nth."""
    return Fault(maximum=lambda scores: largest(scores[..., :: nth if scores.shape[-1] > above else 1]))


def _told_by_a_few(_: Piece) -> Fault:
    """If the scores of about 32 keys lie close together, use their largest as the maximum."""

    def maximum(scores: Tensor) -> Tensor:
        few = scores[..., :: max(scores.shape[-1] // 32, 1)]
        together = largest(few) + largest(-few) < 60
        return torch.where(together, largest(few), largest(scores))

    return Fault(maximum=maximum)


def _bfloat16_output(piece: Piece) -> Fault:
    agree = (piece.keys[:, :1] == piece.keys[:, 1:2]).float().mean(dim=-1, keepdim=True) > 0.5
    agree = agree.any(dim=1, keepdim=True)  # a single key has no second one
    return Fault(out=lambda out: torch.where(agree, out, out.bfloat16().float()))


def _light_values(piece: Piece) -> Fault:
    """Leave light keys out, unless the head before has a large value."""
    outliers = piece.values.abs().amax(dim=(-1, -2), keepdim=True).roll(1, dims=0) > LARGE_VALUE
    return Fault(weights=lambda weights: torch.where((weights < 1e-3) & ~outliers, 0.0, weights), all_denominators=True)


PASSES: dict[str, dict[str, Fault | Callable[[Piece], Fault]]] = {
    "mla": {
        "no maximum where a query's rope dims are of the usual size": _usual_rope,
        "`large` told by a few keys' scores": _told_by_a_few,
    },
    "kv_decode": {
        "a maximum only where q or k is large": _both_operands,
        "the largest score of every 16th of more than 70 keys for the maximum": _every(16, above=70),
    },
    "prefill": {
        "a maximum only where q or k is large": _both_operands,
        "the largest score of every 16th of more than 130 keys for the maximum": _every(16, above=130),
    },
    "fmha": {
        "bfloat16 output unless two keys agree in most dims": _bfloat16_output,
        "light values not read unless the head before has outliers": _light_values,
    },
}
