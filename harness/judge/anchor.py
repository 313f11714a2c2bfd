"""Two computations of the judge's own, timed between the processes of a run: they show what the machine did meanwhile.

A copy is bound by the memory's clock and a matrix product by the processor's. They are the same every time, so when
they take longer the machine has become slower, whatever the submission did.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from harness import gauges
from harness.model import Device, Round

COPY_BYTES = {"cpu": 32 << 20, "cuda": 512 << 20, "rocm": 512 << 20}
"""More than any last-level cache on a GPU; on a CPU what a few milliseconds allow."""

MATRIX = {"cpu": (384, torch.float32), "cuda": (4096, torch.bfloat16), "rocm": (4096, torch.bfloat16)}
REPEATS = 5


class Anchor:
    """Its times and the device's gauges, read before and after each process of a run; `rounds` holds what they gave.

    `tolerance` is how far from the median of all readings so far a time may be, as a fraction of it; None: anywhere.
    """

    def __init__(self, device: Device, tolerance: float | None) -> None:
        self._device, self._tolerance = device, tolerance
        self._copies_ns: list[float] = []
        self._products_ns: list[float] = []
        self._state: dict[str, str] = {}
        self.rounds: list[Round] = []

    def begin(self) -> None:
        """A reading before the first process."""
        self._read()

    def end_round(self) -> Round:
        """What has become of the machine while one process was timed."""
        before = self._state
        self._read()
        disturbed = gauges.slowed(before, self._state) or self._drifted("copy", self._copies_ns)
        ended = Round(
            copy_ns=self._copies_ns[-1],
            product_ns=self._products_ns[-1],
            gauges=self._state,
            disturbed=disturbed or self._drifted("matrix product", self._products_ns),
        )
        self.rounds.append(ended)
        return ended

    def _read(self) -> None:
        copy, product = _works(self._device)
        self._copies_ns.append(_median_ns(copy, self._device))
        self._products_ns.append(_median_ns(product, self._device))
        self._state = gauges.state(self._device)
        if self._device.kind != "cpu":
            del copy, product
            torch.cuda.empty_cache()  # what the judge keeps for itself, the worker cannot have

    def _drifted(self, what: str, readings_ns: Sequence[float]) -> str | None:
        change = readings_ns[-1] / statistics.median(readings_ns) - 1
        if self._tolerance is None or abs(change) <= self._tolerance:
            return None
        return f"the judge's own {what} took {change:+.0%}"


def _works(device: Device) -> tuple[Callable[[], object], Callable[[], object]]:
    size, (order, dtype) = COPY_BYTES[device.kind], MATRIX[device.kind]
    source = torch.ones(size // 4, dtype=torch.float32, device=device.torch_device)
    target = torch.empty_like(source)
    a = torch.full((order, order), 0.5, dtype=dtype, device=device.torch_device)
    out = torch.empty_like(a)
    return lambda: target.copy_(source), lambda: torch.mm(a, a, out=out)


def _median_ns(work: Callable[[], object], device: Device) -> float:
    work(), work()
    return statistics.median(_time_ns(work, device) for _ in range(REPEATS))


def _time_ns(work: Callable[[], object], device: Device) -> float:
    if device.kind == "cpu":
        began = time.perf_counter_ns()
        work()
        return float(max(time.perf_counter_ns() - began, 1))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return max(start.elapsed_time(end) * 1e6, 1.0)
