"""What came of it: the run, which holds the verdict, the checks and the measurements."""

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
"""Version of the run files in `results/`; a reader refuses a file from the future. 1: times by the worker's clock.

It grows when a field's meaning changes. A new field needs none of that: it has a default, which older runs then have.
"""


class Skipped(Value):
    """A case that was not judged on this device, and why. A run with a skipped case is not ranked."""

    case: Case
    reason: str


class Finding(Value):
    """What a scanner found suspicious in a source's text: no verdict. `severity` is low, medium, high or critical."""

    rule: Text
    severity: Text
    what: Text

    @property
    def flagged(self) -> bool:
        """Whether boards show it: what is less severe, honest submissions have too."""
        return self.severity in ("high", "critical")


class Run(Value):
    """One judged evaluation of one submission on one device: the truth, as stored in `results/`.

    `ranking`: which mean over the cases `score` is. `reproduces` is the id of the run whose seeds it had, if it had not
    its own. `clock` timed it, less `constants`.
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
    def speed_up(self) -> float | None:
        """Over the fastest of the baselines that were timed in turns with it, and soundly."""
        sound = [each.speed_up for each in self.baselines if each.speed_up is not None and each.doubt is None]
        return min(sound, default=None)

    @property
    def ranked(self) -> bool:
        """Whether it is, on a board of its clock and of its revision of the problem."""
        return self.ending.verdict is Verdict.ACCEPTED and self.score is not None and self.unranked_because is None
