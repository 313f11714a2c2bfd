"""The fixed cost of timing one call. The judge measures it with null calls: calls that compute nothing, made by a
worker without a submission.

On a GPU the cost is two switches of the device between processes. It is measured before a run, and each timed process
corrects it for itself (`offsets`). On a CPU it varies with the load of the machine, so null calls alternate with the
calls that count (`entrant`).

The same null calls show whether the judge's clock works on a GPU at all, and how long the undisturbed pour of each case
takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.judge.clock import Answer, Clock, Void
from harness.judge.clocks import Clocks
from harness.judge.stage import ARM_S
from harness.model import Case, Constant, Manner
from harness.ranking import stats

CALLS = 200
"""Null calls for the constant of a GPU. Their mean has a standard error of 0.04 us: calls scatter by 0.6 us (H200,
2026-11-24)."""

TURNS = 50
"""Null calls for the constant of every other manner. Gated ones scatter by 1 to 8 us (H200, 2026-11-24)."""

LEAST_CALLS_A_CASE, LAUNCHES, SLICE_TRIES = 12, 12, 5
GATED_ABOVE_NS = 1.2e6
"""Above this time for pour and flush together, calls are gated. The device is held before the pour, and the hold, pour
and flush must fit into a time slice of 2.1 ms."""

LONG_ABOVE_NS = 1.5e6
"""Calls above this are timed in the manner of calls longer than a time slice. A call is cut off at two switches plus
2.1 ms (H200, 2026-11-22)."""

CUT_NS = 100e3
"""A call that ends less than this before the end of a time slice may have been cut off there."""

DISTURBED_NS, DISTURBED_GATED_NS, DISTURBED_SHARE = 20e3, 240e3, 0.03
"""How much longer than usual a pour may take: DISTURBED_NS, or DISTURBED_GATED_NS if gated, plus DISTURBED_SHARE of the
usual time, but always less than two switches of the device. An interrupted pour takes these, 280 us, and the time of
the other process. A gate at which the worker's stream waits takes up to 180 us (H200, 2026-11-22)."""

LEAST_ARM_NS, MOST_ARM_NS, ARM_MARGIN_NS = 0.8e6, 1.55e6, 0.2e6
"""How long a worker may take to enqueue its call where pours and slices are known, at least and at most. The margin is
for stopping the worker, and for what comes before and after the pour. Holds of 1.85 ms were clean (H200)."""

ASKED_LATE_NS = 15e3
"""Margin for asking for stamp B. Null calls asked for 118 us after A took as long as others. Those asked for after 146
us took 2 us more, those after 158 us took 14 us more (H200, 2026-11-22)."""

NO_SLICE_NS, NOTHING_NS = 20e3, 2e3
USUAL_NS, MOST_SPREAD_NS, LEAST_SLICE_NS = (50e3, 1e6), 5e3, 1.8e6
"""Limits on a constant, on its interquartile range and on a time slice. Beyond them the judge does not have the device
to itself."""

CAP, CAP_CALLS = 1.5, 12
"""Null calls took 146 to 230 us within minutes on two processors with other work on them (AMD EPYC, 2026-11-22)."""

CYCLES_OF_A_SLICE, CYCLES_OF_A_CALL = 12_000_000, 1_000_000
"""Clock cycles of a GPU at 1 to 2 GHz: 6 to 12 ms, longer than any time slice seen so far, and 0.5 to 1 ms."""


