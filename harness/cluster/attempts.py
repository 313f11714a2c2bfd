"""Which result of a job counts. A job is tried at most MOST times; each attempt has a number, from 1.

begin ─► 1 ── lost ──► begin ─► 2 ── result of 1 ──► dropped
                                 └── result of 2 ──► the run; the same again is dropped
"""

from __future__ import annotations

import threading

from harness.model import Run

MOST = 3


class Attempts:
    """Those of one job. Threads may share it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._number = 0
        self._lost: list[str] = []
        self._run: Run | None = None
        self._changing = threading.Lock()

    @property
    def number(self) -> int:
        """Of the present attempt; 0 before the first."""
        return self._number

    @property
    def run(self) -> Run | None:
        """The result that counts, once there is one."""
        return self._run

    @property
    def spent(self) -> bool:
        """Whether the last attempt was lost, and there is no further one."""
        return self._run is None and len(self._lost) >= self._most

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why attempts were lost, in their order."""
        return tuple(self._lost)

    def begin(self) -> int:
        """The number of a new attempt. Raises ValueError where the one before is not lost, or was the last."""
        with self._changing:
            if self._run is not None or self._number != len(self._lost) or self._number >= self._most:
                raise ValueError(f"attempt {self._number} is not lost, or was the last")
            self._number += 1
            return self._number

    def lost(self, attempt: int, why: str) -> bool:
        """Give `attempt` up. False if it is not the present one, or has its result."""
        with self._changing:
            if self._run is not None or attempt != self._number or len(self._lost) >= attempt:
                return False
            self._lost.append(why)
            return True

    def settle(self, attempt: int, run: Run) -> bool:
        """Take `run` as the job's. False if it is dropped: of an older or a lost attempt, or there is one already."""
        with self._changing:
            if self._run is not None or attempt != self._number or len(self._lost) >= attempt:
                return False
            self._run = run
            return True
