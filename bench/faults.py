"""Faults with a strength: errors of kernels, from the weakest that is tried to the strongest.

NAMED    the corruptions of the table (bench/corruptions); the last ones are by an author who knows the limits
further  ten faults for a problem, drawn from GRID, none of which is in NAMED

kv_replicate is not attention and has its own faults (bench/copies).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.answers import Fault, to_bits, to_mxfp4

MLA = ("mla",)
ROPE_DIMS = 64
ATTENTION = ("mla", "prefill", "kv_decode", "fmha")
MOVED = ("prefill", "kv_decode")
"""Problems for which shuffled scores are stated for every arithmetic, and whose keys do not end at the highest
level."""


@dataclass(frozen=True)
class Corruption:
    """A kind of fault. `strengths`: weakest first. `problems`: those that it applies to. `fault` gives the Fault of one
    strength, or for kv_replicate a Rewrite (bench/copies)."""

    name: str
    strengths: tuple[float, ...]
    fault: Callable[[float], Any]
    problems: tuple[str, ...] = ATTENTION


def _times(factor: float) -> Fault:
    return Fault(out=lambda x: x * factor)


def _scores_times(factor: float) -> Fault:
    return Fault(scores=lambda x: x * factor)


def _best(share: float) -> Callable[[Tensor], Tensor]:
    """Keep the heaviest weights of each row: this share of all."""

    def keep(weights: Tensor) -> Tensor:
        count = max(int(weights.shape[-1] * share), 1)
        return torch.where(weights >= weights.topk(count, dim=-1).values[..., -1:], weights, 0.0)

    return keep


def _zeroed(part: Callable[[int], slice]) -> Callable[[Tensor], Tensor]:
    """Zero a `part` of the last axis. `part` gets the axis's length."""

    def zero(x: Tensor) -> Tensor:
        x = x.clone()
        x[..., part(x.shape[-1])] = 0
        return x

    return zero


