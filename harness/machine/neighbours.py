"""The share of the worker's processors that other processes take while it is timed.

    neighbours = Neighbours(workers)
    ...                                 these workers are timed
    neighbours.crowding()               since then: the time of neither the workers nor the judge

The kernel counts, not the worker. A worker could hide time from the count, for example in children that nobody waits
for. That time would count as other processes' and would only earn the doubt of a crowded machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MOST_FOR_OTHERS, LEAST_IDLE = 0.15, 0.5
"""Shares of the processors. Measured while bundled kernels were timed on two processors: others took less than 0.01 on
an idle machine, 0.43 to 0.62 beside one busy process, 0.50 to 0.81 beside four. If half of the time is idle, there is
room."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITING_FOR_DISKS, _GUESTS_FROM = 3, 4, 8  # of the columns of /proc/stat: proc_stat(5)


class Timed(Protocol):
    """The interface of a timed worker that is used here."""

    @property
    def processor_s(self) -> float:
        """Processor time in seconds of the worker and of all processes that it started, so far."""
        ...


@dataclass(frozen=True)
class Crowding:
    """Shares of the processors: `others` was taken by other processes (a hypervisor included), `idle` by nobody."""

    others: float
    idle: float

    @property
    def disturbs(self) -> bool:
        """True if the timed worker may have waited for others."""
        return self.others > MOST_FOR_OTHERS and self.idle < LEAST_IDLE


class Neighbours:
    """Counts from its creation. All `workers` must be alive whenever `crowding` is called."""

    def __init__(self, workers: Sequence[Timed]) -> None:
        self._workers = workers
        self._before = self._read()

    def crowding(self) -> Crowding | None:
        """The crowding since creation. None if the system does not tell."""
        now = self._read()
        if now is None or self._before is None:
            return None
        busy_s, idle_s, ours_s = (after - before for after, before in zip(now, self._before, strict=True))
        total_s = busy_s + idle_s
        if total_s <= 0:
            return None
        return Crowding(others=min(max(busy_s - ours_s, 0.0) / total_s, 1.0), idle=idle_s / total_s)

    def _read(self) -> tuple[float, float, float] | None:
        """Seconds so far: our processors busy, our processors idle, and the judge's and the workers' time."""
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
