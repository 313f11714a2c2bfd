"""What is asked, of what, and where: problems with their cases and tolerances, submissions, devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from harness.model.case import Case, Cases, CaseValue, case_of
from harness.model.foreign import Foreign
from harness.model.value import LONGEST_CALL_S, Value

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

OF_EACH_CALL = ("max_mismatch", "rel_l2", "row_rel_l2")
OF_MANY_CALLS = ("row_rms", "dim_rel_l2")
BANDS = ("gain", "row_gain", "head_gain", "dim_gain")
"""The limits of a Tolerance by what they hold for. judge/difference has the figures of the first, judge/tally those of
the others."""


class Tolerance(Value):
    """What may differ from the reference. A limit left out is not applied; `bitwise` allows no difference at all.

    An element misses when |out - ref| > atol + rtol * |ref|; at most the fraction `max_mismatch` may miss.
    `rel_l2` bounds ||out - ref|| / ||ref|| over a whole output, `row_rel_l2` the same over its worst row (last axis).

    The others hold over many calls together: over all of the test cases, and over all timed calls of each benchmark
    case. `gain` is the band [low, high] of <out, ref> / <ref, ref>, `row_gain` that of its mean over rows, `head_gain`
    that of the same mean for each head (of outputs that have an axis called `head`), `dim_gain` that of each index
    along the last axis, rows divided by their norms; `row_rms` bounds the root mean square of ||out - ref|| / ||ref||
    over rows, of which each counts alike; `dim_rel_l2` bounds ||out - ref|| / ||ref|| of the worst index
    along the last axis. `parts` has bands of 1 + <out - ref, part> / <part, part> for parts of the reference's output
    that are easily left out, by the names that reference.py's `parts` gives them: 1 if such a part is there, 0 if it is
    missing. A band holds for each part of a family: `slice` for `slice.0`, `slice.1` and so on.

    A band is wider by three standard errors of its figure. `spreads` limits by how much rows scatter about a figure, as
    a root mean square; where it does, the standard error is at most that of rows that scatter so much.
    """

    rtol: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    atol: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    max_mismatch: float | None = Field(default=None, ge=0, le=1)
    rel_l2: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    row_rel_l2: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    gain: tuple[float, float] | None = None
    row_gain: tuple[float, float] | None = None
    head_gain: tuple[float, float] | None = None
    dim_gain: tuple[float, float] | None = None
    dim_rel_l2: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    row_rms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    parts: dict[str, tuple[float, float]] = Field(default_factory=dict)
    spreads: dict[str, Positive] = Field(default_factory=dict)
    bitwise: bool = False
    when: dict[str, CaseValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _limits_something(self) -> Tolerance:
        if self.bitwise and (self.of_each_call or self.limits_many_calls or self.rtol or self.atol):
            raise ValueError("bitwise allows no difference: leave the other limits out")
        if not self.bitwise and not self.of_each_call:
            *some, last = OF_EACH_CALL
            raise ValueError(f"limits nothing: give {', '.join(some)} or {last}, or say bitwise: true")
        for name, band in self.bands.items():
            if not 0 < band[0] < band[1] < math.inf:
                raise ValueError(f"{name} is a band [low, high] around 1, with 0 < low < high")
        for name in self.spreads:
            if name not in self.bands:
                raise ValueError(f"spreads limits {name}, for which there is no band")
        return self

    @property
    def bands(self) -> dict[str, tuple[float, float]]:
        """All bands of figures over many calls, by the figure's name."""
        return {**self._given(BANDS), **self.parts}

    @property
    def of_each_call(self) -> dict[str, float]:
        """What a figure of each output may come to, by the figure's name."""
        return self._given(OF_EACH_CALL)

    @property
    def of_many_calls(self) -> dict[str, float]:
        """What an error over many calls may come to, by the error's name."""
        return self._given(OF_MANY_CALLS)

    @property
    def limits_many_calls(self) -> bool:
        """Whether anything is limited over many calls."""
        return bool(self.bands or self.spreads or self.of_many_calls)

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: limit for name in names if (limit := getattr(self, name)) is not None}

    def applies_to(self, case: Case) -> bool:
        return all(case.parameters.get(key) == value for key, value in self.when.items())