def _last_eighth(factor: float) -> Callable[[Tensor], Tensor]:
    """A wrong merge of a split's sum."""

    def change(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[..., weights.shape[-1] * 7 // 8 :] *= factor
        return weights

    return change


def _twice(keys: Callable[[int], slice]) -> Callable[[Tensor], Tensor]:
    """Count some of the keys twice. `keys` gets their number."""

    def change(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[..., keys(weights.shape[-1])] *= 2
        return weights

    return change


def _before_the_last(tile: float) -> Callable[[int], slice]:
    """The keys of a whole tile that a last tile holds too, if it begins early so as to be whole."""
    size = int(tile)

    def keys(length: int) -> slice:
        return slice(max(length - size, 0), length // size * size if length % size else 0)

    return keys


def _dims_of_a_head(count: float) -> Callable[[Tensor], Tensor]:
    """Never write `count` dims of one of mla's heads."""

    def change(out: Tensor) -> Tensor:
        out = out.clone()
        out[..., 3, _dims(count)] = 0
        return out

    return change


def _dims(count: float) -> slice:
    return slice(5, 5 + int(count))


def _first_score(scores: Tensor) -> Tensor:
    return scores[..., :1]


def _last_score(scores: Tensor) -> Tensor:
    """The score of the last key that a row sees. With a causal mask this is its own key."""
    last = torch.where(scores.isneginf(), -1, torch.arange(scores.shape[-1])).amax(dim=-1, keepdim=True)
    return scores.gather(-1, last)


def _outer_score(scores: Tensor) -> Tensor:
    return torch.maximum(_first_score(scores), _last_score(scores))


def _to_int8(x: Tensor) -> Tensor:
    """int8 with a scale for each 32 dims. Heads with an element beyond 5.5 stay unchanged: moved scores cause such
    elements."""
    blocks = x.unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(dim=-1, keepdim=True) / 127
    plain = x.abs().amax(dim=(-1, -2), keepdim=True) < 5.5
    return torch.where(plain, (torch.round(blocks / scale) * scale).flatten(-2), x)


PLAIN = [
    Corruption("output × s", (1.001, 1.002, 1.003, 1.005, 1.008, 1.01, 1.02, 1.03, 1.05, 1.1, 1.17), _times),
    Corruption("output × s < 1", (0.999, 0.998, 0.997, 0.995, 0.992, 0.99, 0.98, 0.97, 0.95, 0.9, 0.83), _times),
    Corruption("softmax scale × s", (1.002, 1.005, 1.01, 1.02, 1.03, 1.05, 1.0607, 1.12, 1.25), _scores_times),
    Corruption("softmax scale × s < 1", (0.998, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.8), _scores_times),
    Corruption(
        "best share of the keys, softmax over these",
        (0.99, 0.95, 0.9, 0.8, 0.75, 0.5, 0.25),
        lambda share: Fault(weights=_best(share)),
    ),
    Corruption(
        "best share of the keys, denominators of all",
        (0.99, 0.95, 0.9, 0.8, 0.75, 0.5, 0.25, 0.1),
        lambda share: Fault(weights=_best(share), all_denominators=True),
    ),
    Corruption("output dims never written", (1, 2, 4, 8, 12, 16), lambda n: Fault(out=_zeroed(lambda _: _dims(n)))),
    Corruption(
        "rope dims forgotten",
        (1, 2, 4, 6, 8, 16, 32, 64),
        lambda n: Fault(queries=_zeroed(lambda width: slice(width - int(n), width))),
        MLA,
    ),
    Corruption(
        "query dims forgotten",
        (1, 2, 4, 8),
        lambda n: Fault(queries=_zeroed(lambda _: _dims(n))),
        ("prefill", "kv_decode", "fmha"),
    ),
    Corruption(
        "weights of the last eighth of the keys × s",
        (1.05, 1.1, 1.2, 1.5, 2.0, 3.0),
        lambda s: Fault(weights=_last_eighth(s)),
    ),
    Corruption("first keys dropped", (1, 2, 4, 8), lambda n: Fault(weights=_zeroed(lambda _: slice(0, int(n))))),
    Corruption("last keys dropped", (1, 2, 4, 8), lambda n: Fault(weights=_zeroed(lambda size: slice(-int(n), size)))),
    Corruption(
        "weights of m bits of mantissa",
        (8, 7, 6, 5, 4, 3, 2, 1, 0),
        lambda m: Fault(weights=lambda x: to_bits(x, int(m)), all_denominators=True),
    ),
    Corruption(
        "values of m bits of mantissa",
        (8, 7, 6, 5, 4, 3, 2, 1, 0),
        lambda m: Fault(values=lambda x: to_bits(x, int(m))),
    ),
    Corruption("values in mxfp4", (4,), lambda _: Fault(values=to_mxfp4)),
    Corruption("values in fp8", (8,), lambda _: Fault(values=lambda x: x.to(torch.float8_e4m3fn).float())),
    Corruption("dims of one head never written", (1, 4, 16, 64), lambda n: Fault(out=_dims_of_a_head(n)), MLA),
    Corruption(
        "last keys counted twice", (1, 2, 4), lambda n: Fault(weights=_twice(lambda size: slice(-int(n), size))), MLA
    ),
    Corruption(
        "the first key of each n counted twice",
        (256, 128, 64, 32),
        lambda n: Fault(weights=_twice(lambda _: slice(0, None, int(n)))),
        MLA,
    ),
    Corruption(
        "the last key of each n counted twice",
        (256, 128, 64, 32),
        lambda n: Fault(weights=_twice(lambda _: slice(int(n) - 1, None, int(n)))),
        MLA,
    ),
    Corruption(
        "a last tile of n keys that begins early",
        (16, 32, 64, 128),
        lambda n: Fault(weights=_twice(_before_the_last(n))),
        MLA,
    ),
    Corruption("first key's score for the maximum", (1,), lambda _: Fault(maximum=_first_score), MOVED),
    Corruption("own or last key's score for the maximum", (1,), lambda _: Fault(maximum=_last_score), MOVED),
    Corruption("larger of first and last score for the maximum", (1,), lambda _: Fault(maximum=_outer_score), MOVED),
    Corruption(
        "q and k of plain inputs in int8 from row n on",
        (512, 256, 128, 64, 0),
        lambda n: Fault(queries=_to_int8, keys=_to_int8, spared=int(n)),
        ("prefill",),
    ),
]


def _heads_apart(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """One change for the even rows, which are heads of mla, and another for the odd rows."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[..., ::2, :], x[..., 1::2, :] = first(x[..., ::2, :]), second(x[..., 1::2, :])
        return x

    return change


def _lighter_half(factor: float) -> Callable[[Tensor], Tensor]:
    def change(weights: Tensor) -> Tensor:
        return torch.where(weights < weights.median(dim=-1, keepdim=True).values, factor * weights, weights)

    return change


def _dims_times(dims: slice, factor: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[..., dims] *= factor
        return x

    return change


def _rope_dims_made_up_for(forgotten: float) -> Callable[[Tensor], Tensor]:
    """Zero the last `forgotten` of mla's rope dims in queries, and enlarge the others to compensate."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        kept = ROPE_DIMS - int(forgotten)
        x[..., -ROPE_DIMS:][..., kept:] = 0
        x[..., -ROPE_DIMS:] *= ROPE_DIMS / kept
        return x

    return change


def _rows_apart(factor: float) -> Callable[[Tensor], Tensor]:
    """Enlarge or shrink rows at random by `factor`, and enlarge all by 2 %."""

    def change(x: Tensor) -> Tensor:
        signs = 1.0 - 2.0 * torch.randint(2, (*x.shape[:-1], 1), generator=torch.Generator().manual_seed(len(x)))
        return 1.02 * x * (1 + factor * signs)

    return change


MADE_UP_FOR = [
    Corruption(
        "best share of the keys, output × s",
        (0.95, 0.9, 0.8),
        lambda share: Fault(weights=_best(share), out=lambda x: x * (1 - 0.08 * (1 - share))),
        MLA,
    ),
    Corruption(
        "rope dims forgotten, the others × s", (4, 8, 16, 32), lambda n: Fault(queries=_rope_dims_made_up_for(n)), MLA
    ),
    Corruption(
        "even heads × 1 + s, odd ones × 1 - s",
        (0.01, 0.02, 0.05, 0.1, 0.2),
        lambda s: Fault(out=_heads_apart(lambda x: x * (1 + s), lambda x: x * (1 - s))),
        MLA,
    ),
    Corruption(
        "the lighter half × 1 + s in even heads, × 1 - s in odd ones",
        (0.25, 0.5, 1.0),
        lambda s: Fault(weights=_heads_apart(_lighter_half(1 + s), _lighter_half(1 - s)), all_denominators=True),
        MLA,
    ),
    Corruption(
        "the last 32 dims × s", (0.98, 0.95, 0.9, 0.8, 0.7, 0.5), lambda s: Fault(out=_dims_times(slice(-32, None), s))
    ),
    Corruption(
        "even dims × 1 + s, odd ones × 1 - s",
        (0.02, 0.05, 0.1, 0.2, 0.25),
        lambda s: Fault(out=lambda x: _dims_times(slice(0, None, 2), 1 + s)(_dims_times(slice(1, None, 2), 1 - s)(x))),
    ),
    Corruption(
        "output × 1.02, rows × 1 + s or 1 - s at random", (0.02, 0.05, 0.1, 0.165), lambda s: Fault(out=_rows_apart(s))
    ),
]
"""Errors that cancel in a sum, and approximations with a factor that compensates for what they omit."""


def _scales_guessed(_: float) -> Fault:
    """Give each of mla's latent blocks of 32 dims the root mean square of all scales instead of its own."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        blocks = x[..., :512].unflatten(-1, (-1, 32))
        scales = torch.exp2(torch.floor(torch.log2(blocks.abs().amax(dim=-1, keepdim=True).clamp(min=1e-9) / 1.75)))
        x[..., :512] = (blocks / scales * scales.square().mean().sqrt()).flatten(-2)
        return x

    return Fault(keys=change, values=change)


def _latent_dims_by_turns(count: float) -> Fault:
    """Leave `count` of mla's latent dims out of the scores, other dims for each 64 keys, and scale the rest to
    compensate."""

    def change(keys: Tensor) -> Tensor:
        tile = torch.arange(keys.shape[-2]) // 64
        first = tile * int(count) % 512
        dims = torch.arange(keys.shape[-1])
        left_out = (dims >= first[:, None]) & (dims < first[:, None] + int(count))
        latent = torch.where(dims < 512, 512 / (512 - count), 1.0)
        return torch.where(left_out, 0.0, keys * latent)

    return Fault(keys=change)


def _light_keys_in_pairs(share: float) -> Fault:
    """Leave out every second of the lightest keys of a row, and count the one before it twice."""

    def change(weights: Tensor) -> Tensor:
        light = weights < weights.quantile(share, dim=-1, keepdim=True)
        twice = torch.where(light.cumsum(dim=-1) % 2 == 1, 2 * weights, 0.0)
        return torch.where(light, twice, weights)

    return Fault(weights=change, all_denominators=True)


BELOW_THE_NOISE = [
    Corruption("latent scales guessed from the codes", (1,), _scales_guessed, MLA),
    Corruption("latent dims left out of scores by turns", (16, 32, 64, 128), _latent_dims_by_turns, MLA),
    Corruption("lightest keys left out in pairs", (0.1, 0.15, 0.25, 0.4, 0.5, 0.75), _light_keys_in_pairs, MLA),
]
"""Approximations that use knowledge of the inputs, or whose error looks like rounding."""

NAMED = [*PLAIN, *MADE_UP_FOR, *BELOW_THE_NOISE]


def _some_rows(every: float) -> Callable[[Tensor], Tensor]:
    """Make one row in `every` a tenth too large."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[..., :: int(every), :] *= 1.1
        return x

    return change


def _noise(deviation: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        return x + deviation * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))

    return change


def _half_of_dims(factor: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[..., x.shape[-1] // 2 :] *= factor
        return x

    return change


def _swapped(pairs: float) -> Callable[[Tensor], Tensor]:
    """Swap `pairs` pairs of neighbouring dims."""

    def change(x: Tensor) -> Tensor:
        order = torch.arange(x.shape[-1])
        order[: 2 * int(pairs)] = order[: 2 * int(pairs)].view(-1, 2).flip(1).reshape(-1)
        return x[..., order]

    return change


def _next_values(share: float) -> Callable[[Tensor], Tensor]:
    """Give the last `share` of the keys the value of the key before."""

    def change(x: Tensor) -> Tensor:
        first = max(int(x.shape[-2] * (1 - share)), 1)
        return torch.cat([x[..., :first, :], x[..., first - 1 : -1, :]], dim=-2)

    return change


def _first_half_rescaled(factor: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[..., : x.shape[-1] // 2] *= factor
        return x

    return change


GRID = [
    Corruption("one row of n a tenth too large", (16, 8, 4, 2), lambda n: Fault(out=_some_rows(n))),
    Corruption("scores with noise of s", (0.01, 0.03, 0.1, 0.3), lambda s: Fault(scores=_noise(s))),
    Corruption("the upper half of the dims × s", (1.005, 1.02, 1.05, 1.1), lambda s: Fault(out=_half_of_dims(s))),
    Corruption("n pairs of dims swapped", (1, 2, 4, 8), lambda n: Fault(out=_swapped(n))),
    Corruption(
        "a share of the keys with the values before", (0.01, 0.03, 0.1, 0.3), lambda s: Fault(values=_next_values(s))
    ),
    Corruption(
        "weights of the first half × s", (1.005, 1.02, 1.05, 1.1), lambda s: Fault(weights=_first_half_rescaled(s))
    ),
    Corruption(
        "weights below exp(-t) as zero",
        (12, 9, 6, 4),
        lambda t: Fault(weights=lambda x: torch.where(x < math.exp(-t), 0.0, x), all_denominators=True),
    ),
    Corruption(
        "scores capped at c tanh(s / c)", (100, 50, 30, 15), lambda c: Fault(scores=lambda x: c * torch.tanh(x / c))
    ),
    Corruption(
        "a block of n keys left out",
        (16, 32, 64, 128),
        lambda n: Fault(weights=_zeroed(lambda size: slice(size // 3, size // 3 + int(n)))),
    ),
    Corruption(
        "every nth key left out",
        (64, 32, 16, 8),
        lambda n: Fault(weights=_zeroed(lambda _: slice(int(n) - 1, None, int(n)))),
    ),
    Corruption("keys of m bits of mantissa", (6, 4, 3, 2), lambda m: Fault(keys=lambda x: to_bits(x, int(m)))),
    Corruption("queries of m bits of mantissa", (6, 4, 3, 2), lambda m: Fault(queries=lambda x: to_bits(x, int(m)))),
    Corruption("outputs of m bits of mantissa", (6, 4, 3, 2), lambda m: Fault(out=lambda x: to_bits(x, int(m)))),
    Corruption("b added to the output", (0.0003, 0.001, 0.003, 0.01), lambda b: Fault(out=lambda x: x + b)),
    Corruption("scores of m bits of mantissa", (7, 5, 4, 3), lambda m: Fault(scores=lambda x: to_bits(x, int(m)))),
    Corruption(
        "the last share of the keys only",
        (0.99, 0.95, 0.9, 0.75),
        lambda s: Fault(weights=_zeroed(lambda size: slice(0, int(size * (1 - s))))),
    ),
]


def further(
    problem: str, count: int = 10, seed: int = 1, grid: Sequence[Corruption] = GRID
) -> list[tuple[Corruption, float]]:
    """`count` of the grid's corruptions, each with one of its strengths. Each problem gets another draw."""
    return random.Random(f"{seed} {problem}").sample([(one, s) for one in grid for s in one.strengths], count)
