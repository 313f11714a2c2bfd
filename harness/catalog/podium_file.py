"""podium.yml: the facts that a user may add to a problem in another project's form. Every key is optional.

name, revision     the name on boards; the revision is raised when earlier results are no longer comparable
seed_below         all seeds are below this number
strict: inputs     a submission may change only the inputs that ref_kernel changes, and buffers
compat: text       truth values reach the generator as the words True and False, as GPU MODE's eval.py passes them
tolerances         as in problem.yml: they decide instead of the folder's checker
oracle: float64    with tolerances: they hold against ref_kernel of the inputs in float64
cost               {format: {bytes: formula, flops: {dtype: formula}}}: without it there is no floor
cpu                {test: [...], benchmark: [...]}: cases for machines without a GPU
limits             as in problem.yml
shapes             KernelBench: constants of the module that are other numbers on a machine without a GPU
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.catalog import formula, strict_yaml
from harness.errors import ProblemError
from harness.model import Case, CaseValue, FormatCost, Tolerance


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Cost(_Strict):
    bytes: str | int
    flops: dict[str, str | int] = Field(default_factory=dict)


class CpuCases(_Strict):
    test: list[dict[str, CaseValue]] = Field(min_length=1)
    benchmark: list[dict[str, CaseValue]] = Field(min_length=1)


class PodiumFile(_Strict):
    """podium.yml as written."""

    name: str | None = None
    revision: int = Field(default=1, ge=1, lt=2**31)
    seed_below: int | None = Field(default=None, ge=2, le=2**63)
    compat: Literal["text"] | None = None
    strict: Literal["inputs"] | None = None
    tolerances: dict[str, Tolerance | list[Tolerance]] = Field(default_factory=dict)
    oracle: Literal["float64"] | None = None
    cost: dict[str, _Cost] = Field(default_factory=dict)
    cpu: CpuCases | None = None
    limits: dict[str, Any] = Field(default_factory=dict)
    shapes: dict[str, CaseValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _an_oracle_for_something(self) -> PodiumFile:
        if self.oracle and not self.tolerances:
            raise ValueError("oracle needs tolerances: the folder's own checker computes its expected values itself")
        return self

    @property
    def costs(self) -> dict[str, FormatCost]:
        return {
            name: FormatCost(bytes=str(cost.bytes), flops={dtype: str(count) for dtype, count in cost.flops.items()})
            for name, cost in self.cost.items()
        }

    @property
    def named_tolerances(self) -> dict[str, tuple[Tolerance, ...]]:
        """The tolerances in the form of `Problem.tolerances`."""
        return {name: tuple(v) if isinstance(v, list) else (v,) for name, v in self.tolerances.items()}


def read(path: Path) -> PodiumFile:
    """The file at `path`, or an empty PodiumFile if there is none. Raises ProblemError."""
    return strict_yaml.read(path, PodiumFile) if path.exists() else PodiumFile()


def check_costs(path: Path, stated: PodiumFile, cases: tuple[Case, ...]) -> None:
    """Raises ProblemError if a cost formula has no value for one of `cases`."""
    for cost in stated.costs.values():
        for case in cases:
            for text in (cost.bytes, *cost.flops.values()):
                try:
                    formula.value(text, case.parameters)
                except ProblemError as error:
                    raise ProblemError(f"{path}: cost: {error.message}, in {case.label}", error.hint) from None
