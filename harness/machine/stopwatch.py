"""Times a block, by the device's own clock or the host's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def stopwatch(on_device: bool) -> Iterator[Callable[[], float]]:
    """Gives a function that returns the block's duration in nanoseconds. Call it after the block, when all of the
    block's work is done."""
    if on_device:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield lambda: start.elapsed_time(end) * 1e6
        end.record()
        end.synchronize()
    else:
        began = ended = time.perf_counter_ns()
        yield lambda: float(ended - began)
        ended = time.perf_counter_ns()
