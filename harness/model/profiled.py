"""A profile of a case, taken by torch.profiler in the sandbox. It helps the author and never scores."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.model.case import Case
from harness.model.value import Text, Value

MOST_PARTS = 64
"""The most operators or kernels of a profiled call that are listed. The rest is summed into one more part."""

LONGEST_PART = 200
"""The most characters of a part's name."""


class ProfiledPart(Value):
    """One operator on a processor, with its own time only, or one kernel on a GPU. `count` and `self_ns` are for one
    call."""

    name: Annotated[Text, Field(max_length=LONGEST_PART)]
    count: float = Field(gt=0, allow_inf_nan=False)
    self_ns: float = Field(ge=0, allow_inf_nan=False)


class ProfiledCase(Value):
    """Calls of one case under torch.profiler. The submission's own process reports all of it, so nothing here is
    trusted. `call_ns`: the median of whole calls. Interpreted and emulated kernels have no times. `launches` counts the
    interpreted launches of a call; `instructions` counts the instructions that the emulator executed in a call."""

    case: Case
    calls: int = Field(ge=1)
    call_ns: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    parts: tuple[ProfiledPart, ...] = Field(default=(), max_length=MOST_PARTS + 1)
    launches: int = Field(default=0, ge=0)
    instructions: int = Field(default=0, ge=0)
