"""The extra data of a problem in another project's form."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.model.value import Value

CHECKER = "checker"
"""The name of the only tolerance of a problem whose own checker decides: an answer is right or wrong."""


Precision = Literal["float16", "bfloat16"]


class FormatCost(Value):
    """The bytes that a case moves and its operations by dtype, as formulas of the case's parameters."""

    bytes: str
    flops: dict[str, str] = Field(default_factory=dict)


class Foreign(Value):
    """Where a problem in another project's form comes from, and how it is judged.

    `path`: its folder or file. `modules`: its Python files, by the names under which they import each other. The judge
    runs them, and a submission may import them. `templates`: files to start from, by language.

    `seed_below`: seeds are drawn below this number. None: the judge finds the bound when it opens the problem.
    `as_text`: truth values reach the generator as the words True and False. `strict_inputs`: a submission may change
    only buffers and the inputs that ref_kernel changes.

    `checker_decides`: the problem's own checker decides whether an answer is right. Otherwise the problem's tolerances
    decide, against the output of ref_kernel, or with `exact` against its output for the inputs in float64. `precision`:
    the dtype to which the weights and inputs of a KernelBench task are cast, if any.

    `called`: the name that was asked for, if the problem was imported. `cost`: by storage format. `gpus`: the GPUs that
    the competition is for, in its own words. `deadline`: when the competition ends.
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
        """The text that finds the problem again from any directory: the name of an imported problem, else its path."""
        if self.called is not None:
            return self.called
        return f"{self.path}:{self.precision}" if self.precision else str(self.path)

    def terms(self, device_name: str, now: datetime) -> list[str]:
        """Warnings about a run on this device at this time: the competition is for another GPU, or its deadline."""
        said = []
        if self.gpus and not any(_is_called(device_name, gpu) for gpu in self.gpus):
            said.append(f"The competition is for {' and '.join(self.gpus)}, and this is {device_name}.")
        if self.deadline is not None:
            was = "was" if self.deadline < now else "is"
            said.append(f"The competition's deadline {was} {self.deadline:%Y-%m-%d %H:%M} UTC.")
        return said


def _is_called(device_name: str, gpu: str) -> bool:
    """True if the device is the GPU that a competition calls `gpu`. MI300 matches AMD Instinct MI300X, B200_Nebius
    matches NVIDIA B200, and L4 does not match NVIDIA L40S."""
    model = re.escape(gpu.partition("_")[0])
    return re.search(rf"(?<![A-Z0-9]){model}(?![0-9])", device_name, re.IGNORECASE) is not None
