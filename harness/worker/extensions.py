"""torch's C++ extensions on a machine without a GPU: those without CUDA sources are built as usual, others are refused.

Otherwise `load_inline` and `load` would look for a compiler, and its absence would look like the submission's
error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from harness.hip import NoDevice
from harness.worker import cpp

DEVICE_CODE = (".cu", ".cuh", ".hip")


def refuse_what_cannot_be_built() -> None:
    """From here on, CUDA sources raise NoDevice, and C++ raises NoCppCompiler if this machine cannot build it.
    Functions that already replace torch's stay: `rehearsal`'s do."""
    from torch.utils import cpp_extension  # takes a third of a second, which few submissions need

    for name in ("load_inline", "load"):
        build = getattr(cpp_extension, name)
        if build.__module__ == cpp_extension.__name__:
            setattr(cpp_extension, name, _refusing(name, build))


def _refusing(name: str, build: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(build)

    def of_the_processor(*positional: Any, **named: Any) -> Any:
        given = signature.bind(*positional, **named).arguments
        sources = given.get("sources", ())
        files = [sources] if isinstance(sources, str) else sources
        if given.get("cuda_sources") or given.get("with_cuda") or any(str(one).endswith(DEVICE_CODE) for one in files):
            raise NoDevice(f"its CUDA sources, for {name}, need a GPU: not run")
        try:
            cpp.compiler()
        except cpp.NoCppCompiler as lacking:
            raise cpp.NoCppCompiler(f"its C++, for {name}, cannot be built: {lacking}: {cpp.HOW_TO_GET_IT}") from None
        return build(*positional, **named)

    return of_the_processor
