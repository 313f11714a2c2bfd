"""What is measured of a submission: by whose clock and how, each case's samples, what the machine did meanwhile."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from harness.model.case import Case
from harness.model.floor import Floor, of_limit
from harness.model.label import Label
from harness.model.value import Nanoseconds, StoredSampleNanoseconds, Text, Value


class Estimate(Value):
    """A centre with its confidence interval, all in nanoseconds. A single process gives no interval: low and high are
    None."""

    latency_ns: Nanoseconds
    low_ns: Nanoseconds | None = None
    high_ns: Nanoseconds | None = None


class ClockOwner(enum.StrEnum):
    """Whose clock the scores of a run come from. Those of different clocks are never compared.

    judge: stamps of the judge's own enclose each call. worker: the worker's own events or counter, which a submission
    can change; all runs of schema version 1 are of this kind.
    """

    JUDGE = "judge"
    WORKER = "worker"


class Manner(enum.StrEnum):
    """How the judge times the calls of a case (docs/clock.md).

    sandwich: two stamps on the GPU enclose the call. gated: the same, and the call waits at a gate while inputs too
    large for one time slice are poured. long: the same, for calls longer than a time slice. gated long: both. stopped:
    the worker is stopped, continued, and stops itself again. worker: the worker times its own call.
    """

    SANDWICH = "sandwich"
    GATED = "gated"
    LONG = "long"
    GATED_LONG = "gated long"
    STOPPED = "stopped"
    WORKER = "worker"

    @property
    def gated(self) -> bool:
        """Whether the call waits at a gate until its inputs are poured."""
        return self in (Manner.GATED, Manner.GATED_LONG)

    @property
    def long(self) -> bool:
        """Whether the judge waits for a word behind the call before it asks for its second stamp."""
        return self in (Manner.LONG, Manner.GATED_LONG)


class Constant(Value):
    """What timing a call that computes nothing takes in this manner, measured before a run: the interquartile mean,
    the interquartile range and the number of calls. It is subtracted from each call."""

    manner: Manner
    latency_ns: Nanoseconds
    spread_ns: float = Field(ge=0)
    calls: int = Field(ge=1)


class Round(Value):
    """What the machine did while one process of a run was timed: the judge's own copy and matrix product, timed after
    it, what the device's driver says (`machine/gauges`, in its own words and units), and which share of the processors
    others took (None where the system does not tell).

    `disturbed` says what was wrong. Such a process is timed again and then not `kept`. `objection` is set in runs of
    schema version 1 alone.
    """

    copy_ns: Nanoseconds
    product_ns: Nanoseconds
    gauges: dict[str, Text] = Field(default_factory=dict)
    others_share: float | None = Field(default=None, ge=0, le=1)
    disturbed: Text | None = None
    objection: Text | None = None
    kept: bool = True


class TimedBaseline(Value):
    """A baseline that was timed in turns with the submission, a process each in every round. `latencies_ns` are in the
    order of the run's measurements. `speed_up` is how many times as long as the submission it takes, with its interval
    over the rounds. `doubt`: what speaks against these figures. `why_not`: why there are none."""

    name: Text
    score: Estimate | None = None
    latencies_ns: tuple[Nanoseconds, ...] = ()
    speed_up: float | None = Field(default=None, gt=0)
    speed_up_low: float | None = Field(default=None, gt=0)
    speed_up_high: float | None = Field(default=None, gt=0)
    doubt: Text | None = None
    why_not: Text | None = None


class Measurement(Value):
    """One benchmark case's samples within a run: a list a worker process, in the order they were taken.

    `bound_ns`: by how much at most a submission can make its latency seem less than it is, in this `manner`.
    `inside_ns`: the latency as the worker's own events saw it in the pilot, which is a diagnosis and never the score.
    `voids`: how many calls were taken again, by the reason. `hidden_ns` and `idle_excess_ns` are of schema version 1.
    """

    case: Case
    samples_ns: tuple[Annotated[tuple[StoredSampleNanoseconds, ...], Field(min_length=1)], ...] = Field(min_length=1)
    latency: Estimate
    floor: Floor | None = None
    labels: tuple[Annotated[Label | Text, Field(union_mode="left_to_right")], ...] = ()
    manner: Manner | None = None
    bound_ns: float | None = Field(default=None, ge=0)
    inside_ns: float | None = Field(default=None, ge=0)
    voids: dict[Text, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    hidden_ns: tuple[float, ...] = ()
    idle_excess_ns: tuple[float, ...] = ()

    @property
    def of_limit(self) -> float | None:
        """See `of_limit`; None without a floor."""
        return of_limit(self.floor.latency_ns, self.latency.latency_ns) if self.floor else None
