"""The words of the project as values: problems, cases, tolerances, submissions, runs and their verdicts.

Everything here is immutable and validated where it enters from a file (`catalog` reads problems, `store` reads runs).
Nothing here imports torch. Units stand in the names: `_ns` nanoseconds, `_s` seconds, `_bytes` bytes.
"""

from __future__ import annotations

import enum
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

SCHEMA_VERSION = 1
"""Version of the run files in `results/`; a reader refuses a file from the future."""

CaseValue = bool | int | float | str | list[int]


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMANDS_TO_TERMINALS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _harmless(text: str) -> str:
    """`text` without what no file can hold (half surrogate pairs, as an exception's message may have them) and without
    what a terminal obeys: a submission's message could repaint the board that it is shown on."""
    lines = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _COMMANDS_TO_TERMINALS.sub("\N{REPLACEMENT CHARACTER}", lines).encode("utf-8", "replace").decode()


Text = Annotated[str, AfterValidator(_harmless)]
"""Text from outside: what submissions print and raise, and the names of files."""

Nanoseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SampleNanoseconds = Annotated[float, Field(gt=0, lt=1e15)]
"""What a worker may claim that a call took: less than twelve days. Sums of any number of them are finite."""


class Value(BaseModel):
    """Base of every type here: frozen, and strict about unknown keys."""

    # JSON has no infinity: it travels as the string "Infinity", which is read back as the number.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


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


class Tolerance(Value):
    """What may differ from the reference. A limit left out is not applied; `bitwise` allows no difference at all.

    An element misses when |out - ref| > atol + rtol * |ref|; at most the fraction `max_mismatch` may miss.
    `rel_l2` bounds ||out - ref|| / ||ref|| over a whole output, `row_rel_l2` the same over its worst row (last axis).
    """

    rtol: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    atol: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    max_mismatch: float | None = Field(default=None, ge=0, le=1)
    rel_l2: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    row_rel_l2: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    bitwise: bool = False
    when: dict[str, CaseValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _limits_something(self) -> Tolerance:
        limits = [self.max_mismatch, self.rel_l2, self.row_rel_l2]
        if self.bitwise and (any(limit is not None for limit in limits) or self.rtol or self.atol):
            raise ValueError("bitwise allows no difference: leave the other limits out")
        if not self.bitwise and all(limit is None for limit in limits):
            raise ValueError("limits nothing: give max_mismatch, rel_l2 or row_rel_l2, or say bitwise: true")
        return self

    def applies_to(self, case: Case) -> bool:
        return all(case.parameters.get(key) == value for key, value in self.when.items())


class Case(Value):
    """One shape of a problem: every parameter of `generate_input` but the seed and the device."""

    parameters: dict[str, CaseValue]

    @property
    def label(self) -> str:
        """`batch_size=4 kv_seq_len=1024`, as boards and messages name the case."""
        return " ".join(f"{key}={_plain(value)}" for key, value in self.parameters.items())

    @property
    def key(self) -> str:
        """A canonical text of the parameters: equal for equal cases, whatever the order in the file."""
        return json.dumps(self.parameters, sort_keys=True)


class Cases(Value):
    """A problem's cases for GPUs, and under `cpu` those that a machine without one can do in seconds."""

    test: tuple[Case, ...]
    benchmark: tuple[Case, ...]


class Limits(Value):
    """Wall-clock limits on what a submission does, in seconds."""

    load_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    call_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)


class SampledRows(Value):
    """Of long outputs only secret rows are checked; the case's `parameter` says how long they are along an axis.

    In a test case `rows` of them if it is `longer_than` that, else (and always without a `longer_than`) all. In a timed
    call `timed_rows` of them, or all if there are no more.
    """

    output_axis: int = Field(ge=0)
    parameter: str
    longer_than: int | None = Field(default=None, ge=1)
    rows: int | None = Field(default=None, ge=2)
    timed_rows: int = Field(ge=2)

    @model_validator(mode="after")
    def _of_tests_both_or_neither(self) -> SampledRows:
        if (self.longer_than is None) != (self.rows is None):
            raise ValueError("longer_than and rows belong together: give both or neither")
        return self

    def count(self, length: int, timed: bool) -> int | None:
        """How many rows of `length` are checked; None for all."""
        if timed:
            return self.timed_rows if length > self.timed_rows else None
        return self.rows if self.longer_than is not None and length > self.longer_than else None


class PublishedFigure(Value):
    """A figure that somebody else published for this problem; shown apart from anything measured here."""

    device: str
    case: str
    what: str
    value: str
    source: str


class Problem(Value):
    """One competition task, as its `problem.yml` states it. `catalog.load_problem` reads it."""

    name: str
    title: str
    description: str
    revision: int = Field(ge=1)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: tuple[str, ...] = ()
    axes: dict[str, tuple[str, ...]]
    tolerances: dict[str, tuple[Tolerance, ...]]
    cases: Cases
    cpu: Cases
    sampled_rows: SampledRows | None = None
    limits: Limits = Limits()
    baselines: tuple[str, ...] = ()
    published: tuple[PublishedFigure, ...] = ()
    folder: Path
    sha256: str

    @property
    def every_case(self) -> tuple[Case, ...]:
        return (*self.cases.test, *self.cases.benchmark, *self.cpu.test, *self.cpu.benchmark)

    def cases_for(self, device_kind: str) -> Cases:
        return self.cpu if device_kind == "cpu" else self.cases

    def tolerances_for(self, case: Case) -> dict[str, Tolerance]:
        """The tolerances that hold for `case`, by name, strict to loose."""
        return {name: next(t for t in options if t.applies_to(case)) for name, options in self.tolerances.items()}


