"""The stage: memory that judge and worker both map. The judge sets it before a call and reads it afterwards.

set_up     write guards beside the inputs; put zeros in place of integer inputs until the pour
pour       copy the inputs to their places
flush      empty the caches
snapshot   copy the outputs, and the inputs that a submission may change; freeze: the same in host memory
look       compare the other inputs with the poured ones, and check the guards
changed    the compared inputs that differ
misplaced  whether the worker names a place for an output where it cannot lie
overrun    the inputs beside which something was written
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.judge.caches import Caches
from harness.judge.difference import bits
from harness.judge.inputs import Call
from harness.model import Device
from harness.wire.arena import DTYPES, GUARD_BYTE, Arena, TensorSpec, is_apart, room

GUARD_BYTES = 256
"""Bytes checked on either side of each input."""

LOOKED_AT = 1 << 26
"""Integers of an input that are compared at once on a GPU. Each needs a byte of the judge's memory."""


@dataclass(frozen=True)
class Span:
    """The place of a tensor: the name of the arena, and the layout within it."""

    region: str
    spec: TensorSpec


class Snapshot:
    """Tensors as they were at one moment."""

    def __init__(self, regions: dict[str, Arena], copies: dict[Span, torch.Tensor] | None = None) -> None:
        self._regions, self._copies = regions, copies

    def view(self, span: Span) -> torch.Tensor:
        """Return the tensor at `span`. Raises ValueError if it does not lie inside the arena, LookupError if it was not
        taken."""
        if self._copies is None:
            return self._regions[span.region].view(span.spec)
        return self._copies[span]


class Frozen(Snapshot):
    """Parts of an arena in host memory as they were at one moment. `view` returns any tensor that lies within one
    part."""

    def __init__(self, arena: Arena, parts: Sequence[tuple[int, int]]) -> None:
        super().__init__({"arena": arena}, {})
        self._parts = [(start, arena.bytes[start:end].clone()) for start, end in parts]

    def view(self, span: Span) -> torch.Tensor:
        self._regions[span.region].view(span.spec)  # raises ValueError for an impossible place
        for start, part in self._parts:
            first = span.spec.offset - start
            if first >= 0 and first + span.spec.nbytes <= part.numel():
                return span.spec.over(part[first : first + span.spec.nbytes])
        raise LookupError(span)


_NONE = torch.empty(0, dtype=torch.bool)

ARM_S = 1.2e-3
"""How long a worker may take to enqueue its call while the device is held, before pours and slices are known."""


