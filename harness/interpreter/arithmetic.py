"""The arithmetic of an interpreted kernel: methods that replace those of Triton's InterpreterBuilder.

Triton's interpreter runs a kernel's operations on numpy arrays. A value is a TensorHandle (numpy data, Triton type).
numpy has no bf16 and no fp8, so these are held as unsigned integers, and upstream computes on the integers. Here every
operation does

    handles ── decode ──► float32 ── numpy ──► float32 ── encode ──► handles
                                     comparisons ────────► int1

It rounds once per operation, because the chip does (sm_90: add.bf16; gfx942, gfx950: fp32, then a conversion). Triton
compiles no fp8 arithmetic for any target, so only casts, tl.dot and moves are offered.

Also corrected, in the Triton versions that need it: min/max/clamp of NaN, one-bit integers that saturate, fma that
rounds twice, float-to-integer casts out of range, umulhi of negative numbers, histogram's last bin, the type of a
comparison's result, the all-ones constant of unsigned types.

Products of float32 follow sm_90, the chip that host code sees. tl.dot uses TF32 unless input_precision says otherwise
(as on gfx942; the default is float32 on gfx950 and gfx1100). Code for sm_90 passes float32 to the tensor core unchanged
(no cvt.rna in the PTX of 3.7.1), and the core reads its upper 19 bits. The parts of tf32x3, bf16x3 and bf16x6 are
rounded, as in that code. An fp16 accumulator rounds after each instruction, which covers 32 bytes along K (mma and
wgmma m16n8k16, m64k16; k32 for fp8).

More exact here than on a chip
    fp8 dots on sm_90    its tensor core (wgmma: 64 rows and more) adds with about 14 bits; here, as on AMD, float32
    float32 sums         in numpy's order, pairwise; a chip's tensor core cuts bits off when it aligns the addends
    exp2, log2, rsqrt    a chip's approximations, a few units in the last place off and without subnormals, are
    sin, cos, x / y      correctly rounded here
Not imitated: which of -0 and +0 min and max return, and NaN payloads. A float cast to an integer out of its range
saturates here, and NaN gives 0. LLVM leaves these casts undefined, and below 32 bits NVIDIA and AMD differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype, _interpreter, _ir

from harness.interpreter.number_formats import (
    Array,
    decode,
    decode_bf16,
    encode_bf16,
    encode_bf16_toward_zero,
    float8,
    is_stored_as_bits,
    tf32_nearest,
    tf32_toward_zero,
    toward_zero,
)
from harness.interpreter.refusal import CannotInterpret

upstream_fma = InterpreterBuilder.create_fma
upstream_dot = InterpreterBuilder.create_dot

# The first interpreter with a single rounding has compiled helpers for it.
FUSES_FLOAT64 = hasattr(_interpreter, "fma_fp64")
WRAPPING = (np.add, np.subtract, np.multiply)

WGMMA_ROWS = 64
"""A tl.dot with fewer rows is no wgmma."""

less_exact: set[str] = set()
"""What kernels of this process computed more exactly than a chip does, where that may decide: a verdict names it."""


class Arithmetic:
    """These methods replace those of the same names in InterpreterBuilder; `self` is the InterpreterBuilder."""

    # constants

    def get_bf16(self, value: float) -> TensorHandle:
        return TensorHandle(encode_bf16(np.array([value], np.float32)), tl.bfloat16)

    def get_all_ones_value(self, type: tl.dtype) -> TensorHandle:
        dtype = _get_np_dtype(type)
        if dtype.kind not in "biu":
            raise TypeError(f"unsupported type {type}")
        return TensorHandle(np.invert(np.zeros(1, dtype)), type.scalar)

    # one, two and three operands

    def binary_op(self, lhs: TensorHandle, rhs: TensorHandle, op: Any) -> TensorHandle:
        left, right = operand(lhs), operand(rhs)
        if left.dtype == np.bool_ and op in WRAPPING:  # int1 is an integer of one bit: 1 + 1 is 0
            return rounded((op(left.astype(np.int8), right.astype(np.int8)) & 1).astype(np.bool_), tl.int1)
        return rounded(op(left, right), lhs.dtype.scalar)

    def unary_op(self, arg: TensorHandle, op: Any) -> TensorHandle:
        return rounded(op(operand(arg)), arg.dtype.scalar)

    def create_minnumf(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self.binary_op(lhs, rhs, minimum_number)

    def create_maxnumf(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self.binary_op(lhs, rhs, maximum_number)

    def create_clampf(self, arg: TensorHandle, lo: TensorHandle, hi: TensorHandle, propagate_nans: Any) -> TensorHandle:
        x, low, high = operand(arg), operand(lo), operand(hi)
        if propagate_nans == _ir.PROPAGATE_NAN.NONE:
            return rounded(minimum_number(maximum_number(x, low), high), arg.dtype.scalar)
        return rounded(np.minimum(np.maximum(x, low), high), arg.dtype.scalar)

    def create_fma(self, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        kind = z.dtype.scalar
        if not kind.is_floating() or (kind.is_fp64() and FUSES_FLOAT64):
            return upstream_fma(self, x, y, z)
        if kind.is_fp64():
            raise CannotInterpret(f"tl.fma of float64 (the interpreter of triton {triton.__version__} rounds it twice)")
        # The product of two float32 (or narrower) is exact in float64.
        fused = operand(x).astype(np.float64) * operand(y) + operand(z)
        return rounded(fused.astype(np.float32) if kind.is_bf16() else fused, kind)

    def create_umulhi(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        dtype = lhs.data.dtype
        unsigned = np.dtype(f"u{dtype.itemsize}")
        wide = object if dtype.itemsize == 8 else np.uint64
        product = lhs.data.view(unsigned).astype(wide) * rhs.data.view(unsigned).astype(wide)
        return TensorHandle((product >> (8 * dtype.itemsize)).astype(unsigned).view(dtype), lhs.dtype.scalar)

    def create_histogram(self, data: TensorHandle, bins: int, mask: TensorHandle | None) -> TensorHandle:
        counted = (data.data >= 0) & (data.data < bins)
        if mask is not None:
            counted &= mask.data
        counts = np.bincount(data.data[counted].astype(np.int64), minlength=bins)
        return TensorHandle(counts.astype(np.int32), tl.int32)

    # matrices

    def create_dot(
        self, a: TensorHandle, b: TensorHandle, d: TensorHandle, input_precision: Any, max_num_imprecise_acc: int
    ) -> TensorHandle:
        kind = d.dtype.scalar
        if not kind.is_floating() or kind.is_fp64():
            return upstream_dot(self, a, b, d, input_precision, max_num_imprecise_acc)
        left, right = (decode(x.data, x.dtype.scalar).astype(np.float32, copy=False) for x in (a, b))
        if kind.is_fp16():
            return rounded(fp16_product(left, right, operand(d), step=32 // a.data.itemsize), kind)
        if a.dtype.scalar.is_fp8() and a.data.shape[-2] >= WGMMA_ROWS:
            less_exact.add("14-bit sums of fp8 products (sm_90)")
        if a.dtype.scalar.is_fp32():
            return rounded(float32_product(left, right, input_precision.name) + operand(d), kind)
        return rounded(np.matmul(left, right) + operand(d), kind)

    # casts

    def cast_impl(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
        source, target = src.dtype.scalar, dst_type.scalar
        values = decode(src.data, source)
        if target.is_bf16():
            return TensorHandle(encode_bf16(values if values.dtype.kind == "f" else values.astype(np.float32)), target)
        if target.is_fp8():
            if source.is_fp8() or values.dtype not in (np.float16, np.float32):
                raise CannotInterpret(f"a cast from {source} to {target}, which Triton does not compile")
            return TensorHandle(float8(target).encode(values), target)
        dtype = _get_np_dtype(target)
        if values.dtype.kind == "f" and dtype.kind in "iu":
            return TensorHandle(saturated(values, dtype), target)
        return TensorHandle(values.astype(dtype), target)

    def create_fp_to_fp(self, src: TensorHandle, dst_type: tl.dtype, rounding_mode: Any) -> TensorHandle:
        if rounding_mode != _ir.ROUNDING_MODE.RTZ:
            return self.cast_impl(src, dst_type)
        source, target = decode(src.data, src.dtype.scalar), dst_type.scalar
        if target.is_bf16():
            return TensorHandle(encode_bf16_toward_zero(source), target)
        if is_stored_as_bits(target):
            raise CannotInterpret(f"a cast to {target} that rounds toward zero")
        return TensorHandle(toward_zero(source, _get_np_dtype(target).type), target)


def operand(handle: TensorHandle) -> Array:
    """The values of `handle` for computing: float32 for bf16. Raises CannotInterpret for fp8."""
    kind = handle.dtype.scalar
    if kind.is_fp8():
        raise CannotInterpret(f"arithmetic on {kind}, which Triton does not compile: cast it to a wider type first")
    return decode_bf16(handle.data) if kind.is_bf16() else handle.data


def float32_product(left: Array, right: Array, precision: str) -> Array:
    """float32 `left` @ `right` in one of tl.dot's precisions: IEEE, TF32, TF32x3, BF16x3 or BF16x6.

    The last three split each operand into parts and omit the smallest products: two parts give three products, three
    parts give six. Raises CannotInterpret for any other precision.
    """
    if precision == "IEEE":
        return np.matmul(left, right)
    if precision == "TF32":
        return np.matmul(tf32_toward_zero(left), tf32_toward_zero(right))
    if precision not in PARTS:
        raise CannotInterpret(f"a dot with input_precision {precision}")
    count, nearest = PARTS[precision]
    lefts, rights = split(left, count, nearest), split(right, count, nearest)
    total = np.float32(0)
    for order in reversed(range(1, count)):
        for i in range(order + 1):
            total = total + np.matmul(lefts[i], rights[order - i])
    # Triton drops the NaN that a part of an infinite operand makes.
    return np.where(np.isnan(total), np.float32(0), total) + np.matmul(lefts[0], rights[0])


PARTS = {
    "TF32x3": (2, tf32_nearest),
    "BF16x3": (2, lambda values: decode_bf16(encode_bf16(values))),
    "BF16x6": (3, lambda values: decode_bf16(encode_bf16(values))),
}


def split(values: Array, count: int, nearest: Callable[[Array], Array]) -> list[Array]:
    """`values` as a sum of `count` parts. Each part is the nearest value to the remainder that the earlier parts
    leave."""
    parts = []
    for _ in range(count):
        parts.append(nearest(values))
        values = values - parts[-1]
    return parts


def fp16_product(left: Array, right: Array, total: Array, step: int) -> Array:
    """fp16 `total` + float32 `left` @ `right`, rounded to fp16 after every `step` of K."""
    for at in range(0, left.shape[-1], step):
        total = (np.matmul(left[..., at : at + step], right[..., at : at + step, :]) + total).astype(np.float16)
    return total


def maximum_number(a: Array, b: Array) -> Array:
    """The larger of `a` and `b`. If one is NaN, the other. (np.fmax gives NaN for a signalling NaN.)"""
    return unless_nan(np.maximum(a, b), a, b)


def minimum_number(a: Array, b: Array) -> Array:
    """The smaller of `a` and `b`. If one is NaN, the other."""
    return unless_nan(np.minimum(a, b), a, b)


def unless_nan(result: Array, a: Array, b: Array) -> Array:
    is_nan = np.isnan(result)
    return np.where(is_nan, np.where(np.isnan(a), b, a), result) if is_nan.any() else result


def rounded(result: Array, kind: tl.dtype) -> TensorHandle:
    """A handle of type `kind` with `result`, rounded to nearest even. Booleans give int1 instead."""
    if result.dtype == np.bool_:
        return TensorHandle(result, tl.int1)
    if kind.is_bf16():
        return TensorHandle(encode_bf16(result), kind)
    if result.itemsize * 8 > kind.primitive_bitwidth:
        result = result.astype(_get_np_dtype(kind))
    return TensorHandle(result, kind)


def saturated(values: Array, dtype: np.dtype[Any]) -> Array:
    """Float `values` as integers of `dtype`, rounded toward zero. Out-of-range values give the nearest integer, NaN
    gives 0."""
    limits = np.iinfo(dtype)
    wide = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    integers = np.clip(wide, float(limits.min), float(limits.max)).astype(dtype)
    # float(2**63 - 1) is 2**63: the clip passes it and the cast wraps.
    return np.where(wide >= float(limits.max), dtype.type(limits.max), integers)