class Submission(Value):
    """One immutable source file. `name` is what boards show; the sha256 is what a run is tied to."""

    name: str
    problem: str
    sha256: str
    source: bytes = Field(repr=False)
    path: str

    @property
    def text(self) -> str:
        return self.source.decode("utf-8", errors="replace")


class Device(Value):
    """The card (or processor) that is here, passed along as a value.

    `kind` is cpu, cuda or rocm; `torch_device` what torch calls it; `slug` names its folder in `results/`;
    `arch` is gfx942, sm_90, x86_64 and the like. `flush_bytes` is the size of the sweep that empties its caches.
    """

    kind: Literal["cpu", "cuda", "rocm"]
    name: str
    slug: str
    arch: str
    torch_device: str
    memory_bytes: int
    flush_bytes: int
    bandwidth_bytes_per_s: float | None = None
    peak_flops_per_s: dict[str, float] = Field(default_factory=dict)


class Floor(Value):
    """The least time that the device's datasheet allows for a case, and what binds it."""

    latency_ns: Nanoseconds
    binds: str
    format: str


class Estimate(Value):
    """A centre with its confidence interval, all in nanoseconds. A single process gives no interval: low and high are
    None."""

    latency_ns: Nanoseconds
    low_ns: Nanoseconds | None = None
    high_ns: Nanoseconds | None = None


class Round(Value):
    """What the machine did while one process of a run was timed: the judge's own copy and matrix product, timed after
    it, and what the device's driver says (`gauges`, in its own words and units).

    `disturbed` says what was wrong; `objection` what the judge's clock (judge/clock.py) has against what was timed.
    Such a process is timed again and then not `kept`.
    """

    copy_ns: Nanoseconds
    product_ns: Nanoseconds
    gauges: dict[str, Text] = Field(default_factory=dict)
    disturbed: Text | None = None
    objection: Text | None = None
    kept: bool = True


class Measurement(Value):
    """One benchmark case's samples within a run: a list a worker process, in the order they were taken.

    As the judge's clock tells (judge/clock.py), for each process: `hidden_ns`, how much longer its calls took outside
    their latencies than idle calls among them; `idle_excess_ns`, how much longer those did than in a process of the
    judge's own.
    """

    case: Case
    samples_ns: tuple[Annotated[tuple[SampleNanoseconds, ...], Field(min_length=1)], ...] = Field(min_length=1)
    latency: Estimate
    floor: Floor | None = None
    labels: tuple[Text, ...] = ()
    hidden_ns: tuple[float, ...] = ()
    idle_excess_ns: tuple[float, ...] = ()

    @property
    def fraction_of_floor(self) -> float | None:
        """The floor over the latency; None without a floor, or where a launch alone takes as long as half the floor."""
        if self.floor is None or "latency-bound" in self.labels:
            return None
        return self.floor.latency_ns / self.latency.latency_ns


class Excess(Value):
    """How a checked call stands against one tolerance: `ratio` is the worst limit's value over the limit.

    At most 1 meets the tolerance. `limit` names the one that is worst (rel_l2, max_mismatch, layout ...).
    """

    limit: str
    ratio: float


class CaseCheck(Value):
    """The comparison of one case's output with the reference, over all its checked calls."""

    case: Case
    verdict: Verdict
    tolerance: str | None
    excess: dict[str, Excess]
    error: float | None
    reference_error: float | None = None
    report: Text | None = None
    calls: int = 1


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


UNJUDGED = "unjudged"
"""Why a run is not ranked whose submission this machine cannot judge: a kernel that cannot be interpreted, say. It is
no verdict on the submission, but judging again here would end the same way."""

NOISY = "noisy"
"""Why a run is not ranked in which the machine was too noisy for the judge's clock to confirm the times."""

UNSTABLE = "unstable"
"""Why a run is not ranked in too many of whose processes the machine had become slower."""

UNSANDBOXED = "unsandboxed"
"""Why a run is not ranked that nothing confined: what else the submission did is unknown."""

REPRODUCED = "repro"
"""Why a run is not ranked that had an earlier run's seeds: its inputs could be known before it."""


def outcome(verdict: Verdict, unranked: str | None) -> str:
    """The verdict in words, for a run that is unranked because of `unranked`."""
    return "not judged here" if unranked == UNJUDGED else verdict.words


class Run(Value):
    """One judged evaluation of one submission on one device: the truth, as stored in `results/`.

    `reproduces` is the id of the run whose seeds it had, if it had not its own.
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
    skipped: tuple[Skipped, ...] = ()
    score: Estimate | None = None
    unranked_because: str | None = None
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
        return self.ending.verdict is Verdict.ACCEPTED and self.score is not None and self.unranked_because is None


def _plain(value: CaseValue) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else str(value)
