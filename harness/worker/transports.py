"""Move bytes between the arena and the submission's memory: one class for each kind of device.

The copies are raw ones, by the C library or the GPU's runtime. Their handles are taken when this module is imported,
before the submission is. So a submission that overrides torch's operators cannot interfere.
"""

from __future__ import annotations

import contextlib
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

_libc = ctypes.CDLL(None)
_malloc, _free = _libc.malloc, _libc.free
_malloc.argtypes, _malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
_free.argtypes, _free.restype = (ctypes.c_void_p,), None

KEPT, LEFT_FREE = 32 << 20, 256 << 20
"""On a CPU, glibc takes blocks below KEPT bytes from the heap (more it cannot be told) and leaves LEFT_FREE at the
heap's end. Larger blocks are new memory of the system, and so is what was given back: zeros."""

COPIES, FILLED, ROUNDS, SLACK = 64, 1 << 20, 2, 112
"""How a CPU's free memory is filled: COPIES blocks of each size, fewer if they have more than FILLED bytes together,
ROUNDS times, because freed blocks merge with others. SLACK: to align a tensor to 64 bytes, glibc looks for a free block
so many bytes larger. What then holds: docs/debugging.md."""

LARGE = 4096
"""Bytes. When asked for a block as large, glibc first sorts the free ones."""

POISON_BYTE = 0xFF
"""Bytes of 0xFF are NaN in every float format but the two FNUZ ones, where they are the most negative number."""

SHIFTS = 64
"""The number of offsets at which a fresh tensor may start inside its allocation, ALIGNMENT bytes apart."""


def keep_freed_memory() -> None:
    """Have the C library keep what this process frees. By itself it takes blocks of 128 KiB or more from the system,
    with zeros, until it has freed one as large. Zeros may be what an output that was never written should be."""
    with contextlib.suppress(AttributeError, OSError):  # glibc only
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, malloc.h
        _libc.mallopt(mmap_threshold, KEPT)
        _libc.mallopt(trim_threshold, LEFT_FREE)


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
        wanted = [size + SLACK for size in sizes if size + SLACK < KEPT for _ in range(copies_of(size))]
        for _ in range(ROUNDS):
            # The C library takes the free block that fits best, so several are held at once.
            blocks = [_malloc(size) for size in wanted]
            for block, size in zip(blocks, wanted, strict=True):
                if block is not None:
                    _memset(block, POISON_BYTE, size)
            for block in blocks:
                _free(block)
        # It sorts what was freed when it is next asked for a block, which would be in the call's time.
        _free(_malloc(max([LARGE, *wanted]) + ALIGNMENT))

    def overrun(self) -> list[int]:
        return []


def copies_of(size: int) -> int:
    """How many blocks of `size` bytes are filled."""
    return max(1, min(COPIES, FILLED // max(size, 1)))


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
