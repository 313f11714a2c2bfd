"""Two computations of the judge's own, timed between the worker processes of a run. They show whether the machine
changed.

The memory clock limits the copy; the processor clock limits the matrix product. Both computations are the same every
time. If they take longer, the machine has become slower, whatever the submission did.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from harness.machine import gauges
from harness.machine.stopwatch import stopwatch
from harness.model import Device, Round

MATRIX = {"cpu": (384, torch.float32), "cuda": (4096, torch.bfloat16), "rocm": (4096, torch.bfloat16)}
WARM_UP_NS = {"cpu": 0.0, "cuda": 20e6, "rocm": 20e6}
"""How long to run each computation before it is timed. An idle GPU needs milliseconds to reach its normal clocks. On a
CPU one call is enough: it brings the data into the caches."""

REPEATS = 9


class Anchor:
    """The times of the two computations and the device's gauges, read before and after each worker process of a run.

    `tolerance` limits how far a time may lie from the median of all readings so far, as a fraction of that median.
    None: no limit.
    """

    def __init__(self, device: Device, tolerance: float | None) -> None:
        self._device, self._tolerance = device, tolerance
        self._copies_ns: list[float] = []
        self._products_ns: list[float] = []
        self._state: dict[str, str] = {}
        # The buffers are kept: their addresses change the time of a GPU's copy by 10 % (H200, 512 MiB).
        self._copy, self._product = _works(device)

    def begin(self) -> None:
        """Take a reading before the first worker process."""
        self._read()

    def end_round(self, others_share: float | None) -> Round:
        """Take a reading after a worker process and compare it with the one before. `others_share`: the share of the
        processors that other programs took meanwhile."""
        before = self._state
        self._read()
        disturbed = gauges.slowed(before, self._state) or self._drifted("copy", self._copies_ns)
        return Round(
            copy_ns=self._copies_ns[-1],
            product_ns=self._products_ns[-1],
            gauges=self._state,
            others_share=others_share,
            disturbed=disturbed or self._drifted("matrix product", self._products_ns),
        )

    def _read(self) -> None:
        self._copies_ns.append(_median_ns(self._copy, self._device))
        self._products_ns.append(_median_ns(self._product, self._device))
        self._state = gauges.state(self._device)

    def _drifted(self, what: str, readings_ns: Sequence[float]) -> str | None:
        change = readings_ns[-1] / statistics.median(readings_ns) - 1
        if self._tolerance is None or abs(change) <= self._tolerance:
            return None
        return f"the judge's own {what} took {change:+.0%}"


def _works(device: Device) -> tuple[Callable[[], object], Callable[[], object]]:
    size = device.flush_bytes // (2 if device.kind == "cpu" else 1)  # on a CPU the two together exceed the caches
    order, dtype = MATRIX[device.kind]
    source = torch.ones(size // 4, dtype=torch.float32, device=device.torch_device)
    target = torch.empty_like(source)
    a = torch.full((order, order), 0.5, dtype=dtype, device=device.torch_device)
    out = torch.empty_like(a)
    return lambda: target.copy_(source), lambda: torch.mm(a, a, out=out)


def _median_ns(work: Callable[[], object], device: Device) -> float:
    spent_ns = _time_ns(work, device)
    while spent_ns < WARM_UP_NS[device.kind]:
        spent_ns += _time_ns(work, device)
    return statistics.median(_time_ns(work, device) for _ in range(REPEATS))


def _time_ns(work: Callable[[], object], device: Device) -> float:
    with stopwatch(on_device=device.kind != "cpu") as lasted_ns:
        work()
    return max(lasted_ns(), 1.0)
