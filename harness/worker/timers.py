"""Timing one call, one class a kind of device, and emptying the caches before it.

    CPU   flush ─► gate ─► page in ─► flush, or wake threads ─► perf_counter ─► call ─► perf_counter ─► snapshot
    GPU   gate ─► page in ─► flush ─► event ─► call ─► event ─► snapshot

On a GPU all of it is enqueued on one stream behind the gate (`gates`): no gap on the host's side falls between the
events, the inputs are not there before the gate opens, and the snapshot holds what the stream had computed when its
time was up. Every handle is taken when this module is imported, before the submission is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from harness.worker.gates import Gate, OpenGate, SleepingGate

_clock_ns = time.perf_counter_ns
_zero, _sum = torch.Tensor.zero_, torch.sum
_get_threads, _set_threads = torch.get_num_threads, torch.set_num_threads
LEAST_FOR_A_THREAD = 32768
"""Elements: below this torch gives none to another thread (GRAIN_SIZE, aten/src/ATen/TensorIterator.h)."""

# What a submission may have left active, to be asked before every operator of torch, is not asked.
_without_modes, _without_overrides = torch._C._DisableTorchDispatch, torch._C.DisableTorchFunction


@dataclass(frozen=True)
class Sample:
    """One timed call: what it returned, how long it took, and what to know about the number."""

    output: Any
    latency_ns: float
    labels: tuple[str, ...] = ()


class Timer(Protocol):
    def sample(
        self,
        call: Callable[[], Any],
        page_in: Callable[[], Any] = lambda: None,
        snapshot: Callable[[Any], Any] = lambda output: None,
        flush: bool = True,
        turn: int = 0,
    ) -> Sample:
        """When the gate opens to this `turn`: `page_in`, empty the caches if told to `flush`, time `call` once, take a
        `snapshot` of what it returned."""


class CpuTimer:
    """The process's own monotonic clock around the call. Ticks of 1 ns; the call is synchronous."""

    def __init__(self, flush_bytes: int, gate: Gate | None = None) -> None:
        self._flusher, self._gate = Flusher(flush_bytes, "cpu"), gate or OpenGate()

    def sample(
        self,
        call: Callable[[], Any],
        page_in: Callable[[], Any] = lambda: None,
        snapshot: Callable[[Any], Any] = lambda output: None,
        flush: bool = True,
        turn: int = 0,
    ) -> Sample:
        self._flusher.flush()  # for the threads' sake: to wake them takes no time then after the gate
        self._gate.shut(turn)
        page_in()
        self._flusher.flush() if flush else self._flusher.wake()
        start = _clock_ns()
        output = call()
        latency_ns = float(max(_clock_ns() - start, 1))
        snapshot(output)
        return Sample(output, latency_ns)


class GpuTimer:
    """A pair of events on the current stream. `gpu` is torch.cuda, which serves CUDA and ROCm alike. Without a `gate`
    the device sleeps while the host enqueues.

    If the device reached the first event before the host was done, a wait for the host may be in the interval: the
    sample is labelled host-bound and counted as it is.
    """

    def __init__(self, flush_bytes: int, gate: Gate | None = None, gpu: Any = torch.cuda) -> None:
        self._event, self._synchronize = gpu.Event, gpu.synchronize
        self._flusher, self._gate = Flusher(flush_bytes, "cuda"), gate or SleepingGate(gpu=gpu)

    def sample(
        self,
        call: Callable[[], Any],
        page_in: Callable[[], Any] = lambda: None,
        snapshot: Callable[[Any], Any] = lambda output: None,
        flush: bool = True,
        turn: int = 0,
    ) -> Sample:
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._synchronize()
        self._gate.shut(turn)
        try:
            page_in()
            if flush:
                self._flusher.flush()
            start.record()
            output = call()
            end.record()
            hidden = not start.query()
            snapshot(output)
        except BaseException:
            self._gate.open()
            raise
        self._gate.enqueued()
        self._synchronize()
        latency_ns = max(start.elapsed_time(end) * 1e6, 1.0)  # an event pair closer than its tick reads 0
        return Sample(output, latency_ns, () if hidden else ("host-bound",))


class Flusher:
    """A write sweep and then a read sweep of another buffer, by torch: on a GPU enqueued on the current stream, on a
    CPU in the threads that torch computes in, which are awake from then on.

    The read sweep matters: after a plain write sweep the cache is full of dirty lines, whose write-back would compete
    with the timed reads. That the threads are awake matters as well: on a virtual machine a processor that has been
    idle for some milliseconds takes as many to come back, and latencies scattered by a factor of 3 (AMD EPYC, 2 CPUs,
    2026-11-20). So they are woken also where caches are to stay warm.
    """

    def __init__(self, flush_bytes: int, device: str) -> None:
        dtype = torch.int32 if device != "cpu" else torch.int64  # a CPU adds int32 as int64 forty times as slowly
        count = max(flush_bytes // dtype.itemsize, 1)
        # Pages of a CPU's that were never written are all the same page of zeros, and reading those evicts nothing.
        self._written = torch.ones(count, dtype=dtype, device=device)
        self._read = torch.ones(count, dtype=dtype, device=device)
        self._total = torch.zeros((), dtype=torch.int64, device=device)
        self._threads = _get_threads()
        self._part_for_each = self._written[: (self._threads - 1) * LEAST_FOR_A_THREAD + 1]

    def flush(self) -> None:
        with self._in_all_threads():
            _zero(self._written)
            _sum(self._read, dim=0, dtype=torch.int64, out=self._total)

    def wake(self) -> None:
        """On a CPU: have all threads do a little, the caches left as they are but for as much."""
        with self._in_all_threads():
            _zero(self._part_for_each)

    @contextmanager
    def _in_all_threads(self) -> Iterator[None]:
        # As many as at first: fewer would take longer than without the submission, as if it hid work.
        threads = _get_threads()
        if threads != self._threads:
            _set_threads(self._threads)
        with _without_modes(), _without_overrides():
            yield
        if threads != self._threads:
            _set_threads(threads)
