"""Runs host code that says "cuda" on CPU tensors.

    with cuda_on_cpu():
        x = torch.empty(4, device="cuda")      # a CPU tensor
        x.cuda(), x.to("cuda:0"), x.is_cuda    # x, x, True
        torch.cuda.synchronize()               # nothing to wait for

Inside the context
    device arguments    of torch's factories (torch.empty, ...), *_like, Tensor.to and new_*, torch.Generator,
                        `with torch.device("cuda")` and torch.set_default_device: "cuda", "cuda:0", 0 mean the CPU;
                        any other number is an error, since a worker sees one card
    tensors             .cuda() and .pin_memory() return the tensor; .record_stream() does nothing; .is_cuda is True;
                        .device stays cpu
    torch.cuda          is_available, device_count, current_device, set_device, get_device_name, get_device_capability,
                        get_device_properties, synchronize, empty_cache, manual_seed, memory queries, device, Stream,
                        stream, current_stream, default_stream, Event, nvtx: one device as in PRETENDED, no waiting;
                        torch's own code is told that there is none, so that torch.compile works

Refused by CannotInterpret: CUDA graphs, whose replay would have to run again what was captured.

Not simulated: random number states, more than one device, `tensor.device.type == "cuda"`, kernels
compiled by load_inline. Events measure the host's clock. Leaving the context restores all that was patched. Code that
does not say "cuda" pays only for the wrapper of a factory or of Tensor.to (under a microsecond per call).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._device

from harness.interpreter.refusal import CannotInterpret

CPU = torch.device("cpu")

# Datasheet of the H100 SXM, the sm_90 target. Host code sizes its grids by these values.
PRETENDED = SimpleNamespace(
    name="simulated on CPU",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 * 1024**3,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=48 * 1024,
    shared_memory_per_block_optin=227 * 1024,
    shared_memory_per_multiprocessor=228 * 1024,
    L2_cache_size=50 * 1024**2,
    gcnArchName="",
    is_integrated=False,
    is_multi_gpu_board=False,
)

LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
NUMBERS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
EFFECTS = (
    *("init", "set_stream", "synchronize", "empty_cache"),
    *("manual_seed", "manual_seed_all", "reset_peak_memory_stats"),
)
NVTX = ("mark", "range_push", "range_pop", "range_start", "range_end")
NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")


@contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Run host code written for CUDA on the CPU for as long as the context lasts. Contexts may nest."""
    before = [(owner, name, vars(owner).get(name, ABSENT)) for owner, name, _ in replacements()]
    for owner, name, replacement in replacements():
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in before:
            if original is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


ABSENT = object()


@cache
def replacements() -> tuple[tuple[Any, str, Any], ...]:
    """(owner, attribute, its value inside the context). Built on the first entry, from the functions as they are
    then."""
    factories: list[tuple[Any, str]] = [(torch, fn.__name__) for fn in torch.utils._device._device_constructors()]
    factories += [(torch, name) for name in LIKE] + [(torch.Tensor, name) for name in NEW]
    redirected = [
        (owner, name, without_cuda(getattr(owner, name))) for owner, name in factories if hasattr(owner, name)
    ]
    return (
        *redirected,
        (torch, "Generator", CpuGenerator),
        (torch.Tensor, "to", tensor_to(torch.Tensor.to)),
        (torch.Tensor, "cuda", tensor_cuda),
        (torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self),
        (torch.Tensor, "record_stream", lambda self, stream: None),
        (torch.Tensor, "is_cuda", property(claiming(True, truth=False))),
        (torch.utils._device.DeviceContext, "__init__", device_context(torch.utils._device.DeviceContext.__init__)),
        *((torch.cuda.nvtx, name, returning(None)) for name in NVTX),
        *((torch.cuda, name, value) for name, value in SIMULATED_CUDA.items()),
    )


class AnyGenerator(type):
    """Makes every generator an instance of CpuGenerator, so that torch's own isinstance checks hold."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, GENERATOR)


GENERATOR = torch.Generator


class CpuGenerator(metaclass=AnyGenerator):
    """torch.Generator(device), on the CPU whatever `device` says."""

    def __new__(cls, device: Any = None) -> torch.Generator:  # type: ignore[misc]
        return GENERATOR()


def means_cuda(device: Any) -> bool:
    """True if `device`, as passed to torch, is a CUDA device: "cuda", "cuda:0", torch.device("cuda"), 0.

    Raises RuntimeError as CUDA does if it is not the first: a worker sees one card alone.
    """
    if isinstance(device, str) and device.startswith("cuda"):
        device = torch.device(device)
    if isinstance(device, torch.device):
        number = device.index or 0 if device.type == "cuda" else None
    else:
        number = device if isinstance(device, int) and not isinstance(device, bool) else None
    if number is not None and number > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {number}, and a submission has one GPU, number 0")
    return number is not None


def of_the_one_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose first argument may be a device. Raises RuntimeError if that is not the first."""

    def simulated(device: Any = None, *args: Any, **kwargs: Any) -> Any:
        means_cuda(device)
        return function(device, *args, **kwargs)

    return simulated


