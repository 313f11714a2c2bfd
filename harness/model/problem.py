"""Problems, submissions and devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from harness.model.case import Case, Cases, SecretCases, case_of
from harness.model.foreign import Foreign
from harness.model.tolerance import Tolerance
from harness.model.value import LONGEST_CALL_S, Value


class Limits(Value):
    """Wall-clock limits in seconds on what a submission does: `load_s` on its import, `call_s` on one call,
    `evaluation_s` on the whole evaluation. The evaluation includes the judge's own work, but not the wait for the
    device.

    `test_s`, `benchmark_s` and `ranked_s` limit loading and all calls of one process together: of the process that runs
    the test cases, of the process that tries the benchmark cases, and of each timed process.

    On an H200 the evaluations of the bundled files took 17 to 134 s (results/published, 2026-11).
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
        """The longest limit of a stage. If no stage has a limit, the limit of one call."""
        return max(filter(None, (self.test_s, self.benchmark_s, self.ranked_s)), default=self.call_s)

    @property
    def sentence(self) -> str:
        """The limits as one sentence, for a user who waits for an evaluation."""
        parts = f"loading {self.load_s:g} s and each call {self.call_s:g} s"
        return f"an evaluation may take {self.evaluation_s:g} s, of which {parts}"


class SampledRows(Value):
    """Checks only secret rows of long outputs. The case's `parameter` gives the length of the output along
    `output_axis`.

    A test case is checked in `rows` rows if it is longer than `longer_than`, else in all rows. A timed call is checked
    in `timed_rows` rows, or in all if it has no more.
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
        """The number of checked rows of `length`. None: all rows."""
        if timed:
            return self.timed_rows if length > self.timed_rows else None
        return self.rows if self.longer_than is not None and length > self.longer_than else None


class PublishedFigure(Value):
    """A figure that others published for this problem. It is shown apart from all that was measured here."""

    device: str
    case: str
    what: str
    value: str
    source: str


class Problem(Value):
    """One competition task, as its `problem.yml` states it. `catalog.load_problem` reads it.

    `ranking`: which mean over the benchmark cases is the score. `foreign`: how to judge a problem in another project's
    form. `hidden`: folders of the problem that a worker must not see. `root`: the root for which the problem was
    loaded; its runs and submissions are hidden from workers too.
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
        """The name or path that names the problem on a command line."""
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
        """All stated cases, without the secret ones."""
        return (*self.cases.test, *self.cases.benchmark, *self.cpu.test, *self.cpu.benchmark)

    def cases_for(self, device_kind: str) -> Cases:
        return self.cpu if device_kind == "cpu" else self.cases

    def case_called(self, label: str) -> Case | None:
        """The case with this label, if the problem states it, or a run could have drawn it or probed with it. Else
        None."""
        case = case_of(label)
        for stated in self.every_case:
            if stated.label == label or (case is not None and stated.key == case.key):
                return stated
        if case is None or any(family.allows(case) for family in (*self.cases.secret, *self.cpu.secret)):
            return case
        probes = (probe for lists in (self.cases, self.cpu) for each in lists.benchmark for probe in lists.probes(each))
        return next((probe for probe in probes if probe.key == case.key), None)

    @property
    def parameters(self) -> set[str]:
        """The names of all parameters that some case has."""
        stated = {name for case in self.every_case for name in case.parameters}
        return stated | {name for family in self._families for name in family.parameters}

    @property
    def _families(self) -> tuple[SecretCases, ...]:
        return (*self.cases.secret, *self.cpu.secret)

    def refusals(self, label: str) -> list[str]:
        """The reasons why no run could have drawn the case with this label: of each family of secret cases with the
        same parameters that has the fewest reasons, together. Empty if no family has these parameters."""
        case = case_of(label)
        if case is None:
            return []
        alike = [family for family in self._families if family.parameters.keys() == case.parameters.keys()]
        found = [family.refusals(case) for family in alike]
        fewest = min(map(len, found), default=0)
        return list(dict.fromkeys(", and ".join(reasons) for reasons in found if reasons and len(reasons) == fewest))

    def lacking(self, label: str) -> list[str]:
        """What the case with this label must have besides, for each family of secret cases that it could be of:
        `scores=plain|large`. If a value that it has fits no such family, each is followed by the reason."""
        case = case_of(label)
        if case is None:
            return []
        found = [(lack, family.refusals(case)) for family in self._families if (lack := family.lack(case)) is not None]
        fewest = min((len(refusals) for _, refusals in found), default=0)
        return list(dict.fromkeys(", and ".join((lack, *why)) for lack, why in found if len(why) == fewest))

    def surplus(self, label: str) -> list[str]:
        """What the case with this label has too much, for each family of secret cases that has all its other
        parameters."""
        case = case_of(label)
        found = [family.surplus(case) for family in self._families] if case is not None else []
        return list(dict.fromkeys(extra for extra in found if extra is not None))

    def only(self, tests: Sequence[Case], benchmarks: Sequence[Case], partial: bool = False) -> Problem:
        """The same problem with only these cases on every device, and without secret cases. Probes stay. `partial`:
        some test cases were left out, so no limit over all of them together can be checked."""

        def among(lists: Cases) -> Cases:
            return Cases(test=tuple(tests), benchmark=tuple(benchmarks), probed=lists.probed)

        return self.model_copy(update={"cases": among(self.cases), "cpu": among(self.cpu), "partial": partial})

    def tolerances_for(self, case: Case) -> dict[str, Tolerance]:
        """The tolerances that hold for `case`, by name, from strict to loose."""
        return {name: next(t for t in options if t.applies_to(case)) for name, options in self.tolerances.items()}


class Submission(Value):
    """One immutable source file. Boards show its `name`; a run belongs to its sha256."""

    name: str
    problem: str
    sha256: str
    source: bytes = Field(repr=False)
    path: str

    @property
    def text(self) -> str:
        return self.source.decode("utf-8", errors="replace")


class Device(Value):
    """The GPU or processor of this machine, passed along as a value.

    `kind` is cpu, cuda or rocm. `torch_device` is torch's name for it. `slug` is its folder's name in `results/`.
    `arch` is gfx942, sm_90, x86_64 or similar. `flush_bytes` is the size of the buffer whose sweep empties
    a GPU's caches. On a CPU the judge copies half of it between processes (`judge/anchor`).
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
