"""Which tolerance the answers meet, in words, and which limit of the next stricter one they miss.

within exact
within mxfp4, not within exact: rel_l2 is 1.31 x its limit in batch_size=4 q_seq_len=1 kv_seq_len=128
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.model.verdict import CaseCheck, Excess, Total

_WITHOUT_A_VALUE = {
    "bitwise": "some bits differ",
    "nan_or_inf": "there is NaN or Inf where none belongs",
    "structure": "not the tensor that was asked for",
    "checker": "the problem refuses it",
}


def tolerances_met(found: Sequence[CaseCheck | Total]) -> str | None:
    """The sentence for accepted answers. None if nothing was compared."""
    names = max((list(each.excess) for each in found), key=len, default=[])
    met = [names.index(each.tolerance) for each in found if each.tolerance in names]
    if not met:
        return None
    loosest = max(met)
    said = f"within {names[loosest]}"
    if loosest == 0:
        return said
    stricter = names[loosest - 1]
    worst = max((each for each in found if stricter in each.excess), key=lambda each: each.excess[stricter].ratio)
    return f"{said}, not within {stricter}: {in_words(worst.excess[stricter])} in {_what(worst)}"


def in_words(excess: Excess) -> str:
    """For example `rel_l2 is 1.31 x its limit`."""
    if math.isfinite(excess.ratio):
        return f"{excess.limit} is {excess.ratio:.3g} x its limit"
    return _WITHOUT_A_VALUE.get(excess.limit, f"{excess.limit} is above its limit of 0")


def _what(found: CaseCheck | Total) -> str:
    return found.case.label if isinstance(found, CaseCheck) else f"{found.what} together"
