"""The run: the verdict, the checks and the measurements of one evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from harness.model.case import Case
from harness.model.label import Unranked
from harness.model.problem import Device
from harness.model.profiled import ProfiledCase
from harness.model.timing import ClockOwner, Constant, Estimate, Measurement, Round, TimedBaseline
from harness.model.value import LONGEST_NS, SHORTEST_NS, Text, Value
from harness.model.verdict import CaseCheck, Ending, Total, Verdict

SCHEMA_VERSION = 2
"""Version of the run files in `results/`. A reader refuses a file of a newer version. Version 1: times by the worker's
clock.

It grows when a field's meaning changes. A new field does not change it: the field has a default, which older runs get.
"""


class Skipped(Value):
    """A case that was not judged on this device, and why. A run with a skipped case is not ranked."""

    case: Case
    reason: str


class Finding(Value):
    """Suspicious text that a scanner found in a source. It is not a verdict. `severity` is low, medium, high or
    critical."""

    rule: Text
    severity: Text
    what: Text

    @property
    def flagged(self) -> bool:
        """True if boards show it. Less severe findings occur in honest submissions too."""
        return self.severity in ("high", "critical")


class Run(Value):
    """One judged evaluation of one submission on one device, as stored in `results/`.

    `ranking`: which mean over the cases `score` is. `reproduces`: the id of the run whose seeds this run reused; None
    for a run with seeds of its own. `clock`: whose clock timed the calls. `constants` were subtracted from the times.
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
    baselines: tuple[TimedBaseline, ...] = ()
    profiles: tuple[ProfiledCase, ...] = ()
    score: Estimate | None = None
    ranking: Literal["geom", "mean"] = "geom"
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
        """Check that the score and every measurement are possible times. The ends of their intervals are computed, so
        they may lie anywhere."""
        if self.schema_version == 1:
            return self
        times = [(f"measurements.{i}", m) for i, m in enumerate(self.measurements)]
        named = [(f"{where}.samples_ns", ns) for where, m in times for samples in m.samples_ns for ns in samples]
        named += [(f"{where}.latency.latency_ns", m.latency.latency_ns) for where, m in times]
        named += [("score.latency_ns", self.score.latency_ns)] if self.score is not None else []
        for where, ns in named:
            if not SHORTEST_NS <= ns <= LONGEST_NS:
                raise ValueError(f"{where}: {ns:g} ns cannot be the time of a call ({SHORTEST_NS:g} to {LONGEST_NS:g})")
        return self

    @field_validator("environment")
    @classmethod
    def _shown(cls, environment: dict[str, Any]) -> dict[str, Any]:
        """Check the types of the entries that boards and `show` read."""
        if not all(isinstance(environment.get(key, ""), str) for key in ("python", "isolation")):
            raise ValueError("python and isolation must be text")
        if not isinstance(environment.get("packages", {}), dict):
            raise ValueError("packages must be a mapping")
        return environment

    @property
    def speed_up(self) -> float | None:
        """The speed-up over the fastest baseline that was timed in turns with the submission, without a doubt about its
        figures."""
        sound = [each.speed_up for each in self.baselines if each.speed_up is not None and each.doubt is None]
        return min(sound, default=None)

    @property
    def ranked(self) -> bool:
        """True if a board of the run's clock and revision ranks it."""
        return self.ending.verdict is Verdict.ACCEPTED and self.score is not None and self.unranked_because is None
