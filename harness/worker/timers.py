"""Time a call in the worker itself, for GPUs on which the judge's clock does not work.

    synchronise ─► inputs copied ─► sleep │ flush ─► event ─► call ─► event │ synchronise

The device sleeps while the host enqueues the steps between the bars, so no pause of the host falls between the events.
All handles are taken when this module is imported, before the submission is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from harness.wire.flusher import Flusher

SLEEP_US = 500.0
"""Several times the time that most hosts need to enqueue a call."""


@dataclass(frozen=True)
class Sample:
    """One timed call: its output, its latency, and remarks on the latency."""

    output: Any
    latency_ns: float
    labels: tuple[str, ...] = ()


class Timer(Protocol):
    def sample(self, call: Callable[[], Any], page_in: Callable[[], Any] = lambda: None) -> Sample:
        """Bring the inputs with `page_in`, empty the caches, and time `call` once."""


class GpuTimer:
    """A pair of events on the current stream. `gpu` is torch.cuda, for CUDA and ROCm alike.

    If the device reached the first event before the host was done, the interval may contain a wait for the host. Such a
    sample is labelled host-bound and counts as it is.
    """

    def __init__(self, flush_bytes: int, gpu: Any = torch.cuda, sleep_us: float = SLEEP_US) -> None:
        self._event, self._synchronize, self._sleep = gpu.Event, gpu.synchronize, gpu._sleep
        self._flusher = Flusher(flush_bytes, "cuda")
        self._cycles = int(sleep_us * self._cycles_a_us())

    def sample(self, call: Callable[[], Any], page_in: Callable[[], Any] = lambda: None) -> Sample:
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        page_in()
        self._synchronize()
        self._sleep(self._cycles)
        self._flusher.flush()
        start.record()
        output = call()
        end.record()
        hidden = not start.query()
        self._synchronize()
        latency_ns = max(start.elapsed_time(end) * 1e6, 1.0)  # an event pair closer than its tick reads 0
        return Sample(output, latency_ns, () if hidden else ("host-bound",))

    def _cycles_a_us(self) -> float:
        """Cycles of `_sleep` in a microsecond. Measured, because it counts the device's clock, which varies."""
        cycles = 1_000_000
        for _ in range(2):  # the first wakes the device
            start, end = self._event(enable_timing=True), self._event(enable_timing=True)
            start.record()
            self._sleep(cycles)
            end.record()
            end.synchronize()
        return cycles / max(start.elapsed_time(end) * 1e3, 1e-3)