class Stage:
    """The stage of one case's calls. `arena` holds the inputs and the outputs that must be copied. A later call with
    larger inputs may replace it."""

    def __init__(self, device: Device, caches: Caches) -> None:
        self._on_device = device.kind == "cuda"
        self._caches = caches
        self._poured: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._guards = torch.empty(0, dtype=torch.int64)
        self._kept = torch.empty(0, dtype=torch.uint8)
        self._looked: tuple[Sequence[int], torch.Tensor] = ((), _NONE)
        self._beside: torch.Tensor | None = None
        self.arena: Arena | None = None
        self.arm_s = ARM_S
        """How long the worker may take to enqueue its call while the device is held."""

    def set_up(self, arena: Arena, places: list[tuple[torch.Tensor, TensorSpec]]) -> None:
        """Prepare the next call. `places` has each input and its place."""
        self.arena = arena
        self._poured = [(arena.view(spec), tensor) for tensor, spec in places]
        self._looked, self._beside = ((), _NONE), None
        starts = [start for _, spec in places for start in (spec.offset - GUARD_BYTES, spec.offset + spec.nbytes)]
        guards = np.add.outer(np.array(starts, dtype=np.int64), np.arange(GUARD_BYTES)).reshape(-1)
        self._guards = torch.from_numpy(guards).to(arena.bytes.device)
        if starts:
            arena.bytes.index_fill_(0, self._guards, GUARD_BYTE)
        for place, _ in self._poured:
            if not place.is_floating_point():
                place.zero_()
        if self._on_device:
            torch.cuda.synchronize()

    def pour(self) -> None:
        """Copy the inputs to their places, the smallest last. On a GPU this is only enqueued.

        If a pour outlasts the judge's time slice, a submission may compute on what is there already. Little can be
        computed without queries and lengths, which are small.
        """
        for place, tensor in sorted(self._poured, key=lambda each: each[0].nbytes, reverse=True):
            place.copy_(tensor)

    def flush(self) -> None:
        """Empty the caches: all of a GPU's, a CPU's of what is in the arena."""
        assert self.arena is not None
        self._caches.empty(self.arena.bytes)

    def freeze(self, call: Call) -> Snapshot:
        """Copy the parts of host memory that a call may write: the arena's tail, state, and writable inputs."""
        tail = int(call.request["tail"])
        parts = [(spec.offset, spec.offset + spec.nbytes) for spec in (*call.state_specs.values(), *call.writable)]
        return Frozen(call.arena, [*parts, (tail, min(tail + room(call.fresh_bytes), call.arena.size))])

    def snapshot(self, regions: dict[str, Arena], spans: Sequence[Span]) -> Snapshot:
        """Copy `spans` on a GPU, in stream order. Raises ValueError for a span that does not lie inside its arena."""
        views = {span: regions[span.region].view(span.spec) for span in dict.fromkeys(spans)}
        total = sum(-(-span.spec.nbytes // 256) * 256 for span in views)
        if self._kept.numel() < total:
            self._kept = torch.empty(total, dtype=torch.uint8, device="cuda")
        copies: dict[Span, torch.Tensor] = {}
        start = 0
        for span, view in views.items():
            end = start + span.spec.nbytes
            copies[span] = span.spec.over(self._kept[start:end])
            copies[span].copy_(view)
            start = -(-end // 256) * 256
        return Snapshot(regions, copies)

    def look(self, read_only: Sequence[int]) -> None:
        """Compare these inputs with the poured ones, bit for bit, and check the guards of all inputs. This is done now
        because a submission could restore overwritten guards after its call. On a GPU it is only enqueued: the result
        is in host memory when the stream has reached it."""
        found = [self._differs(*self._poured[number]) for number in read_only]
        self._looked = (read_only, torch.stack(found).to("cpu", non_blocking=True) if found else _NONE)
        self._beside = self._written_beside().to("cpu", non_blocking=True)

    def changed(self) -> list[int]:
        """The numbers of the compared inputs that differ from the poured ones."""
        numbers, differ = self._looked
        return [number for number, differs in zip(numbers, differ.tolist(), strict=True) if differs]

    def _differs(self, place: torch.Tensor, poured: torch.Tensor) -> torch.Tensor:
        """Return a boolean tensor; on a GPU it is on the device."""
        here, there = _integers(place, poured)
        if not self._on_device:
            return torch.tensor(not torch.equal(here, there))
        found = torch.zeros((), dtype=torch.bool, device=here.device)
        for one, other in zip(here.split(LOOKED_AT), there.split(LOOKED_AT), strict=True):
            found |= (one != other).any()
        return found

    def overrun(self) -> list[int]:
        """The numbers of the inputs beside which bytes had been written at the last `look`, or until now without
        one."""
        beside = self._beside if self._beside is not None else self._written_beside()
        return [number for number, written in enumerate(beside.tolist()) if written]

    def _written_beside(self) -> torch.Tensor:
        """For each input whether bytes beside it were written; on a GPU the result is on the device."""
        assert self.arena is not None
        return (self.arena.bytes[self._guards] != GUARD_BYTE).view(-1, 2 * GUARD_BYTES).any(1)

    def clear(self) -> None:
        """Free the inputs of the last call."""
        self._poured, self._looked = [], ((), _NONE)

    def close(self) -> None:
        self._poured, self._kept, self.arena = [], torch.empty(0, dtype=torch.uint8), None


def _integers(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """View two contiguous tensors of one shape and dtype as integers, as wide as possible. torch compares the same
    number of integers a second at any width."""
    if one.nbytes % 8 or other.data_ptr() % 8:
        return bits(one).view(-1), bits(other).view(-1)
    return one.view(-1).view(torch.int64), other.view(-1).view(torch.int64)


def spans_of(
    outputs: Sequence[Any], state: Sequence[TensorSpec], due: Sequence[tuple[str, tuple[int, ...]]] | int
) -> list[Span]:
    """Return the places of state, and of the outputs by the worker's word (OutputDescription).

    Outputs with another dtype or shape than `due`, or without a place, are left out: they are wrong anyway, and a
    worker's claim must not decide how much the judge copies. If dtypes and shapes are free, `due` is the most bytes to
    copy.
    """
    found = [Span("arena", spec) for spec in state]
    if isinstance(due, int):
        for output in outputs:
            span = claimed(output)
            if span is not None and (due := due - span.spec.nbytes) >= 0:
                found.append(span)
    elif len(outputs) == len(due):
        for output, (dtype, shape) in zip(outputs, due, strict=True):
            if output.offset is not None and (output.dtype, tuple(output.shape or ())) == (dtype, shape):
                found.append(Span(output.region, TensorSpec(dtype, shape, output.offset)))
    return found


def misplaced(outputs: Sequence[Any], call: Call) -> bool:
    """Whether the worker names a place for one of `outputs` (OutputDescription) where it puts none on a CPU. Right
    places are the start of an input, and in the tail the end of the outputs copied before.

    The worker names places after its time is over. If any place were allowed, it could store several answers and choose
    one of them untimed.
    """
    inputs = call.request["inputs"]
    known, end = {inputs[index]["offset"] for index in call.request["state"]}, int(call.request["tail"])
    for output in outputs:
        span = claimed(output)
        if span is None or output.offset in known:
            continue
        if output.offset != end:
            return True
        known.add(end)
        end += room([span.spec.nbytes])
    return False


LARGEST, MOST_AXES = 1 << 40, 16
"""Limits on a claimed output: elements along an axis, and number of axes."""


def claimed(output: Any) -> Span | None:
    """Return the place of an output (OutputDescription) of any dtype, shape and strides, by the worker's word. None if
    no tensor can lie there, or if its elements would overlap."""
    shape, stride = tuple(output.shape or ()), tuple(output.stride or ())
    sizes = (*shape, *stride)
    if output.offset is None or output.dtype not in DTYPES or len(shape) != len(stride) or len(shape) > MOST_AXES:
        return None
    if not all(0 <= size <= LARGEST for size in sizes) or not (0 in shape or is_apart(shape, stride)):
        return None
    return Span(output.region, TensorSpec(output.dtype, shape, output.offset, None if 0 in shape else stride))
