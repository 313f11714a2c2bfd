"""Walk tensors in nested tuples, lists and dicts, as torch's functions take and return them.

torch's own `_pytree` does not serve: it turns a torch.Size into a plain tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


def leaves(data: Any) -> Iterator[Any]:
    """Yield the tensors in `data`."""
    if isinstance(data, torch.Tensor):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from leaves(value)
    elif isinstance(data, tuple | list):
        for value in data:
            yield from leaves(value)


def replaced(data: Any, replacement: Callable[[Any], Any]) -> Any:
    """Return `data` with every leaf replaced by `replacement(leaf)`."""
    if isinstance(data, dict):
        return {key: replaced(value, replacement) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return rebuilt(data, [replaced(value, replacement) for value in data])
    return replacement(data)


def rebuilt(like: Any, parts: list[Any]) -> Any:
    """Return a sequence of the type of `like`. torch's named results are constructed as tuples are, namedtuples are
    not."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
