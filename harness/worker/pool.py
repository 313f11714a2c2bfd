"""GPU memory that the judge has mapped too. A call's own allocations are taken from it.

The judge takes its snapshot of an output there by itself when the call ends. An output elsewhere must be copied first,
within the timed interval.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from typing import Any

import torch

from harness.wire.arena import Arena

GRAIN = 2 << 20
"""Bytes. torch asks for memory in segments of at least this size (kSmallBuffer, c10/cuda/CUDACachingAllocator.cpp)."""

_use = torch.cuda.use_mem_pool


class Pool:
    """A memory pool of torch's in `arena`. Allocations that do not fit are made as usual, by `driver`, libcuda."""

    def __init__(self, arena: Arena, driver: Any) -> None:
        self._arena, self._driver = arena, driver
        self._free = [(arena.address, arena.size)]
        self._taken: dict[int, int] = {}
        allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        self._callbacks = allocate(self._allocate), release(self._release)
        first, second = (ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in self._callbacks)
        self._allocator = torch._C._cuda_customAllocator(first, second)
        self._pool = torch.cuda.MemPool(self._allocator)

    def in_use(self) -> AbstractContextManager[Any]:
        """Within this block this thread's allocations are taken from the arena."""
        return _use(self._pool)

    def _allocate(self, size: int, device: int, stream: int | None) -> int | None:
        size = -(-size // GRAIN) * GRAIN
        for number, (address, room) in enumerate(self._free):
            if size <= room:
                self._free[number : number + 1] = [(address + size, room - size)] if room > size else []
                self._taken[address] = size
                return address
        elsewhere = ctypes.c_uint64()
        status = self._driver.cuMemAlloc_v2(ctypes.byref(elsewhere), ctypes.c_size_t(size))
        return None if status else elsewhere.value

    def _release(self, address: int, size: int, device: int, stream: int | None) -> None:
        if address in self._taken:
            self._free.append((address, self._taken.pop(address)))
        else:
            self._driver.cuMemFree_v2(ctypes.c_uint64(address))
