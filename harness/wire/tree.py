"""The data of a call as a tree of plain JSON, separate from its tensors.

{"tensor": 0}  {"tuple": [..]}  {"list": [..]}  {"dict": {..}}  {"value": 1.5}  {"dtype": "bfloat16"} {"named": [module,
class, [..]]}  {"object": [module, class, {..}]}  {"enum": [module, class, name]}
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from harness.wire import objects

Leaves = list[tuple[str, torch.Tensor]]


def flatten(data: Any, names: Sequence[str] | None, owners: Collection[str] = ()) -> tuple[Any, Leaves]:
    """Return `data` as a JSON tree, and its tensors in order with names for people.

    `names` are the names of the members of a top-level tuple. Deeper members are joined by dots: kv_data.fp8.0. Without
    names, `data` may have any form, and its tensors are called input 0, input 0.weight or, if there is only one, input.
    `owners`: the modules whose classes objects may have.

    Raises TypeError for anything that is no tensor, tuple, list, dict with string keys, number, string, bool, dtype or
    None, and for data that contains itself. Raises ValueError if the numbers of members and names differ.
    """
    found: Leaves = []
    try:
        if names is None:
            tree = _flatten(data, "", (), found, owners)
            for name, tensor in found:
                if tensor.is_meta:  # allowed with names: Podium describes a problem's inputs without storage
                    raise TypeError(f"{name or 'data'} is a tensor on meta, which cannot be passed to a worker")
            return tree, [(f"input {name}".strip(), tensor) for name, tensor in found]
        if not isinstance(data, tuple | list) or len(data) != len(names):
            raise ValueError(f"the data must be a tuple of {len(names)}: {', '.join(names)}")
        return _flatten(data, "", names, found, owners), found
    except RecursionError:
        raise TypeError("data is too deep, or holds itself: it cannot be passed to a worker") from None


def _flatten(node: Any, name: str, names: Sequence[str], leaves: Leaves, owners: Collection[str]) -> Any:
    # Not a function inside `flatten`: a nested function that calls itself is a reference cycle. It would keep every
    # tensor in `leaves` until the garbage collector runs.
    if isinstance(node, torch.Tensor):
        if node.layout is not torch.strided:
            raise TypeError(f"{name or 'data'} is a tensor of {node.layout}, which cannot be passed to a worker")
        leaves.append((name, node))
        return {"tensor": len(leaves) - 1}
    address = objects.address_of(type(node), owners) if owners else None
    if address is not None and isinstance(node, enum.Enum):
        return {"enum": [*address, node.name]}
    if isinstance(node, tuple | list):
        parts = names if not name and len(names) == len(node) else [str(i) for i in range(len(node))]
        children = zip(node, parts, strict=True)
        content = [_flatten(child, _join(name, part), (), leaves, owners) for child, part in children]
        if address is not None and objects.is_named_tuple(node):
            return {"named": [*address, content]}
        return {"tuple" if isinstance(node, tuple) else "list": content}
    if isinstance(node, dict) and all(isinstance(key, str) for key in node):
        return {"dict": _members(node, name, leaves, owners)}
    if isinstance(node, str) and any("\ud800" <= each <= "\udfff" for each in node):
        raise TypeError(f"{name or 'data'} is a text with half of a character, which cannot be passed to a worker")
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    if isinstance(node, torch.dtype):
        return {"dtype": str(node).removeprefix("torch.")}
    if address is not None and not objects.is_plain(node):
        return {"object": [*address, _members(objects.attributes(node), name, leaves, owners)]}
    raise TypeError(f"{name or 'data'} is a {type(node).__name__}, which cannot be passed to a worker")


def _members(node: dict[str, Any], name: str, leaves: Leaves, owners: Collection[str]) -> dict[str, Any]:
    return {key: _flatten(child, _join(name, key), (), leaves, owners) for key, child in node.items()}


def unflatten(tree: Any, leaf: Callable[[int], Any], module: Callable[[str], Any] = importlib.import_module) -> Any:
    """Rebuild the data from `tree`, with `leaf(i)` in place of tensor i. `module` imports the modules of its objects'
    classes."""
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return leaf(content)
    if kind == "tuple":
        return tuple(unflatten(child, leaf, module) for child in content)
    if kind == "list":
        return [unflatten(child, leaf, module) for child in content]
    if kind == "dict":
        return {key: unflatten(child, leaf, module) for key, child in content.items()}
    if kind == "dtype":
        return getattr(torch, content)
    if kind == "value":
        return content
    owner, qualname, members = content
    cls = objects.found_in(module(owner), qualname)
    if kind == "enum":
        return cls[members]
    if kind == "named":
        return cls(*(unflatten(child, leaf, module) for child in members))
    return objects.made(cls, {key: unflatten(child, leaf, module) for key, child in members.items()})


def _join(prefix: str, part: str) -> str:
    return f"{prefix}.{part}" if prefix else part
