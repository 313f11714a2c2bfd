"""What torch does with tensors on a GPU and on the host in one call: most functions raise an error.

Phantoms are on the meta device, which has no such errors. torch's own fake tensors have them: they say which functions
take tensors of both (`copy_`, an index) and where the result is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from harness.compile.nested import leaves, replaced

TAKES_BOTH = ("copy_", "to", "__setitem__", "index_put_")
"""Functions that take tensors of both, or nearly so. They are common, and the first fake tensor takes seconds."""

REFUSED = re.compile(r"same device|different devices|ismatching .*device")
"""What the errors of torch's functions and fake tensors have in common."""


MESSAGE = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


def device_of_result(
    func: Callable[..., Any], args: Any, kwargs: dict[str, Any], device_of: Callable[[torch.Tensor], torch.device]
) -> torch.device | None:
    """Return the device of what `func` returns. None if its tensors are on one device, or if nothing is known.

    A number on the host is taken everywhere. Raises RuntimeError as torch does.
    """
    name = getattr(func, "__name__", "function")
    tensors = list(leaves((args, kwargs)))
    at = {device_of(tensor).type for tensor in tensors if tensor.ndim or device_of(tensor).type != "cpu"}
    if not {"cpu", "cuda"} <= at or name in TAKES_BOTH:
        return None
    if name == "__getitem__":
        return _of_indexed(args[0], args[1], device_of)
    from torch._subclasses.fake_tensor import FakeTensorMode

    def faked(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device_of(leaf))

    try:
        with FakeTensorMode():
            returned = func(*replaced(args, faked), **replaced(kwargs, faked))
    except Exception as error:
        if REFUSED.search(str(error)):
            raise RuntimeError(f"{MESSAGE} (in {name})") from None
        return None  # needs values, or more of the device than its name
    return returned.device if isinstance(returned, torch.Tensor) else None


def _of_indexed(
    tensor: torch.Tensor, index: Any, device_of: Callable[[torch.Tensor], torch.device]
) -> torch.device | None:
    """Return the device of `tensor[index]`. Indices may be on the host, and numbers anywhere."""
    at = device_of(tensor)
    if at.type == "cpu" and any(device_of(one).type != "cpu" and one.ndim for one in leaves(index)):
        raise RuntimeError(f"{MESSAGE} (in an index)")
    return at
