"""One launch of an interpreted kernel: how its arguments become tensors, and how it ends.

kernel[grid](x, n, 0.5)  ──►  run: counted; numpy's warnings off, as a chip has none
     │ arguments              pointers know their tensor's extent; floats become float32 scalars, so that bf16 * scale
     │                        is float32, as when compiled
     │ language               tl.static_assert, loop bounds under numpy 2.4, the FNUZ types
     ▼
programs of the grid, one after another  ──►  CannotInterpret and OutOfBounds as themselves, not as InterpreterError
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream
from triton.runtime.interpreter import InterpretedFunction, TensorHandle

from harness.interpreter import extents, front_end, source
from harness.interpreter.autotune import StaticAssertion
from harness.interpreter.elementwise import map_elementwise
from harness.interpreter.extents import Misaligned, OutOfBounds
from harness.interpreter.number_formats import FLOAT8
from harness.interpreter.promises import FalsePromise, checked
from harness.interpreter.refusal import CannotInterpret

upstream_run = InterpretedFunction.run
upstream_implicit_cvt = upstream._implicit_cvt
upstream_patch_lang = upstream._patch_lang
upstream_patch_core = upstream._patch_lang_core
upstream_patch_tensor = upstream._patch_lang_tensor

# Upstream checks every integer operation for overflow, which takes eight operations, and then ignores the result.
OPTIONS = dataclasses.replace(
    upstream.interpreter_builder.options,
    sanitize_overflow=False,
    allowed_dot_input_precisions=("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"),
)

count = 0
names: set[str] = set()
"""The kernels that were launched."""

switches: set[str] = set()
"""The values of constexprs with which they were launched, if they are True or False: `attend with CAUSAL=True`."""

front_end_first = True
"""False for the kernels of the self-check, which are known to compile."""

patched_in_this_launch: set[int] = set()


def run(self: InterpretedFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """Replaces InterpretedFunction.run. Upstream returns None where a device returns the compiled kernel.

    Raises CompilationError if Triton's front end refuses the kernel, CannotInterpret, OutOfBounds, Misaligned, or what
    upstream raises.
    """
    global count
    count += not warmup
    if not warmup:
        names.add(self.fn.__name__)
        switches.update(switched(self.fn, args, kwargs))
    patched_in_this_launch.clear()
    extents.launched.append((self, args, kwargs))
    try:
        if not warmup and front_end_first:
            front_end.check(self, args, kwargs)
        with np.errstate(all="ignore"):
            upstream_run(self, *args, grid=in_a_tuple(grid), warmup=warmup, **kwargs)
    except Exception as error:
        refusal = refusal_in(error)
        if refusal is None:
            raise
        raise refusal from error
    finally:
        extents.launched.pop()
    return KernelOfADevice()


def switched(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Each constexpr of a launch that is True or False, in words."""
    constexprs = constexprs_of(kernel)
    given = {**dict(zip(inspect.signature(kernel).parameters, args)), **kwargs} if constexprs else {}
    for name, default in constexprs.items():
        value = given.get(name, default)
        value = getattr(value, "value", value)
        if isinstance(value, bool):
            yield f"{kernel.__name__} with {name}={value}"


@functools.cache
def constexprs_of(kernel: Any) -> dict[str, Any]:
    """The defaults of a kernel's constexprs by their names, empty where there is none."""
    parameters = inspect.signature(kernel).parameters.values()
    return {each.name: each.default for each in parameters if "constexpr" in str(each.annotation)}


def in_a_tuple(grid: Any) -> Any:
    """A grid of which the sizes are in no list: a device takes one, and upstream does not."""
    if callable(grid):
        return lambda arguments: in_a_tuple(grid(arguments))
    return tuple(grid) if isinstance(grid, list) else grid


class KernelOfADevice:
    """What a launch returns. The compiled kernel's registers, memory and code are those of a device."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CannotInterpret(f"{name} of a compiled kernel, which needs a GPU")


def refusal_in(error: BaseException | None) -> CannotInterpret | OutOfBounds | Misaligned | FalsePromise | None:
    """The refusal among an exception's causes, or None."""
    while error is not None:
        if isinstance(error, OutOfBounds):
            return OutOfBounds(str(error))
        if isinstance(error, Misaligned):
            return Misaligned(str(error))
        if isinstance(error, FalsePromise):
            return FalsePromise(str(error))
        if isinstance(error, CannotInterpret):
            return CannotInterpret(str(error).partition(": ")[2])
        if isinstance(error, ValueError) and "`_semantic` argument must be provided" in str(error):
            return CannotInterpret("a function of triton.language that the interpreter does not run")
        error = error.__cause__
    return None


def implicit_cvt(arg: Any) -> Any:
    """Replaces `_implicit_cvt`: turns a kernel argument that is not constexpr into the tensor that it is on a
    device."""
    if isinstance(arg, bool):
        return tl.tensor(TensorHandle(np.array([arg], np.bool_), tl.int1), tl.int1)
    if isinstance(arg, float):
        return tl.tensor(TensorHandle(np.array([arg], np.float32), tl.float32), tl.float32)
    made = upstream_implicit_cvt(arg)
    return extents.bounded(made, arg) if hasattr(arg, "data_ptr") else made


def patch_lang(fn: Any) -> Any:
    """Replaces `_patch_lang`. Upstream repeats it at every call of a device function, which is slow."""
    names = source.scope(fn)
    visible = {id(value) for value in names.values() if value is tl or value is tl.core}
    if visible and visible <= patched_in_this_launch:
        return upstream._LangPatchScope()
    patched_in_this_launch.update(visible)
    return upstream_patch_lang(SimpleNamespace(__globals__=names))


def patch_core(lang: Any, scope: Any) -> None:
    """Replaces `_patch_lang_core`."""
    upstream_patch_core(lang, scope)
    upstream_to_ir = lang.dtype.to_ir

    def to_ir(kind: tl.dtype, builder: Any) -> Any:
        return kind if kind.name in FLOAT8 else upstream_to_ir(kind, builder)

    scope.set_attr(lang.dtype, "to_ir", to_ir)
    scope.set_attr(lang, "static_assert", static_assert)
    scope.set_attr(lang, "map_elementwise", map_elementwise)
    scope.set_attr(lang, "multiple_of", checked(lang.multiple_of))


def patch_tensor(tensor: Any, scope: Any) -> None:
    """Replaces `_patch_lang_tensor`."""
    upstream_patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def static_assert(condition: Any, message: str = "") -> None:
    if not condition:
        raise StaticAssertion(message)
