"""Empty the caches of a GPU before a call."""

from __future__ import annotations

import torch

_zero, _sum = torch.Tensor.zero_, torch.sum

# Modes and overrides that a submission has left active would see every operator of torch. Flushing bypasses them.
_without_modes, _without_overrides = torch._C._DisableTorchDispatch, torch._C.DisableTorchFunction


class Flusher:
    """Writes a buffer of `flush_bytes`, then reads another of the same size, with torch. This is enqueued on the
    current stream.

    The read is needed: after a write the cache is full of dirty lines, whose write-back would compete with the timed
    reads.
    """

    def __init__(self, flush_bytes: int, device: str) -> None:
        count = max(flush_bytes // torch.int32.itemsize, 1)
        self._written, self._read = (torch.ones(count, dtype=torch.int32, device=device) for _ in range(2))
        self._total = torch.zeros((), dtype=torch.int64, device=device)

    def flush(self) -> None:
        with _without_modes(), _without_overrides():
            _zero(self._written)
            _sum(self._read, dim=0, dtype=torch.int64, out=self._total)
