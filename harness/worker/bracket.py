"""The bracket around one call of a submission, in the order that makes its output mean something.

    fresh addresses ─► poison free memory ─► gate ─► page in ─► flush ─► clock ─► custom_kernel ─► clock ─► snapshot

The snapshot holds what the call had computed when its time was up. The inputs are not in the arena before the gate
opens to this call, and when it does, the judge's own clock runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from harness.arena import DTYPES, Arena, TensorSpec, dtype_name, extent, layout, unflatten
from harness.worker.surroundings import GpuSurroundings, Surroundings
from harness.worker.timers import Timer
from harness.worker.transports import Transport

_type = type
_Tensor = torch.Tensor
_data_ptr = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous
_synchronize = torch.cuda.synchronize


MAX_OUTPUTS = 16
"""Of more returned values than this only the number is reported; no problem has so many."""


class Bracket:
    """Runs calls on one device. Holds the arena that the judge gave last."""

    def __init__(self, device_type: str, timer: Timer, transport: Transport) -> None:
        self._device_type, self._timer, self._transport = device_type, timer, transport
        self._surroundings = GpuSurroundings() if device_type == "cuda" else Surroundings()
        self._before = self._surroundings.look()
        self.arena: Arena | None = None

    def call(self, kernel: Callable[[Any], Any], request: dict[str, Any], around: Callable[[], Any]) -> dict[str, Any]:
        """One call as the judge's `request` describes it; the reply for the judge.

        request: tree and inputs (arena.flatten, TensorSpecs), state (indices of inputs whose bytes are wanted back),
        poison (sizes in bytes), turn (the call's number), page_in (whether the call gets copies of the inputs or the
        arena's own memory), flush (whether to empty the caches), and perhaps idle (outputs to fill in place of what
        `kernel` would do) with waits (whether to wait for the device before). reply: latency_ns, labels, outputs (a
        description each), state (an offset each).
        """
        arena, transport = self.arena, self._transport
        assert arena is not None
        specs = [TensorSpec.from_json(fields) for fields in request["inputs"]]
        pages_in = request["page_in"]
        tensors = [transport.place(spec) if pages_in else arena.tensor(spec) for spec in specs]
        addresses = [_data_ptr(tensor) for tensor in tensors]
        data = unflatten(request["tree"], tensors.__getitem__)
        if "idle" in request:
            kernel = self._idle_kernel(request["idle"], tensors, request["waits"])
        transport.poison(request["poison"])
        reply: dict[str, Any] = {}

        def page_in() -> None:
            if pages_in:
                for spec, address in zip(specs, addresses):
                    transport.page_in(arena, spec, address)
            entered.enter_context(around())

        def take_snapshot(output: Any) -> None:
            entered.close()
            snapshot = _Snapshot(arena, transport)
            if not pages_in:
                snapshot.lies_there_already({addresses[index]: specs[index] for index in request["state"]})
                snapshot.start_after(specs)
            reply["state"] = [snapshot.take(addresses[index], specs[index]) for index in request["state"]]
            members = _members(output)
            reply["several"] = _type(output) in (tuple, list)
            reply["returned"] = len(members)
            reply["outputs"] = [self._describe(member, snapshot) for member in members[:MAX_OUTPUTS]]

        self._before = self._surroundings.look()
        with contextlib.ExitStack() as entered:
            sample = self._timer.sample(lambda: kernel(data), page_in, take_snapshot, request["flush"], request["turn"])
        return {**reply, "latency_ns": sample.latency_ns, "labels": list(sample.labels)}

    def aftermath(self) -> dict[str, Any]:
        """What the last call did besides: overrun (indices of inputs beside which it wrote), more_threads and left (see
        Surroundings). Looked for when it has been answered: waiting for it would make the judge's clock less sharp."""
        return {"overrun": self._transport.overrun(), **self._surroundings.changed_since(self._before)}

    def _idle_kernel(self, outputs: list[dict[str, Any]], tensors: list[_Tensor], waits: bool) -> Callable[[Any], Any]:
        """A kernel that computes nothing: it returns outputs as large as they should be, filled, or inputs as they are.
        If it `waits` for the device first, the host does the rest of the call when the inputs are there.

        What a call with it takes, seen from outside, is what any call takes besides its kernel.
        """

        def idle(data: Any) -> list[_Tensor]:
            if waits:
                _synchronize()
            return [
                tensors[output["input"]]
                if "input" in output
                else torch.empty(output["shape"], dtype=DTYPES[output["dtype"]], device=self._device_type).fill_(1)
                for output in outputs
            ]

        return idle

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

    def lies_there_already(self, state: dict[int, TensorSpec]) -> None:
        """Of inputs that a call worked on in the arena itself, by address, no copies are made.

        Of nothing else: a submission could return memory of the arena, and go on writing to it when its time is up."""
        self._taken |= {(address, spec.nbytes): spec.offset for address, spec in state.items()}

    def start_after(self, specs: list[TensorSpec]) -> None:
        self._end = extent(specs)

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
