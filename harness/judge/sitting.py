"""What came of one case in one process: counted calls, void ones, and the labels that the sitting earns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.judge.clock import Void
from harness.judge.null_calls import LONG_ABOVE_NS
from harness.judge.tally import Tally
from harness.machine.neighbours import Crowding
from harness.model import Manner, eligibility
from harness.ranking import stats

LEAST_LATENCY_NS = 1.0
"""What remains of a call that took no longer than one that computes nothing."""


@dataclass
class Sitting:
    """The calls of one case in one process, in the `manner` that the pilot found. `elapsed_ns` lies between the judge's
    stamps; `constant_ns` is subtracted, and on a CPU comes from the null calls among them (`null_ns`). Calls timed as
    long ones that are none have `least_ns` subtracted, the least constant that there is: to be slow in the pilot must
    not pay. None counts with less than `shortest_ns`, below which nothing can be told. `tally`: what the outputs of all
    its calls come to."""

    manner: Manner
    constant_ns: float = 0.0
    elapsed_ns: list[float] = field(default_factory=list)
    null_ns: list[float] = field(default_factory=list)
    voids: Counter[Void] = field(default_factory=Counter)
    crowding: Crowding | None = None
    most_null_ns: float = math.inf
    least_ns: float = 0.0
    shortest_ns: float = LEAST_LATENCY_NS
    tally: Tally = field(default_factory=Tally)

    @property
    def subtracted_ns(self) -> float:
        """Of each call, unless it was timed as a long one and is none."""
        if self.null_ns:
            return min(stats.interquartile_mean(self.null_ns), self.most_null_ns)
        return self.constant_ns

    @property
    def latency_ns(self) -> tuple[float, ...]:
        less_ns = self.subtracted_ns
        if self.manner.long and self.elapsed_ns:
            long = stats.interquartile_mean(self.elapsed_ns) - less_ns > LONG_ABOVE_NS
            less_ns = less_ns if long else self.least_ns
        return tuple(max(elapsed_ns - less_ns, self.shortest_ns) for elapsed_ns in self.elapsed_ns)

    @property
    def crowded(self) -> bool:
        """Whether it may have waited for other processes."""
        return self.crowding is not None and self.crowding.disturbs


def others_share(sittings: Iterable[Sitting]) -> float | None:
    """The most that others took of the processors while one of `sittings` was timed."""
    return max((sitting.crowding.others for sitting in sittings if sitting.crowding is not None), default=None)


def too_many_void(cases: Iterable[Sequence[Sitting]]) -> bool:
    """Whether so many calls were void, of all or of those of one case, that the run is not ranked."""
    return eligibility.is_void([_calls(sittings) for sittings in cases])


def void_share(sittings: Iterable[Sitting]) -> float:
    """Of all calls, how many were void."""
    return eligibility.void_share(*_calls(list(sittings)))


def _calls(sittings: Sequence[Sitting]) -> tuple[int, int]:
    """How many were void, and how many counted."""
    return sum(sum(each.voids.values()) for each in sittings), sum(len(each.elapsed_ns) for each in sittings)
