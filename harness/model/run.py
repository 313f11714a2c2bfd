"""What came of it: verdicts, checks, measurements, and the run that holds them."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from harness.model.floor import Floor, of_limit
from harness.model.label import Label, Unranked
from harness.model.problem import Case, Device
from harness.model.value import LONGEST_NS, SHORTEST_NS, Nanoseconds, StoredSampleNanoseconds, Text, Value

SCHEMA_VERSION = 2
"""Version of the run files in `results/`; a reader refuses a file from the future. 1: times by the worker's clock."""


class Verdict(enum.StrEnum):
    """How a run ended. The values are the words used in files, folders of controls and messages."""

    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    INTEGRITY_VIOLATION = "integrity_violation"
    INFRASTRUCTURE_ERROR = "infrastructure_error"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")

    @property
    def disqualifies(self) -> bool:
        """Whether a source that ever got it is shown with it, whatever its other runs say."""
        return self in (Verdict.WRONG_ANSWER, Verdict.INTEGRITY_VIOLATION)


_EXIT_CODES = {
    Verdict.ACCEPTED: 0,
    Verdict.WRONG_ANSWER: 10,
    Verdict.COMPILE_ERROR: 11,
    Verdict.RUNTIME_ERROR: 12,
    Verdict.TIMEOUT: 13,
    Verdict.INTEGRITY_VIOLATION: 14,
    Verdict.INFRASTRUCTURE_ERROR: 30,
}


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
    """How the judge times the calls of a case (docs/measurement.md).

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


class Excess(Value):
    """How a checked call stands against one tolerance: `ratio` is the worst limit's value over the limit.

    At most 1 meets the tolerance. `limit` names the one that is worst (rel_l2, max_mismatch, layout ...).
    """

    limit: str
    ratio: float


class CaseCheck(Value):
    """The comparison of one case's output with the reference, over all its checked calls. `secret`: this run drew the
    case."""

    case: Case
    verdict: Verdict
    tolerance: str | None
    excess: dict[str, Excess]
    error: float | None
    reference_error: float | None = None
    report: Text | None = None
    calls: int = 1
    secret: bool = False


class Total(Value):
    """What the outputs of many calls come to together: of all test cases, or of all timed calls of one benchmark case.

    `gain`, `row_gain`, `dim_rel_l2` and `parts` as in Tolerance; `tolerance` is the strictest that they meet."""

    what: Text
    gain: float | None
    row_gain: float | None
    dim_rel_l2: float | None
    parts: dict[str, float]
    excess: dict[str, Excess]
    tolerance: str | None


class Skipped(Value):
    """A case that was not judged on this device, and why. A run with a skipped case is not ranked."""

    case: Case
    reason: str


class Ending(Value):
    """The verdict, one sentence that says why, and whatever helps to mend it (traceback, mismatch report)."""

    verdict: Verdict
    message: Text
    detail: Text | None = None


class Finding(Value):
    """What a scanner found suspicious in a source's text: no verdict. `severity` is low, medium, high or critical."""

    rule: Text
    severity: Text
    what: Text

    @property
    def flagged(self) -> bool:
        """Whether boards show it: what is less severe, honest submissions have too."""
        return self.severity in ("high", "critical")


def outcome(verdict: Verdict, unranked: str | None) -> str:
    """The verdict in words, for a run that is unranked because of `unranked`."""
    return "not judged here" if unranked == Unranked.UNJUDGED else verdict.words


class Run(Value):
    """One judged evaluation of one submission on one device: the truth, as stored in `results/`.

    `reproduces` is the id of the run whose seeds it had, if it had not its own. `clock` timed it, less `constants`.
    """

    schema_version: int = SCHEMA_VERSION
    id: str
    problem: str
    problem_revision: int = Field(ge=1, lt=2**31)
    problem_sha256: str
    submission: str
    submission_sha256: str
    submission_path: Text
    device: Device
    environment: dict[str, Any]
    started_at: str
    duration_s: float
    ending: Ending
    checks: tuple[CaseCheck, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    rounds: tuple[Round, ...] = ()
    clock: ClockOwner = ClockOwner.WORKER
    constants: tuple[Constant, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    totals: tuple[Total, ...] = ()
    score: Estimate | None = None
    unranked_because: Annotated[Unranked | Text, Field(union_mode="left_to_right")] | None = None
    tolerance: str | None = None
    error: float | None = None
    output: Text = ""
    triage: tuple[Finding, ...] = ()
    reproduces: Text | None = None
    master_seed: str
    config: dict[str, Any]

    @field_validator("schema_version")
    @classmethod
    def _readable(cls, version: int) -> int:
        if version > SCHEMA_VERSION:
            raise ValueError(f"schema version {version} is newer than this program's {SCHEMA_VERSION}")
        return version

    @model_validator(mode="after")
    def _taken_by_a_clock(self) -> Run:
        """Of the score and every measurement; the bounds of their intervals are computed, and may lie anywhere."""
        if self.schema_version == 1:
            return self
        times = [(f"measurements.{i}", m) for i, m in enumerate(self.measurements)]
        named = [(f"{where}.samples_ns", ns) for where, m in times for samples in m.samples_ns for ns in samples]
        named += [(f"{where}.latency.latency_ns", m.latency.latency_ns) for where, m in times]
        named += [("score.latency_ns", self.score.latency_ns)] if self.score is not None else []
        for where, ns in named:
            if not SHORTEST_NS <= ns <= LONGEST_NS:
                raise ValueError(f"{where}: {ns:g} ns is no time that a call takes ({SHORTEST_NS:g} to {LONGEST_NS:g})")
        return self

    @field_validator("environment")
    @classmethod
    def _shown(cls, environment: dict[str, Any]) -> dict[str, Any]:
        """Of all that it may hold, boards and `show` read these."""
        if not all(isinstance(environment.get(key, ""), str) for key in ("python", "isolation")):
            raise ValueError("python and isolation must be text")
        if not isinstance(environment.get("packages", {}), dict):
            raise ValueError("packages must be a mapping")
        return environment

    @property
    def ranked(self) -> bool:
        """Whether it is, on a board of its clock and of its revision of the problem."""
        return self.ending.verdict is Verdict.ACCEPTED and self.score is not None and self.unranked_because is None