@dataclass
class Constants:
    """The results of timing null calls. All times are in ns.

    `by_manner`: interquartile mean of the time of a null call, for each manner of timing. `pour_ns`: usual time of pour
    and flush, by the key of the case. `launch_ns`: time between two of the worker's events around an empty kernel.
    `slice_ns`: time between the stamps of a call that the end of a time slice cuts off. CPU only, from null calls
    before a submission was there: `null_ns`, their time, and `most_null_ns`, the most that is subtracted, whatever
    later null calls take.
    """

    by_manner: dict[Manner, Constant] = field(default_factory=dict)
    pour_ns: dict[str, float] = field(default_factory=dict)
    launch_ns: float | None = None
    slice_ns: float = math.inf
    null_ns: float = math.inf
    most_null_ns: float = math.inf

    def of(self, manner: Manner) -> float:
        """Return the time to subtract: the manner's own constant if it was measured, else the constant of the sandwich.
        Nothing that a submission does can make a call faster than the latter."""
        own = self.by_manner.get(manner) or self.by_manner.get(Manner.SANDWICH)
        return own.latency_ns if own is not None else 0.0

    def arm_ns(self, case: Case) -> float:
        """Return how long a worker may take to enqueue a call while the device is held: what a time slice has left
        beside the pour, within limits."""
        pour_ns = self.pour_ns.get(case.key)
        if pour_ns is None or math.isinf(self.slice_ns):
            return ARM_S * 1e9
        slice_ns = self.slice_ns - self.of(Manner.SANDWICH)  # it was measured between stamps, with two switches in it
        return min(max(slice_ns - pour_ns - ARM_MARGIN_NS, LEAST_ARM_NS), MOST_ARM_NS)

    def void(self, answer: Answer, manner: Manner, case: Case) -> Void | None:
        """Return the reason to discard a GPU call, or None if it counts."""
        if answer.void is not None:
            return answer.void
        usual_ns = self.pour_ns.get(case.key)
        if usual_ns is not None and answer.pour_ns > usual_ns + self._more_ns(usual_ns, manner):
            return Void.DISTURBED
        if self.by_manner and answer.elapsed_ns < self.of(Manner.SANDWICH) - NO_SLICE_NS:
            return Void.NO_SLICE
        if manner in (Manner.SANDWICH, Manner.GATED) and answer.elapsed_ns > self.slice_ns - CUT_NS:
            return Void.CUT
        # Half of the constant is the switch back. Stamp B is late if it was asked for after the switch could begin.
        back_ns = (self.of(Manner.SANDWICH) or answer.elapsed_ns) / 2
        if answer.asked_after_ns > answer.elapsed_ns - back_ns - ASKED_LATE_NS > 0:
            return Void.ASKED_LATE
        return None

    def _more_ns(self, usual_ns: float, manner: Manner) -> float:
        """How much longer than `usual_ns` a pour may take. For a long pour the share alone would leave room for a piece
        of the call. Without a hold, the call's kernels run if the judge's time slice ends during the pour."""
        more_ns = usual_ns * DISTURBED_SHARE + (DISTURBED_GATED_NS if manner.gated else DISTURBED_NS)
        switches_ns = self.of(Manner.SANDWICH) - NO_SLICE_NS
        return min(more_ns, switches_ns) if switches_ns > 0 else more_ns

    def took_nothing(self, answer: Answer) -> bool:
        """Whether a call on a GPU took no longer than a null call."""
        known = self.by_manner.get(Manner.SANDWICH)
        return known is not None and answer.elapsed_ns < known.latency_ns + NOTHING_NS


def constant(manner: Manner, null_ns: Sequence[float]) -> Constant:
    low, high = np.quantile(null_ns, (0.25, 0.75)).tolist()
    return Constant(
        manner=manner, latency_ns=max(stats.interquartile_mean(null_ns), 1.0), spread_ns=high - low, calls=len(null_ns)
    )


Null = Callable[[Case, Clock, int], Answer]
"""Makes one null call: with the memory of this case, timed by this clock, waiting for this number of the device's clock
cycles."""


