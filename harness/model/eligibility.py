"""What a run's own data say against ranking it. The judge asks it of a run that it has made, and whoever reads one
from a file asks again: a file that says `ranked` of what cannot be is not believed.

What a run does not store cannot be asked: whether the cases were chosen, and whether it was to be ranked unconfined.
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
"""Nor is one with a larger share of one case's: whoever voids calls as it likes chooses among them."""


def read_again(run: Run) -> Run:
    """`run` as it can be believed: with the reason not to rank it that its own data give where it has none, and with
    the clock that they name."""
    clock = ClockOwner.WORKER if _is_worker_timed(run) else run.clock
    reason = run.unranked_because
    if reason in (None, Unranked.WORKER_TIMED) and run.ending.verdict is Verdict.ACCEPTED and run.score is not None:
        reason = objection(run) or reason
    if (clock, reason) == (run.clock, run.unranked_because):
        return run
    return run.model_copy(update={"clock": clock, "unranked_because": reason})


def objection(run: Run) -> Unranked | None:
    """The first reason that the data of an accepted run with a score give not to rank it."""
    sampling = _sampling(run)
    processes, most_half_width = (_number(sampling.get(name)) for name in ("processes", "most_half_width"))
    sound = run.schema_version > 1  # one of version 1 was taken under other rules, and has no judge's clock anyhow
    holds = {
        Unranked.SKIPPED: bool(run.skipped),
        Unranked.QUICK: processes is not None and any(len(m.samples_ns) < processes for m in run.measurements),
        Unranked.VOIDED: sound and is_void([_calls(m) for m in run.measurements]),
        Unranked.CROWDED: any(Label.CROWDED in m.labels for m in run.measurements),
        Unranked.UNSTABLE: sound and is_unstable(run.rounds),
        Unranked.IMPRECISE: run.score is not None
        and is_imprecise(run.score, [m.latency for m in run.measurements], run.ranking, most_half_width),
        Unranked.BELOW_FLOOR: any(map(is_below_floor, run.measurements)),
        Unranked.REPRODUCED: run.reproduces is not None,
    }
    return Unranked.first(holds)


def is_void(calls: Sequence[tuple[int, int]]) -> bool:
    """Whether so many calls were void, of all or of those of one case, that a run is not ranked. `calls`: of each case
    how many were void and how many counted."""
    every = (sum(void for void, _ in calls), sum(counted for _, counted in calls))
    return void_share(*every) > MOST_VOID or any(void_share(*case) > MOST_VOID_OF_A_CASE for case in calls)


def void_share(void: int, counted: int) -> float:
    """Of all calls, how many were void."""
    return void / max(void + counted, 1)


def is_unstable(rounds: Iterable[Round]) -> bool:
    """Whether the machine was disturbed in more than a quarter of the processes, each of which had a second chance."""
    kept = [each for each in rounds if each.kept]
    return 4 * sum(each.disturbed is not None for each in kept) > len(kept)


def is_below_floor(measurement: Measurement) -> bool:
    """Whether a case took less than the device can, by more than the clock may err."""
    floor, bound_ns = measurement.floor, measurement.bound_ns
    return floor is not None and bound_ns is not None and measurement.latency.latency_ns + bound_ns < floor.latency_ns


def is_wider(found: Estimate, half_width: float | None) -> bool:
    """Whether the interval reaches further than `half_width`, a fraction of the centre, above it. None: it never does,
    and neither does an estimate without an interval."""
    return half_width is not None and found.high_ns is not None and found.high_ns > found.latency_ns * (1 + half_width)


def is_imprecise(score: Estimate, cases: Sequence[Estimate], ranking: str, half_width: float | None) -> bool:
    """Whether the score's interval is wider than `half_width`, or would be if the cases had differed from process to
    process each by itself.

    Where one case was slow in the processes in which another was fast, their mean may agree by chance. So few processes
    cannot show that it was anything else, and the intervals of the cases say how far it could have been off."""
    return half_width is not None and (is_wider(score, half_width) or reach(cases, ranking) > half_width)


def reach(cases: Sequence[Estimate], ranking: str) -> float:
    """The half-width of the mean of independent cases, as a fraction of it; 0 where a case has no interval."""
    if any(case.high_ns is None for case in cases):
        return 0.0
    above = [(case.high_ns or 0.0) / case.latency_ns for case in cases]
    if ranking == "mean":
        total_ns = sum(case.latency_ns for case in cases)
        return math.hypot(*(case.latency_ns * (each - 1) / total_ns for case, each in zip(cases, above, strict=True)))
    log_reach = math.hypot(*(math.log(max(each, 1.0)) for each in above)) / max(len(above), 1)
    return math.expm1(min(log_reach, 700.0))  # beyond that no float holds it


def _is_worker_timed(run: Run) -> bool:
    own = any(m.manner is Manner.WORKER or Label.WORKER_TIMED in m.labels for m in run.measurements)
    return own or run.schema_version == 1


def _calls(measured: Measurement) -> tuple[int, int]:
    return sum(measured.voids.values()), sum(map(len, measured.samples_ns))


def _sampling(run: Run) -> Mapping[str, Any]:
    """How the run says that it was sampled; a stored configuration may be anything."""
    sampling = run.config.get("cpu" if run.device.kind == "cpu" else "gpu")
    return sampling if isinstance(sampling, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e6 else None
