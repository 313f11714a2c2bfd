"""One call of a submission, in the sequence of steps that the judge asks for (docs/clock.md).

    bare           ready, stop │ ─► stop │ ─► answer
    between_stops  ready, stop │ ─► custom_kernel ─► outputs in place, stop │ ─► answer
    awaited        ready, stop │ ─► custom_kernel ─► device done ─► outputs in place ─► answer, stop │
    armed          ready ─ go ─► custom_kernel enqueued ─► answer ─ stopped by the judge │ ─ collect ─► its own times
    timed          ready ─ go ─► inputs copied ─► flush ─► clock ─► custom_kernel ─► clock ─► outputs copied ─► answer

At │ the process is stopped. The judge pours the inputs: in `armed` after the whole call has been enqueued, else before
it. Calls on a CPU are `between_stops`: the judge takes its snapshot before the answer is built, because this process's
Python takes long with cold caches, compared with a short call. The worker's own times are shown and never ranked. The
exception is `timed`, for devices on which the judge's clock does not work.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from harness.wire.arena import Arena, TensorSpec
from harness.wire.tree import unflatten
from harness.wire.words import Words
from harness.worker.outputs import Outputs
from harness.worker.pool import Pool
from harness.worker.timers import Timer
from harness.worker.transports import Transport

_data_ptr = torch.Tensor.data_ptr
_synchronize = torch.cuda.synchronize
_kill, _own_id, _STOP = os.kill, os.getpid, signal.SIGSTOP

CustomKernel = Callable[[Any], Any]
Ready = Callable[[bool], Any]
Reply = dict[str, Any]


def stopper() -> Callable[[], None]:
    """A function that stops this process, and returns when the judge continues it. It runs in the timed interval with
    cold caches, so it has no Python of its own."""
    return functools.partial(_kill, _own_id(), _STOP)


class Calls:
    """Makes calls on one device. `regions`: the arenas that the judge has sent, by name. Inputs lie in the one called
    "arena".

    Modules of the problem whose classes are in the data are imported within `around_imports`. `timer` is for the
    sequence `timed` only, `words` for `armed` only. Each sequence enters its argument `around` for the call. Its
    argument `ready` tells the judge that the call may begin, and waits for "go" if asked to.
    """

    def __init__(
        self,
        device_type: str,
        transport: Transport,
        timer: Callable[[], Timer] | None = None,
        words: Words | None = None,
    ) -> None:
        self._device_type, self._transport, self._timer, self._words = device_type, transport, timer, words
        self._events: tuple[Any, Any] | None = None
        self._kept: Any = None
        self.regions: dict[str, Arena] = {}
        self.pool: Pool | None = None
        self.around_imports: Callable[[], Any] = contextlib.nullcontext

    def between_stops(
        self, kernel: CustomKernel, request: dict[str, Any], around: Callable[[], Any], ready: Ready
    ) -> Reply:
        """Make a call between two stops of this process. An exception of the kernel is raised after the second stop.
        `around` is entered before the first stop: with cold caches that may take as long as a short call."""
        data, specs, arena = self._data(request), _specs(request), self.regions["arena"]
        state = {arena.address + specs[index].offset: specs[index].offset for index in request["state"]}
        outputs = self._outputs(request, {}, state)
        self._transport.poison(request["poison"])
        stop, put = stopper(), outputs.put
        with around():
            ready(False)
            stop()
            try:
                output = kernel(data)
                put(output)
            finally:
                stop()
        return outputs.describe(output)

    def awaited(self, kernel: CustomKernel, request: dict[str, Any], around: Callable[[], Any], ready: Ready) -> Reply:
        """Make a call and wait for the device. The second stop comes after the reply is sent."""
        data, outputs = self._data(request), self._outputs(request, self.regions)
        self._transport.poison(request["poison"])
        stop = stopper()
        ready(False)
        stop()
        with around():
            output = kernel(data)
        _synchronize()
        outputs.put(output)
        _synchronize()
        return outputs.describe(output)

    def bare(self, kernel: CustomKernel, request: dict[str, Any], around: Callable[[], Any], ready: Ready) -> Reply:
        """Stop twice with nothing in between: the least time of a stopped call."""
        self._transport.poison(request["poison"])
        stop = stopper()
        ready(False)
        stop()
        stop()
        outputs = self._outputs(request, {})
        outputs.put(())
        return outputs.describe(())

    def armed(self, kernel: CustomKernel, request: dict[str, Any], around: Callable[[], Any], ready: Ready) -> Reply:
        """Enqueue a whole call and return. Nothing of it may have run yet."""
        # A null call gets no data: their classes would come from files that a submission can write.
        data = self._data(request) if request["null"] is None else None
        turn, words = request["turn"], self._words
        assert words is not None
        with self._pool_in_use():
            self._transport.poison(request["poison"])
        self._events = _new_events() if request["events"] else None
        ready(True)
        try:
            if request["gated"]:
                words.shut(turn)
            if self._events is not None:
                self._events[0].record()
            with self._pool_in_use(), around():
                output = kernel(data)
            if self._events is not None:
                self._events[1].record()
            self._kept = output
            outputs = self._outputs(request, self.regions)
            outputs.put(output)
            reply = outputs.describe(output)
            if request["long"]:
                words.mark(turn)
            return reply
        except BaseException:
            words.open(turn)
            raise

    def _pool_in_use(self) -> AbstractContextManager[Any]:
        return self.pool.in_use() if self.pool is not None else contextlib.nullcontext()

    def collect(self) -> Reply:
        """Wait for the device. `inside_ns`: the time between the call's own events, if it was asked to record them."""
        _synchronize()
        self._kept = None
        events, self._events = self._events, None
        return {"inside_ns": None if events is None else max(events[0].elapsed_time(events[1]) * 1e6, 1.0)}

    def timed(self, kernel: CustomKernel, request: dict[str, Any], around: Callable[[], Any], ready: Ready) -> Reply:
        """Make a call that this process times itself, with inputs copied to fresh addresses."""
        arena, transport = self.regions["arena"], self._transport
        assert self._timer is not None
        specs = _specs(request)
        tensors = [transport.place(spec) for spec in specs]
        addresses = [_data_ptr(tensor) for tensor in tensors]
        data = unflatten(request["tree"], tensors.__getitem__, self._module)
        transport.poison(request["poison"])
        ready(True)

        def page_in() -> None:
            for spec, address in zip(specs, addresses, strict=True):
                transport.page_in(arena, spec, address)

        with around():
            sample = self._timer().sample(lambda: kernel(data), page_in)
        supplied = {addresses[index]: specs[index].offset for index in request["state"]}
        outputs = self._outputs(request, {}, supplied)
        outputs.put(sample.output)
        reply = outputs.describe(sample.output)
        for index in request["state"]:
            transport.page_out(arena, specs[index], addresses[index])
        return {**reply, "inside_ns": sample.latency_ns, "overrun": transport.overrun()}

    def null(self, cycles: int) -> CustomKernel:
        """A kernel that computes nothing. On a GPU it ends after `cycles` clock cycles."""
        if self._device_type == "cpu":
            return lambda data: ()

        def sleep(data: Any) -> tuple[()]:
            torch.cuda._sleep(cycles)
            return ()

        return sleep

    def data_of(self, request: dict[str, Any]) -> Any:
        """The data of a request, in the memory of the arena."""
        return self._data(request)

    def data_on_device(self, request: dict[str, Any]) -> Any:
        """The data of a request where a GPU can read it: copied if the arena is in host memory."""
        if self._device_type == "cpu" or self.regions["arena"].on_device:
            return self._data(request)
        specs = _specs(request)
        tensors = [self._transport.place(spec) for spec in specs]
        for spec, tensor in zip(specs, tensors, strict=True):
            self._transport.page_in(self.regions["arena"], spec, _data_ptr(tensor))
        return unflatten(request["tree"], tensors.__getitem__)

    def _data(self, request: dict[str, Any]) -> Any:
        tensors = [self.regions["arena"].tensor(spec) for spec in _specs(request)]
        return unflatten(request["tree"], tensors.__getitem__, self._module)

    def _module(self, name: str) -> Any:
        """The problem's own module of that name, which has a class of the data."""
        with self.around_imports():
            return importlib.import_module(name)

    def _outputs(
        self, request: dict[str, Any], regions: dict[str, Arena], supplied: dict[int, int] | None = None
    ) -> Outputs:
        arena, copy = self.regions["arena"], self._transport.copy
        strided = request.get("strided", False)
        return Outputs(self._device_type, arena, regions, supplied or {}, request["tail"], copy, strided)


def _specs(request: dict[str, Any]) -> list[TensorSpec]:
    return [TensorSpec.from_json(fields) for fields in request["inputs"]]


def _new_events() -> tuple[Any, Any]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
