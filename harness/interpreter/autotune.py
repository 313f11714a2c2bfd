"""@triton.autotune and driver queries where there is no device to time on or to ask.

    kernel[grid](...)  ──►  configurations, pruned as the kernel asks  ──►  the first whose tl.static_assert hold

Nothing is timed, so the choice is always the same. Hooks, reset_to_zero and the cache by key are Triton's own. Host
code that asks Triton's driver for its target or properties gets the values of `PRETENDED`.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

from harness.interpreter.cuda_on_cpu import PRETENDED

upstream_run = Autotuner.run


class StaticAssertion(AssertionError):
    """A tl.static_assert of an interpreted kernel failed."""


class FirstValid:
    """These methods replace those of the same names in Autotuner."""

    configs: list[Any]
    cache: dict[Any, Any]
    best_config: Any

    def _bench(self, *args: Any, config: Any, **meta: Any) -> list[float]:
        return [math.inf if config in invalid(self) else 0.0] * 3  # Autotuner takes the first of the fastest

    def run(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return upstream_run(self, *args, **kwargs)
            except Exception as error:
                if len(self.configs) == 1 or not is_invalid_configuration(error) or self.best_config in invalid(self):
                    raise
                invalid(self).append(self.best_config)
                self.cache = {key: config for key, config in self.cache.items() if config != self.best_config}


def invalid(autotuner: Any) -> list[Any]:
    """The configurations of `autotuner` that failed to compile."""
    return autotuner.__dict__.setdefault("invalid_configs", [])


def is_invalid_configuration(error: BaseException | None) -> bool:
    """True if a device's autotuner would skip a configuration that ends in `error`."""
    while error is not None:
        if isinstance(error, StaticAssertion | CompileTimeAssertionFailure | OutOfResources):
            return True
        error = error.__cause__
    return False


class PretendedDriver:
    """Answers the queries of host code to `triton.runtime.driver.active`. Launches nothing."""

    utils = SimpleNamespace(
        get_device_properties=lambda device: {
            "max_shared_mem": PRETENDED.shared_memory_per_block_optin,
            "multiprocessor_count": PRETENDED.multi_processor_count,
            "warpSize": PRETENDED.warp_size,
        }
    )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 10 * PRETENDED.major + PRETENDED.minor, PRETENDED.warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """What triton.testing.do_bench clears before each call: an L2 cache that does not exist."""
        return torch.empty(1, dtype=torch.int8)

    def clear_cache(self, cache: torch.Tensor) -> None: ...
