"""Hints: known mistakes that a wrong output looks like, for its author.

    scaled       1.01 x the expected values
    moved        token t holds token t+1; head h holds head h^1; head 5 holds head 4
    laid out     as [dim, head] instead of [head, dim]
    stale        the output of the previous call
    another      the expected values of another output
    unwritten    zeros, or the bytes that fill fresh memory, alone or where everything else is right
    kept         the values from before the call, in supplied memory
    TF32         float32 values, nearly all of them wrong by about what ten bits of mantissa cost

No verdict depends on a hint. A hint tells indices and one factor of a few digits. That is less than the report's worst
elements tell, each with its expected value. Long axes are compared at some positions only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from harness.judge.difference import bits, float64

NEAR, NEARER = 0.05, 4.0
"""An output is close to a pattern if its relative L2 distance is at most NEAR, or the limit that the problem sets. It
must also be NEARER times closer to the pattern than to the expected values."""

LEAST = 8
"""The fewest elements of a slice: smaller ones are alike by chance."""

SAMPLED = 1 << 16
"""Positions of a whole output that are compared. Of a slice, 1/16 of them are."""

LONGEST_AXIS, LONGEST_AT_ALL = 512, 1 << 16
"""Up to LONGEST_AXIS, every slice is compared with every other. Up to LONGEST_AT_ALL, only the slices that a pattern
names are compared."""

SHARE = 0.9
"""Share of the slices that must follow a pattern. At an edge there is no slice to follow."""

LISTED, MOST_MOVED = 4, 16
"""Without a pattern: how many moved slices are named, and how many may be moved. More are chance."""

MOST = 100.0
"""Values are cut off at this multiple of an element's usual size: no single element must outweigh all others."""

TF32 = (2.0**-12, 2.0**-9)
"""The relative L2 distance of products in TF32 from those in float32. Each factor loses up to 2^-10 of itself."""

TF32_WORDS = (
    "the error has the size of TF32: a product of float32 takes it unless told otherwise "
    '(tl.dot: input_precision="ieee")'
)

OR = ", or "
"""Separates mistakes that fit equally well."""

AS_IF = "as if "
"""Begins a hint from a problem's own mistakes."""

PERHAPS, OR_NOT_WRITTEN = "perhaps", f"{OR}never written"
"""Words of a hint that is a guess: zeros and NaN have many causes."""

COMPUTED = f"computed so (0 / 0, inf - inf, inf / inf){OR_NOT_WRITTEN}"
ALL_NAN = "all elements are NaN or Inf"

Pattern = Callable[[int, int], int]
PATTERNS: dict[str, Pattern] = {
    "{a}+1": lambda i, n: i + 1,
    "{a}-1": lambda i, n: i - 1,
    "{a}^1": lambda i, n: i ^ 1,
    "0": lambda i, n: 0,
    "{last}-{a}": lambda i, n: n - 1 - i,
    "{a}//2": lambda i, n: i // 2,
}
"""For each pattern, the index of the slice whose values slice {a} of n holds. It may be out of range."""


def is_guess(hint: str) -> bool:
    """Whether `hint` names what zeros or NaN may come from. A problem's own mistake that gives the output says more."""
    return PERHAPS in hint or hint.endswith(OR_NOT_WRITTEN)