def measure(cases: Sequence[Case], spares: Sequence[Case], clocks: Clocks, null: Null) -> Constants:
    """Measure the constants for `cases` on a GPU. If the pours of all of them are long, a case of `spares` with a short
    one serves instead. Raises Unusable if the judge's clock does not work there."""
    found, sandwich = Constants(), clocks.of(Manner.SANDWICH)
    each = max(CALLS // max(len(cases), 1), LEAST_CALLS_A_CASE)
    elapsed: list[float] = []
    voids: Counter[Void] = Counter()

    def take(case: Case, count: int) -> list[Answer]:
        answers = [null(case, sandwich, 1) for _ in range(count)]
        sound = [answer for answer in answers if answer.void is None]
        voids.update(answer.void for answer in answers if answer.void is not None)
        elapsed.extend(answer.elapsed_ns for answer in sound)
        return sound or answers

    def pour_is_short(case: Case) -> bool:
        # The first calls are dropped: they load code and data.
        answers = [null(case, sandwich, 1) for _ in range(LEAST_CALLS_A_CASE)][LEAST_CALLS_A_CASE // 2 :]
        found.pour_ns[case.key] = min(answer.pour_ns for answer in answers)
        return found.pour_ns[case.key] <= GATED_ABOVE_NS

    probe: Case | None = None
    for case in cases:
        if pour_is_short(case):
            found.pour_ns[case.key] = float(np.median([answer.pour_ns for answer in take(case, each)]))
            probe = case
        else:
            # The judge's time slice ends within such a pour. A call that waits for nothing runs then, and two switches
            # are added to the pour: a submission could compute for as long, unseen. Behind a gate no null call runs.
            answers = [null(case, clocks.of(Manner.GATED), 1) for _ in range(LEAST_CALLS_A_CASE)]
            sound = [answer for answer in answers if answer.void is None]
            found.pour_ns[case.key] = max(answer.pour_ns for answer in sound or answers)
    unseen = (case for case in spares if case.key not in found.pour_ns)
    probe = probe or next(filter(pour_is_short, unseen), None)
    if probe is not None:
        take(probe, CALLS - len(elapsed) - voids.total())  # where few cases or none have a short pour
    if probe is None or len(elapsed) < CALLS // 8:
        reasons = "".join(f"; {count} {reason.value}" for reason, count in voids.most_common())
        raise Unusable(f"too few calls that compute nothing could be timed: {len(elapsed)}{reasons}")
    found.by_manner[Manner.SANDWICH] = constant(Manner.SANDWICH, elapsed)
    # Void calls are left out: if the host was slow, the call does not show the length of the slice.
    of_a_slice = (null(probe, sandwich, CYCLES_OF_A_SLICE) for _ in range(SLICE_TRIES))
    slices_ns = [answer.elapsed_ns for answer in of_a_slice if answer.void is None]
    _look_at(found.by_manner[Manner.SANDWICH], slices_ns)
    found.slice_ns = float(np.median(slices_ns))
    inside = [null(probe, clocks.with_events(Manner.SANDWICH), 1).inside_ns for _ in range(LAUNCHES)]
    found.launch_ns = stats.interquartile_mean([ns for ns in inside if ns is not None] or [1.0])
    # Null calls of these manners would end before the judge asks for stamp B. So they wait for a number of cycles. The
    # same wait is timed in a sandwich in turns with them, because the device's clock rate may change.
    large = [case for case in cases if found.pour_ns[case.key] > GATED_ABOVE_NS]
    of_large = [(manner, case) for case in large[-1:] for manner in (Manner.GATED, Manner.GATED_LONG)]
    for manner, case in ((Manner.LONG, probe), *of_large):
        turns = [
            (null(probe, sandwich, CYCLES_OF_A_CALL), null(case, clocks.of(manner), CYCLES_OF_A_CALL))
            for _ in range(TURNS)
        ]
        plain, own = (
            [each.elapsed_ns for each in answers if each.void is None] for answers in zip(*turns, strict=True)
        )
        if min(len(plain), len(own)) >= TURNS // 4:
            length_ns = stats.interquartile_mean(plain) - found.of(Manner.SANDWICH)
            found.by_manner[manner] = constant(manner, [ns - length_ns for ns in own])
    return found


def cap(null_ns: Sequence[float]) -> float:
    """Return the most that may be subtracted on a CPU. It comes from null calls made before the submission was there,
    because processes that a submission leaves behind could slow later ones."""
    return CAP * float(np.quantile(null_ns, 0.75))


class Unusable(Exception):
    """The judge's clock does not work on this device. The message says why."""


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
