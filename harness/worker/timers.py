"""Timing one call, one class a kind of device, and emptying the caches before it.

    CPU   page in ─► flush ─► perf_counter ─► call ─► perf_counter ─► snapshot
    GPU   sleep ─► page in ─► flush ─► event ─► call ─► event ─► snapshot

On a GPU all of it is enqueued on one stream while the device sleeps: no gap on the host's side falls between the
events, the inputs are not there before the device has slept, and the snapshot holds what the stream had computed when
its time was up. Every handle is taken when this module is imported, before the submission is.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

_clock_ns = time.perf_counter_ns

DEFAULT_SLEEP_US = 300.0


@dataclass(frozen=True)
class Sample:
    """One timed call: what it returned, how long it took, what to know about the number, and how long the host was busy
    enqueuing (0 on a CPU). Times in nanoseconds."""

    output: Any
    latency_ns: float
    labels: tuple[str, ...] = ()
    host_ns: int = 0


class Timer(Protocol):
    def sample(
        self,
        call: Callable[[], Any],
        page_in: Callable[[], Any] = lambda: None,
        snapshot: Callable[[Any], Any] = lambda output: None,
        sleep_us: float = DEFAULT_SLEEP_US,
    ) -> Sample:
        """`page_in`, empty the caches, time `call` once, take a `snapshot` of what it returned.

        `sleep_us` is how long a GPU sleeps meanwhile, so that the host has enqueued everything when it wakes.
        """


class CpuTimer:
    """The process's own monotonic clock around the call. Ticks of 1 ns; the call is synchronous."""

    def __init__(self, flush_bytes: int) -> None:
        self._flusher = CpuFlusher(flush_bytes)

    def sample(
        self,
        call: Callable[[], Any],
        page_in: Callable[[], Any] = lambda: None,
        snapshot: Callable[[Any], Any] = lambda output: None,
        sleep_us: float = DEFAULT_SLEEP_US,
    ) -> Sample:
        page_in()
        self._flusher.flush()
        start = _clock_ns()
        output = call()
        latency_ns = float(max(_clock_ns() - start, 1))
        snapshot(output)
        return Sample(output, latency_ns)


class CpuFlusher:
    """Writes one buffer and reads another, each larger than the last-level cache."""

    def __init__(self, flush_bytes: int) -> None:
        self._size = max(flush_bytes, 1)
        self._written = ctypes.create_string_buffer(self._size)
        self._read = ctypes.create_string_buffer(self._size)
        # Pages that were never written are all the same page of zeros, and reading those evicts nothing.
        ctypes.memset(self._read, 2, self._size)

    def flush(self) -> None:
        ctypes.memset(self._written, 1, self._size)
        # memchr for an absent byte reads all of it at memory speed and keeps no line dirty.
        _memchr(self._read, 7, self._size)


_memchr = ctypes.CDLL(None).memchr
_memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_memchr.restype = ctypes.c_void_p


class GpuTimer:
    """A pair of events on the current stream. `gpu` is torch.cuda, which serves CUDA and ROCm alike.

    If the device reached the first event before the host was done, a wait for the host may be in the interval: the
    sample is labelled host-bound and counted as it is.
    """

    def __init__(self, flush_bytes: int, gpu: Any = torch.cuda, clock_ns: Callable[[], int] = _clock_ns) -> None:
        self._gpu, self._host_clock_ns = gpu, clock_ns
        self._sleep, self._event, self._synchronize = gpu._sleep, gpu.Event, gpu.synchronize
        self._flusher = GpuFlusher(flush_bytes)
        self._cycles_per_us = self._calibrate()

    def sample(
        self,
        call: Callable[[], Any],
        page_in: Callable[[], Any] = lambda: None,
        snapshot: Callable[[Any], Any] = lambda output: None,
        sleep_us: float = DEFAULT_SLEEP_US,
    ) -> Sample:
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._synchronize()
        host_start = self._host_clock_ns()
        self._sleep(int(sleep_us * self._cycles_per_us))
        page_in()
        self._flusher.flush()
        start.record()
        output = call()
        end.record()
        hidden = not start.query()
        host_ns = self._host_clock_ns() - host_start
        snapshot(output)
        self._synchronize()
        latency_ns = max(start.elapsed_time(end) * 1e6, 1.0)  # an event pair closer than its tick reads 0
        return Sample(output, latency_ns, () if hidden else ("host-bound",), host_ns)

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


class GpuFlusher:
    """A write sweep and then a read sweep of another buffer, enqueued on the current stream.

    The read sweep matters: after a plain write sweep the cache is full of dirty lines, whose write-back would compete
    with the timed reads.
    """

    def __init__(self, flush_bytes: int, device: str = "cuda") -> None:
        count = max(flush_bytes // 4, 1)
        self._written = torch.zeros(count, dtype=torch.int32, device=device)
        self._read = torch.zeros(count, dtype=torch.int32, device=device)
        self._sum = torch.zeros((), dtype=torch.int64, device=device)

    def flush(self) -> None:
        self._written.zero_()
        torch.sum(self._read, dim=0, dtype=torch.int64, out=self._sum)
