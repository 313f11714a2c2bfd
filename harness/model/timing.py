"""Times of a submission: whose clock took them and how, each case's samples, and the machine's state meanwhile."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field, field_validator

from harness.model.case import Case
from harness.model.floor import Floor, of_limit
from harness.model.label import RENAMED, Label
from harness.model.value import Nanoseconds, StoredSampleNanoseconds, Text, Value

GPU_BOUND, CPU_BOUND = (0.02, 300.0), (0.05, 50e3)
"""The usual bound on a latency, a share of it plus ns: what a submission can make it seem less than it is, at most
(docs/clock-attacks.md)."""


class Estimate(Value):
    """A centre with its confidence interval, in nanoseconds. `low_ns` and `high_ns` are None for a single process,
    which gives no interval."""

    latency_ns: Nanoseconds
    low_ns: Nanoseconds | None = None
    high_ns: Nanoseconds | None = None


class ClockOwner(enum.StrEnum):
    """Whose clock gave the times of a run. Scores of different clocks are never compared.

    judge: the judge's own stamps enclose each call. worker: the worker's own events or counter, which a submission can
    tamper with. All runs of schema version 1 are worker-timed.
    """

    JUDGE = "judge"
    WORKER = "worker"


class Manner(enum.StrEnum):
    """How the judge times the calls of a case (docs/clock.md).

    - sandwich: two stamps on the GPU enclose the call.
    - gated: as sandwich, and the call waits at a gate while inputs too large for one time slice are poured.
    - long: as sandwich, for calls longer than a time slice.
    - gated long: both.
    - stopped: the worker is stopped, is continued, and stops itself again.
    - worker: the worker times its own call.
    """

    SANDWICH = "sandwich"
    GATED = "gated"
    LONG = "long"
    GATED_LONG = "gated long"
    STOPPED = "stopped"
    WORKER = "worker"

    @property
    def gated(self) -> bool:
        """True if the call waits at a gate until its inputs are poured."""
        return self in (Manner.GATED, Manner.GATED_LONG)

    @property
    def long(self) -> bool:
        """True if the judge waits for a word after the call before it requests its second stamp."""
        return self in (Manner.LONG, Manner.GATED_LONG)


class Constant(Value):
    """The fixed cost of timing a call in this manner, measured with null calls before a run: interquartile mean,
    interquartile range and number of calls. It is subtracted from each call."""

    manner: Manner
    latency_ns: Nanoseconds
    spread_ns: float = Field(ge=0)
    calls: int = Field(ge=1)


class Round(Value):
    """The machine's state while one process of a run was timed. `copy_ns` and `product_ns`: the judge's own copy and
    matrix product, timed after the process. `gauges`: the driver's report (`machine/gauges`), in the driver's words and
    units. `others_share`: the share of the processors that other processes took, None if the system does not tell.
    `constant_ns`: what was subtracted from calls in the process's sandwiches, None on a CPU and in older runs.

    `disturbed` says what was wrong. A disturbed process is timed again and then not `kept`. `objection` is set only in
    runs of schema version 1.
    """

    copy_ns: Nanoseconds
    product_ns: Nanoseconds
    gauges: dict[str, Text] = Field(default_factory=dict)
    others_share: float | None = Field(default=None, ge=0, le=1)
    constant_ns: Nanoseconds | None = None
    disturbed: Text | None = None
    objection: Text | None = None
    kept: bool = True


class TimedBaseline(Value):
    """A baseline that was timed in turns with the submission, one process of each per round. `latencies_ns` follows the
    order of the run's measurements. `speed_up` is the baseline's latency over the submission's, with its interval over
    the rounds. `doubt`: why these figures are not to be trusted. `why_not`: why there are no figures."""

    name: Text
    score: Estimate | None = None
    latencies_ns: tuple[Nanoseconds, ...] = ()
    speed_up: float | None = Field(default=None, gt=0)
    speed_up_low: float | None = Field(default=None, gt=0)
    speed_up_high: float | None = Field(default=None, gt=0)
    doubt: Text | None = None
    why_not: Text | None = None


class Measurement(Value):
    """One benchmark case's samples within a run: one list per worker process, in the order they were taken.

    `bound_ns`: the most by which a submission can make its latency look shorter, in this `manner`. `inside_ns`: the
    latency by the worker's own events in the pilot. It is for diagnosis and never the score. `voids`: how many calls
    were repeated, by reason. `hidden_ns` and `idle_excess_ns` occur only in schema version 1.
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

    @field_validator("labels")
    @classmethod
    def _by_present_names(cls, labels: tuple[Label | str, ...]) -> tuple[Label | str, ...]:
        """Give renamed labels of an older run their present names."""
        renamed = tuple(RENAMED.get(label, label) for label in labels)
        return labels if renamed == labels else tuple(sorted(renamed))

    @property
    def of_limit(self) -> float | None:
        """Floor / latency (see `of_limit`). None without a floor."""
        return of_limit(self.floor.latency_ns, self.latency.latency_ns) if self.floor else None
