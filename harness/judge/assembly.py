"""Everything that judging a submission on one device takes, put together."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator

import torch

from harness.catalog.config import Sampling
from harness.judge.clocks import Clocks
from harness.judge.deadline import Deadline
from harness.judge.emulation import EMULATION, Emulation
from harness.judge.entrant import Entrant
from harness.judge.null_worker import NullWorker
from harness.judge.reference import Reference
from harness.judge.spare import Plan, Spare, Started
from harness.model import Device, Isolation, Submission
from harness.progress import Narrate
from harness.sandbox import tiers
from harness.wire.flusher import Flusher


class Assembly:
    """What is the same for all that is judged together: the clocks, the flush buffers, the deadline.

    `threads` is how many a worker computes in. A duel of many `pairs` takes as many times longer than an evaluation,
    and so does one with baselines. `isolation`: of all workers; by default the strongest that holds.
    """

    def __init__(
        self,
        reference: Reference,
        device: Device,
        sampling: Sampling,
        threads: int | None = None,
        pairs: int = 1,
        emulation: Emulation = EMULATION,
        isolation: Isolation | None = None,
    ) -> None:
        self._isolation = isolation or tiers.strongest(device)
        self._reference, self._device, self._sampling, self._emulation = reference, device, sampling, emulation
        if device.kind != "cpu":
            torch.cuda.set_device(device.torch_device)  # of the current one are streams, events, the hold
        self._threads = threads or (len(os.sched_getaffinity(0)) if device.kind == "cpu" else 1)
        self._deadline = Deadline(reference.problem.limits.evaluation_s * pairs)

    @contextlib.contextmanager
    def entrant(
        self,
        submission: Submission,
        master_seed: str,
        narrate: Narrate = lambda line: None,
        spare: Spare | None = None,
    ) -> Iterator[Entrant]:
        """`submission`, in a scratch directory of its own; in that of `spare` if its worker is one for this."""
        with contextlib.ExitStack() as stack:
            plan = Plan(self._reference.problem, self._device, self._threads, self._emulation, self._isolation)
            # It imports torch while the clocks and buffers below are made.
            started = spare.take(plan) if spare is not None else None
            started = started or Started(plan)
            stack.callback(started.close)
            if spare is not None:
                spare.renew(spare.ahead)
            folder, first = started.give(submission.source, self._deadline), started.session
            entrant = Entrant(
                self._reference,
                submission,
                self._device,
                folder,
                self._sampling,
                master_seed,
                narrate,
                threads=self._threads,
                emulation=self._emulation,
                isolation=self._isolation,
                emulates=self._emulation.of(submission.text) if self._device.kind == "cpu" else None,
                clocks=self.clocks,
                flusher=self.flusher,
                deadline=self._deadline,
                first=first,
            )
            stack.callback(entrant.close)
            yield entrant

    @functools.cached_property
    def clocks(self) -> Clocks:
        return Clocks(self._device)

    @functools.cached_property
    def flusher(self) -> Flusher:
        return Flusher(self._device.flush_bytes, self._device.torch_device)

    def null_worker(self) -> NullWorker:
        return NullWorker(
            self._reference, self._device, self._threads, self._deadline, self._sampling.fresh, self._isolation
        )


KEPT, KEPT_ON_A_CPU = 1 << 20, 32 << 20
"""Bytes of a freed block from which on the judge keeps none. On a CPU cases are small, and their blocks are used again:
with 1 MiB there, a call of mla took 187 ms and the system's 103 ms to make; with 32 MiB, the most that glibc takes,
185 ms and 2 ms. The judge holds 50 MB more then, and 76 MB more for kv_replicate (AMD EPYC, 2 processors)."""

LEFT_FREE = 256 << 20
"""Bytes at the end of the heap that stay free on a CPU: the next call has to fault in whatever is trimmed."""


def be_a_quiet_neighbour(device_kind: str) -> None:
    """Keep the judge from disturbing what it measures.

    It computes in one thread: a pool of threads that waits by spinning takes the processors from the worker, and from
    others that are judged on other cards (29 of 32 processors for seconds, two H200s, 2026-11-23). Freed blocks of KEPT
    bytes or more go back to the system: inputs are made anew for each call, and kept blocks would pile up to several
    times what is in use.
    """
    torch.set_num_threads(1)
    with contextlib.suppress(AttributeError, OSError):  # glibc only
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, malloc.h
        libc = ctypes.CDLL(None)
        # Setting it also turns its growth off.
        libc.mallopt(mmap_threshold, KEPT_ON_A_CPU if device_kind == "cpu" else KEPT)
        if device_kind == "cpu":
            libc.mallopt(trim_threshold, LEFT_FREE)