def besides(guess: str, sure: str) -> str:
    """The problem's own mistake `sure`, with what is left of `guess`: where nothing is a number, any cause fits."""
    return f"{sure}{OR}never written: {ALL_NAN}" if guess.startswith(ALL_NAN) else sure


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Values of `tensor` as float32, at positions that depend on its size alone."""
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
    right: Callable[[torch.Tensor], bool] = lambda _: True,
) -> list[str]:
    """Known mistakes that explain `got`, given `want`. Both have one shape and device. Empty if none does.

    `previous`: `sampled` values of the previous call's output. `sampled_axis`: an axis along which neighbours are not
    neighbours, because its indices were sampled. `near`: the relative L2 distance within which an answer counts as
    right. `right`: whether values in the place of `got` are within every limit.
    """
    if want.numel() < 2 or not want.is_floating_point():
        return []
    unwritten = _unwritten(want, got)
    if unwritten:
        return [unwritten]
    if bool(float64(want).isfinite().any()) and not bool(float64(got).isfinite().any()):
        return [f"{ALL_NAN}: {COMPUTED}"]
    missing = _missing(want, got, near, right)
    in_float32 = want.dtype is torch.float32 and not _is_short(sampled(got))
    unit, scaled = _unit(sampled(want)), _scaled_each(want, got)
    want, got = _tamed(want, unit), _tamed(got, unit)
    previous = None if previous is None else _tamed(previous, unit)
    expected, here = sampled(want), sampled(got)
    own = _distance(here, expected)
    if not own > 0:
        return []
    if not bool(here.any()):
        return [f"all elements are zero: {PERHAPS} it was never written"]
    if missing:
        return [missing]
    if previous is not None and previous.shape == here.shape and _close(_distance(here, previous), own, near):
        return ["it is the previous call's output"]
    scaled = scaled or _scaled(here, expected, own, near)
    if scaled:
        return [scaled]
    moved = [_moved(axis, want, got, dim, near) for dim, axis in enumerate(axes[: want.dim()]) if dim != sampled_axis]
    fitting = [hint for hint in moved if hint] or list(_laid_out(axes, want, here, own, near))
    if fitting:
        return [OR.join(fitting)]
    all_wrong = float((here != expected).float().mean()) > SHARE
    tf32 = in_float32 and all_wrong and TF32[0] <= own <= TF32[1]
    return [TF32_WORDS] if tf32 else []


def _is_short(values: torch.Tensor) -> bool:
    """Whether float32 values have the bits of bfloat16 alone, apart from NaN. Then rounding explains a small error."""
    return bool(((values.bfloat16().float() == values) | values.isnan()).all())


def _unwritten(want: torch.Tensor, got: torch.Tensor) -> str:
    """Find elements that still hold the fill of fresh memory: all bits are ones (worker/transports), which is NaN. In
    bfloat16 and in formats of 8 bits computed NaNs have the same bits, so these are not examined."""
    if want.dtype not in (torch.float16, torch.float32, torch.float64):
        return ""
    wrong = bits(got) != bits(want)
    fresh = wrong & float64(got).isnan() & (bits(got) == -1)
    count = int(fresh.sum())
    if not count or 2 * count < int(wrong.sum()):
        return ""
    some = "all elements hold" if count == got.numel() else f"{count:,} elements hold"
    return f"{some} the bytes 0xFF, which fresh memory is filled with: they were never written"


def _missing(want: torch.Tensor, got: torch.Tensor, near: float, right: Callable[[torch.Tensor], bool]) -> str:
    """Find elements that are zero or NaN while all others are right, each row of them too."""
    kinds = {
        ("zero", f"{PERHAPS} never written"): (got == 0) & (want != 0),
        ("NaN", COMPUTED): float64(got).isnan() & ~float64(want).isnan(),
    }
    for (what, why), empty in kinds.items():
        count = int(empty.sum())
        rest = torch.where(empty, want, got)
        if LEAST <= count < got.numel() and bool(rest.isfinite().all()):
            filled = torch.where(empty, 0.0, got)
            due = float64(want)
            away, away_rest = (float((float64(each) - due).norm() / due.norm()) for each in (filled, rest))
            # Zeros may be right within the tolerance. NaN never is, however coarse the others are.
            if away_rest <= near and (what == "NaN" or _close(away_rest, away, near)) and right(rest):
                return f"{count:,} of {got.numel():,} elements are {what}, and the others right: {why}"
    return ""


def of_another(want: torch.Tensor, got: torch.Tensor, others: Mapping[str, torch.Tensor], near: float = NEAR) -> str:
    """Name the other output whose value `got` holds; "" if there is none. `others`: expected values by name."""
    own = _distance(sampled(got), sampled(want))
    for name, other in others.items():
        alike = other.shape == got.shape and other.dtype == got.dtype and other.is_floating_point()
        if alike and other.numel() >= LEAST and _close(_distance(sampled(got), sampled(other)), own, near):
            return f"it holds what {name} should hold"
    return ""


def kept(want: torch.Tensor, got: torch.Tensor, before: torch.Tensor) -> str:
    """Say in words that at least half of the wrong elements in supplied memory have the value from `before` the call.
    "" if not. All three tensors have one shape and dtype."""
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
    """Find a factor that nearly every element shares up to rounding. This also works for values so different in size
    that a few decide an L2 distance, and where every bit counts."""
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
    """Find slices along one axis that hold the values of other slices. Takes the pattern that explains most of them,
    because with two slices each follows several patterns."""
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
    exactly = "donot_use_mm_for_euclid_dist"  # a matrix product would lose digits by cancellation
    distances = torch.cdist(slices, expected, compute_mode=exactly) / sizes
    distances.fill_diagonal_(float("inf"))
    nearest = distances.min(dim=1)
    # Equal slices count as one. If two different slices are near, neither is named.
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
    """Find two axes that were written in the other order."""
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
    """The usual size of an element."""
    sizes = want[want.isfinite() & (want != 0)].abs()
    return float(sizes.median()) if sizes.numel() else 1.0


def _tamed(tensor: torch.Tensor, unit: float) -> torch.Tensor:
    """Divide by `unit`, as float32. NaN and extreme values become numbers that can be compared."""
    return (_float32(tensor) / unit).nan_to_num(MOST / 2, MOST, -MOST).clamp(-MOST, MOST)


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    return float64(tensor).float()


def _some(count: int, most: int) -> torch.Tensor:
    """Indices below `count`: all of them, or `most`, always the same."""
    if count <= most:
        return torch.arange(count)
    return torch.randint(count, (most,), generator=torch.Generator().manual_seed(count))
