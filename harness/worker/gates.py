"""What keeps the inputs of a call away until the judge's clock runs.

    CPU    places ready ─► `ready` ──► judge: clock, pour, `go` ──► page in │ flush │ call │ snapshot
    ROCm   the same, and the device sleeps after `go`, so that the host has enqueued all when it wakes
    CUDA   the stream waits │ page in, flush, call, snapshot enqueued ─► `ready` ──► judge: clock, pour, open

On CUDA the stream waits for a word in memory that the judge shares. So whatever the host does for a call it has done
before there are inputs, and from then on the device alone works. A submission that waits for the device in its call
never gets to be `ready` before: the judge's patience with it ends, and it is host-bound.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import torch

from harness.arena import Arena

SLEEP_US = 500.0
"""How long a GPU sleeps whose streams cannot wait: what most hosts take to enqueue a call, several times over."""


class Gate(Protocol):
    def shut(self, turn: int) -> None:
        """What is done or enqueued from here on waits for the judge to begin this turn, a number that grows."""

    def enqueued(self) -> None:
        """All of the call is enqueued."""

    def open(self) -> None:
        """Let through whatever waits: the call has failed, and nobody will open."""


class OpenGate:
    """Holds nothing back: for timing without a judge."""

    def shut(self, turn: int) -> None:
        pass

    def enqueued(self) -> None:
        pass

    def open(self) -> None:
        pass


class AskingGate(OpenGate):
    """The host waits. `ask` tells the judge that it does, and returns when the judge has poured."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def shut(self, turn: int) -> None:
        self._ask()


class SleepingGate(OpenGate):
    """The host waits as for AskingGate; then the device sleeps. `gpu` is torch.cuda, which serves ROCm as well."""

    def __init__(self, ask: Callable[[], Any] = lambda: None, gpu: Any = torch.cuda, sleep_us: float = SLEEP_US):
        self._ask, self._gpu = ask, gpu
        self._sleep, self._event = gpu._sleep, gpu.Event
        self._cycles = int(sleep_us * self._calibrate())

    def shut(self, turn: int) -> None:
        self._ask()
        self._sleep(self._cycles)

    def _calibrate(self) -> float:
        """Cycles of `_sleep` a microsecond, measured, since its clock is the device's and varies."""
        cycles = 1_000_000
        for _ in range(2):  # the first one wakes the device
            start, end = self._event(enable_timing=True), self._event(enable_timing=True)
            start.record()
            self._sleep(cycles)
            end.record()
            end.synchronize()
        return cycles / max(start.elapsed_time(end) * 1e3, 1e-3)


class StreamGate:
    """The default stream of CUDA waits until the word at the beginning of `flag` is this turn's number or more.

    `announce` tells the judge that all is enqueued. Raises OSError where the driver cannot do this.
    """

    _MAPPED, _GREATER_OR_EQUAL = 2, 0  # CU_MEMHOSTREGISTER_DEVICEMAP, CU_STREAM_WAIT_VALUE_GEQ; cuda.h

    def __init__(self, driver: Any, flag: Arena, announce: Callable[[], Any]) -> None:
        self._flag, self._announce, self._turn = flag, announce, 0
        self._wait_value = driver.cuStreamWaitValue32_v2
        host, device = ctypes.c_void_p(flag.address), ctypes.c_uint64()
        _succeed(driver.cuMemHostRegister_v2(host, ctypes.c_size_t(flag.size), self._MAPPED))
        _succeed(driver.cuMemHostGetDevicePointer_v2(ctypes.byref(device), host, 0))
        self._on_device = device

    def shut(self, turn: int) -> None:
        self._turn = turn
        default_stream = None
        _succeed(
            self._wait_value(
                default_stream, self._on_device, ctypes.c_uint32(turn), ctypes.c_uint(self._GREATER_OR_EQUAL)
            )
        )

    def enqueued(self) -> None:
        self._announce()

    def open(self) -> None:
        ctypes.c_uint32.from_address(self._flag.address).value = self._turn


def _succeed(status: int) -> None:
    if status:
        raise OSError(f"CUDA's streams cannot wait for the judge: status {status}")
