"""What a problem in another project's form has beside what every problem has."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.model.value import Value

CHECKER = "checker"
"""The tolerance of a problem whose own checker decides: right or wrong, and nothing between."""


Precision = Literal["float16", "bfloat16"]


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
    float64. `precision`: the dtype that the weights and inputs of a task of KernelBench's are cast to, if they are.
    `called`: the name by which it was asked for, if it was imported.
    `cost` is by storage format. `gpus` are those that the competition is for, as it calls them; `deadline` is
    when it ends.
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
    precision: Precision | None = None
    cost: dict[str, FormatCost] = Field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    deadline: datetime | None = None
    called: str | None = None

    @property
    def address(self) -> str:
        """What the problem is found by again, wherever one is; if it was imported, the name that it was called by."""
        if self.called is not None:
            return self.called
        return f"{self.path}:{self.precision}" if self.precision else str(self.path)

    def terms(self, device_name: str, now: datetime) -> list[str]:
        """What the competition says of a run on this device at this time."""
        said = []
        if self.gpus and not any(_is_called(device_name, gpu) for gpu in self.gpus):
            said.append(f"The competition is for {' and '.join(self.gpus)}, and this is {device_name}.")
        if self.deadline is not None:
            was = "was" if self.deadline < now else "is"
            said.append(f"The competition's deadline {was} {self.deadline:%Y-%m-%d %H:%M} UTC.")
        return said


def _is_called(device_name: str, gpu: str) -> bool:
    """Whether the device is the one that a competition calls `gpu`: MI300 is AMD Instinct MI300X, B200_Nebius is NVIDIA
    B200, and L4 is not NVIDIA L40S."""
    model = re.escape(gpu.partition("_")[0])
    return re.search(rf"(?<![A-Z0-9]){model}(?![0-9])", device_name, re.IGNORECASE) is not None
