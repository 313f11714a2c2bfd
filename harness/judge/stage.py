"""Where a call takes place: memory that judge and worker both map, set by the judge before the call and read after it.

set_up     guards beside the inputs; in place of inputs that are not there yet something harmless to read
pour       the inputs
flush      the caches
snapshot   the outputs, and the inputs that a submission may have changed; freeze: the same in host memory
look       whether the other inputs are as they were poured, and guards as they were set
changed    which of the inputs that were looked at are not
misplaced  whether outputs are said to lie where the worker puts none
overrun    the inputs right beside which something was written, when they were looked at
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.judge.difference import bits
from harness.judge.inputs import Call
from harness.model import Device
from harness.wire.arena import DTYPES, GUARD_BYTE, Arena, TensorSpec, is_apart, room
from harness.wire.flusher import Flusher

GUARD_BYTES = 256
"""Looked at on either side of each input."""

LOOKED_AT = 1 << 26
"""Integers of an input that are compared at a time on a GPU, with a byte of the judge's memory for each."""


@dataclass(frozen=True)
class Span:
    """A tensor's place: in which of the arenas, and where there."""

    region: str
    spec: TensorSpec


class Snapshot:
    """Tensors as they were at one moment."""

    def __init__(self, regions: dict[str, Arena], copies: dict[Span, torch.Tensor] | None = None) -> None:
        self._regions, self._copies = regions, copies

    def view(self, span: Span) -> torch.Tensor:
        """The tensor at `span`. Raises ValueError if it does not lie inside, LookupError if it was not taken."""
        if self._copies is None:
            return self._regions[span.region].view(span.spec)
        return self._copies[span]


class Frozen(Snapshot):
    """Parts of an arena in host memory as they were at one moment: a tensor anywhere within one of them can be had."""

    def __init__(self, arena: Arena, parts: Sequence[tuple[int, int]]) -> None:
        super().__init__({"arena": arena}, {})
        self._parts = [(start, arena.bytes[start:end].clone()) for start, end in parts]

    def view(self, span: Span) -> torch.Tensor:
        self._regions[span.region].view(span.spec)  # whether it is possible at all
        for start, part in self._parts:
            first = span.spec.offset - start
            if first >= 0 and first + span.spec.nbytes <= part.numel():
                return span.spec.over(part[first : first + span.spec.nbytes])
        raise LookupError(span)


_NONE = torch.empty(0, dtype=torch.bool)


