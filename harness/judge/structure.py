"""Errors in the structure of a call's outputs, found before their values are read: count, type, shape, dtype, place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from harness.judge.reply import CallReply, OutputDescription
from harness.wire.arena import dtype_name

MOST_OF_A_SHAPE = 120  # characters

FRESH = "it is not the tensor that was supplied for it; write to that one and return that"


def wrong_count(names: list[str], reply: CallReply) -> str:
    wanted = f"a tuple of {len(names)}: {', '.join(names)}" if len(names) > 1 else "one tensor"
    several = reply.several or not reply.outputs
    got = f"a {'list' if reply.listed else 'tuple'} of {reply.returned}" if several else _named(reply.outputs[0].type)
    return f"custom_kernel returned {got}; it must return {wanted}"


def structural_fault(expected: torch.Tensor, shape: tuple[int, ...], got: OutputDescription) -> str | None:
    """Say in words what is wrong with the structure of a returned value. None if nothing is."""
    if got.type != "Tensor":
        return f"custom_kernel returned {_named(got.type)} where a plain torch.Tensor is due"
    dtype = dtype_name(expected.dtype)
    if got.shape is None or tuple(got.shape) != shape:
        return f"its shape is {_axes(got.shape)}, not {shape}"
    if got.dtype != dtype:
        return f"its dtype is {got.dtype}, not {dtype}"
    if got.device != expected.device.type:
        return f"it is on {got.device}, not on {expected.device.type}"
    if got.offset is None and tuple(got.stride or ()) == _contiguous_strides(shape):
        return FRESH
    if got.offset is None:
        return f"it is not contiguous: its strides are {_axes(got.stride)}; call .contiguous()"
    return None


def _named(kind: str) -> str:
    """Put the article before the name of a class: `a Tensor`, `an int`."""
    if kind == "NoneType":
        return "nothing (None)"
    return f"{'an' if kind[:1].upper() in 'AEIOU' else 'a'} {kind}"


def _axes(sizes: Sequence[int] | None) -> str:
    """Format sizes, such as `(4, 6)`. A long list is cut off: the sizes are the worker's word and may be any."""
    text = str(tuple(sizes or ()))
    return text if len(text) <= MOST_OF_A_SHAPE else f"{text[:MOST_OF_A_SHAPE]}... ({len(sizes or ())} axes)"


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
