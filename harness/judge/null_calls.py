"""What timing a call takes besides the call: measured with calls that compute nothing, in a worker of
the judge's own.

On a GPU it is two switches of the device, the same to a twentieth of a microsecond from worker to worker under one
judge (H200, 2026-11-22), and is measured once, before a run. On a CPU it moves with the idleness of the machine, so
such calls alternate with those that count (`entrant`).

The same calls show whether the judge's clock works on a GPU at all, and how long each case's pour takes when nobody
disturbs it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.judge.clock import Answer, Clock, Void
from harness.judge.clocks import Clocks
from harness.model import Case, Constant, Manner
from harness.ranking import stats

CALLS = 400
"""Their mean has a standard error of 0.03 us (H200)."""

LEAST_CALLS_A_CASE, LAUNCHES, SLICE_TRIES = 12, 12, 5
GATED_ABOVE_NS = 1.2e6
"""Pour and flush together. The device is held before, and all must fit into a time slice of 2.1 ms."""

LONG_ABOVE_NS = 1.5e6
"""Calls near the end of a slice are timed as those beyond it are: two switches and 2.1 ms (H200, 2026-11-22)."""

CUT_NS = 100e3
"""A call that ends less than this before the end of a slice may have been cut off there."""

DISTURBED_NS, DISTURBED_GATED_NS, DISTURBED_SHARE = 20e3, 240e3, 0.03
"""What a pour may take more than usual, and never as much as two switches of the device take: one that is interrupted
takes these, 280 us, and what ran meanwhile. A gate at which the worker's stream waits takes up to 180 us (H200,
2026-11-22)."""

ASKED_LATE_NS = 15e3
"""Null calls that were asked for 118 us after A took as long as others, those after 146 us took 2 us more, those after
158 us 14 us more (H200, 2026-11-22)."""

NO_SLICE_NS, NOTHING_NS = 20e3, 2e3
USUAL_NS, MOST_SPREAD_NS, LEAST_SLICE_NS = (50e3, 1e6), 5e3, 1.8e6
"""A constant, its interquartile range and a slice beyond these are not those of a device of the judge's alone."""

CAP, CAP_CALLS = 1.5, 12
"""Null calls took 146 to 230 us within minutes on two processors with other work on them (AMD EPYC, 2026-11-22)."""

CYCLES_OF_A_SLICE, CYCLES_OF_A_CALL = 12_000_000, 1_000_000
"""Of a GPU's clock at 1 to 2 GHz: 6 to 12 ms, longer than any slice that was seen, and 0.5 to 1 ms."""


@dataclass
class Constants:
    """Of null calls what their timing takes, by manner; what pouring and flushing take, by case; and what launching a
    kernel that does nothing takes between two events of the worker's (`launch_ns`). `slice_ns` lies between the stamps
    when a call is cut off at the end of a time slice. On a CPU, of null calls before a submission was there: `null_ns`,
    what they took, and `most_null_ns`, the most that is subtracted, whatever they take later."""

    by_manner: dict[Manner, Constant] = field(default_factory=dict)
    pour_ns: dict[str, float] = field(default_factory=dict)
    launch_ns: float | None = None
    slice_ns: float = math.inf
    null_ns: float = math.inf
    most_null_ns: float = math.inf

    def of(self, manner: Manner) -> float:
        """What is to be subtracted: a gated or long call's own, and of the others that of the sandwich, which nothing
        that a submission does can undercut."""
        own = self.by_manner.get(manner) or self.by_manner.get(Manner.SANDWICH)
        return own.latency_ns if own is not None else 0.0

    def void(self, answer: Answer, manner: Manner, case: Case) -> Void | None:
        """Why a call on a GPU counts for nothing."""
        if answer.void is not None:
            return answer.void
        usual_ns = self.pour_ns.get(case.key)
        if usual_ns is not None and answer.pour_ns > usual_ns + self._more_ns(usual_ns, manner):
            return Void.DISTURBED
        if self.by_manner and answer.elapsed_ns < self.of(Manner.SANDWICH) - NO_SLICE_NS:
            return Void.NO_SLICE
        if manner in (Manner.SANDWICH, Manner.GATED) and answer.elapsed_ns > self.slice_ns - CUT_NS:
            return Void.CUT
        # Half of the constant is the switch back. Asked for after that could have begun, the end is late.
        back_ns = (self.of(Manner.SANDWICH) or answer.elapsed_ns) / 2
        if answer.asked_after_ns > answer.elapsed_ns - back_ns - ASKED_LATE_NS > 0:
            return Void.ASKED_LATE
        return None

    def _more_ns(self, usual_ns: float, manner: Manner) -> float:
        """What a pour may take more than `usual_ns`. The share of a long one alone would leave room for a piece of the
        call: where nothing is held, its kernels get the device when the judge's slice ends in the midst of the pour."""
        more_ns = usual_ns * DISTURBED_SHARE + (DISTURBED_GATED_NS if manner.gated else DISTURBED_NS)
        switches_ns = self.of(Manner.SANDWICH) - NO_SLICE_NS
        return min(more_ns, switches_ns) if switches_ns > 0 else more_ns

    def took_nothing(self, answer: Answer) -> bool:
        """Whether a call on a GPU was over as soon as one that computes nothing."""
        known = self.by_manner.get(Manner.SANDWICH)
        return known is not None and answer.elapsed_ns < known.latency_ns + NOTHING_NS


