"""An arena in GPU memory. Judge and worker map the same allocation, and no data goes through the host.

    judge    cuMemCreate ─► export as a file descriptor ─► map          worker    import the descriptor ─► map

It uses CUDA's virtual memory management (CUDA driver API, "Virtual Memory Management"). Its descriptors work across PID
namespaces; CUDA's older IPC handles do not. The allocation ends with its last holder. On ROCm the arena is in host
memory (`arena`): HIP has the same calls, but they have not been tried here.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

import torch

from harness.wire.arena import DTYPES, Arena, TensorSpec

_POSIX_FILE_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ_AND_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_MINIMUM = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM


class _Location(ctypes.Structure):
    """CUmemLocation of cuda.h."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp of cuda.h, its flags at zero."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc of cuda.h."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def shareable_memory(torch_device: str) -> CudaMemory | None:
    """The memory of a CUDA device if it can be shared with other processes, else None. Tried with the smallest
    allocation."""
    try:
        memory = CudaMemory.of_torch(int(torch_device.partition(":")[2] or 0))
        DeviceArena.create_on(memory, 1).close()
    except OSError:
        return None
    return memory


class CudaMemory:
    """The functions of libcuda that are needed, on one device, in the context that is current when the object is made.
    Each raises OSError if it fails."""

    def __init__(self, library: Any, device_index: int = 0) -> None:
        self._cuda, self._location = library, _Location(_ON_DEVICE, device_index)
        self._context = ctypes.c_void_p()
        _succeed(library.cuCtxGetCurrent(byref(self._context)), "looking for the context")

    @classmethod
    def of_torch(cls, device_index: int = 0) -> CudaMemory:
        """The memory of torch's context. Raises OSError without CUDA."""
        library = ctypes.CDLL("libcuda.so.1")
        torch.empty(1, device=f"cuda:{device_index}")  # makes the context and makes it current
        return cls(library, device_index)

    def create(self, size: int) -> tuple[int, int, int]:
        """New memory of at least `size` bytes: its handle, its actual size, and a descriptor for other processes."""
        properties = _AllocationProperties(_PINNED, _POSIX_FILE_DESCRIPTOR, self._location)
        granularity, handle, fd = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int(-1)
        _succeed(self._cuda.cuMemGetAllocationGranularity(byref(granularity), byref(properties), _MINIMUM), "the size")
        size = -(-max(size, 1) // granularity.value) * granularity.value
        _succeed(
            self._cuda.cuMemCreate(byref(handle), _size(size), byref(properties), _NO_FLAGS), f"creating {size:,} bytes"
        )
        status = self._cuda.cuMemExportToShareableHandle(byref(fd), handle, _POSIX_FILE_DESCRIPTOR, _NO_FLAGS)
        if status:
            self.release(handle.value)
        _succeed(status, "exporting")
        return handle.value, size, fd.value

    def adopt(self, fd: int) -> int:
        """The handle of memory that another process exported as `fd`."""
        handle = ctypes.c_uint64()
        number_as_pointer = ctypes.c_void_p(fd)
        _succeed(
            self._cuda.cuMemImportFromShareableHandle(byref(handle), number_as_pointer, _POSIX_FILE_DESCRIPTOR),
            "importing",
        )
        return handle.value

    def map(self, handle: int, size: int) -> int:
        """Map all of it for reading and writing. Returns the address."""
        cuda, whole = self._cuda, _size(size)
        address, access = ctypes.c_uint64(), _Access(self._location, _READ_AND_WRITE)
        anywhere, nothing = ctypes.c_uint64(0), _size(0)
        _succeed(cuda.cuMemAddressReserve(byref(address), whole, nothing, anywhere, _NO_FLAGS), "reserving")
        reserved = ctypes.c_uint64(address.value)
        mapped = False
        try:
            _succeed(cuda.cuMemMap(address, whole, nothing, ctypes.c_uint64(handle), _NO_FLAGS), "mapping")
            mapped = True
            _succeed(cuda.cuMemSetAccess(address, whole, byref(access), _size(1)), "allowing access")
        except OSError:
            if mapped:
                cuda.cuMemUnmap(address, whole)
            cuda.cuMemAddressFree(reserved, whole)
            raise
        return address.value

    def unmap(self, address: int, size: int) -> None:
        """Wait for the device, then unmap: a copy under way would otherwise access memory that is gone. Any thread may
        call this: the garbage collector may run in one that never had a context."""
        _succeed(self._cuda.cuCtxPushCurrent_v2(self._context), "entering the context")
        try:
            _succeed(self._cuda.cuCtxSynchronize(), "waiting for the device")
        finally:
            self._cuda.cuCtxPopCurrent_v2(byref(ctypes.c_void_p()))
        _succeed(self._cuda.cuMemUnmap(ctypes.c_uint64(address), _size(size)), "unmapping")
        _succeed(self._cuda.cuMemAddressFree(ctypes.c_uint64(address), _size(size)), "freeing addresses")

    def release(self, handle: int) -> None:
        _succeed(self._cuda.cuMemRelease(ctypes.c_uint64(handle)), "releasing")


byref, _size = ctypes.byref, ctypes.c_size_t
_NO_FLAGS = ctypes.c_ulonglong(0)


def _succeed(status: int, what: str) -> None:
    if status:
        raise OSError(f"CUDA's shared memory: {what} failed with status {status}")


class DeviceArena(Arena):
    """An arena in GPU memory. Judge: `DeviceArena.create_on(memory, size)`; worker: `DeviceArena.adopt_on(memory, fd,
    size)`."""

    on_device = True

    def __init__(self, fd: int, size: int, mapping: _Mapping) -> None:
        self.fd, self.size, self._mapping = fd, size, mapping
        self.address = mapping.address

    @classmethod
    def create_on(cls, memory: CudaMemory, size: int) -> DeviceArena:
        """A new arena of at least `size` bytes. Raises OSError if the driver cannot share memory or has none left."""
        handle, size, fd = memory.create(size)
        try:
            return cls(fd, size, _Mapping(memory, handle, size))
        except OSError:
            os.close(fd)
            raise

    @classmethod
    def adopt_on(cls, memory: CudaMemory, fd: int, size: int) -> DeviceArena:
        """The arena of a file descriptor that the other side sent."""
        return cls(fd, size, _Mapping(memory, memory.adopt(fd), size))

    @functools.cached_property
    def bytes(self) -> torch.Tensor:  # type: ignore[override]
        return torch.as_tensor(self._mapping, device="cuda")

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        if not spec.nbytes:
            return torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="cuda")
        return spec.over(torch.as_tensor(_Window(self._mapping, spec.offset, spec.nbytes), device="cuda"))

    def close(self) -> None:
        """Release the memory. The mapping ends with the last tensor over it."""
        os.close(self.fd)
        self.__dict__.pop("bytes", None)
        del self._mapping


class _Mapping:
    """Memory that is mapped into this process while this object lives. A tensor over it keeps it alive."""

    def __init__(self, memory: CudaMemory, handle: int, size: int) -> None:
        self.address = 0
        self._memory, self._handle, self._size = memory, handle, size
        self.address = memory.map(handle, size)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self._size,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def __del__(self) -> None:
        try:
            if self.address:
                self._memory.unmap(self.address, self._size)
        finally:
            self._memory.release(self._handle)


class _Window:
    """A part of a mapping, which it keeps alive."""

    def __init__(self, mapping: _Mapping, offset: int, size: int) -> None:
        self._mapping, self._address, self._size = mapping, mapping.address + offset, size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self._size,), "typestr": "|u1", "data": (self._address, False), "version": 3}
