"""The time limits on a whole evaluation and on one worker process. Limits on single calls do not suffice: calls of 59 s
each would go on for hours.

The limit on a single call is `model.Limits.call_s`. problem.yml sets it and `session` enforces it.

    deadline = Deadline(problem.limits.evaluation_s)
    deadline.check()                     between calls: raises Fault when the time is up
    min(call_s, deadline.left_s())       how long to wait for one call; then `check` tells which limit it was
    with deadline.stopped(): ...         waiting for the device, which the submission does not cause
    allowance.begin(), allowance.end()   around the loading and each call of one process, limited together
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from harness.judge.reply import Fault
from harness.model import Verdict


class Deadline:
    """Ends `limit_s` seconds from now. `clock` returns seconds and never goes back."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._end_s = clock() + limit_s

    def left_s(self) -> float:
        """Seconds left, never below 0."""
        return max(self._end_s - self._clock(), 0.0)

    def check(self) -> None:
        """Raises Fault with the verdict timeout if no time is left."""
        if self.left_s() == 0.0:
            message = f"the evaluation took longer than the limit of {self._limit_s:g} s on all of it together"
            raise Fault(Verdict.TIMEOUT, message)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The time spent in this block does not count."""
        began_s = self._clock()
        try:
            yield
        finally:
            self._end_s += self._clock() - began_s


class Allowance:
    """`limit_s` seconds for all work between `begin` and `end`, however often it begins. None: no limit."""

    def __init__(self, limit_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s, self._clock = limit_s, clock
        self._spent_s = 0.0
        self._began_s: float | None = None

    def begin(self) -> None:
        self._began_s = self._clock()

    def end(self) -> None:
        self._spent_s, self._began_s = self._spent_s + self._running_s(), None

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """The time spent in this block counts. If the block raises, it still counts as running: the process ends
        then."""
        self.begin()
        yield
        self.end()

    def left_s(self) -> float:
        """Seconds left, never below 0."""
        return math.inf if self.limit_s is None else max(self.limit_s - self._spent_s - self._running_s(), 0.0)

    def _running_s(self) -> float:
        return 0.0 if self._began_s is None else self._clock() - self._began_s
