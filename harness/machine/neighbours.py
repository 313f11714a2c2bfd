"""Who else computes while a worker is timed: what other processes take of the processors that it may run on.

    neighbours = Neighbours(workers)
    ...                                 these workers are timed
    neighbours.crowding()               since then: what was neither theirs nor the judge's

The kernel counts, not the worker. One that hid from the count, as by children that nobody waits for, would be taken for
somebody else, and earn no more than the doubt that a crowded machine earns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MOST_FOR_OTHERS, LEAST_IDLE = 0.15, 0.5
"""Shares of the processors. Of two that were otherwise idle others took less than 0.01 while bundled kernels were
timed, beside one busy process 0.43 to 0.62, beside four 0.50 to 0.81. Where half of them is idle there is room."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITING_FOR_DISKS, _GUESTS_FROM = 3, 4, 8  # of the columns of /proc/stat: proc_stat(5)


class Timed(Protocol):
    """A worker that is timed, as far as it is asked."""

    @property
    def processor_s(self) -> float:
        """Processor time of it and all that it started, so far, in seconds."""
        ...


@dataclass(frozen=True)
class Crowding:
    """Shares of the processors: what others took of them (a hypervisor included), and what nobody took."""

    others: float
    idle: float

    @property
    def disturbs(self) -> bool:
        """Whether what was timed waited for others, perhaps."""
        return self.others > MOST_FOR_OTHERS and self.idle < LEAST_IDLE


class Neighbours:
    """Counts from its beginning. `workers` must be alive whenever it is asked."""

    def __init__(self, workers: Sequence[Timed]) -> None:
        self._workers = workers
        self._before = self._read()

    def crowding(self) -> Crowding | None:
        """Since the beginning; None where the system does not tell."""
        now = self._read()
        if now is None or self._before is None:
            return None
        busy_s, idle_s, ours_s = (after - before for after, before in zip(now, self._before, strict=True))
        total_s = busy_s + idle_s
        if total_s <= 0:
            return None
        return Crowding(others=min(max(busy_s - ours_s, 0.0) / total_s, 1.0), idle=idle_s / total_s)

    def _read(self) -> tuple[float, float, float] | None:
        """Seconds so far: of our processors busy and idle, and of the judge and the workers."""
        try:
            lines = Path("/proc/stat").read_text().splitlines()
            processors = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        except (OSError, AttributeError):  # macOS
            return None
        idle = busy = 0
        for name, *columns in map(str.split, lines):
            if name in processors:
                ticks = [int(column) for column in columns[:_GUESTS_FROM]]
                waiting = ticks[_IDLE] + ticks[_WAITING_FOR_DISKS]
                idle += waiting
                busy += sum(ticks) - waiting
        ours_s = sum(os.times()[:4]) + sum(worker.processor_s for worker in self._workers)
        return busy / _TICKS_PER_S, idle / _TICKS_PER_S, ours_s
