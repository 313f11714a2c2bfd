"""A worker's messages, with every field validated, and the verdicts for its failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harness.chips.targets import EMULATED_TARGETS
from harness.model import Ending, SampleNanoseconds, Text, Verdict
from harness.model.profiled import LONGEST_PART, MOST_PARTS
from harness.model.value import LONGEST_NS

MAX_MESSAGE_CHARS, MAX_DETAIL_CHARS = 2000, 100_000
"""Characters kept of a failure that a worker reports."""

MOST_OUTPUTS = 16
"""Outputs of a call. worker/outputs describes no more."""


MOST_NAME = 500
"""Characters of a type's, dtype's or device's name. worker/outputs cuts a type's at fewer; the others are torch's."""


class Fault(Exception):
    """Ends the evaluation with a verdict and a sentence."""

    def __init__(self, verdict: Verdict, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.ending = Ending(verdict=verdict, message=message, detail=detail)


class Raised(Fault):
    """The submission raised an exception, which its worker reported. The worker still runs."""


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _emulated(chip: str) -> str:
    if chip not in EMULATED_TARGETS:
        raise ValueError("no such chip is emulated")
    return chip


class OutputDescription(_Reply):
    """The worker's description of one returned value."""

    type: str = Field(max_length=MOST_NAME)
    dtype: str | None = Field(default=None, max_length=MOST_NAME)
    shape: list[int] | None = None
    stride: list[int] | None = None
    device: str | None = Field(default=None, max_length=MOST_NAME)
    region: Literal["arena", "pool"] = "arena"
    offset: int | None = None
    copied: bool = False


class CallReply(_Reply):
    """The worker's answer to a call: where its outputs lie. In the sequence `timed` it also has the worker's own time,
    and the indices of inputs beside which something was written.

    `interpreted`: whether a kernel was, in any call so far. `launched`: whether one was in this call. `kernels`: those
    of all calls. `switches`: the values of their constexprs that are True or False. `inexact`: what a GPU computes less
    exactly than a CPU. `executed`: instructions in the emulator so far. `compiling_s`: processor seconds of compiling
    for the emulator. `remarks`: the emulator's remarks about the kernels.
    """

    several: bool
    listed: bool = False
    returned: int = Field(ge=0)
    outputs: list[OutputDescription] = Field(max_length=MOST_OUTPUTS)
    interpreted: bool
    launched: bool = False
    kernels: list[Annotated[Text, Field(max_length=200)]] = Field(default_factory=list, max_length=64)
    switches: list[Annotated[Text, Field(max_length=200)]] = Field(default_factory=list, max_length=256)
    inexact: list[Annotated[Text, Field(max_length=200)]] = Field(default_factory=list, max_length=8)
    emulated: Annotated[str, AfterValidator(_emulated)] | None = None
    executed: int = Field(default=0, ge=0, lt=1 << 63)
    compiling_s: float = Field(default=0.0, ge=0, lt=1e9)
    remarks: list[Annotated[Text, Field(max_length=2000)]] = Field(default_factory=list, max_length=16)
    inside_ns: SampleNanoseconds | None = None
    overrun: list[int] = Field(default_factory=list, max_length=256)


class PartReply(_Reply):
    """An operator or kernel of a profiled call: how often it ran, and its own time in total."""

    name: Annotated[Text, Field(max_length=LONGEST_PART)]
    count: int = Field(gt=0, lt=1 << 53)
    self_ns: float = Field(ge=0, le=LONGEST_NS)


class ProfileReply(_Reply):
    """The worker's answer to a profiled call: its time and its parts. A call made without the profiler has no parts.
    `launches` (interpreted) and `executed` (emulated instructions) count from the start of the process."""

    call_ns: SampleNanoseconds | None = None
    parts: list[PartReply] = Field(default_factory=list, max_length=MOST_PARTS + 1)
    launches: int = Field(ge=0, lt=1 << 53)
    executed: int = Field(default=0, ge=0, lt=1 << 53)


class Aftermath(_Reply):
    """The worker's answer when the device has finished its call: the time between its own events, if it was asked
    for."""

    inside_ns: SampleNanoseconds | None


class _Failure(_Reply):
    kind: str
    message: str
    detail: str


@contextmanager
def well_formed(what: str) -> Iterator[None]:
    """Turn the first validation error into an integrity violation. `what` names the message."""
    try:
        yield
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise violation(f"the worker's {what} is malformed: {where}: {fault['msg']}") from None


def violation(message: str) -> Fault:
    """The Fault of a worker that breaks the protocol."""
    return Fault(Verdict.INTEGRITY_VIOLATION, message)


def reported_failure(fields: Any) -> Fault:
    """The Fault for the failure that a worker reports in place of a reply."""
    try:
        failure = _Failure.model_validate(fields)
    except ValidationError:
        return violation("the worker's report of a failure is malformed")
    verdicts = {
        "compile_error": Verdict.COMPILE_ERROR,
        "runtime_error": Verdict.RUNTIME_ERROR,
        "cannot_judge": Verdict.INFRASTRUCTURE_ERROR,
    }
    if failure.kind not in verdicts:
        return violation("the worker's report of a failure is malformed")
    kind = Raised if failure.kind == "runtime_error" else Fault
    return kind(verdicts[failure.kind], failure.message[:MAX_MESSAGE_CHARS], failure.detail[:MAX_DETAIL_CHARS])
