"""Measure the fixed cost of timing a call on this device, before a submission is timed: the constants of `null_calls`.

The measurement uses calls of the problem's own cases, made to a worker without a submission.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from harness.judge.calls import Caller, Series
from harness.judge.clock import Answer, Clock
from harness.judge.clocks import Clocks
from harness.judge.null_calls import CAP_CALLS, Unusable, cap, measure
from harness.judge.null_worker import NullWorker
from harness.model import Case, Manner
from harness.progress import Narrate, Step, tell
from harness.ranking import stats

TRIES = 2
"""How often the constants of a GPU are measured before the judge gives up. A busy host disturbed one of some thirty
measurements (H200, 2026-11-23)."""

OPEN_AT_ONCE = 2
"""How many cases are held in memory at once during the measurement. The inputs of one may fill a good part of a
device."""

NewSeries = Callable[[str, Case], AbstractContextManager[Series]]


def calibrate(
    caller: Caller,
    clocks: Clocks,
    cases: Sequence[Case],
    spares: Sequence[Case],
    null: NullWorker,
    new_series: NewSeries,
    on_cpu: bool,
    narrate: Narrate,
) -> None:
    """Set the constants of `caller`: on a GPU the time subtracted from each call, on a CPU the most that may be
    subtracted. `spares` serve where none of the `cases`, the benchmark's, is small enough (`null_calls.measure`). If
    the judge's clock does not work on a GPU, `clocks` changes to the worker's clock."""
    if on_cpu:
        with new_series("null", cases[0]) as series:
            calls = [caller.put_null(null.ready(), series, clocks.of(Manner.STOPPED)) for _ in range(CAP_CALLS)]
        null_ns = [answer.elapsed_ns for answer in calls]
        caller.constants.null_ns, caller.constants.most_null_ns = stats.interquartile_mean(null_ns), cap(null_ns)
    if not clocks.encloses:
        return

    def say(line: str) -> None:
        tell(narrate, Step("pilot", "", 0, len(cases), line))

    say("calibrating the clock")
    session = null.ready()
    with ExitStack() as stack:
        opened: dict[str, tuple[Series, ExitStack]] = {}

        def call(case: Case, clock: Clock, cycles: int) -> Answer:
            if case.key not in opened:
                if len(opened) == OPEN_AT_ONCE:
                    opened.pop(next(iter(opened)))[1].close()
                own = stack.enter_context(ExitStack())
                opened[case.key] = own.enter_context(new_series("null", case)), own
            return caller.put_null(session, opened[case.key][0], clock, cycles)

        for left in reversed(range(TRIES)):
            try:
                caller.constants = measure(cases, spares, clocks, call)
                break
            except Unusable as reason:
                say(f"the judge's clock does not work on this device{' now' if left else ''}: {reason}")
                if not left:
                    clocks.give_up(str(reason))
                    return
        # The worker lives through the run. From here on it holds the memory of the case that is poured fastest.
        known = caller.constants.pour_ns
        for case in sorted((*cases, *spares), key=lambda case: known.get(case.key, math.inf))[:1]:
            call(case, clocks.of(Manner.SANDWICH), 1)
