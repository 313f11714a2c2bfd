"""The Python functions behind a submission's own operators of torch (torch.library).

    remember()                           from now on, what is registered is noted
    implementation(torch.ops.mine.op)    the function that a GPU's tensors would reach, or None

On the meta device torch calls an operator's fake implementation, which launches no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._library.triton
import torch.library
from torch._ops import OpOverload, OpOverloadPacket

KEYS = ("CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
"""The dispatch keys of a function that runs for tensors on a GPU, the one that torch takes first."""

registered: dict[tuple[str, str], Callable[..., Any]] = {}
"""Functions by the operator's name, with the overload's if it has one, and the dispatch key."""

upstream_impl = torch.library.Library.impl


def remember() -> None:
    """Note every function that is registered in this process. Let torch.library.wrap_triton launch kernels itself:
    torch launches them by an operator of its own, which launches none on the meta device."""
    torch.library.Library.impl = _noted  # type: ignore[method-assign]
    torch._library.triton.wrap_triton_enabled_default = False


def _noted(self: Any, op_name: Any, fn: Callable[..., Any], dispatch_key: str = "", **named: Any) -> None:
    upstream_impl(self, op_name, fn, dispatch_key, **named)
    name = op_name if isinstance(op_name, str) else _name(op_name)
    if not named.get("with_keyset"):
        key = dispatch_key or self.dispatch_key or "CompositeImplicitAutograd"
        registered[f"{self.ns}::{name.rpartition('::')[2].removesuffix('.default')}", key] = fn


def implementation(operator: Any) -> Callable[..., Any] | None:
    """Return the Python function that runs `operator` for tensors on a GPU. It takes what the operator takes."""
    if isinstance(operator, OpOverloadPacket) and len(operator.overloads()) == 1:
        operator = getattr(operator, operator.overloads()[0])
    if not isinstance(operator, OpOverload):
        return None
    functions = [registered[_name(operator), key] for key in KEYS if (_name(operator), key) in registered]
    if not functions:
        return None
    return lambda *args, **kwargs: functions[0](*_completed(operator, args, kwargs, False).values(),
                                                **_completed(operator, args, kwargs, True))  # fmt: skip


def _name(operator: OpOverload) -> str:
    return operator._schema.name + (f".{operator._schema.overload_name}" if operator._schema.overload_name else "")


def _completed(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], by_name: bool) -> dict[str, Any]:
    """Return the arguments that are passed by position, or those `by_name`, with the schema's defaults, as torch's
    dispatcher passes them."""
    arguments = operator._schema.arguments
    given = dict(zip((one.name for one in arguments), args)) | kwargs
    for one in arguments:
        if one.name not in given and not one.has_default_value():
            raise TypeError(f"{operator._schema.name}() is missing a value for its argument {one.name!r}")
    return {one.name: given.get(one.name, one.default_value) for one in arguments if one.kwarg_only is by_name}
