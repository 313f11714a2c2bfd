"""Move bytes between the arena and the submission's memory: one class for each kind of device.

The copies are raw ones, by the C library or the GPU's runtime. Their handles are taken when this module is imported,
before the submission is. So a submission that overrides torch's operators cannot interfere.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.wire.arena import ALIGNMENT, DTYPES, GUARD_BYTE, Arena, TensorSpec

_empty = torch.empty
_data_ptr = torch.Tensor.data_ptr
_narrow_view = torch.Tensor.view
_memmove = ctypes.memmove
_memset = ctypes.memset

SMALL_COPIES, SMALL_BYTES = 8, 128 << 10
"""How many blocks of one size are filled on a CPU, and the largest such size: for larger ones glibc maps new memory."""

POISON_BYTE = 0xFF
"""Bytes of 0xFF are NaN in every float format but the two FNUZ ones, where they are the most negative number."""

SHIFTS = 64
"""The number of offsets at which a fresh tensor may start inside its allocation, ALIGNMENT bytes apart."""


class Transport(Protocol):
    def place(self, spec: TensorSpec) -> torch.Tensor:
        """A fresh tensor for the values at `spec`, at an address that the submission cannot predict."""

    def page_in(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        """Copy the values at `spec` to `address`."""

    def page_out(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        """Copy the memory at `address` to `spec`."""

    def copy(self, destination: int, source: int, count: int) -> object:
        """Copy `count` bytes from one address to another."""

    def poison(self, sizes: list[int]) -> None:
        """Leave NaN where the next allocations of these sizes will probably lie."""

    def overrun(self) -> list[int]:
        """The numbers of the tensors paged in since the last call of this function beside which bytes were written."""


class CpuTransport:
    """Copies within host memory. A submission gets the arena's own memory: nothing is placed or paged in."""

    copy = staticmethod(_memmove)

    def place(self, spec: TensorSpec) -> torch.Tensor:
        raise NotImplementedError

    def page_in(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        raise NotImplementedError

    def page_out(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        _memmove(arena.address + spec.offset, address, spec.nbytes)

    def poison(self, sizes: list[int]) -> None:
        # The C library keeps several free blocks for small sizes and takes the best fit, so several are filled.
        often = [size for size in sizes for _ in range(SMALL_COPIES if size <= SMALL_BYTES else 1)]
        blocks = [_empty(size, dtype=torch.uint8) for size in often]
        for block, size in zip(blocks, often, strict=True):
            _memset(_data_ptr(block), POISON_BYTE, size)

    def overrun(self) -> list[int]:
        return []


class GpuTransport:
    """Copies on the current stream, by the CUDA or HIP runtime that torch has loaded.

    They take their turn on the stream. If the arena is in host memory, the runtime may wait for them and for the
    stream.
    """

    def __init__(self, runtime: GpuRuntime, device: str) -> None:
        self._runtime, self._device = runtime, device
        self.copy = runtime.enqueue_copy
        self._guards: list[_Guard] = []

    def place(self, spec: TensorSpec) -> torch.Tensor:
        tensor, guard = _shifted(spec, self._device)
        self._guards.append(guard)
        for address, size in guard.zones:
            self._runtime.fill(address, GUARD_BYTE, size)
        return tensor

    def page_in(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        self._runtime.enqueue_copy(address, arena.address + spec.offset, spec.nbytes)

    def page_out(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        self._runtime.enqueue_copy(arena.address + spec.offset, address, spec.nbytes)

    def poison(self, sizes: list[int]) -> None:
        blocks = [_empty(size, dtype=torch.uint8, device=self._device) for size in sizes]
        for block, size in zip(blocks, sizes, strict=True):
            self._runtime.fill(_data_ptr(block), POISON_BYTE, size)
        self._runtime.synchronize()

    def overrun(self) -> list[int]:
        guards, self._guards = self._guards, []
        return [number for number, guard in enumerate(guards) if not guard.intact(self._bytes_at)]

    def _bytes_at(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self._runtime.copy(ctypes.addressof(buffer), address, size)
        return buffer.raw


@dataclass(frozen=True)
class _Guard:
    """The bytes before and after a tensor inside its allocation, which nothing may write.

    It keeps the allocation alive: a submission that drops its inputs does not free the bytes that are checked later.
    """

    block: torch.Tensor
    zones: tuple[tuple[int, int], tuple[int, int]]

    def intact(self, read: Callable[[int, int], bytes]) -> bool:
        return all(read(address, size) == bytes([GUARD_BYTE]) * size for address, size in self.zones)


class GpuRuntime:
    """The functions of libcudart or libamdhip64 that are needed. Each raises on a failure.

    They work on the default stream, which is torch's current one unless a submission changed it.
    """

    _COPY_DIRECTION_FROM_ADDRESSES = 4  # cudaMemcpyDefault and hipMemcpyDefault alike

    def __init__(self, library: ctypes.CDLL, prefix: str) -> None:
        self._copy = getattr(library, f"{prefix}Memcpy")
        self._copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._enqueue_copy = getattr(library, f"{prefix}MemcpyAsync")
        self._enqueue_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self._fill = getattr(library, f"{prefix}Memset")
        self._fill.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        self._synchronize = getattr(library, f"{prefix}DeviceSynchronize")

    @classmethod
    def loaded_by_torch(cls) -> GpuRuntime:
        """The runtime that this process's torch uses. Raises OSError if there is none."""
        if torch.version.hip:
            return cls(_mapped_library("libamdhip64.so"), "hip")
        return cls(_mapped_library("libcudart.so"), "cuda")

    def copy(self, destination: int, source: int, count: int) -> None:
        """Copy to or from the host. Returns when the copy is done."""
        _succeed(self._copy(destination, source, count, self._COPY_DIRECTION_FROM_ADDRESSES), "memcpy")

    def enqueue_copy(self, destination: int, source: int, count: int) -> None:
        """Enqueue a copy in any direction on the default stream."""
        direction, default_stream = self._COPY_DIRECTION_FROM_ADDRESSES, None
        _succeed(self._enqueue_copy(destination, source, count, direction, default_stream), "asynchronous memcpy")

    def fill(self, address: int, byte: int, count: int) -> None:
        _succeed(self._fill(address, byte, count), "memset")

    def synchronize(self) -> None:
        _succeed(self._synchronize(), "synchronize")


def _shifted(spec: TensorSpec, device: str) -> tuple[torch.Tensor, _Guard]:
    block = _empty(spec.nbytes + (SHIFTS + 2) * ALIGNMENT, dtype=torch.uint8, device=device)
    start = _data_ptr(block)
    # torch's CPU allocator aligns to 64 bytes only; a submission may rely on the alignment of GPUs.

    shift = (1 + secrets.randbelow(SHIFTS)) * ALIGNMENT + -start % ALIGNMENT
    raw = block[shift : shift + spec.nbytes]
    end = start + shift + spec.nbytes
    guard = _Guard(block, ((start, shift), (end, start + block.numel() - end)))
    if spec.stride is not None:
        return spec.over(raw), guard
    return _narrow_view(_narrow_view(raw, DTYPES[spec.dtype]), spec.shape), guard


def _mapped_library(name: str) -> ctypes.CDLL:
    """The shared library whose file name starts with `name`, among those mapped into this process."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.rpartition("/")[2].startswith(name):
                return ctypes.CDLL(path)
    raise OSError(f"torch has loaded no {name}")


def _succeed(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"the GPU runtime's {what} failed with status {status}")
