"""The bracket around one call of a submission, in the order that makes its output mean something.

    page inputs in at fresh addresses ─► poison free memory ─► flush ─► clock ─► custom_kernel ─► clock ─► snapshot

The snapshot is taken at once, so that it holds what the call had computed when its time was up. Inputs of the next
call are not in the arena before the judge has seen this one's snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.arena import DTYPES, Arena, TensorSpec, dtype_name, extent, layout, unflatten
from harness.worker.timers import Timer
from harness.worker.transports import Transport

_type = type
_Tensor = torch.Tensor
_data_ptr = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous


MAX_OUTPUTS = 16
"""Of more returned values than this only the number is reported; no problem has so many."""


class Bracket:
    """Runs calls on one device. Holds the arena that the judge gave last."""

    def __init__(self, device_type: str, timer: Timer, transport: Transport) -> None:
        self._device_type, self._timer, self._transport = device_type, timer, transport
        self.arena: Arena | None = None

    def call(self, kernel: Callable[[Any], Any], request: dict[str, Any], around: Callable[[], Any]) -> dict[str, Any]:
        """One call as the judge's `request` describes it; the reply for the judge.

        request: tree and inputs (arena.flatten, TensorSpecs), state (indices of inputs whose bytes are wanted back),
        poison (sizes in bytes). reply: latency_ns, labels, outputs (a description each), state (an offset each),
        overrun (indices of inputs beside which was written).
        """
        assert self.arena is not None
        specs = [TensorSpec.from_json(fields) for fields in request["inputs"]]
        tensors = [self._transport.page_in(self.arena, spec) for spec in specs]
        addresses = [_data_ptr(tensor) for tensor in tensors]
        data = unflatten(request["tree"], tensors.__getitem__)
        self._transport.poison(request["poison"])
        with around():
            sample = self._timer.sample(lambda: kernel(data))
        snapshot = _Snapshot(self.arena, self._transport)
        state = [snapshot.take(addresses[index], specs[index]) for index in request["state"]]
        members = _members(sample.output)
        outputs = [self._describe(output, snapshot) for output in members[:MAX_OUTPUTS]]
        return {
            "latency_ns": sample.latency_ns,
            "labels": list(sample.labels),
            "several": _type(sample.output) in (tuple, list),
            "returned": len(members),
            "outputs": outputs,
            "state": state,
            "overrun": self._transport.overrun(),
        }

    def _describe(self, output: Any, snapshot: _Snapshot) -> dict[str, Any]:
        """What a returned value is; with the place of its bytes in the arena if it is a plain dense tensor here."""
        if _type(output) is not _Tensor:
            return {"type": _type(output).__name__[:100].encode("utf-8", "replace").decode()}
        description: dict[str, Any] = {
            "type": "Tensor",
            "dtype": dtype_name(output.dtype),
            "shape": list(output.shape),
            "stride": list(output.stride()) if output.layout is torch.strided else [],
            "device": output.device.type,
            "offset": None,
        }
        travels = description["dtype"] in DTYPES and output.layout is torch.strided
        if travels and description["device"] == self._device_type and _is_contiguous(output):
            (spec,) = layout([output])
            description["offset"] = snapshot.take(_data_ptr(output), spec)
        return description


class _Snapshot:
    """Copies of memory, packed into the arena one after another; the same memory is copied once."""

    def __init__(self, arena: Arena, transport: Transport) -> None:
        self._arena, self._transport = arena, transport
        self._taken: dict[tuple[int, int], int] = {}
        self._end = 0

    def take(self, address: int, spec: TensorSpec) -> int | None:
        """The offset of a copy of `spec`'s bytes at `address`, or None if the arena has no room left for it."""
        known = self._taken.get((address, spec.nbytes))
        if known is not None:
            return known
        place = TensorSpec(spec.dtype, spec.shape, self._end)
        if place.offset + place.nbytes > self._arena.size:
            return None
        self._transport.page_out(self._arena, place, address)
        self._taken[address, spec.nbytes] = place.offset
        self._end = extent([place])
        return place.offset


def _members(output: Any) -> list[Any]:
    return list(output) if _type(output) in (tuple, list) else [output]