def without_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with a CUDA `device` argument replaced by the CPU. torch takes that argument by keyword only."""

    @wraps(function)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs and means_cuda(kwargs["device"]):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        return function(*args, **kwargs)

    return redirected


def tensor_to(to: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(to)
    def redirected(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and means_cuda(args[0]):
            args = (CPU, *args[1:])
        elif kwargs and means_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        return to(self, *args, **kwargs)

    return redirected


def tensor_cuda(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
    means_cuda(device)
    return self


def device_context(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def redirected(self: Any, device: Any) -> None:
        init(self, CPU if means_cuda(device) else device)

    return redirected


class SimulatedStream:
    """The only stream. Its work is done when a call returns."""

    cuda_stream = 0
    device = CPU
    device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, **named: Any) -> None:
        means_cuda(device)
        self.priority = priority

    def synchronize(self) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> SimulatedEvent:
        event = event or SimulatedEvent()
        event.record()
        return event


class SimulatedEvent:
    """A time of the host's clock, in nanoseconds. All work queued before it is done."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.at_ns = 0

    def record(self, stream: Any = None) -> None:
        self.at_ns = time.perf_counter_ns()

    def elapsed_time(self, end_event: SimulatedEvent) -> float:
        """The time between two events in milliseconds, as torch's method returns it."""
        return (end_event.at_ns - self.at_ns) / 1e6

    def synchronize(self) -> None: ...
    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True


class SimulatedDevice:
    """`with torch.cuda.device(0):` on a machine with one device."""

    def __init__(self, device: Any = None) -> None:
        means_cuda(device)
        self.idx = 0

    def __enter__(self) -> SimulatedDevice:
        return self

    def __exit__(self, *error: Any) -> None: ...


class SimulatedDeviceOf(SimulatedDevice):
    """`with torch.cuda.device_of(tensor):`, likewise."""


class GraphWithoutGpu:
    """A CUDA graph, or the context of its capture, neither of which there is here."""

    def __init__(self, *args: Any, **named: Any) -> None:
        raise CannotInterpret("a CUDA graph, whose replay needs a GPU")


def returning(value: Any) -> Callable[..., Any]:
    """A new function that takes any arguments and returns `value`. New, because torch.compile refuses one function
    under two names."""

    def simulated(*args: Any, **kwargs: Any) -> Any:
        return value

    return simulated


def claiming(value: Any, truth: Any) -> Callable[..., Any]:
    """A function that returns `value`, but returns `truth` to torch's own code, which would otherwise use a missing
    device."""

    def simulated(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return truth if caller.partition(".")[0] == "torch" else value

    return simulated


SIMULATED_CUDA: dict[str, Any] = {
    "device": SimulatedDevice,
    "device_of": SimulatedDeviceOf,
    "Stream": SimulatedStream,
    "Event": SimulatedEvent,
    "CUDAGraph": GraphWithoutGpu,
    "graph": GraphWithoutGpu,
    "make_graphed_callables": GraphWithoutGpu,
    "stream": lambda stream: nullcontext(),
    "is_current_stream_capturing": returning(False),
    "is_available": claiming(True, truth=False),
    "is_initialized": claiming(True, truth=False),
    "is_bf16_supported": returning(True),
    "device_count": claiming(1, truth=0),
    "current_device": returning(0),
    "get_device_name": returning(PRETENDED.name),
    "get_device_capability": returning((PRETENDED.major, PRETENDED.minor)),
    "mem_get_info": returning((PRETENDED.total_memory, PRETENDED.total_memory)),
    "current_stream": returning(SimulatedStream()),
    "default_stream": returning(SimulatedStream()),
    **{name: returning(0) for name in NUMBERS},
    **{name: returning(None) for name in EFFECTS},
    "set_device": of_the_one_device(returning(None)),
    "get_device_properties": of_the_one_device(returning(PRETENDED)),
}
