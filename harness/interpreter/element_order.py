"""The order of elements where Triton's compiler is free to choose it.

    tl.cat(a, b, can_reorder=True)              b and then a, each from its last element to its first
    tl.reshape(x, shape, can_reorder=True)      from the last element to the first; likewise tl.ravel and tl.view

Compiled code takes the order in which threads hold the elements. Triton's interpreter keeps theirs, so a kernel that
relies on it would be right here and wrong on a device. Here the order is the same for all blocks of a shape, as in
compiled code. Axes of one element leave the order alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

upstream_cat = InterpreterBuilder.create_cat
upstream_reshape = InterpreterBuilder.create_reshape


class ElementOrder:
    """These methods replace those of the same names in InterpreterBuilder; `self` is the InterpreterBuilder."""

    def create_reshape(self, arg: TensorHandle, shape: Any, allow_reorder: bool) -> TensorHandle:
        made = upstream_reshape(self, arg, shape, allow_reorder)
        return backwards(made) if allow_reorder and sides(made) != sides(arg) else made


def reordered_cat(builder: Any, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
    """Upstream's `create_cat`, whose elements may be in any order."""
    return backwards(upstream_cat(builder, lhs, rhs))


def backwards(block: TensorHandle) -> TensorHandle:
    """`block` with its elements from the last to the first."""
    block.data = np.flip(block.data)
    return block


def sides(block: TensorHandle) -> list[int]:
    """The lengths of a block's axes, without those of one element."""
    return [side for side in block.data.shape if side != 1]
