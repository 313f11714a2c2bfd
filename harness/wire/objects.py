"""Objects of a problem's own classes in its data: the parts that are sent to a worker, and how the object is rebuilt.

    NamedTuple                       its members, passed to the constructor
    enum                             the member's name
    dataclass, nn.Module, others     its attributes, set without running any code of the class

Both sides import the class by the same name, from the problem's own modules or from torch.nn.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Any

import torch

TORCH_NN = "torch.nn."


def address_of(cls: type, owners: Collection[str]) -> list[str] | None:
    """The module and name by which the other side imports `cls`. None if its module is neither one of `owners` nor of
    torch.nn, or if it is defined inside a function."""
    module = cls.__module__
    if (module not in owners and not module.startswith(TORCH_NN)) or "<locals>" in cls.__qualname__:
        return None
    return [module, cls.__qualname__]


def found_in(module: Any, qualname: str) -> Any:
    """The class of this qualified name in `module`."""
    for part in qualname.split("."):
        module = getattr(module, part)
    return module


def is_named_tuple(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "_fields")


def is_plain(node: Any) -> bool:
    """Whether `node` is plain data, a class or a function, and not an object whose attributes are sent."""
    passed = (torch.Tensor, tuple, list, dict, str, bytes, int, float, complex, type(None), type, enum.Enum)
    return isinstance(node, passed) or not (hasattr(node, "__dict__") or hasattr(type(node), "__slots__"))


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of an object. For an nn.Module without those that torch keeps in every module, such as hooks."""
    found = dict(getattr(node, "__dict__", {}))
    for cls in type(node).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(node, name):
                found[name] = getattr(node, name)
    if isinstance(node, torch.nn.Module):
        torchs = vars(torch.nn.Module()).keys() - _OF_EACH_MODULE
        found = {name: value for name, value in found.items() if name not in torchs}
    return found


def made(cls: Any, found: Mapping[str, Any]) -> Any:
    """Build an object of `cls` with these attributes."""
    new = object.__new__(cls)
    found = dict(found)
    if issubclass(cls, torch.nn.Module):
        torch.nn.Module.__init__(new)
        found["_parameters"] = {
            name: tensor if tensor is None else torch.nn.Parameter(tensor, requires_grad=False)
            for name, tensor in found["_parameters"].items()
        }
    for name, value in found.items():
        object.__setattr__(new, name, value)
    return new


_OF_EACH_MODULE = {"_parameters", "_buffers", "_modules", "training"}