class Limits(Value):
    """Wall-clock limits on what a submission does, in seconds: on its import, one call, and the whole evaluation with
    the judge's own work, but without the time for which it waits for the device.

    `test_s`, `benchmark_s` and `ranked_s` limit what loading and all calls of one process may take together: of the one
    that is tested, of the one in which benchmark cases are tried, and of each one that is timed.

    On an H200 the evaluations of the bundled files took 44 to 134 s (results/published, 2026-11).
    """

    load_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    call_s: float = Field(default=60.0, gt=0, le=LONGEST_CALL_S)
    evaluation_s: float = Field(default=1800.0, gt=0, allow_inf_nan=False)
    test_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    benchmark_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    ranked_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _of_parts_and_the_whole(self) -> Limits:
        for name, part_s in (("load_s", self.load_s), ("call_s", self.call_s)):
            if part_s > self.evaluation_s:
                raise ValueError(f"evaluation_s ({self.evaluation_s:g}) is below {name} ({part_s:g})")
        return self

    @property
    def longest_stage_s(self) -> float:
        """What the stage that may take longest may take; where no stage has a limit of its own, what one call may."""
        return max(filter(None, (self.test_s, self.benchmark_s, self.ranked_s)), default=self.call_s)

    @property
    def sentence(self) -> str:
        """What whoever waits for an evaluation is told of them."""
        parts = f"loading {self.load_s:g} s and each call {self.call_s:g} s"
        return f"an evaluation may take {self.evaluation_s:g} s, of which {parts}"


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
    """One competition task, as its `problem.yml` states it. `catalog.load_problem` reads it.

    `ranking`: which mean over the benchmark cases is the score. `foreign`: how one in another project's form is judged.
    `hidden`: folders of its own that a worker must not see. `root`: for which it was loaded, where runs and submissions
    lie that a worker must not see either.
    """

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
    ranking: Literal["geom", "mean"] = "geom"
    foreign: Foreign | None = None
    folder: Path
    hidden: tuple[Path, ...]
    sha256: str
    partial: bool = False
    root: Path | None = Field(default=None, exclude=True)

    @property
    def argument(self) -> str:
        """What a command line calls it by."""
        if self.foreign is None:
            return self.name
        if self.foreign.called is not None:
            return self.foreign.called
        address = Path(self.foreign.address)
        if not address.is_relative_to(Path.cwd()):
            return str(address)
        near = address.relative_to(Path.cwd())
        return str(near) if near.parts[:1] == ("..",) else f"./{near}"

    @property
    def every_case(self) -> tuple[Case, ...]:
        """All that are stated; what a run draws in secret is not among them."""
        return (*self.cases.test, *self.cases.benchmark, *self.cpu.test, *self.cpu.benchmark)

    def cases_for(self, device_kind: str) -> Cases:
        return self.cpu if device_kind == "cpu" else self.cases

    def case_called(self, label: str) -> Case | None:
        """The case with this label, if the problem states it or a run could have drawn it, or probed with it."""
        stated = {case.label: case for case in self.every_case}
        if label in stated:
            return stated[label]
        case = case_of(label)
        if case is None or any(family.allows(case) for family in (*self.cases.secret, *self.cpu.secret)):
            return case
        probes = (probe for lists in (self.cases, self.cpu) for each in lists.benchmark for probe in lists.probes(each))
        return next((probe for probe in probes if probe.key == case.key), None)

    def refusal(self, label: str) -> str | None:
        """Why no run could have drawn the case with this label: what each family of drawn cases says that has the same
        parameters. None if none has."""
        case = case_of(label)
        families = (*self.cases.secret, *self.cpu.secret)
        alike = [family for family in families if case and family.parameters.keys() == case.parameters.keys()]
        reasons = dict.fromkeys(family.refusal(case) for family in alike if case is not None)
        return "; ".join(reason for reason in reasons if reason) or None

    def only(self, tests: Sequence[Case], benchmarks: Sequence[Case], partial: bool = False) -> Problem:
        """The same problem with these cases, on whatever device, and none drawn in secret. Probes stay. `partial`: some
        test cases were left out, so that nothing can be said of all of them together."""

        def among(lists: Cases) -> Cases:
            return Cases(test=tuple(tests), benchmark=tuple(benchmarks), probed=lists.probed)

        return self.model_copy(update={"cases": among(self.cases), "cpu": among(self.cpu), "partial": partial})

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
    memory_bytes: int = Field(ge=0, lt=2**63)
    flush_bytes: int = Field(ge=0, lt=2**63)
    bandwidth_bytes_per_s: float | None = None
    peak_flops_per_s: dict[str, float] = Field(default_factory=dict)
