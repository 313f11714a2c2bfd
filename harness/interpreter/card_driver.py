"""A Triton driver for a card that is not in this machine. Subclasses define the effect of a launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from harness.chips.targets import Target


class CardDriver(DriverBase):
    """Compiles for `target`. A subclass says how binaries are loaded, launched and timed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        properties = {
            "max_shared_mem": target.lds_bytes,
            "multiprocessor_count": target.multiprocessors,
            "warpSize": target.warp_size,
            "max_num_regs": target.simds * target.registers * target.warp_size,
        }
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: properties,
            load_binary=self.load_binary,
            unload_module=lambda module: None,
        )

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        """Load a binary. Returns the module, the function, its registers, its spills, and its most threads per
        block."""
        raise NotImplementedError

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*"

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(self.target.backend, self.target.arch, self.target.warp_size)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self.target.capability

    def get_device_interface(self) -> Any:
        return torch.cuda

    def clear_cache(self, cache: torch.Tensor) -> None: ...
