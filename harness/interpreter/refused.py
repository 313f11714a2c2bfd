"""Refuses operations that Triton's interpreter lacks, by name. Upstream would fail obscurely or return None.

tl.inline_asm_elementwise          an instruction of one target
tl.extra.libdevice, .cuda, .hip    functions that exist as device code only
anything else that InterpreterBuilder has no method for in this version
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.language import extra
from triton.language.extra import libdevice

from harness.interpreter.refusal import CannotInterpret


class Refused:
    """These methods replace those of the same names in InterpreterBuilder."""

    def create_inline_asm(self, inlineAsm: str, *rest: Any) -> NoReturn:
        raise CannotInterpret(f"inline assembly: {' '.join(inlineAsm.split())[:60]}")

    def create_extern_elementwise(self, libName: str, libPath: str, symbol: str, *rest: Any) -> NoReturn:
        raise CannotInterpret(f"the external function {symbol}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith(("create_", "get_")):
            operation = name.partition("_")[2]
            raise CannotInterpret(f"{operation}, which the interpreter of triton {triton.__version__} lacks")
        if hasattr(ir.builder, name):
            raise CannotInterpret(f"a function that builds IR, for which the interpreter lacks {name}")
        raise AttributeError(name)


def external_functions() -> Iterator[tuple[ModuleType, str, Callable[..., NoReturn]]]:
    """(module, name, refusing function) for each function of tl.extra. Without this the portable libdevice's stubs
    return None."""
    backends = [getattr(extra, name.rpartition(".")[2]) for name in extra.__all__]
    modules = [libdevice, *backends, *(backend.libdevice for backend in backends if hasattr(backend, "libdevice"))]
    for module in modules:
        for name, function in inspect.getmembers(module, callable):
            if inspect.isfunction(function) or tl.core.is_builtin(function) or isinstance(function, triton.JITFunction):
                yield module, name, refuse(f"{module.__name__.removeprefix('triton.language.')}.{name}")


def refuse(name: str) -> Callable[..., NoReturn]:
    def refusing(*args: Any, **kwargs: Any) -> NoReturn:
        raise CannotInterpret(f"the external function {name}")

    return refusing
