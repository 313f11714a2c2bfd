"""A simulated card of the target for host code: torch.cuda, torch.version and Triton's driver.

    present("gfx942", compiler, phantoms)
        torch.cuda.get_device_properties().gcnArchName      "gfx942:sramecc+:xnack-"
        torch.version.hip                                   "7.0.0"
        triton.runtime.driver.active.get_current_target()   GPUTarget("hip", "gfx942", 64)
        kernel[grid](x)                                     compiled by `compiler`, not launched
        @triton.autotune                                    every configuration compiled, none timed; anew in each case

Use it in a process of its own, before the submission is imported: the changes are permanent. torch.compile returns the
function unchanged, since the kernels that it would generate are not the submission's. Events measure the host's clock.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import triton
import triton.testing
from triton.runtime import _allocation, driver
from triton.runtime.autotuner import Autotuner

from harness.chips.targets import TARGETS, Target
from harness.compile import operators
from harness.compile.phantom import CUDA, Phantoms
from harness.compile.triton_compiler import TritonCompiler
from harness.interpreter.card_driver import CardDriver
from harness.interpreter.cuda_on_cpu import SIMULATED_CUDA, returning

HIP_VERSION, CUDA_VERSION = "7.0.0", "12.8"
"""The versions in torch's builds for ROCm 7.0 and CUDA 12.8."""

MAX_THREADS = 1024


class NetworkNeeded(OSError):
    """The submission uses the network, which no submission may."""


def present(name: str, compiler: TritonCompiler, phantoms: Phantoms) -> None:
    """Make this process look like one on a machine with the target's card."""
    target = TARGETS[name]
    torch.version.hip = HIP_VERSION if target.vendor == "amd" else None
    torch.version.cuda = CUDA_VERSION if target.vendor == "nvidia" else None
    for function, value in {**SIMULATED_CUDA, **card(name, target)}.items():
        setattr(torch.cuda, function, value)
    torch.Generator = CudaGenerator  # type: ignore[misc]
    torch.Tensor.record_stream = returning(None)  # type: ignore[method-assign]  # torch's takes none but its own streams
    torch.compile = uncompiled  # type: ignore[assignment]
    operators.remember()
    socket.socket.connect = no_network  # type: ignore[method-assign]
    socket.getaddrinfo = no_network
    driver.set_active(AbsentDriver(target, compiler, phantoms))
    triton.compile = triton.compiler.compile = compiler.compile
    Autotuner.run = tuned_anew
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = driver.active.get_benchmarker()


def card(name: str, target: Target) -> dict[str, Any]:
    """Return replacements for functions of torch.cuda that describe the card. `targets` gives the sizes of each
    model."""
    major, minor = target.capability
    properties = SimpleNamespace(
        name=target.device,
        major=major,
        minor=minor,
        multi_processor_count=target.multiprocessors,
        total_memory=target.memory_bytes,
        warp_size=target.warp_size,
        max_threads_per_multi_processor=target.simds * target.waves_per_simd * target.warp_size,
        max_threads_per_block=MAX_THREADS,
        regs_per_multiprocessor=target.simds * target.registers * target.warp_size,
        shared_memory_per_block=64 << 10 if target.vendor == "amd" else 48 << 10,
        shared_memory_per_block_optin=target.lds_bytes,
        shared_memory_per_multiprocessor=target.lds_per_multiprocessor,
        L2_cache_size=target.l2_bytes,
        gcnArchName=target.gcn_arch,
        is_integrated=False,
        is_multi_gpu_board=False,
    )
    return {
        "get_device_name": returning(target.device),
        "get_device_capability": returning(target.capability),
        "get_device_properties": returning(properties),
        "get_arch_list": returning([name]),
        "mem_get_info": returning((target.memory_bytes, target.memory_bytes)),
        "CUDAGraph": Graph,
        "graph": lambda graph, *args, **named: contextlib.nullcontext(),
    }


