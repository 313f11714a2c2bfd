"""Tensor maps: what a kernel on Hopper passes to the copy unit (TMA), as an argument by value.

In the source such an argument is `const __grid_constant__ TensorMap name`, with a struct of 128 bytes at a multiple of
64, `struct alignas(64) TensorMap { unsigned long long words[16]; };`, whose address is the operand of cp.async.bulk.
The driver encodes it (CUDA driver API, cuTensorMapEncodeTiled). Without a GPU the words stay zero: nothing is launched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

BYTES, ALIGNMENT = 128, 64
MAX_RANK = 5
MAX_BOX = 256
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Bytes, to CUtensorMapSwizzle."""

L2_PROMOTION_256B = 3  # CUtensorMapL2promotion

DATA_TYPES = {
    **dict.fromkeys((torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2), 0),
    **dict.fromkeys((torch.uint16, torch.int16), 1),
    torch.int32: 3,
    torch.int64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
"""To CUtensorMapDataType. What is only copied has no sign."""


class EncodedMap(ctypes.Array[ctypes.c_uint64]):
    """A tensor map, and what the driver is to encode into it. Sizes and strides begin with the innermost dimension."""

    _type_ = ctypes.c_uint64
    _length_ = BYTES // 8

    encoding: tuple[Any, ...]


@dataclass(frozen=True)
class TensorMap:
    """A tensor argument that the kernel copies in boxes: passed as the 128 bytes of a CUtensorMap."""

    dtype: torch.dtype
    box: tuple[int, ...]
    swizzle: int

    def pack(self, value: Any, what: str) -> EncodedMap:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{what} must be a tensor, not {type(value).__name__}")
        if value.dtype != self.dtype:
            raise TypeError(f"{what} must be {_plain(self.dtype)}, not {_plain(value.dtype)}")
        if value.dim() != len(self.box):
            raise ValueError(f"{what} must have as many dimensions as its box, {len(self.box)}, not {value.dim()}")
        if value.numel() == 0:
            raise ValueError(f"{what} is empty: its sizes are {tuple(value.shape)}")
        strides = [stride * value.itemsize for stride in value.stride()]
        if strides[-1] != value.itemsize or any(stride % 16 for stride in strides[:-1]):
            raise ValueError(
                f"{what} must have neighbours in its last dimension and multiples of 16 bytes between those of the "
                f"others; its strides are {tuple(value.stride())}"
            )
        address = value.data_ptr()
        if address % 16:
            raise ValueError(f"{what} must lie at a multiple of 16 bytes")
        # ctypes aligns to 8 bytes, the driver wants 64. The slice keeps the whole buffer.
        buffer = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        words = EncodedMap.from_buffer(buffer, -ctypes.addressof(buffer) % ALIGNMENT)
        rank = len(self.box)
        words.encoding = (
            DATA_TYPES[self.dtype],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*reversed(value.shape)),
            (ctypes.c_uint64 * rank)(*reversed(strides[:-1])),
            (ctypes.c_uint32 * rank)(*reversed(self.box)),
            (ctypes.c_uint32 * rank)(*[1] * rank),  # every element of a box
            0,  # not interleaved
            SWIZZLES[self.swizzle],
            L2_PROMOTION_256B,
            0,  # zeros for what lies outside
        )
        return words


def tensor_map(dtype: torch.dtype, box: Sequence[int], swizzle: int = 0) -> TensorMap:
    """A tensor argument that the kernel copies in boxes of `box` elements, in the order of the tensor's dimensions.

    swizzle: 0, or 32, 64 or 128 bytes, within which 16-byte pieces are permuted in shared memory. Elements outside the
    tensor are read as zeros and not written. Raises TypeError or ValueError for what no tensor map can be.
    """
    if dtype not in DATA_TYPES:
        raise TypeError(f"a tensor map has no type for {_plain(dtype)}")
    if not 1 <= len(box) <= MAX_RANK or not all(1 <= size <= MAX_BOX for size in box):
        raise ValueError(f"box is {tuple(box)}; it must be one to {MAX_RANK} sizes of 1 to {MAX_BOX}")
    if swizzle not in SWIZZLES:
        raise ValueError(f"swizzle is {swizzle}; it must be {', '.join(map(str, SWIZZLES))} bytes")
    row = box[-1] * dtype.itemsize
    if row % 16 or (swizzle and row > swizzle):
        most = f" of at most {swizzle} bytes" if swizzle else ""
        raise ValueError(f"a row of the box has {row} bytes; it must be a multiple of 16{most}")
    return TensorMap(dtype, tuple(box), swizzle)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
