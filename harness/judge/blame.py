"""Which rows and elements of a wrong output are wrong, and by how much, for the mismatch report."""

from __future__ import annotations

import math

import torch

from harness.judge.difference import Difference, bits, float64
from harness.model import Tolerance

MUCH, ALL_ALIKE = 0.5, 0.4
"""An element has much of its row's error if its own is above this share of the row's root mean square. Of normal errors
62 % are, and 50 % of those of a Laplace distribution: above the second share of the rows' elements all are alike."""


def rows(difference: Difference) -> torch.Tensor:
    """The relative L2 error of each row (last axis). Its shape is the output's without the last axis."""
    assert difference.actual is not None
    want, got = float64(difference.expected), float64(difference.actual)
    error = torch.where((got == want) | ~got.isfinite() | ~want.isfinite(), 0.0, got - want)
    if want.dim() == 0:
        error, want = error[None], want[None]
    size = torch.where(want.isfinite(), want, 0.0).norm(dim=-1)
    return torch.where(error.any(dim=-1), error.norm(dim=-1) / size, 0.0)


def to_blame(difference: Difference, over: torch.Tensor, wrong: torch.Tensor | None) -> torch.Tensor:
    """Which elements make the rows that are `over` their limit so: those with much of their row's error. If about every
    second one is, the whole rows. `wrong`: the elements over a limit of their own; of a row just over its limit,
    roundings have much of the error."""
    assert difference.actual is not None
    want, got = (float64(each).nan_to_num(0.0, 0.0, 0.0) for each in (difference.expected, difference.actual))
    error = (got - want).abs()
    whole = over[..., None].expand(error.shape)
    large = whole & (error > MUCH * error.square().mean(dim=-1, keepdim=True).sqrt())
    if int(large.sum()) > ALL_ALIKE * int(whole.sum()):
        return whole
    return large & wrong if wrong is not None and bool((large & wrong).any()) else large


def stray_specials(difference: Difference) -> torch.Tensor:
    """The elements that are NaN or Inf, or should be, and differ from the reference."""
    assert difference.actual is not None
    want, got = float64(difference.expected), float64(difference.actual)
    return (~got.isfinite() | ~want.isfinite()) & ~((want == got) | (want.isnan() & got.isnan()))


def wrong_elements(difference: Difference, tolerance: Tolerance, bitwise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements are wrong, and by how much: |error| / allowed error (|error| where every bit counts), as float64.
    Infinite for an unexpected NaN or Inf."""
    assert difference.actual is not None
    want, got = float64(difference.expected), float64(difference.actual)
    error = (got - want).abs()
    if bitwise:
        wrong = bits(difference.actual) != bits(difference.expected)
        # Elements that should be NaN come last: they say least about the cause.
        return wrong, torch.where(wrong & ~want.isnan(), error.nan_to_num(math.inf, math.inf), 0.0)
    allowed = tolerance.atol + tolerance.rtol * want.abs()
    score = error / allowed if tolerance.max_mismatch is not None else error / (want.square().mean().sqrt() + 1e-300)
    score = score.nan_to_num(math.inf, math.inf)
    score[(want == got) | (want.isnan() & got.isnan())] = 0.0
    return score > 1, score
