"""Hold the GPU with a small kernel of the judge's. It runs until a word in host memory lets it end.

Processes share a GPU by time slices, so no kernel of another process runs meanwhile. The kernel ends by itself after
its limit, which must be shorter than a time slice. If the slice ends early, kernels of another process run in the
middle of the hold. The kernel notices that by a jump of the device's clock. If they run directly after the hold, before
the judge's next kernel, a second kernel there notices it (`look_behind`).

The kernel is written in PTX, which the driver compiles. The judge needs no compiler.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

LIMIT_NS = 1_500_000
"""A time slice is 2.1 ms (H200, driver 580, 2026-11-22). The pour and the flush need their part of it."""

AWAY_NS = 100_000
"""A longer time between two readings of the device's clock means that another process ran. Readings are 1 to 2 us
apart. Two switches of the device alone take 280 us (H200, 2026-11-22)."""

_STARTED, _RELEASED, _EXPIRED, _TAKEN, _LAST = 0, 64, 128, 192, 256  # bytes, each in a cache line of its own
_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry hold(.param .u64 words, .param .u32 turn, .param .u64 limit)
{
    .reg .u64 %w, %began, %last, %now, %spent, %limit;
    .reg .u32 %turn, %seen;
    .reg .pred %p;
    ld.param.u64 %w, [words];
    ld.param.u32 %turn, [turn];
    ld.param.u64 %limit, [limit];
    mov.u64 %began, %globaltimer;
    mov.u64 %last, %began;
    st.volatile.global.u32 [%w], %turn;
WAIT:
    ld.volatile.global.u32 %seen, [%w+64];
    mov.u64 %now, %globaltimer;
    sub.u64 %spent, %now, %last;
    setp.gt.u64 %p, %spent, AWAY_NS;
    @%p bra TAKEN;
    mov.u64 %last, %now;
    setp.ge.u32 %p, %seen, %turn;
    @%p bra DONE;
    sub.u64 %spent, %now, %began;
    setp.lt.u64 %p, %spent, %limit;
    @%p bra WAIT;
    st.volatile.global.u32 [%w+128], %turn;
    bra DONE;
TAKEN:
    st.volatile.global.u32 [%w+192], %turn;
DONE:
    st.volatile.global.u64 [%w+256], %now;
    ret;
}
.visible .entry look_behind(.param .u64 words, .param .u32 turn)
{
    .reg .u64 %w, %last, %now, %spent;
    .reg .u32 %turn;
    .reg .pred %p;
    ld.param.u64 %w, [words];
    ld.param.u32 %turn, [turn];
    mov.u64 %now, %globaltimer;
    ld.volatile.global.u64 %last, [%w+256];
    sub.u64 %spent, %now, %last;
    setp.gt.u64 %p, %spent, AWAY_NS;
    @%p st.volatile.global.u32 [%w+192], %turn;
    ret;
}
\0""".replace(b"AWAY_NS", str(AWAY_NS).encode())


class Hold:
    """The holding kernel and its words in host memory. Raises OSError if the driver does not accept the kernel."""

    def __init__(self, torch_device: str) -> None:
        self._words = torch.zeros(80, dtype=torch.int32, pin_memory=True)  # mapped at the same address on the device
        torch.zeros(1, device=torch_device)  # makes the CUDA context and makes it current

        self._cuda = ctypes.CDLL("libcuda.so.1")
        module, self._kernel, self._behind = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        _succeed(self._cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(_PTX)), "loading")
        for kernel, name in ((self._kernel, b"hold"), (self._behind, b"look_behind")):
            _succeed(self._cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name), "finding")
        self._turn = 0

    def begin(self, limit_ns: int = LIMIT_NS) -> None:
        """Enqueue the kernel on the default stream."""
        self._turn += 1
        self._launch(self._kernel, ctypes.c_uint32(self._turn), ctypes.c_uint64(limit_ns))

    def look_behind(self) -> None:
        """Enqueue the second kernel: it finds out whether the device ran something else since the hold ended."""
        self._launch(self._behind, ctypes.c_uint32(self._turn))

    def _launch(self, kernel: Any, *values: Any) -> None:
        given = (ctypes.c_uint64(self._words.data_ptr()), *values)
        addresses = [ctypes.addressof(value) for value in given]
        grid = block = (1, 1, 1)
        parameters = (ctypes.c_void_p * len(addresses))(*addresses)
        _succeed(self._cuda.cuLaunchKernel(kernel, *grid, *block, 0, None, parameters, None), "launching")

    def holds(self) -> bool:
        """Whether the kernel has begun to run."""
        return self._word(_STARTED).value == self._turn

    def release(self) -> bool:
        """Let the kernel end. Returns False if it had ended already."""
        self._word(_RELEASED).value = self._turn
        return bool(self._word(_EXPIRED).value != self._turn)

    def was_taken(self) -> bool:
        """Whether the device ran something else during the hold or directly after it. Valid once both kernels have
        ended."""
        return bool(self._word(_TAKEN).value == self._turn)

    def _word(self, offset: int) -> Any:
        return ctypes.c_uint32.from_address(self._words.data_ptr() + offset)


def _succeed(status: int, what: str) -> None:
    if status:
        raise OSError(f"{what} the judge's own kernel failed with status {status}")
