"""Words in memory shared with the judge.

word GATE    the stream waits until the judge has written this turn's number: inputs that are too large for one time
             slice are poured before the call may run
word DONE    the stream writes this turn's number after the call: while a call longer than a time slice runs, the judge
             asks the device for nothing
"""

from __future__ import annotations

import ctypes
from typing import Any

from harness.wire.arena import DONE, GATE, Arena

_MAPPED, _GREATER_OR_EQUAL = 2, 0  # CU_MEMHOSTREGISTER_DEVICEMAP, CU_STREAM_WAIT_VALUE_GEQ; cuda.h


class Words:
    """The words at the beginning of `flag`, used on CUDA's default stream. Raises OSError if CUDA cannot map them."""

    def __init__(self, driver: Any, flag: Arena) -> None:
        self._driver, self._flag = driver, flag
        host, device = ctypes.c_void_p(flag.address), ctypes.c_uint64()
        _succeed(driver.cuMemHostRegister_v2(host, ctypes.c_size_t(flag.size), _MAPPED))
        _succeed(driver.cuMemHostGetDevicePointer_v2(ctypes.byref(device), host, 0))
        self._on_device = device.value

    def shut(self, turn: int) -> None:
        """Make everything enqueued from here on wait until the judge begins this turn."""
        place, flags = ctypes.c_uint64(self._on_device + GATE), ctypes.c_uint(_GREATER_OR_EQUAL)
        _succeed(self._driver.cuStreamWaitValue32_v2(None, place, ctypes.c_uint32(turn), flags))

    def open(self, turn: int) -> None:
        """Open the gate for a failed call: the judge will not."""
        ctypes.c_uint32.from_address(self._flag.address + GATE).value = turn

    def mark(self, turn: int) -> None:
        """Have the stream write the turn's number when everything enqueued so far is done."""
        place = ctypes.c_uint64(self._on_device + DONE)
        _succeed(self._driver.cuStreamWriteValue32_v2(None, place, ctypes.c_uint32(turn), ctypes.c_uint(0)))


def _succeed(status: int) -> None:
    if status:
        raise OSError(f"CUDA's streams cannot wait for the judge: status {status}")
