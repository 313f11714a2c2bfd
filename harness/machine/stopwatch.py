"""How long something takes: by the device's own clock, or the host's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def stopwatch(on_device: bool) -> Iterator[Callable[[], float]]:
    """How long what is done within takes, in nanoseconds, asked for afterwards. All of it is done then."""
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
