"""What a wrong output is close to, where that is a known mistake: a word for whoever mends it.

    scaled       1.01 x the expected
    moved        token t holds token t+1; head h holds head h^1; head 5 holds head 4
    laid out     as [dim, head] and not as [head, dim]
    stale        the previous call's output
    unwritten    zeros, or the bytes that fresh memory is filled with, alone or where all else is right
    kept         what was there before the call, in memory that was supplied

No verdict depends on a hint. It tells indices and one factor of a few digits, which is less than the worst elements
beside it, each with its expected value. Long axes are compared at some positions only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch

from harness.judge.difference import bits, float64

NEAR, NEARER = 0.05, 4.0
"""Close is within a relative L2 distance, this one if the problem has none, and so many times as near as the expected
value itself."""

LEAST = 8
"""Elements of a slice: of fewer some are alike by chance."""

SAMPLED = 1 << 16
"""Positions of a whole output that are compared; of a slice 1/16 of them."""

LONGEST_AXIS, LONGEST_AT_ALL = 512, 1 << 16
"""Of which every slice is held against every other: longer ones against those that a pattern names, if at all."""

SHARE = 0.9
"""Of the slices must follow a pattern: beyond an edge there is nothing to follow."""

LISTED, MOST_MOVED = 4, 16
"""Slices that are named, and that may hold another's at all, where no pattern says which: more are chance."""

MOST = 100.0
"""Of an element's usual size: a single one must not outweigh all others."""

OR = ", or "
"""Between mistakes that fit equally."""

