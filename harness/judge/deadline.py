"""When an evaluation must be over, whatever its single calls may take: calls of 59 s each would go on for hours.

The limit on a single call is `model.Limits.call_s`, set in problem.yml and kept by `session`.

deadline = Deadline(problem.limits.evaluation_s)
deadline.check()                     between calls: raises Fault when the time is up
min(call_s, deadline.left_s())       how long to wait for one; then `check` says which limit it was
with deadline.stopped(): ...         waiting for the device, which is not the submission's doing
allowance.begin(), allowance.end()   what one process may take for loading and all of its calls together
"""

from __future__ import annotations

import contextlib
import math
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


class Allowance:
    """`limit_s` seconds for what is done within `begin` and `end`, however often; None: as many as it takes."""

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
        """What the block takes counts, unless it ends with an error, which is the end of the process."""
        self.begin()
        yield
        self.end()

    def left_s(self) -> float:
        """Never below 0."""
        return math.inf if self.limit_s is None else max(self.limit_s - self._spent_s - self._running_s(), 0.0)

    def _running_s(self) -> float:
        return 0.0 if self._began_s is None else self._clock() - self._began_s
