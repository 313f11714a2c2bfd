"""Say where along an axis wrong elements lie: `at 7-9, 12 (of 0-15; up to 75 % of each)`."""

from __future__ import annotations

import torch

RANGES_SHOWN = 6


def along(wrong: torch.Tensor, dim: int) -> str | None:
    """Say where along one axis the wrong elements lie; None for an axis of length 1."""
    length = wrong.shape[dim]
    if length < 2 or not bool(wrong.any()):
        return None
    others = [d for d in range(wrong.dim()) if d != dim]
    share = wrong.float().mean(dim=others) if others else wrong.float()
    hit = (share > 0).nonzero().flatten().tolist()
    if len(hit) > 0.9 * length and float(share.max()) < 4 * float(share.mean()):
        shares = dict.fromkeys((_percent(share.min()), _percent(share.max())))
        return f"spread over all {length} ({' to '.join(shares)} % of each)"
    found = _ranges(hit)
    shown = ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in found[:RANGES_SHOWN])
    more = f" and {len(found) - RANGES_SHOWN} more ranges" if len(found) > RANGES_SHOWN else ""
    return f"at {shown}{more} (of 0-{length - 1}; up to {_percent(share.max())} % of each)"


def _percent(share: torch.Tensor) -> str:
    return f"{100 * float(share):.0f}" if share >= 0.1 else f"{100 * float(share):.2g}"


def _ranges(indices: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return ranges