class AbsentDriver(CardDriver):
    """Triton's driver for a device that can be compiled for but not run on."""

    def __init__(self, target: Target, compiler: TritonCompiler, phantoms: Phantoms) -> None:
        super().__init__(target)
        self.compiler, self.phantoms = compiler, phantoms

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(256 << 20, dtype=torch.int8, device=CUDA)

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return a function that calls once instead of timing. Each configuration gets the same time, but one that does
        not compile gets infinity, as on a device."""

        def benchmark(
            call: Callable[[], Any], *args: Any, quantiles: Sequence[float] | None = None, **named: Any
        ) -> Any:
            with self.compiler.trial() as trial:
                call()
            milliseconds = math.inf if trial.failed else 1.0
            return [milliseconds] * len(quantiles or ()) or milliseconds

        return benchmark

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        registers, spills = self.compiler.resources_of(binary)
        return object(), object(), registers, spills, MAX_THREADS

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        scratch_bytes = getattr(metadata, "global_scratch_size", 0) or 0  # AMD's backend has none
        programs = getattr(metadata, "num_ctas", 1)
        cooperative = getattr(metadata, "launch_cooperative_grid", False)

        def launch(x: int, y: int, z: int, *rest: Any) -> None:
            # The kernel's arguments come after the stream, function, packed metadata, launch metadata and two hooks.
            self.compiler.launched(metadata.hash, (x, y, z))
            if cooperative and x * y * z * programs > (most := resident(self.target, metadata.num_warps)):
                raise RuntimeError(
                    f"too many blocks in a cooperative launch: {x * y * z * programs:,}, and the device holds at most "
                    f"{most:,} at once"
                )
            scratch: tuple[Any, ...] = ()
            if scratch_bytes:  # descriptors made in the kernel lie there; without triton.set_allocator this raises
                allocate = _allocation._allocator.get()
                scratch = (allocate(x * y * z * programs * scratch_bytes, metadata.global_scratch_align, rest[0]),)
            self.phantoms.launched_with((*rest[6:], *scratch))

        return launch


_run = Autotuner.run


def tuned_anew(autotuner: Any, *args: Any, **named: Any) -> Any:
    """Replaces Autotuner.run. It tries all configurations in each case's first call, whatever its key: a constexpr that
    the key lacks makes another kernel of each, and on a device any of them may have won before."""
    case = driver.active.compiler.case
    if vars(autotuner).get("tuned_in") != case:
        autotuner.cache.clear()
        autotuner.tuned_in = case
    return _run(autotuner, *args, **named)


def resident(target: Target, warps: int) -> int:
    """The blocks of so many warps that the whole device holds at once, if neither registers nor memory limit them."""
    blocks = target.simds * target.waves_per_simd // warps
    return target.multiprocessors * min(blocks, target.blocks or blocks)


class CudaGenerator(torch.Generator):
    """A stand-in for torch.Generator(device). Values drawn from it are unknown, whatever the seed."""

    def __init__(self, device: Any = "cpu") -> None:
        self.claimed = torch.device(device)

    def __new__(cls, device: Any = "cpu") -> CudaGenerator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA if self.claimed.type == "cuda" else self.claimed


class Graph:
    """A CUDA graph. Captured kernels are compiled; a replay does nothing."""

    def capture_begin(self, *args: Any, **named: Any) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...
    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return (0, 0)


def uncompiled(model: Any = None, **named: Any) -> Any:
    """A stand-in for torch.compile, as a function or a decorator."""
    return (lambda function: function) if model is None else model


def no_network(*args: Any, **named: Any) -> NoReturn:
    """A stand-in for socket.connect and socket.getaddrinfo."""
    hosts = [part[0] if isinstance(part, tuple) else part for part in args if isinstance(part, str | tuple)]
    where = f" ({hosts[0]})" if hosts else ""
    raise NetworkNeeded(f"it needs the network{where}, which a submission does not get")
