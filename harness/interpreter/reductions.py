"""tl.reduce and tl.associative_scan on numpy, rounding where the chip does.

Triton reduces in the type of its input: a sum of bf16 or fp16 compiles to a tree of add.bf16 or add.f16, so every
addition rounds. Here a 16-bit sum is the tree of neighbours

    x0 x1 x2 x3   ──►   x0+x1  x2+x3   ──►   (x0+x1)+(x2+x3)

This is one of the orders that the hardware may use; the layout decides. A 16-bit scan runs from the first element to
the last. Until 3.8 tl.max, tl.min, tl.cumsum and tl.cumprod promote bf16 to float32 themselves, as when compiled.

NaN: max and min ignore it, as compiled code does. argmax and argmin ignore it too; on hardware their answer depends on
the order of the reduction. Ties go to the smallest index, also with tie_break_left=False. A kernel's own combining
functions go through Triton's slow path, one element at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle

from harness.interpreter.arithmetic import operand, rounded
from harness.interpreter.number_formats import Array, decode_bf16, encode_bf16, is_stored_as_bits
from harness.interpreter.refusal import CannotInterpret

upstream_reduce = ReduceOps.apply_impl
upstream_scan = ScanOps.apply_impl

SUM, PRODUCT = tl.standard._sum_combine, tl.standard._prod_combine
EXTREMES: dict[Any, Any] = {tl.standard._elementwise_max: np.maximum, tl.standard._elementwise_min: np.minimum}
EXTREMES_WITH_INDEX: dict[Any, Any] = {
    tl.standard._argmax_combine_tie_break_left: np.maximum,
    tl.standard._argmax_combine_tie_break_fast: np.maximum,
    tl.standard._argmin_combine_tie_break_left: np.minimum,
    tl.standard._argmin_combine_tie_break_fast: np.minimum,
}


class Reduction:
    """Replaces the method of the same name in ReduceOps; `input` is a tuple of tl.tensor."""

    axis: int | None
    keep_dims: bool
    combine_fn: Any
    to_tensor: Any

    def apply_impl(self, input: tuple[Any, ...]) -> Any:
        combine, kind = self.combine_fn, input[0].dtype
        values = input[0].handle
        if combine is SUM and kind.is_floating() and kind.primitive_bitwidth <= 16:
            return self.to_tensor(tree_sum(values, self.axis, self.keep_dims).data, kind)
        if combine in EXTREMES:
            extreme = extreme_number(EXTREMES[combine], operand(values), self.axis, self.keep_dims)
            return self.to_tensor(rounded(extreme, kind).data, kind)
        if combine in EXTREMES_WITH_INDEX:
            best = extreme_number(EXTREMES_WITH_INDEX[combine], operand(values), self.axis, keep_dims=True)
            index = first_index(operand(values), best, input[1].handle.data, self.axis)
            if not self.keep_dims:
                best, index = np.squeeze(best, self.axis), np.squeeze(index, self.axis)
            return self.to_tensor(rounded(best, kind).data, kind), self.to_tensor(index, input[1].dtype)
        if combine is not SUM:
            self.combine_fn = SameTypes(combine, input)
        return upstream_reduce(self, input)


class Scan:
    """Replaces the method of the same name in ScanOps; `input` is a tuple of tl.tensor."""

    axis: int
    reverse: bool
    combine_fn: Any
    to_tensor: Any

    def apply_impl(self, input: tuple[Any, ...]) -> Any:
        combine, kind = self.combine_fn, input[0].dtype
        if combine is not SUM and combine is not PRODUCT:
            self.combine_fn = SameTypes(combine, input)
        elif is_stored_as_bits(kind):
            step = np.add if combine is SUM else np.multiply
            return [self.to_tensor(running(input[0].handle, self.axis, self.reverse, step), kind)]
        return upstream_scan(self, input)


class SameTypes:
    """A combining function that must return the types of its arguments, as the compiler demands.

    Upstream would store a float32 result in a bf16 accumulator as an integer.
    """

    def __init__(self, combine: Any, input: tuple[Any, ...]) -> None:
        self.combine = combine
        self.kinds = [tensor.dtype for tensor in input]

    def fn(self, *operands: Any) -> Any:
        result = self.combine.fn(*operands)
        for kind, value in zip(self.kinds, result if isinstance(result, tuple) else (result,), strict=True):
            if isinstance(value, tl.tensor) and value.dtype != kind:
                raise CannotInterpret(f"a combining function that turns {kind} into {value.dtype}, nor compiled")
        return result


def tree_sum(handle: TensorHandle, axis: int | None, keep_dims: bool) -> TensorHandle:
    """The sum of a bf16 or fp16 block along `axis` (None: of the whole block), rounded after every addition of
    neighbours.

    Raises CannotInterpret for fp8, as operand() does.
    """
    kind = handle.dtype.scalar
    values = operand(handle)
    shape = [1] * values.ndim if axis is None else [*values.shape[:axis], 1, *values.shape[axis:][1:]]
    values = values.reshape(-1) if axis is None else np.moveaxis(values, axis, 0)
    while len(values) > 1:
        values = operand(rounded(values[0::2] + values[1::2], kind))
    return rounded(values.reshape(shape) if keep_dims else values[0], kind)


def extreme_number(pick: np.ufunc, values: Array, axis: int | None, keep_dims: bool) -> Any:
    """np.maximum or np.minimum of `values` along `axis` (None: all). NaN is ignored unless there is nothing else."""
    is_nan = np.isnan(values)
    if not is_nan.any():
        return pick.reduce(values, axis=axis, keepdims=keep_dims)
    identity = values.dtype.type(-np.inf if pick is np.maximum else np.inf)
    extreme = pick.reduce(np.where(is_nan, identity, values), axis=axis, keepdims=keep_dims)
    return np.where(is_nan.all(axis=axis, keepdims=keep_dims), values.dtype.type(np.nan), extreme)


def first_index(values: Array, best: Array, indices: Array, axis: int | None) -> Array:
    """The smallest of `indices` at which `values` equals the `best` of its slice. If all are NaN, the smallest of
    all."""
    chosen = (values == best) | np.isnan(best)
    return np.where(chosen, indices, np.iinfo(indices.dtype).max).min(axis=axis, keepdims=True)


def running(handle: TensorHandle, axis: int, reverse: bool, step: np.ufunc) -> Array:
    """bf16 bits of the running sum or product of a bf16 block along `axis`, rounded after every step. Raises
    CannotInterpret for fp8."""
    order = slice(None, None, -1 if reverse else 1)
    values = np.moveaxis(operand(handle), axis, 0)[order]
    total = [values[0]]
    for value in values[1:]:
        total.append(decode_bf16(encode_bf16(step(total[-1], value))))
    return encode_bf16(np.moveaxis(np.stack(total)[order], 0, axis))
