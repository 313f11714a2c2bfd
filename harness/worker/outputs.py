"""What a call returned, described for the judge, and put where the judge can read it.

An output that lies in memory which the judge has mapped, the arena or the pool, stays where it is. Any other is copied
into the arena's tail, within the time that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.arena import ALIGNMENT, DTYPES, Arena, TensorSpec, dtype_name, extent, layout

_type = type
_Tensor = torch.Tensor
_data_ptr = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous

MAX_OUTPUTS = 16
"""Of more returned values than this only the number is reported; no problem has so many."""

Copy = Callable[[Arena, TensorSpec, int], None]


def members(output: Any) -> list[Any]:
    return list(output) if _type(output) in (tuple, list) else [output]


class Outputs:
    """Where one call's outputs lie. `regions` are the arenas that the judge has mapped too, by name, in which they may
    stay; the tail of `arena`, for the others, begins at `tail`. `copy` brings memory at an address there."""

    def __init__(self, device_type: str, arena: Arena, regions: dict[str, Arena], tail: int, copy: Copy) -> None:
        self._device_type, self._arena, self._regions = device_type, arena, regions
        self._end, self._copy = tail, copy
        self._copied: dict[tuple[int, int], int] = {}

    def describe(self, output: Any, supplied: dict[int, int]) -> dict[str, Any]:
        """What a returned value is; with the place of its bytes if it is a plain dense tensor here.

        `supplied`: addresses of tensors that will be copied back to these offsets in the arena in any case."""
        if _type(output) is not _Tensor:
            return {"type": _type(output).__name__[:100].encode("utf-8", "replace").decode()}
        description: dict[str, Any] = {
            "type": "Tensor",
            "dtype": dtype_name(output.dtype),
            "shape": list(output.shape),
            "stride": list(output.stride()) if output.layout is torch.strided else [],
            "device": output.device.type,
        }
        travels = description["dtype"] in DTYPES and output.layout is torch.strided
        if travels and description["device"] == self._device_type and _is_contiguous(output):
            description |= self._place(_data_ptr(output), output, supplied)
        return description

    def _place(self, address: int, output: torch.Tensor, supplied: dict[int, int]) -> dict[str, Any]:
        size = output.numel() * output.itemsize
        if size and address in supplied:
            return {"offset": supplied[address]}
        for name, arena in self._regions.items():
            offset = address - arena.address
            if 0 <= offset and offset + size <= arena.size and offset % ALIGNMENT == 0:
                return {"region": name, "offset": offset}
        if (address, size) in self._copied:
            return {"offset": self._copied[address, size], "copied": True}
        (spec,) = layout([output], self._end)
        if spec.offset + spec.nbytes > self._arena.size:
            return {}
        self._copy(self._arena, spec, address)
        self._copied[address, size] = spec.offset
        self._end = extent([spec])
        return {"offset": spec.offset, "copied": True}
