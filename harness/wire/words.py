"""Two words in host memory that judge and worker share, and that both of their streams on a CUDA GPU can reach.

word GATE    the worker's stream waits until it holds this turn's number: inputs that are too large for one time slice
             are poured before the call may run. The judge's stream writes it behind the flush
word DONE    the worker's stream writes this turn's number after the call: while a call longer than a time slice runs,
             the judge asks the device for nothing
"""

from __future__ import annotations

import ctypes
from typing import Any

from harness.wire.arena import FLAG_BYTES, Arena

GATE, DONE = 0, 256
"""Offsets in bytes. Each word has a cache line of its own."""

_MAPPED, _GREATER_OR_EQUAL = 2, 0  # CU_MEMHOSTREGISTER_DEVICEMAP, CU_STREAM_WAIT_VALUE_GEQ; cuda.h


class Words:
    """The words at the beginning of `flag`, an arena of FLAG_BYTES, used on CUDA's default stream. `driver`: libcuda.
    Raises OSError if CUDA cannot map them."""

    def __init__(self, driver: Any, flag: Arena) -> None:
        self._driver, self._flag = driver, flag
        self._host, device = ctypes.c_void_p(flag.address), ctypes.c_uint64()
        _succeed(driver.cuMemHostRegister_v2(self._host, ctypes.c_size_t(FLAG_BYTES), _MAPPED))
        _succeed(driver.cuMemHostGetDevicePointer_v2(ctypes.byref(device), self._host, 0))
        self._on_device = device.value

    @classmethod
    def of_cuda(cls, flag: Arena) -> Words:
        return cls(ctypes.CDLL("libcuda.so.1"), flag)

    def shut(self, turn: int) -> None:
        """Make everything that this process enqueues from here on wait until the gate is open for this turn."""
        place, flags = ctypes.c_uint64(self._on_device + GATE), ctypes.c_uint(_GREATER_OR_EQUAL)
        _succeed(self._driver.cuStreamWaitValue32_v2(None, place, ctypes.c_uint32(turn), flags))

    def open(self, turn: int) -> None:
        """Open the gate now."""
        self._word(GATE).value = turn

    def open_behind(self, turn: int) -> None:
        """Have the stream open the gate when everything that this process has enqueued so far is done."""
        self._write(GATE, turn)

    def mark(self, turn: int) -> None:
        """Have the stream write the turn's number when everything enqueued so far is done."""
        self._write(DONE, turn)

    def marked(self, turn: int) -> bool:
        """Whether the other side's stream has done so."""
        return bool(self._word(DONE).value == turn)

    def close(self) -> None:
        """End the mapping on the device. Waits for the device: a write to it may still be enqueued."""
        self._driver.cuCtxSynchronize()
        self._driver.cuMemHostUnregister(self._host)

    def _write(self, offset: int, turn: int) -> None:
        place = ctypes.c_uint64(self._on_device + offset)
        _succeed(self._driver.cuStreamWriteValue32_v2(None, place, ctypes.c_uint32(turn), ctypes.c_uint(0)))

    def _word(self, offset: int) -> Any:
        return ctypes.c_uint32.from_address(self._flag.address + offset)


def _succeed(status: int) -> None:
    if status:
        raise OSError(f"CUDA's streams cannot use the words that judge and worker share: status {status}")
