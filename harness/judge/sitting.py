"""A sitting: one case timed in one process. It has counted calls, void calls and labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.judge.clock import Void
from harness.judge.null_calls import LONG_ABOVE_NS, Constants
from harness.judge.pace import Pace
from harness.judge.tally import Tally
from harness.machine.neighbours import Crowding
from harness.model import Manner, eligibility
from harness.ranking import stats

LEAST_LATENCY_NS = 1.0
"""The latency of a call that took no longer than a null call."""


@dataclass
class Sitting:
    """The calls of one case in one process, in the `manner` that the pilot found.

    `elapsed_ns`: times between the judge's stamps. `constant_ns`: the time to subtract; on a CPU it comes from the null
    calls made among the calls (`null_ns`), at most `most_null_ns`. `least_ns`: the smallest constant, subtracted from
    calls that are timed as long but are not: a submission must gain nothing by being slow in the pilot. `shortest_ns`:
    the least latency of a call; shorter ones cannot be told apart. `tally`: the combined outputs of all calls.
    """

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
        """The time subtracted from each call, unless the call was timed as long and is not."""
        if self.null_ns:
            return min(stats.interquartile_mean(self.null_ns), self.most_null_ns)
        return self.constant_ns

    def subtract_less(self, less_ns: float) -> None:
        """Subtract so much less from each call."""
        self.constant_ns -= less_ns
        self.least_ns -= less_ns

    @property
    def latency_ns(self) -> tuple[float, ...]:
        less_ns = self.subtracted_ns
        if self.manner.long and self.elapsed_ns:
            long = stats.interquartile_mean(self.elapsed_ns) - less_ns > LONG_ABOVE_NS
            less_ns = less_ns if long else self.least_ns
        return tuple(max(elapsed_ns - less_ns, self.shortest_ns) for elapsed_ns in self.elapsed_ns)

    @property
    def crowded(self) -> bool:
        """Whether the calls may have waited for other processes."""
        return self.crowding is not None and self.crowding.disturbs


def new_sitting(pace: Pace, constants: Constants, offset_ns: float, shortest_ns: float) -> Sitting:
    """A sitting without calls, in a process whose null calls take `offset_ns` more than `constants` say."""
    least_ns = constants.of(Manner.SANDWICH)
    own_ns = constants.of(pace.manner) if pace.own_constant or pace.manner.long else least_ns
    return Sitting(
        pace.manner,
        own_ns + offset_ns,
        most_null_ns=constants.most_null_ns,
        least_ns=least_ns + offset_ns,
        shortest_ns=shortest_ns,
    )


def others_share(sittings: Iterable[Sitting]) -> float | None:
    """The largest share of the processors that other programs took during one of `sittings`."""
    return max((sitting.crowding.others for sitting in sittings if sitting.crowding is not None), default=None)


def too_many_void(cases: Iterable[Sequence[Sitting]]) -> bool:
    """Whether so many calls are void, of all cases or of one, that the run is not ranked."""
    return eligibility.is_void([_calls(sittings) for sittings in cases])


def void_share(sittings: Iterable[Sitting]) -> float:
    """The share of void calls."""
    return eligibility.void_share(*_calls(list(sittings)))


def _calls(sittings: Sequence[Sitting]) -> tuple[int, int]:
    """The numbers of void and of counted calls."""
    return sum(sum(each.voids.values()) for each in sittings), sum(len(each.elapsed_ns) for each in sittings)
