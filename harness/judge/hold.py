"""Holding the GPU: a small kernel of the judge's that runs until a word in host memory says that it may end.

While it runs, no kernel of another process does: processes share a GPU by time slices. It ends by itself after its
limit, which must be shorter than a slice.

The kernel is written in PTX, which the driver compiles: the judge needs no compiler.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

LIMIT_NS = 1_500_000
"""A time slice is 2.1 ms (H200, driver 580, 2026-11-22). Of that the pour and the flush need their part."""

_STARTED, _RELEASED, _EXPIRED = 0, 64, 128  # bytes, each in a cache line of its own
_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry hold(.param .u64 words, .param .u32 turn, .param .u64 limit)
{
    .reg .u64 %w, %began, %now, %limit;
    .reg .u32 %turn, %seen;
    .reg .pred %p;
    ld.param.u64 %w, [words];
    ld.param.u32 %turn, [turn];
    ld.param.u64 %limit, [limit];
    mov.u64 %began, %globaltimer;
    st.volatile.global.u32 [%w], %turn;
WAIT:
    ld.volatile.global.u32 %seen, [%w+64];
    setp.ge.u32 %p, %seen, %turn;
    @%p bra DONE;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %began;
    setp.lt.u64 %p, %now, %limit;
    @%p bra WAIT;
    st.volatile.global.u32 [%w+128], %turn;
DONE:
    ret;
}
\0"""


class Hold:
    """Raises OSError where the driver does not take the kernel."""

    def __init__(self, torch_device: str) -> None:
        self._words = torch.zeros(64, dtype=torch.int32, pin_memory=True)  # mapped at the same address on the device
        torch.zeros(1, device=torch_device)  # the context is made and current from here on
        self._cuda = ctypes.CDLL("libcuda.so.1")
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        _succeed(self._cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(_PTX)), "loading")
        _succeed(self._cuda.cuModuleGetFunction(ctypes.byref(self._kernel), module, b"hold"), "finding")
        self._turn = 0

    def begin(self, limit_ns: int = LIMIT_NS) -> None:
        """Enqueue the kernel on the default stream."""
        self._turn += 1
        words = ctypes.c_uint64(self._words.data_ptr())
        turn, limit = ctypes.c_uint32(self._turn), ctypes.c_uint64(limit_ns)
        addresses = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in (words, turn, limit)]
        parameters = (ctypes.c_void_p * 3)(*addresses)
        grid = block = (1, 1, 1)
        _succeed(self._cuda.cuLaunchKernel(self._kernel, *grid, *block, 0, None, parameters, None), "launching")

    def holds(self) -> bool:
        """Whether the kernel has begun to run."""
        return self._word(_STARTED).value == self._turn

    def release(self) -> bool:
        """Let it end; False if it had ended already."""
        self._word(_RELEASED).value = self._turn
        return bool(self._word(_EXPIRED).value != self._turn)

    def _word(self, offset: int) -> Any:
        return ctypes.c_uint32.from_address(self._words.data_ptr() + offset)


def _succeed(status: int, what: str) -> None:
    if status:
        raise OSError(f"{what} the judge's own kernel failed with status {status}")
