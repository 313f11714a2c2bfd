"""Moving bytes between the arena and the memory that a submission sees, one class a kind of device.

The copies are raw ones, by the C library or the GPU's runtime, through handles taken here, when this module is
imported: before the submission is. A submission that overrides torch's operators does not get between them.
"""

from __future__ import annotations

import ctypes
import secrets
from typing import Protocol

import torch

from harness.arena import ALIGNMENT, DTYPES, Arena, TensorSpec

_empty = torch.empty
_data_ptr = torch.Tensor.data_ptr
_narrow_view = torch.Tensor.view
_memmove = ctypes.memmove
_memset = ctypes.memset

POISON_BYTE = 0xFF
"""A run of 0xFF is NaN in every float format but the two FNUZ ones, where it is the most negative number."""

SHIFTS = 64
"""How many different offsets a fresh tensor may start at inside its allocation, ALIGNMENT bytes apart."""


class Transport(Protocol):
    def page_in(self, arena: Arena, spec: TensorSpec) -> torch.Tensor:
        """A fresh tensor with the values at `spec`, at an address that the submission cannot have foreseen."""

    def page_out(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        """Copy the memory at `address` to `spec`."""

    def poison(self, sizes: list[int]) -> None:
        """Leave NaN where the next allocations of these sizes are likely to land."""


class CpuTransport:
    """Host to host."""

    def page_in(self, arena: Arena, spec: TensorSpec) -> torch.Tensor:
        tensor = _shifted(spec, "cpu")
        _memmove(_data_ptr(tensor), arena.address + spec.offset, spec.nbytes)
        return tensor

    def page_out(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        _memmove(arena.address + spec.offset, address, spec.nbytes)

    def poison(self, sizes: list[int]) -> None:
        blocks = [_empty(size, dtype=torch.uint8) for size in sizes]
        for block, size in zip(blocks, sizes, strict=True):
            _memset(_data_ptr(block), POISON_BYTE, size)


class GpuTransport:
    """Host to device and back through the CUDA or HIP runtime that torch has loaded."""

    def __init__(self, runtime: GpuRuntime, device: str) -> None:
        self._runtime, self._device = runtime, device

    def page_in(self, arena: Arena, spec: TensorSpec) -> torch.Tensor:
        tensor = _shifted(spec, self._device)
        self._runtime.copy(_data_ptr(tensor), arena.address + spec.offset, spec.nbytes)
        return tensor

    def page_out(self, arena: Arena, spec: TensorSpec, address: int) -> None:
        self._runtime.copy(arena.address + spec.offset, address, spec.nbytes)

    def poison(self, sizes: list[int]) -> None:
        blocks = [_empty(size, dtype=torch.uint8, device=self._device) for size in sizes]
        for block, size in zip(blocks, sizes, strict=True):
            self._runtime.fill(_data_ptr(block), POISON_BYTE, size)
        self._runtime.synchronize()


class GpuRuntime:
    """The three calls needed of libcudart or libamdhip64; each waits for the device and raises on a failure."""

    _COPY_DIRECTION_FROM_ADDRESSES = 4  # cudaMemcpyDefault and hipMemcpyDefault alike

    def __init__(self, library: ctypes.CDLL, prefix: str) -> None:
        self._copy = getattr(library, f"{prefix}Memcpy")
        self._copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._fill = getattr(library, f"{prefix}Memset")
        self._fill.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        self._synchronize = getattr(library, f"{prefix}DeviceSynchronize")

    @classmethod
    def loaded_by_torch(cls) -> GpuRuntime:
        """The runtime that this process's torch uses. Raises OSError when there is none."""
        if torch.version.hip:
            return cls(_mapped_library("libamdhip64.so"), "hip")
        return cls(_mapped_library("libcudart.so"), "cuda")

    def copy(self, destination: int, source: int, count: int) -> None:
        _succeed(self._copy(destination, source, count, self._COPY_DIRECTION_FROM_ADDRESSES), "memcpy")

    def fill(self, address: int, byte: int, count: int) -> None:
        _succeed(self._fill(address, byte, count), "memset")

    def synchronize(self) -> None:
        _succeed(self._synchronize(), "synchronize")


def _shifted(spec: TensorSpec, device: str) -> torch.Tensor:
    shift = secrets.randbelow(SHIFTS) * ALIGNMENT
    block = _empty(spec.nbytes + SHIFTS * ALIGNMENT, dtype=torch.uint8, device=device)
    # torch's CPU allocator aligns to 64 bytes only; a submission may count on what GPUs guarantee.
    shift += -_data_ptr(block) % ALIGNMENT
    raw = block[shift : shift + spec.nbytes]
    return _narrow_view(_narrow_view(raw, DTYPES[spec.dtype]), spec.shape)


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