Pattern = Callable[[int, int], int]
PATTERNS: dict[str, Pattern] = {
    "{a}+1": lambda i, n: i + 1,
    "{a}-1": lambda i, n: i - 1,
    "{a}^1": lambda i, n: i ^ 1,
    "0": lambda i, n: 0,
    "{last}-{a}": lambda i, n: n - 1 - i,
    "{a}//2": lambda i, n: i // 2,
}
"""Which slice is held by slice {a} of n in its place, or one out of range."""


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Values of `tensor` at positions that depend on its size alone, as float32."""
    return _float32(_sampled(tensor))


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return flat if flat.numel() <= SAMPLED else flat[_some(flat.numel(), SAMPLED).to(flat.device)]


def hints(
    axes: Sequence[str],
    want: torch.Tensor,
    got: torch.Tensor,
    previous: torch.Tensor | None = None,
    sampled_axis: int | None = None,
    near: float = NEAR,
) -> list[str]:
    """What `got` looks like beside `want`, both of one shape on one device; nothing where it looks like nothing known.

    `previous`: of the call before, `sampled`. Along `sampled_axis` neighbours are no neighbours. `near`: the relative
    L2 distance within which an answer is right, so that one in another's place is taken for it.
    """
    if want.numel() < 2 or not want.is_floating_point():
        return []
    unwritten = _unwritten(want, got)
    if unwritten:
        return [unwritten]
    missing = _missing(want, got, near)
    unit, scaled = _unit(sampled(want)), _scaled_each(want, got)
    want, got = _tamed(want, unit), _tamed(got, unit)
    previous = None if previous is None else _tamed(previous, unit)
    expected, here = sampled(want), sampled(got)
    own = _distance(here, expected)
    if not own > 0:
        return []
    if not bool(here.any()):
        return ["it is nothing but zeros: perhaps it was never written"]
    if missing:
        return [missing]
    if previous is not None and previous.shape == here.shape and _close(_distance(here, previous), own, near):
        return ["it is the previous call's output"]
    scaled = scaled or _scaled(here, expected, own, near)
    if scaled:
        return [scaled]
    moved = [_moved(axis, want, got, dim, near) for dim, axis in enumerate(axes[: want.dim()]) if dim != sampled_axis]
    fitting = [hint for hint in moved if hint] or list(_laid_out(axes, want, here, own, near))
    return [OR.join(fitting)] if fitting else []


def _unwritten(want: torch.Tensor, got: torch.Tensor) -> str:
    """Fresh memory is filled with ones (worker/transports), which is NaN. NaN that is computed has the same bits in
    bfloat16, as processors convert it, and in formats of 8 bits."""
    if want.dtype not in (torch.float16, torch.float32, torch.float64):
        return ""
    wrong = bits(got) != bits(want)
    fresh = wrong & float64(got).isnan() & (bits(got) == -1)
    count = int(fresh.sum())
    if not count or 2 * count < int(wrong.sum()):
        return ""
    some = "all elements hold" if count == got.numel() else f"{count:,} elements hold"
    return f"{some} the bytes 0xFF, which fresh memory is filled with: they were never written"


def _missing(want: torch.Tensor, got: torch.Tensor, near: float) -> str:
    """Whether some elements are zero or NaN, and all others right."""
    kinds = {
        ("zero", "perhaps never written"): (got == 0) & (want != 0),
        ("NaN", "computed so (0 / 0, inf - inf), or never written"): float64(got).isnan() & ~float64(want).isnan(),
    }
    for (what, why), empty in kinds.items():
        count = int(empty.sum())
        rest = torch.where(empty, want, got)
        if LEAST <= count < got.numel() and bool(rest.isfinite().all()):
            filled = torch.where(empty, 0.0, got)
            right = float64(want)
            away, away_rest = ((float64(each) - right).norm() for each in (filled, rest))
            if _close(float(away_rest / right.norm()), float(away / right.norm()), near):
                return f"{count:,} of {got.numel():,} elements are {what}, and the others right: {why}"
    return ""


def kept(want: torch.Tensor, got: torch.Tensor, before: torch.Tensor) -> str:
    """Whether at least half of what is wrong in memory that was supplied lies there as `before` the call; in words, ""
    if not. All three are of one shape and dtype."""
    wrong = bits(got) != bits(want)
    same = wrong & (bits(got) == bits(before.to(got.device)))
    count = int(same.sum())
    if not count or 2 * count < int(wrong.sum()):
        return ""
    verb = "element holds" if count == 1 else "elements hold"
    return f"{count:,} {verb} what was there before the call: never written"


def _scaled(got: torch.Tensor, want: torch.Tensor, own: float, near: float) -> str:
    factor = float(got.double().dot(want.double()) / want.double().square().sum())
    if abs(factor) < 1e-3 or not _close(_distance(got, factor * want), own, near):
        return ""
    return _times(factor)


def _scaled_each(want: torch.Tensor, got: torch.Tensor) -> str:
    """Whether nearly every element is the same multiple of what it should be, but for rounding: also of values so far
    apart that a distance between them is that of a few, and where every bit counts."""
    expected, here = (float64(_sampled(tensor)) for tensor in (want, got))
    usable = expected.isfinite() & here.isfinite() & (expected.abs() > torch.finfo(want.dtype).tiny) & (here != 0)
    if int(usable.sum()) < LEAST:
        return ""
    factors = here[usable] / expected[usable]
    rounding = torch.finfo(want.dtype).eps
    same = factors[(factors / factors.median() - 1).abs() <= rounding]
    if len(same) < SHARE * len(factors):
        return ""
    factor, blur = float(same.mean()), 3 * float(same.std()) / math.sqrt(len(same))
    return _times(factor) if 1e-3 <= abs(factor) <= 1e3 and abs(factor - 1) > max(rounding / 4, blur) else ""


def _times(factor: float) -> str:
    return f"it is {factor:.{3 if abs(factor - 1) >= 0.0095 else 5}g} x the expected"


def _moved(axis: str, want: torch.Tensor, got: torch.Tensor, dim: int, near: float) -> str:
    """Whether slices along one axis hold other slices' values: of patterns the one that explains the most of them, for
    of two slices each follows several."""
    length, name = want.shape[dim], axis[0]
    if not 2 <= length <= LONGEST_AT_ALL:
        return ""
    rest = want.numel() // length
    if rest < LEAST:
        return ""
    some = _some(rest, SAMPLED // 16).to(want.device)
    slices, expected = (_float32(t.movedim(dim, 0).reshape(length, rest)[:, some]) for t in (got, want))
    sizes = expected.norm(dim=1).clamp(min=1e-30)
    own = (slices - expected).norm(dim=1) / sizes
    told, most = "", 0
    for written, pattern in PATTERNS.items():
        source = torch.tensor([pattern(i, length) for i in range(length)], device=want.device)
        inside = (source >= 0) & (source < length) & (source != torch.arange(length, device=want.device))
        found = expected[source.clamp(0, length - 1)]
        distance = (slices - found).norm(dim=1) / found.norm(dim=1).clamp(min=1e-30)
        follows = inside & (own > 0) & (distance <= near) & (distance * NEARER <= own)
        fixed = (source == torch.arange(length, device=want.device)) & (own <= near)
        explained = int((follows | fixed).sum())
        if bool(follows.any()) and explained >= SHARE * min(length, int((inside | fixed).sum())) and explained > most:
            holds, most = written.format(a=name, last=length - 1), explained
            told = f"{axis} {name} holds {axis} {holds}" + (": shifted by one" if written[-2:] in ("+1", "-1") else "")
    if told:
        return told
    if length > LONGEST_AXIS:
        return ""
    exactly = "donot_use_mm_for_euclid_dist"  # a product of matrices cancels
    distances = torch.cdist(slices, expected, compute_mode=exactly) / sizes
    distances.fill_diagonal_(float("inf"))
    nearest = distances.min(dim=1)
    # Slices that are alike count as one; of two others, both near, neither is held.
    unlike = (
        torch.cdist(expected, expected, compute_mode=exactly)[nearest.indices] > near * sizes[nearest.indices, None]
    )
    second = torch.where(unlike, distances, float("inf")).min(dim=1).values
    held = (own > 0) & (nearest.values <= near) & (nearest.values * NEARER <= own) & (nearest.values * NEARER <= second)
    if not 0 < int(held.sum()) <= MOST_MOVED or bool((~held & (own > near)).any()):
        return ""
    places = held.nonzero().flatten().tolist()
    told = ", ".join(f"{axis} {i} holds {axis} {int(nearest.indices[i])}" for i in places[:LISTED])
    return told + (f", and {len(places) - LISTED} more hold others" if len(places) > LISTED else "")


def _laid_out(axes: Sequence[str], want: torch.Tensor, here: torch.Tensor, own: float, near: float) -> Iterator[str]:
    """Whether two axes were written in the other order."""
    for a, b in itertools.combinations(range(min(want.dim(), len(axes))), 2):
        if want.shape[a] > 1 and want.shape[b] > 1:
            if _close(_distance(here, sampled(want.transpose(a, b).reshape(want.shape))), own, near):
                order = list(axes)
                order[a], order[b] = order[b], order[a]
                yield f"it is laid out as [{', '.join(order)}], not as [{', '.join(axes)}]"


def _close(distance: float, own: float, near: float) -> bool:
    return distance <= near and distance * NEARER <= own


def _distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def _unit(want: torch.Tensor) -> float:
    """What a usual element of it is."""
    sizes = want[want.isfinite() & (want != 0)].abs()
    return float(sizes.median()) if sizes.numel() else 1.0


def _tamed(tensor: torch.Tensor, unit: float) -> torch.Tensor:
    """In units, as float32: NaN and what is far out as numbers that can be compared with others."""
    return (_float32(tensor) / unit).nan_to_num(MOST / 2, MOST, -MOST).clamp(-MOST, MOST)


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    return float64(tensor).float()


def _some(count: int, most: int) -> torch.Tensor:
    """Indices below `count`: all, or `most` of them, always the same."""
    if count <= most:
        return torch.arange(count)
    return torch.randint(count, (most,), generator=torch.Generator().manual_seed(count))
