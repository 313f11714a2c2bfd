"""One tensor that no card of the target has memory for. What all tensors together take is not counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from harness.chips.targets import TARGETS
from harness.compile.nested import leaves

MOST_BYTES = {"gfx942": 256 << 30, "sm_90": 141 << 30, "gfx1100": 48 << 30}
"""The memory of the largest cards, if it is more than that of the target's own: MI325X, H200, Radeon Pro W7900 (the
vendors' product pages)."""


def most_bytes(target: str) -> int:
    return MOST_BYTES.get(target, TARGETS[target].memory_bytes)


def refuse_too_large(made: Any, arguments: Iterable[torch.Tensor], most: float) -> None:
    """Raise torch's OutOfMemoryError if one of the phantoms in `made` takes `most` bytes or more. Those that share an
    argument's storage take none."""
    at_hand = {tensor.untyped_storage()._cdata for tensor in arguments}
    for tensor in leaves(made):
        storage = tensor.untyped_storage()
        if storage.nbytes() >= most and storage._cdata not in at_hand:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {storage.nbytes():,} bytes (shape {tuple(tensor.shape)}); "
                f"the device has {most:,}"
            )
