"""The entry point: corrects Triton's interpreter, once per process, with the replacements from the other modules.

install() ─► replacements() ─► self_check()
"""

from __future__ import annotations

import os
import sys
from typing import Any

from harness.interpreter.cuda_on_cpu import cuda_on_cpu
from harness.interpreter.refusal import CannotInterpret, InterpreterUnfit

__all__ = ["CannotInterpret", "InterpreterUnfit", "cuda_on_cpu", "install", "launches", "self_check"]

is_installed = False


def install() -> None:
    """Correct the interpreter, once per process, and check the result. Call this before the submission is imported.

    Raises InterpreterUnfit if triton was imported without TRITON_INTERPRET=1, or if the self-check fails.
    """
    global is_installed
    if is_installed:
        return
    require_interpretation()
    from harness.interpreter import front_end

    front_end.remember_triton()
    for owner, name, replacement in replacements():
        setattr(owner, name, replacement)
    is_installed = True
    wrong = self_check()
    if wrong is not None:
        is_installed = False
        raise InterpreterUnfit(triton_version(), wrong)


def self_check() -> str | None:
    """The first wrong result of the interpreter, in one line, or None. It runs kernels that take some tens of
    milliseconds."""
    from harness.interpreter import launch
    from harness.interpreter.self_check import first_failure

    before, names, switches = launch.count, set(launch.names), set(launch.switches)
    launch.front_end_first = False
    try:
        return first_failure()
    finally:
        launch.count, launch.names, launch.switches, launch.front_end_first = before, names, switches, True


def launches() -> int:
    """The number of kernels interpreted so far in this process, without those of the self-check."""
    from harness.interpreter import launch

    return launch.count


def require_interpretation() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise InterpreterUnfit(triton_version(), "TRITON_INTERPRET=1 is not set; set it before triton is imported")
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    if not isinstance(triton.language.standard.sum, InterpretedFunction):
        raise InterpreterUnfit(triton_version(), "triton was imported before TRITON_INTERPRET=1 was set")


def triton_version() -> str:
    return getattr(sys.modules.get("triton"), "__version__", "(not imported)")


def replacements() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) of everything that install() changes in Triton."""
    from triton.runtime import interpreter as upstream
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.driver import driver

    from harness.interpreter import (
        arithmetic,
        autotune,
        element_order,
        extents,
        launch,
        memory,
        microscaling,
        reductions,
        refused,
        source,
    )

    classes = [
        (upstream.InterpreterBuilder, arithmetic.Arithmetic),
        (upstream.InterpreterBuilder, microscaling.Microscaling),
        (upstream.InterpreterBuilder, memory.Memory),
        (upstream.InterpreterBuilder, extents.Provenance),
        (upstream.InterpreterBuilder, element_order.ElementOrder),
        (upstream.InterpreterBuilder, refused.Refused),
        (upstream.ReduceOps, reductions.Reduction),
        (upstream.ScanOps, reductions.Scan),
        (Autotuner, autotune.FirstValid),
    ]
    return [
        *((owner, name, method) for owner, ours in classes for name, method in methods(ours).items()),
        *((module, name, function) for module, name, function in refused.external_functions()),
        *((upstream, function.__name__, function) for function in source.FUNCTIONS),
        (upstream.FunctionRewriter, "ast_transformer", source.Transformer()),
        (upstream.FunctionRewriter, "rewrite_ast", source.rewrite_ast),
        (upstream.InterpretedFunction, "run", launch.run),
        (upstream, "_implicit_cvt", launch.implicit_cvt),
        (upstream, "_patch_lang", launch.patch_lang),
        (upstream, "_patch_lang_core", launch.patch_core),
        (upstream, "_patch_lang_tensor", launch.patch_tensor),
        (upstream.interpreter_builder, "options", launch.OPTIONS),
        (upstream.TritonSemantic, "dot_scaled", microscaling.dot_scaled),
        (driver, "_active", autotune.PretendedDriver()),
    ]


def methods(ours: type) -> dict[str, Any]:
    """The methods that the class `ours` defines. They replace those of the same names."""
    return {name: value for name, value in vars(ours).items() if callable(value)}