class Stage:
    """The stage of one case's calls. `arena` holds the inputs and what must be copied of outputs; it may become another
    one from call to call, as larger ones come."""

    def __init__(self, device: Device, flusher: Flusher) -> None:
        self._on_device = device.kind == "cuda"
        self._flusher = flusher
        self._poured: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._guards = torch.empty(0, dtype=torch.int64)
        self._kept = torch.empty(0, dtype=torch.uint8)
        self._looked: tuple[Sequence[int], torch.Tensor] = ((), _NONE)
        self._beside: torch.Tensor | None = None
        self.arena: Arena | None = None

    def set_up(self, arena: Arena, places: list[tuple[torch.Tensor, TensorSpec]]) -> None:
        """For the next call: `places` has each input and where it belongs."""
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
        """Copy the inputs to their places; on a GPU this is only enqueued."""
        for place, tensor in self._poured:
            place.copy_(tensor)

    def flush(self) -> None:
        self._flusher.flush()

    def freeze(self, call: Call) -> Snapshot:
        """What a call may have put anywhere in host memory: the arena's tail, and state."""
        tail = int(call.request["tail"])
        parts = [(spec.offset, spec.offset + spec.nbytes) for spec in (*call.state_specs.values(), *call.writable)]
        return Frozen(call.arena, [*parts, (tail, min(tail + room(call.fresh_bytes), call.arena.size))])

    def snapshot(self, regions: dict[str, Arena], spans: Sequence[Span]) -> Snapshot:
        """Of `spans` on a GPU, as they are now in the order of the stream. Raises ValueError for a span that does not
        lie inside its arena."""
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
        """Compare the inputs of these numbers with what was poured, bit for bit, and the guards of all with what they
        were: who has overrun an input can put them right when its call is over. On a GPU this is only enqueued: what
        comes of it is in host memory when the stream has come so far."""
        found = [self._differs(*self._poured[number]) for number in read_only]
        self._looked = (read_only, torch.stack(found).to("cpu", non_blocking=True) if found else _NONE)
        self._beside = self._written_beside().to("cpu", non_blocking=True)

    def changed(self) -> list[int]:
        """Which of the inputs that were looked at, by number, were not as they were poured."""
        numbers, differ = self._looked
        return [number for number, differs in zip(numbers, differ.tolist(), strict=True) if differs]

    def _differs(self, place: torch.Tensor, poured: torch.Tensor) -> torch.Tensor:
        """A truth value, on a GPU on the device."""
        here, there = _integers(place, poured)
        if not self._on_device:
            return torch.tensor(not torch.equal(here, there))
        found = torch.zeros((), dtype=torch.bool, device=here.device)
        for one, other in zip(here.split(LOOKED_AT), there.split(LOOKED_AT), strict=True):
            found |= (one != other).any()
        return found

    def overrun(self) -> list[int]:
        """Which of the inputs, by number, had bytes beside them written since `set_up` when they were looked at, or
        have until now if they were not."""
        beside = self._beside if self._beside is not None else self._written_beside()
        return [number for number, written in enumerate(beside.tolist()) if written]

    def _written_beside(self) -> torch.Tensor:
        """Of each input whether there was, on a GPU on the device."""
        assert self.arena is not None
        return (self.arena.bytes[self._guards] != GUARD_BYTE).view(-1, 2 * GUARD_BYTES).any(1)

    def clear(self) -> None:
        """Let go of the inputs of the last call."""
        self._poured, self._looked = [], ((), _NONE)

    def close(self) -> None:
        self._poured, self._kept, self.arena = [], torch.empty(0, dtype=torch.uint8), None


def _integers(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The memory of two contiguous tensors of one shape and dtype, as integers as wide as it can be: torch compares as
    many of them a second, whatever their width."""
    if one.nbytes % 8 or other.data_ptr() % 8:
        return bits(one).view(-1), bits(other).view(-1)
    return one.view(-1).view(torch.int64), other.view(-1).view(torch.int64)


def spans_of(
    outputs: Sequence[Any], state: Sequence[TensorSpec], due: Sequence[tuple[str, tuple[int, ...]]] | int
) -> list[Span]:
    """Where state lies, and where the worker says that its outputs lie (OutputDescription). Those that are not of the
    dtypes and shapes that are `due`, or lie nowhere, are left out: they are wrong whatever they hold, and what a worker
    claims must not decide how much the judge copies. Where dtypes and shapes are free, `due` is how many bytes may."""
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
    """Whether one of `outputs` (OutputDescription) is said to lie where the worker puts none on a CPU: at the beginning
    of an input, or in the tail behind what was copied there before it. The worker says so when its time is over: who
    could name any other place would have several answers lie there, and choose among them untimed."""
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
"""Elements along an axis, and axes, of what a worker may claim to have returned."""


def claimed(output: Any) -> Span | None:
    """Where an output (OutputDescription) of any dtype, shape and strides lies, by the worker's word; None if that is
    no place for a tensor whose elements lie apart from each other."""
    shape, stride = tuple(output.shape or ()), tuple(output.stride or ())
    sizes = (*shape, *stride)
    if output.offset is None or output.dtype not in DTYPES or len(shape) != len(stride) or len(shape) > MOST_AXES:
        return None
    if not all(0 <= size <= LARGEST for size in sizes) or not (0 in shape or is_apart(shape, stride)):
        return None
    return Span(output.region, TensorSpec(output.dtype, shape, output.offset, None if 0 in shape else stride))
