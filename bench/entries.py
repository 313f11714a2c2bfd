"""The things that can answer a judge's call in this process, and the comparison of their answers.

    Way        one of mla's arithmetics, with or without a fault (bench/answers)
    Simulated  attention of any problem, with a fault that may depend on the case and on its values
    Kernel     a submission's file

    Desk(problem, case, call).hold(entry) ─► the input of Standing.hold

A kernel gets copies of the inputs, and the memory that it leaves is compared as well. It runs in this process, so only
the repository's own files are used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.answers import REFERENCE, Arithmetic, Change, Fault, Piece, answer, pieces
from bench.standing import Outcome, in_memory
from harness.judge.inputs import Call
from harness.judge.reply import CallReply, OutputDescription
from harness.judge.stage import Snapshot, Span
from harness.model import Case
from harness.wire.arena import TensorSpec, dtype_name
from harness.wire.tree import unflatten

NO_FAULT = Fault()


def weights_in_fp8(weights: Tensor) -> Tensor:
    """exp(score - maximum) in e4m3 as it is, which makes zeros of what is below 2^-10."""
    return weights.to(torch.float8_e4m3fn).float()


A8W8 = replace(REFERENCE, weights=weights_in_fp8)
"""What AMD's aiter computes, the reference on its GPUs."""


@dataclass(frozen=True)
class Way:
    """A way to compute mla's answers, judged by `tolerance`, against the reference or against a8w8."""

    name: str
    tolerance: str
    arithmetic: Arithmetic
    fault: Fault = NO_FAULT
    against: Arithmetic | None = None

    def answered(self, desk: Desk) -> tuple[Call, Outcome]:
        call = desk.held_against(self.against) if self.against else desk.call
        return call, in_memory(answer(call, desk.pieces(self.arithmetic), self.fault, self.arithmetic))


@dataclass(frozen=True)
class Simulated:
    """Attention in float32, of mla by the reference's arithmetic, with a fault or with a rounding that is none."""

    name: str
    tolerance: str
    fault: Callable[[Case], Fault | Callable[[Piece], Fault]]

    def answered(self, desk: Desk) -> tuple[Call, Outcome]:
        return desk.call, in_memory(answer(desk.call, desk.pieces(), self.fault(desk.case)))


@dataclass(frozen=True)
class Kernel:
    """A submission, made anew for each run: some remember their calls."""

    name: str
    tolerance: str
    custom_kernel: Callable[[Any], Any]

    @classmethod
    def of(cls, path: Path, tolerance: str) -> Kernel:
        name = f"{path.parent.name}/{path.stem}"
        spec = importlib.util.spec_from_file_location(f"of_{path.parent.name}_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return cls(name, tolerance, module.custom_kernel)

    def answered(self, desk: Desk) -> tuple[Call, Outcome]:
        """Raises whatever the kernel does."""
        call = desk.whole
        inputs = [tensor.clone() for tensor, _ in call.places]
        returned = self.custom_kernel(unflatten(call.request["tree"], inputs.__getitem__))
        return call, left(call, inputs, returned)


Entry = Way | Simulated | Kernel


@dataclass
class Desk:
    """One call of a problem, and what several entries need of it. `whole` has all that the memory should be."""

    problem: str
    case: Case
    whole: Call
    _apart: dict[tuple[str, Change], list[Piece]] = field(default_factory=dict)

    @cached_property
    def call(self) -> Call:
        """Only its outputs count."""
        return replace(self.whole, expectation=replace(self.whole.expectation, state={}))

    def pieces(self, arithmetic: Arithmetic = REFERENCE) -> list[Piece]:
        key = arithmetic.cache, arithmetic.queries
        if key not in self._apart:
            self._apart[key] = pieces(self.problem, self.case, self.call, Arithmetic(*key))
        return self._apart[key]

    def held_against(self, arithmetic: Arithmetic) -> Call:
        """The call as if `arithmetic` were the reference's."""
        ((output, _),) = self.call.expectation.outputs.items()
        due, rows = answer(self.call, self.pieces(arithmetic), NO_FAULT, arithmetic), self.call.expectation.selection
        due = due if rows is None else due.index_select(rows.axis, rows.rows)
        return replace(self.call, expectation=replace(self.call.expectation, outputs={output: due}))


def left(call: Call, inputs: Sequence[Tensor], returned: Any) -> Outcome:
    """What a worker and its memory would say of `returned`, and of `inputs` as they are now."""
    several = isinstance(returned, tuple | list)
    outputs = list(returned) if several else [returned]
    places = {tensor.data_ptr(): spec.offset for tensor, (_, spec) in zip(inputs, call.places, strict=True)}
    copies = {Span("arena", spec): tensor for tensor, (_, spec) in zip(inputs, call.places, strict=True)}
    described = []
    for number, output in enumerate(outputs):
        if not isinstance(output, Tensor):
            described.append(OutputDescription(type=type(output).__name__))
            continue
        region = "arena" if output.data_ptr() in places and output.numel() else "pool"
        offset = places[output.data_ptr()] if region == "arena" else number
        described.append(
            OutputDescription(
                type="Tensor",
                dtype=dtype_name(output.dtype),
                shape=list(output.shape),
                stride=list(output.stride()),
                device=output.device.type,
                region=region,
                offset=offset if output.is_contiguous() else None,
            )
        )
        copies[Span(region, TensorSpec(dtype_name(output.dtype), tuple(output.shape), offset))] = output
    reply = CallReply(several=several, returned=len(outputs), outputs=described, interpreted=False)
    return reply, Snapshot({}, copies)
