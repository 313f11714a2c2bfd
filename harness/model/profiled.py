"""What a profiler within the sandbox saw of a case: a help for the author, and never a score."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.model.case import Case
from harness.model.value import Text, Value

MOST_PARTS = 64
"""Operators or kernels of a profiled call that are told apart; the others are added up."""

LONGEST_PART = 200
"""Characters of the name of one."""


class ProfiledPart(Value):
    """An operator on a processor, with its own time only; on a GPU a kernel. `count` and `self_ns` are of one call."""

    name: Annotated[Text, Field(max_length=LONGEST_PART)]
    count: float = Field(gt=0, allow_inf_nan=False)
    self_ns: float = Field(ge=0, allow_inf_nan=False)


class ProfiledCase(Value):
    """Calls of one case under torch.profiler, in the submission's own process, by whose word all of it is. `call_ns`:
    the median of whole calls. Of kernels that were interpreted or emulated no time is told: `launches` counts the
    interpreted ones of a call, `instructions` what the emulator executed in one."""

    case: Case
    calls: int = Field(ge=1)
    call_ns: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    parts: tuple[ProfiledPart, ...] = Field(default=(), max_length=MOST_PARTS + 1)
    launches: int = Field(default=0, ge=0)
    instructions: int = Field(default=0, ge=0)
