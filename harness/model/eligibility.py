"""The reasons not to rank a run that its own data give. The judge checks a new run for them. `records` checks again
when it reads a run from a file, because a file could claim `ranked` falsely.

A run does not store whether its cases were chosen or whether an unconfined run was to be ranked. So those two reasons
cannot be checked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.model.label import Label, Unranked
from harness.model.run import Run
from harness.model.timing import ClockOwner, Estimate, Manner, Measurement, Round
from harness.model.verdict import Verdict

MOST_VOID = 0.1
"""A run with a larger share of void calls is not ranked."""

MOST_VOID_OF_A_CASE = 0.25
"""A run in which one case has a larger share of void calls is not ranked either. A submission that could void calls at
will could choose which samples count."""


def read_again(run: Run) -> Run:
    """`run` with the reason not to rank it and with the clock that its own data give. A reason that the run states
    already is kept, except that worker-timed gives way to an earlier reason."""
    clock = ClockOwner.WORKER if _is_worker_timed(run) else run.clock
    reason = run.unranked_because
    if reason in (None, Unranked.WORKER_TIMED) and run.ending.verdict is Verdict.ACCEPTED and run.score is not None:
        reason = objection(run) or reason
    if (clock, reason) == (run.clock, run.unranked_because):
        return run
    return run.model_copy(update={"clock": clock, "unranked_because": reason})


def objection(run: Run) -> Unranked | None:
    """The first reason not to rank an accepted run with a score. None if its data give no reason."""
    sampling = _sampling(run)
    processes, most_half_width = (_number(sampling.get(name)) for name in ("processes", "most_half_width"))
    sound = run.schema_version > 1  # a run of version 1 was measured under other rules, and was timed by the worker
    holds = {
        Unranked.SKIPPED: bool(run.skipped),
        Unranked.QUICK: processes is not None and any(len(m.samples_ns) < processes for m in run.measurements),
        Unranked.VOIDED: sound and is_void([calls(m) for m in run.measurements]),
        Unranked.CROWDED: any(Label.CROWDED in m.labels for m in run.measurements),
        Unranked.UNSTABLE: sound and is_unstable(run.rounds),
        Unranked.IMPRECISE: run.score is not None
        and is_imprecise(run.score, [m.latency for m in run.measurements], run.ranking, most_half_width),
        Unranked.BELOW_FLOOR: any(map(is_below_floor, run.measurements)),
        Unranked.REPRODUCED: run.reproduces is not None,
    }
    return Unranked.first(holds)


def is_void(calls: Sequence[tuple[int, int]]) -> bool:
    """True if so many calls were void that the run is not ranked: of all calls, or of one case's. `calls` holds two
    numbers for each case: void calls and counted calls."""
    every = (sum(void for void, _ in calls), sum(counted for _, counted in calls))
    return void_share(*every) > MOST_VOID or any(void_share(*case) > MOST_VOID_OF_A_CASE for case in calls)


def calls(measured: Measurement) -> tuple[int, int]:
    """The numbers of void and of counted calls of a case."""
    return sum(measured.voids.values()), sum(map(len, measured.samples_ns))


def void_share(void: int, counted: int) -> float:
    """The share of void calls among all calls."""
    return void / max(void + counted, 1)


def is_unstable(rounds: Iterable[Round]) -> bool:
    """True if the machine was disturbed in more than a quarter of the kept processes. Each disturbed process had a
    second try."""
    kept = [each for each in rounds if each.kept]
    return 4 * sum(each.disturbed is not None for each in kept) > len(kept)


def is_below_floor(measurement: Measurement) -> bool:
    """True if a case was faster than its floor by more than the clock's possible error (`bound_ns`)."""
    floor, bound_ns = measurement.floor, measurement.bound_ns
    return floor is not None and bound_ns is not None and measurement.latency.latency_ns + bound_ns < floor.latency_ns


def is_wider(found: Estimate, half_width: float | None) -> bool:
    """True if the interval reaches further above the centre than `half_width`, a fraction of the centre. False without
    a limit or without an interval."""
    return half_width is not None and found.high_ns is not None and found.high_ns > found.latency_ns * (1 + half_width)


def is_imprecise(score: Estimate, cases: Sequence[Estimate], ranking: str, half_width: float | None) -> bool:
    """True if the score's interval is wider than `half_width`, or would be if each case had varied independently
    between processes.

    If one case is slow in the processes in which another is fast, the processes' means may agree by chance. A few
    processes cannot rule that out, and the cases' own intervals say how far off the score may be.
    """
    return half_width is not None and (is_wider(score, half_width) or reach(cases, ranking) > half_width)


def reach(cases: Sequence[Estimate], ranking: str) -> float:
    """The half-width of the mean of independent cases, as a fraction of the mean. 0 if a case has no interval."""
    if any(case.high_ns is None for case in cases):
        return 0.0
    above = [(case.high_ns or 0.0) / case.latency_ns for case in cases]
    if ranking == "mean":
        total_ns = sum(case.latency_ns for case in cases)
        return math.hypot(*(case.latency_ns * (each - 1) / total_ns for case, each in zip(cases, above, strict=True)))
    log_reach = math.hypot(*(math.log(max(each, 1.0)) for each in above)) / max(len(above), 1)
    return math.expm1(min(log_reach, 700.0))  # larger exponents overflow a float


def _is_worker_timed(run: Run) -> bool:
    own = any(m.manner is Manner.WORKER or Label.WORKER_TIMED in m.labels for m in run.measurements)
    return own or run.schema_version == 1


def _sampling(run: Run) -> Mapping[str, Any]:
    """The run's sampling configuration for its kind of device. A stored configuration may hold anything."""
    sampling = run.config.get("cpu" if run.device.kind == "cpu" else "gpu")
    return sampling if isinstance(sampling, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e6 else None
