"""Copies of the data and outputs of a problem in another project's form, as its code gets them."""

from __future__ import annotations

from typing import Any

import torch

from harness.judge.difference import bits
from harness.judge.reference import members
from harness.wire import objects


def copied(data: Any, dtype: torch.dtype | None = None) -> Any:
    """Return `data` with its tensors copied. Strides are kept unless elements share memory. With `dtype`, tensors of
    float16, bfloat16 and float32 are converted to it."""
    if isinstance(data, torch.Tensor):
        cast = dtype is not None and data.is_floating_point() and data.itemsize > 1
        return data.detach().clone().to(dtype) if cast else data.detach().clone()
    if isinstance(data, tuple | list):
        parts = [copied(part, dtype) for part in data]
        if objects.is_named_tuple(data):
            return type(data)(*parts)
        return tuple(parts) if isinstance(data, tuple) else parts
    if isinstance(data, dict):
        return {key: copied(part, dtype) for key, part in data.items()}
    if not objects.is_plain(data):
        return objects.made(type(data), copied(objects.attributes(data), dtype))
    return data


def in_form(form: type, output: Any) -> Any:
    """Return `output`. If it is a plain tuple where ref_kernel returns a named tuple, convert it to that named
    tuple."""
    if type(output) is not tuple or form is tuple or not issubclass(form, tuple):
        return output
    fields = getattr(form, "_fields", None)  # torch's own named tuples lack _fields and state n_fields
    if len(output) != (form.n_fields if fields is None else len(fields)):  # type: ignore[attr-defined]
        return output
    return form(output) if fields is None else form(*output)


def unchanged(was: torch.Tensor, is_now: torch.Tensor | None) -> bool:
    """Whether the tensor is unchanged. An object may now hold another tensor in its place, or none."""
    if is_now is None or (was.shape, was.dtype) != (is_now.shape, is_now.dtype):
        return False
    return torch.equal(bits(was), bits(is_now))


def are_tensors(answer: Any) -> bool:
    found = members(answer)
    return bool(found) and all(isinstance(member, torch.Tensor) for member in found)
