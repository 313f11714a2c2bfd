"""What a null call takes more or less in one process of a submission than the run's constant says. GPUs only.

    find        before the process loads the submission
    excess_ns   after its end, in a process without a submission

The two switches of the device around a call take one of two times, 1.4 us apart. Which one can change between
processes, for all of them at once, the judge's own included (17 of 17). It stayed as it was from the first call of a
process to its last, to 0.5 us (78 processes, H100, 2026-11-27).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.judge.calls import Caller
from harness.judge.clock_calibration import NewSeries
from harness.judge.clocks import Clocks
from harness.judge.session import Session
from harness.model import Case, Manner
from harness.ranking import stats

CALLS, DROPPED, LEAST_SOUND = 40, 6, 12
"""Null calls of a process. The first DROPPED load code and data. The mean of 40 has a standard error of 0.1 us."""

MOST_NS = 3e3
"""The most that a process's constant may exceed the run's."""


class Offsets:
    """`cases`: the benchmark and test cases. A null call uses the memory of the one that is poured fastest, of those
    of which that is known."""

    def __init__(self, caller: Caller, clocks: Clocks, cases: Sequence[Case], new_series: NewSeries) -> None:
        self._caller, self._clocks, self._cases, self._new_series = caller, clocks, cases, new_series

    def find(self, session: Session) -> None:
        """Set the offset of a process that has loaded nothing yet: a submission could slow its null calls."""
        session.offset_ns = min(self._measure(session) or 0.0, MOST_NS)

    def excess_ns(self, offset_ns: float, null: Session) -> float:
        """Return by how much null calls of `null`, a worker of the judge's own, are faster now than the process whose
        offset was `offset_ns` saw them, in ns, or 0. So much less is to be subtracted. That process must have ended: it
        could slow them. Slower ones count for nothing. Raises what put_null does."""
        found_ns = self._measure(null)
        return 0.0 if found_ns is None else max(offset_ns - found_ns, 0.0)

    def _measure(self, session: Session) -> float | None:
        """None where the judge's clock does not enclose calls, or if too few could be timed."""
        constants = self._caller.constants
        if not self._clocks.encloses or Manner.SANDWICH not in constants.by_manner:
            return None
        clock = self._clocks.of(Manner.SANDWICH)
        fastest = min(self._cases, key=lambda case: constants.pour_ns.get(case.key, math.inf))
        with self._new_series("null", fastest) as series:
            answers = [self._caller.put_null(session, series, clock) for _ in range(DROPPED + CALLS)][DROPPED:]
        null_ns = [answer.elapsed_ns for answer in answers if answer.void is None]
        if len(null_ns) < LEAST_SOUND:
            return None
        return stats.interquartile_mean(null_ns) - constants.of(Manner.SANDWICH)
