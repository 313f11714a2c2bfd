"""Runs Triton's kernels in the emulator, as LLVM compiled them for a chip, on CPU tensors.

    present("gfx942")      in a process of its own, before Triton's kernels are imported
        kernel[grid](x)    compiled by Triton for the target, launched in the emulator
        launches.findings  the findings of all launches

Autotuners take their first valid configuration. The submission's tensors are on the CPU. `cuda_on_cpu` redirects host
code that asks for a GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner

from harness.chips.targets import TARGETS
from harness.emulated.launches import Launches, of_process
from harness.emulator import available
from harness.emulator.code_object import CodeObject
from harness.hip import NoDevice
from harness.interpreter import cuda_on_cpu
from harness.interpreter.autotune import FirstValid
from harness.interpreter.card_driver import CardDriver

HIP_VERSION = "7.0.0"
"""The version that torch's builds for ROCm 7.0 report."""

PACKED = {
    "i1": "<?", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u1": "<?", "u8": "<B", "u16": "<H", "u32": "<I",
    "u64": "<Q", "fp32": "<f", "f32": "<f", "fp64": "<d", "fp16": "<e",
}  # fmt: skip
"""The memory layout of a scalar argument, by Triton's name of its type."""


class Emulated(CardDriver):
    """A Triton driver for an emulated card."""

    def __init__(self, name: str, launches: Launches) -> None:
        super().__init__(TARGETS[name])
        self.launches = launches
        self.assemblies: dict[bytes, str] = {}

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1, dtype=torch.int8)

    def get_benchmarker(self) -> Callable[..., Any]:
        """Returns equal times for all configurations without running them, so the first one wins."""

        def benchmark(call: Any, *args: Any, quantiles: Sequence[float] | None = None, **named: Any) -> Any:
            return [1.0] * len(quantiles or ()) or 1.0

        return benchmark

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        lacking = available()
        if lacking is not None:
            raise NoDevice(lacking)
        image = CodeObject(binary)
        return image, (image, self.assemblies.get(binary)), 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        types = [str(kind) for kind in source.signature.values()]

        def launch(x: int, y: int, z: int, stream: Any, function: Any, *rest: Any) -> None:
            if 0 in (x, y, z):
                return  # as Triton's own launcher does
            arguments: list[bytes] = []
            tensors: list[tuple[str, torch.Tensor]] = []
            for kind, value in zip(types, rest[4:]):
                if kind == "constexpr":
                    continue
                if kind.startswith("*"):
                    if isinstance(value, torch.Tensor):
                        tensors.append((f"argument {len(arguments) + 1}", value))
                    address = value.data_ptr() if value is not None else 0
                    arguments.append(struct.pack("<Q", address))
                else:
                    arguments.append(packed(kind, value))
            image, assembly = function
            explicit = [one for one in image.kernel(metadata.name).arguments if not one.kind.startswith("hidden_")]
            arguments += [bytes(8)] * (len(explicit) - len(arguments))  # scratch that Triton's runtime would provide
            threads = metadata.num_warps * self.target.warp_size
            self.launches.run(
                image, metadata.name, (x, y, z), (threads, 1, 1), arguments, tensors, metadata.shared, assembly
            )

        return launch


def packed(kind: str, value: Any) -> bytes:
    """The bytes of a scalar argument."""
    if kind == "bf16":
        return struct.pack("<f", value)[2:]
    return struct.pack(PACKED[kind], value)


def present(name: str, launches: Launches | None = None) -> Emulated:
    """Make Triton compile for the target and launch in the emulator. This cannot be undone. Returns the driver."""
    emulated = Emulated(name, launches or of_process(name))
    upstream = triton.compile

    def compiled(source: Any, target: Any = None, options: Any = None, **named: Any) -> Any:
        with emulated.launches.compiling():
            made = upstream(source, target=target, options=options, **named)
        emulated.assemblies[made.kernel] = made.asm["amdgcn"]
        return made

    Autotuner._bench, Autotuner.run = FirstValid._bench, FirstValid.run
    triton.compile = triton.compiler.compile = compiled
    driver.set_active(emulated)
    torch.version.hip = HIP_VERSION
    cuda_on_cpu.SIMULATED_CUDA.update(card(name))
    cuda_on_cpu.replacements.cache_clear()
    return emulated


def card(name: str) -> dict[str, Any]:
    """The chip's properties as torch.cuda reports them, for host code that depends on them."""
    target, returning = TARGETS[name], cuda_on_cpu.returning
    stated = {
        "name": target.device,
        "major": target.capability[0],
        "minor": target.capability[1],
        "multi_processor_count": target.multiprocessors,
        "total_memory": target.memory_bytes,
        "warp_size": target.warp_size,
        "regs_per_multiprocessor": target.simds * target.registers * target.warp_size,
        "shared_memory_per_block": 64 << 10,
        "shared_memory_per_block_optin": target.lds_bytes,
        "shared_memory_per_multiprocessor": target.lds_per_multiprocessor,
        "L2_cache_size": target.l2_bytes,
        "gcnArchName": target.gcn_arch,
    }
    return {
        "get_device_name": returning(target.device),
        "get_device_capability": returning(target.capability),
        "get_device_properties": returning(SimpleNamespace(**{**vars(cuda_on_cpu.PRETENDED), **stated})),
        "get_arch_list": returning([name]),
    }
