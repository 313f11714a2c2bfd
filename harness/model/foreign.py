"""What a problem in another project's form has beside what every problem has."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.model.value import Value

CHECKER = "checker"
"""The tolerance of a problem whose own checker decides: right or wrong, and nothing between."""


class FormatCost(Value):
    """The bytes that a case moves and its operations by dtype, as formulas of the case's parameters."""

    bytes: str
    flops: dict[str, str] = Field(default_factory=dict)


class Foreign(Value):
    """Where a problem in another project's form comes from, and how it is judged.

    `path` is the folder or file. `modules` has the Python files that belong to it, by the names under which they import
    each other: the judge runs them, a submission may import them. `templates` are files to start from, by language.

    `seed_below`: seeds are drawn below it; None leaves it to what the judge finds out when it opens the problem.
    `as_text`: truth values reach the generator as the words True and False. `strict_inputs`: a submission may change
    only the inputs that ref_kernel changes, and buffers. `checker_decides` whether an answer is
    right; else the problem's tolerances do, against ref_kernel or, with `exact`, against what it gives of the inputs in
    float64. `cost` is by storage format.
    """

    form: Literal["gpumode", "kernelbench"]
    path: Path
    modules: dict[str, Path]
    templates: dict[str, Path] = Field(default_factory=dict)
    seed_below: int | None = None
    as_text: bool = False
    strict_inputs: bool = False
    checker_decides: bool = True
    exact: bool = False
    cost: dict[str, FormatCost] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
