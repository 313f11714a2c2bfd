"""The limit on a whole evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.judge.reply import Fault
from harness.model import Verdict


class Deadline:
    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._end = clock() + limit_s

    def left_s(self) -> float:
        return self._end - self._clock()

    def check(self) -> None:
        """Raises Fault when the time is up."""
        if self.left_s() <= 0:
            raise Fault(Verdict.TIMEOUT, f"the whole evaluation took longer than the limit of {self._limit_s:g} s")