def constant(manner: Manner, null_ns: Sequence[float]) -> Constant:
    low, high = np.quantile(null_ns, (0.25, 0.75)).tolist()
    return Constant(
        manner=manner, latency_ns=max(stats.interquartile_mean(null_ns), 1.0), spread_ns=high - low, calls=len(null_ns)
    )


Null = Callable[[Case, Clock, int], Answer]
"""A null call like one of this case, timed by this clock, for so many cycles of the device."""


def measure(cases: Sequence[Case], clocks: Clocks, null: Null) -> Constants:
    """The constants for `cases` on a GPU. Raises Unusable where the judge's clock does not work there."""
    found, sandwich = Constants(), clocks.of(Manner.SANDWICH)
    each = max(CALLS // max(len(cases), 1), LEAST_CALLS_A_CASE)
    elapsed: list[float] = []
    voids: Counter[Void] = Counter()
    probe: Case | None = None
    for case in cases:
        # The first ones load what is loaded once.
        answers = [null(case, sandwich, 1) for _ in range(LEAST_CALLS_A_CASE)][LEAST_CALLS_A_CASE // 2 :]
        found.pour_ns[case.key] = min(answer.pour_ns for answer in answers)
        if found.pour_ns[case.key] <= GATED_ABOVE_NS:
            answers = [null(case, sandwich, 1) for _ in range(each)]
            sound = [answer for answer in answers if answer.void is None]
            voids.update(answer.void for answer in answers if answer.void is not None)
            found.pour_ns[case.key] = float(np.median([answer.pour_ns for answer in sound or answers]))
            elapsed += [answer.elapsed_ns for answer in sound]
            probe = case
    if probe is None or len(elapsed) < CALLS // 8:
        reasons = "".join(f"; {count} {reason.value}" for reason, count in voids.most_common())
        raise Unusable(f"too few calls that compute nothing could be timed: {len(elapsed)}{reasons}")
    found.by_manner[Manner.SANDWICH] = constant(Manner.SANDWICH, elapsed)
    # One whose host was slow says nothing of the slice.
    of_a_slice = (null(probe, sandwich, CYCLES_OF_A_SLICE) for _ in range(SLICE_TRIES))
    slices_ns = [answer.elapsed_ns for answer in of_a_slice if answer.void is None]
    _look_at(found.by_manner[Manner.SANDWICH], slices_ns)
    found.slice_ns = float(np.median(slices_ns))
    inside = [null(probe, clocks.with_events(Manner.SANDWICH), 1).inside_ns for _ in range(LAUNCHES)]
    found.launch_ns = stats.interquartile_mean([ns for ns in inside if ns is not None] or [1.0])
    # Calls of these manners would be over before the judge asks, were they to compute nothing: one of so many cycles
    # stands in, and takes turns with the same in a sandwich, for the device's clock may change.
    large = [case for case in cases if found.pour_ns[case.key] > GATED_ABOVE_NS]
    of_large = [(manner, case) for case in large[-1:] for manner in (Manner.GATED, Manner.GATED_LONG)]
    for manner, case in ((Manner.LONG, probe), *of_large):
        turns = [
            (null(probe, sandwich, CYCLES_OF_A_CALL), null(case, clocks.of(manner), CYCLES_OF_A_CALL))
            for _ in range(CALLS // 8)
        ]
        plain, own = (
            [each.elapsed_ns for each in answers if each.void is None] for answers in zip(*turns, strict=True)
        )
        if min(len(plain), len(own)) >= CALLS // 32:
            length_ns = stats.interquartile_mean(plain) - found.of(Manner.SANDWICH)
            found.by_manner[manner] = constant(manner, [ns - length_ns for ns in own])
    return found


def cap(null_ns: Sequence[float]) -> float:
    """The most that is to be subtracted on a CPU, from null calls made before a submission was there: what it leaves
    behind could make later ones slow."""
    return CAP * float(np.quantile(null_ns, 0.75))


class Unusable(Exception):
    """The judge's clock does not work on this device, and why."""


def _look_at(found: Constant, slices_ns: Sequence[float]) -> None:
    lowest, highest = USUAL_NS
    if not lowest <= found.latency_ns <= highest:
        raise Unusable(f"the device switches in {found.latency_ns / 1e3:.1f} us, beyond what is usual")
    if found.spread_ns > MOST_SPREAD_NS:
        raise Unusable(f"the device's switches vary by {found.spread_ns / 1e3:.1f} us: something else uses it")
    if not slices_ns:
        raise Unusable("none of the calls that show the device's time slice could be timed")
    if np.median(slices_ns) < LEAST_SLICE_NS:
        raise Unusable(f"the device's time slice is {np.median(slices_ns) / 1e3:.0f} us: too short")
