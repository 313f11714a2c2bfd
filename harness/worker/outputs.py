"""Describe the outputs of a call for the judge, and put them where the judge can read them.

An output in memory that the judge has mapped, the arena or the pool, stays there. Any other output is copied into the
arena's tail, within the timed interval. If outputs may have any strides, an output whose elements do not share memory
keeps its strides, and an expanded one is made contiguous first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.wire.arena import ALIGNMENT, DTYPES, Arena, TensorSpec, dtype_name, is_apart

_type = type
_Tensor = torch.Tensor
_data_ptr = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous
_contiguous = torch.Tensor.contiguous
_stride = torch.Tensor.stride
_is_neg = torch.Tensor.is_neg
_strided = torch.strided
_IS_ON: dict[str, Callable[[Any], bool]] = {
    "cpu": torch.Tensor.is_cpu.__get__,  # type: ignore[attr-defined]
    "cuda": torch.Tensor.is_cuda.__get__,  # type: ignore[attr-defined]
}
"""With cold caches a CPU takes 15 to 22 us for `tensor.device.type` (AMD EPYC, 2026-11-30). These take less."""
_TRAVEL = frozenset(DTYPES.values())

MAX_OUTPUTS = 16
"""Of more returned values only the number is reported. No problem has so many."""

Copy = Callable[[int, int, int], object]
"""(destination address, source address, number of bytes)"""


def members(output: Any) -> list[Any]:
    return list(output) if _type(output) in (tuple, list) else [output]


class Outputs:
    """The places of one call's outputs.

    `regions`: the arenas by name that the judge has mapped too; outputs may stay there. `supplied`: the addresses of
    tensors that lie at these offsets in the arena, or will be copied back there anyway. `tail`: the start of the tail
    of `arena` for all other outputs, a multiple of ALIGNMENT. `strided`: outputs may have any strides.
    """

    def __init__(
        self,
        device_type: str,
        arena: Arena,
        regions: dict[str, Arena],
        supplied: dict[int, int],
        tail: int,
        copy: Copy,
        strided: bool = False,
    ) -> None:
        self._strided = strided
        self._device_type, self._arena, self._regions, self._supplied = device_type, arena, regions, supplied
        self._is_here = _IS_ON[device_type]
        self._end, self._copy = tail, copy
        self._copied: dict[tuple[int, int], int] = {}
        self._returned: list[Any] = []
        self._places: list[dict[str, Any]] = []

    def put(self, output: Any) -> None:
        """Bring the outputs where the judge can read them. This is within the timed interval, on a CPU with cold
        caches: each line of Python saved is a microsecond, which a submission could save by leaving it out."""
        if _type(output) is _Tensor and not self._strided and not _is_neg(output):
            self._returned, self._several, self._places = [output], False, [self._place(output)]
            return
        self._returned = members(output)
        self._several = _type(output) in (tuple, list)
        if self._strided:
            if not self._several and issubclass(_type(output), tuple):  # a named tuple, such as torch.sort's
                self._returned, self._several = list(tuple.__iter__(output)), True
            self._returned = [_dense(member) for member in self._returned]
        elif any(_type(member) is _Tensor and _is_neg(member) for member in self._returned):
            self._returned = [_positive(member) for member in self._returned]
        # One that does not travel must not be copied: the judge counts the places of those that do, one after another.
        self._places = [self._place(member) if _travels(member) else {} for member in self._returned[:MAX_OUTPUTS]]

    def describe(self, output: Any) -> dict[str, Any]:
        """Describe the outputs after `put`, in the form of CallReply."""
        described = zip(self._returned, self._places, strict=False)
        return {
            "several": self._several,
            "listed": _type(output) is list,
            "returned": len(self._returned),
            "outputs": [self._describe(member) | (place if _travels(member) else {}) for member, place in described],
        }

    def _describe(self, output: Any) -> dict[str, Any]:
        if _type(output) is not _Tensor:
            name = " ".join(_type(output).__name__[:100].encode("utf-8", "replace").decode().split())
            return {"type": name if name != "Tensor" else "Tensor of another class"}
        if output.layout is not _strided:
            return {"type": f"Tensor of the layout {output.layout}"}
        if self._is_here(output) and output.nbytes and not _data_ptr(output):
            return {"type": "Tensor without memory of its own"}
        return {
            "type": "Tensor",
            "dtype": dtype_name(output.dtype),
            "shape": list(output.shape),
            "stride": list(output.stride()),
            "device": output.device.type,
        }

    def _place(self, output: Any) -> dict[str, Any]:
        """The place of a plain dense tensor's bytes, which are copied if necessary. {} for anything else, and for a
        tensor without memory. Dtypes are not looked at here: that takes long with cold caches."""
        if _type(output) is not _Tensor or output.layout is not _strided or not self._is_here(output):
            return {}
        if _is_contiguous(output):
            address, size = _data_ptr(output), output.nbytes
        elif self._strided:
            place = TensorSpec(dtype_name(output.dtype), tuple(output.shape), 0, _stride(output))
            address, size = _data_ptr(output), place.nbytes
        else:
            return {}
        if size and not address:  # its storage was freed
            return {}
        if self._supplied and size and address in self._supplied:
            return {"offset": self._supplied[address]}
        if self._regions and (region := self._region(address, size)):
            return region
        if self._copied and (address, size) in self._copied:
            return {"offset": self._copied[address, size], "copied": True}
        offset, end = self._end, self._end + size
        if end > self._arena.size:
            return {}
        self._copy(self._arena.address + offset, address, size)
        self._copied[address, size] = offset
        self._end = -(-end // ALIGNMENT) * ALIGNMENT
        return {"offset": offset, "copied": True}

    def _region(self, address: int, size: int) -> dict[str, Any] | None:
        """The place of memory in an arena that the judge has mapped."""
        for name, arena in self._regions.items():
            offset = address - arena.address
            if offset >= 0 and offset + size <= arena.size and offset % ALIGNMENT == 0:
                return {"region": name, "offset": offset}
        return None


def _travels(output: Any) -> bool:
    return _type(output) is _Tensor and output.dtype in _TRAVEL


def _positive(output: Any) -> Any:
    """Return `output`, or a copy if its memory holds negated values, as that of `x.conj().imag` does."""
    return output.resolve_neg() if _type(output) is _Tensor and _is_neg(output) else output


def _dense(output: Any) -> Any:
    """Return `output`, or a contiguous copy if some of its elements share memory, or if its memory holds negated
    values."""
    if _type(output) is not _Tensor or output.layout is not _strided:
        return output
    output = _positive(output)
    if _is_contiguous(output):
        return output
    return output if is_apart(output.shape, _stride(output)) else _contiguous(output)
