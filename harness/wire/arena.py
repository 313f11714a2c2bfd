"""Shared memory: inputs travel in it to the worker, outputs back.

    judge                                   one anonymous file, mapped by both               worker
    pour(leaves) ──►  |  q  |    kv    | indptr |  ...  |   ──► tensors over it, at new places in each call
    snapshot     ◄──  |  state in place  |  outputs ...  |   ◄── outputs

The file has no name and vanishes with its last holder, however that ends. Its size is sealed: a worker that could
shrink it would crash the judge. Both sides describe a tensor in it by a `TensorSpec`. The structure of `data` around
the tensors is a tree of plain JSON (tree).
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

ALIGNMENT = 256
"""Bytes. Every tensor starts at a multiple, so vector loads in a copy are aligned as in an allocation of torch."""

GUARD_BYTE = 0xA5
"""The byte that fills the memory before and after each input. It must still be there after the call."""

FLAG_BYTES = mmap.PAGESIZE
"""The size of an arena that holds only two words (words)."""

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
        torch.float4_e2m1fn_x2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor in an arena: name of the dtype, shape, and offset of the first byte. `stride` is in elements, or None
    for a contiguous tensor. With a stride, no two elements may share memory."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    stride: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes from its first element to its last, including gaps."""
        if self.stride is None or 0 in self.shape:
            elements = math.prod(self.shape)
        else:
            elements = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return elements * DTYPES[self.dtype].itemsize

    def over(self, raw: torch.Tensor) -> torch.Tensor:
        """The tensor whose bytes are `raw`, which has `nbytes` bytes."""
        flat = raw.view(DTYPES[self.dtype])
        if self.stride is None or 0 in self.shape:
            return flat.view(self.shape)
        return flat.as_strided(self.shape, self.stride, flat.storage_offset())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TensorSpec:
        stride = fields.get("stride")
        return cls(fields["dtype"], tuple(fields["shape"]), fields["offset"], None if stride is None else tuple(stride))


class Arena:
    """An anonymous shared file of a fixed size. Judge: `Arena.create(size)`; worker: `Arena.adopt(fd, size)`.

    `device_arena` has the one in GPU memory.
    """

    on_device = False

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        # Map all pages now: the first access to a page in a timed call would take time.
        self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls, size: int) -> Arena:
        """A new arena of at least `size` bytes. Raises OSError if there is no memory."""
        size = max(_align(size), mmap.PAGESIZE)
        fd = _anonymous_file()
        os.ftruncate(fd, size)
        if hasattr(fcntl, "F_ADD_SEALS"):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return cls(fd, size)

    @classmethod
    def adopt(cls, fd: int, size: int) -> Arena:
        """The arena of a file descriptor that the other side sent."""
        return cls(fd, size)

    def view(self, spec: TensorSpec) -> torch.Tensor:
        """The tensor at `spec`, in the arena's memory. Raises ValueError if it does not lie inside."""
        possible = spec.offset >= 0 and spec.offset % ALIGNMENT == 0 and min(spec.shape, default=0) >= 0
        possible &= min(spec.stride or (), default=0) >= 0
        if not possible or spec.offset + spec.nbytes > self.size:
            raise ValueError(
                f"a tensor of {spec.nbytes:,} bytes at {spec.offset:,} is outside an arena of {self.size:,}"
            )
        return spec.over(self.bytes[spec.offset : spec.offset + spec.nbytes])

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        """Like `view`, but with a storage of its own, as tensors that were made separately have. With one storage for
        all of the arena they would look like several tensors in the same memory."""
        size = spec.nbytes
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=spec.offset) if size else _NOTHING
        return spec.over(raw)

    def close(self) -> None:
        """Close the file. The mapping ends with the last tensor over it."""
        os.close(self.fd)


_NOTHING = torch.empty(0, dtype=torch.uint8)


def layout(tensors: Sequence[torch.Tensor], start: int = 0) -> list[TensorSpec]:
    """Places for `tensors` in an arena, one after another from `start`, a multiple of ALIGNMENT. They keep their
    strides, so tensors whose elements share memory must be made contiguous before.

    Raises TypeError for a dtype that cannot be sent.
    """
    specs, offset = [], start
    for tensor in tensors:
        if tensor.dtype not in _DTYPE_NAMES:
            raise TypeError(f"tensors of {tensor.dtype} cannot be passed to a worker")
        stride = None if tensor.is_contiguous() else tuple(tensor.stride())
        specs.append(TensorSpec(_DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), offset, stride))
        offset = _align(offset + specs[-1].nbytes)
    return specs


def is_apart(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether no two elements of a tensor share memory, judged by its sizes: each axis must step over the whole span of
    the axes with smaller steps. True of slices and of any order of axes, not of expanded tensors."""
    spanned = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1):
        if step < spanned:
            return False
        spanned = step * (size - 1) + spanned
    return True


def extent(specs: Sequence[TensorSpec]) -> int:
    """The bytes that an arena needs for `specs`."""
    return max((_align(spec.offset + spec.nbytes) for spec in specs), default=0)


def room(sizes: Sequence[int]) -> int:
    """The bytes that an arena needs for blocks of these sizes, one after another."""
    return sum(_align(size) for size in sizes)


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16. Also works for dtypes that cannot be sent."""
    return _DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def countable(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor`, or its bytes if torch cannot compute with its elements: pairs of 4-bit numbers."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float4_e2m1fn_x2 else tensor


def _align(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("podium", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:  # systems other than Linux
        return os.dup(file.fileno())
