"""Builds everything that is needed to judge submissions on one device."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator

import torch

from harness.catalog.config import Sampling
from harness.judge.caches import Caches, caches_of
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


class Assembly:
    """The objects shared by all submissions that are judged together: clocks, caches, deadline.

    `threads`: how many threads a worker computes in. `pairs`: how many times longer than one evaluation the work may
    take, as for a duel or for baselines. `isolation`: the confinement of all workers (default: the strongest that works
    here).
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
            torch.cuda.set_device(device.torch_device)  # streams, events and the hold belong to the current device
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
        """Yield `submission` in a scratch directory of its own. If a worker of `spare` fits, its directory is used."""
        with contextlib.ExitStack() as stack:
            plan = Plan(self._reference.problem, self._device, self._threads, self._emulation, self._isolation)
            # The worker imports torch while the clocks and buffers below are made.
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
                caches=self.caches,
                deadline=self._deadline,
                first=first,
            )
            stack.callback(entrant.close)
            yield entrant

    @functools.cached_property
    def clocks(self) -> Clocks:
        return Clocks(self._device)

    @functools.cached_property
    def caches(self) -> Caches:
        return caches_of(self._device)

    def null_worker(self) -> NullWorker:
        return NullWorker(
            self._reference, self._device, self._threads, self._deadline, self._sampling.fresh, self._isolation
        )


KEPT, KEPT_ON_A_CPU = 1 << 20, 32 << 20
"""The judge returns freed blocks of at least this many bytes to the system. On a CPU cases are small and blocks are
used again. With 1 MiB there, making a call of mla took 187 ms of the judge's own time and 103 ms of the system's. With
32 MiB, the most that glibc takes, it took 185 ms and 2 ms. The judge then holds 50 MB more, and 76 MB more for
kv_replicate (AMD EPYC, 2 processors)."""

LEFT_FREE = 256 << 20
"""Bytes at the end of the heap that stay free on a CPU. If they were returned, the next call would have to fault them
in."""


def be_a_quiet_neighbour(device_kind: str) -> None:
    """Keep the judge from disturbing its own measurements.

    The judge computes in one thread. A pool of threads waits by spinning, which takes processors from the worker and
    from evaluations on other cards (29 of 32 processors for seconds, two H200s, 2026-11-23). Freed blocks of KEPT bytes
    or more go back to the system: every call makes new inputs, and kept blocks would grow to several times the memory
    in use.
    """
    torch.set_num_threads(1)
    with contextlib.suppress(AttributeError, OSError):  # glibc only
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, malloc.h
        libc = ctypes.CDLL(None)
        # Setting the threshold also keeps glibc from raising it.
        libc.mallopt(mmap_threshold, KEPT_ON_A_CPU if device_kind == "cpu" else KEPT)
        if device_kind == "cpu":
            libc.mallopt(trim_threshold, LEFT_FREE)
