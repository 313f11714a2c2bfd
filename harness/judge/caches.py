"""Empty the caches before a call: on a GPU all of them, on a CPU of the memory that judge and worker share.

On a CPU the rest stays. If all caches were emptied, a call would pay some 150 us for the worker's own Python (AMD EPYC,
2026-11-29), and a submission that puts native code in its place would save them (docs/clock-attacks.md). What the
worker shares with the judge is all that a call has not seen before: its inputs. Outputs are copied there too.

A CPU's instruction for this evicts a line from all caches of the machine, whichever processor has it. Python has no
such instruction, so the judge maps a few bytes of machine code.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import statistics
import time
from typing import Protocol

import numpy as np
import torch

from harness.model import Device
from harness.wire.flusher import Flusher

LINE_BYTES = 64
"""The step from line to line. x86-64 has lines of 64 bytes; Arm has 64 or more."""

# void evict(first line, end): for each line clflush or dc civac, then a fence.
_CODE = {
    "x86_64": "0fae3f 4883c740 4839f7 72f4 0faef0 c3",
    "aarch64": "207e0bd5 00000191 1f0001eb a3ffff54 9f3f03d5 c0035fd6",
}

COLD_TIMES = 1.5
"""Reads of evicted lines must take this many times as long as reads of cached ones. On an AMD EPYC they took 7 times as
long (2026-11-29)."""

_PROBED, _STEP, _READS = 1 << 17, 67, 9  # words of 8 bytes, every 67th of which is read: no two are in one line


class Caches(Protocol):
    """`why_not`: why nothing is emptied, or ""."""

    why_not: str

    def empty(self, memory: torch.Tensor) -> None:
        """Empty the caches, at least of `memory`, a contiguous tensor. On a GPU this is only enqueued."""


class DeviceCaches:
    """The caches of a GPU."""

    why_not = ""

    def __init__(self, device: Device) -> None:
        self._flusher = Flusher(device.flush_bytes, device.torch_device)

    def empty(self, memory: torch.Tensor) -> None:
        self._flusher.flush()


class HostCaches:
    """The caches of a CPU. Where lines cannot be evicted, `why_not` says why, and `empty` does nothing."""

    def __init__(self, machine: str = platform.machine()) -> None:
        self.why_not = ""
        try:
            self._code = _mapped(machine)
        except OSError as error:
            self.why_not = str(error)
            return
        address = np.frombuffer(self._code, np.uint8).ctypes.data
        self._evict = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
        if not self._evicts():
            self.why_not = "this processor keeps the lines that it is told to evict"

    def empty(self, memory: torch.Tensor) -> None:
        if not self.why_not and memory.nbytes:
            first = memory.data_ptr()
            self._evict(first - first % LINE_BYTES, first + memory.nbytes)

    def _evicts(self) -> bool:
        """Whether reads take longer after an eviction."""
        memory = torch.ones(_PROBED, dtype=torch.int64)
        cached_ns, evicted_ns = [], []
        for _ in range(_READS):
            _read_ns(memory)
            cached_ns.append(_read_ns(memory))
            self.empty(memory)
            evicted_ns.append(_read_ns(memory))
        return statistics.median(evicted_ns) > COLD_TIMES * statistics.median(cached_ns)


def caches_of(device: Device) -> Caches:
    return HostCaches() if device.kind == "cpu" else DeviceCaches(device)


def _mapped(machine: str) -> mmap.mmap:
    """The machine code. Raises OSError if there is none for `machine`, or if the system lets no such code run."""
    if machine not in _CODE or not hasattr(os, "memfd_create"):  # macOS has none
        raise OSError(f"no machine code for {machine} that evicts lines from caches")
    file = os.memfd_create("evict")
    try:
        os.write(file, bytes.fromhex(_CODE[machine]).ljust(mmap.PAGESIZE, b"\0"))
        return mmap.mmap(file, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(file)


def _read_ns(memory: torch.Tensor) -> int:
    words, began_ns = memory.numpy()[::_STEP], time.perf_counter_ns()
    words.sum()
    return time.perf_counter_ns() - began_ns
