"""When an evaluation must be over, whatever its single calls may take: calls of 59 s each would go on for hours.

deadline = Deadline(problem.limits.evaluation_s)
deadline.check()                     between calls: raises Fault when the time is up
min(call_s, deadline.left_s())       how long to wait for one; then `check` says which limit it was
with deadline.stopped(): ...         waiting for the device, which is not the submission's doing
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from harness.judge.reply import Fault
from harness.model import Verdict


class Deadline:
    """`limit_s` seconds from now on. `clock` gives seconds that never go back."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._end_s = clock() + limit_s

    def left_s(self) -> float:
        """Never below 0."""
        return max(self._end_s - self._clock(), 0.0)

    def check(self) -> None:
        """Raises Fault with the verdict timeout when no time is left."""
        if self.left_s() == 0.0:
            message = f"the evaluation took longer than the limit of {self._limit_s:g} s on all of it together"
            raise Fault(Verdict.TIMEOUT, message)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """What the block takes does not count."""
        began_s = self._clock()
        try:
            yield
        finally:
            self._end_s += self._clock() - began_s
