"""tl.dot_scaled on numpy: blocks of values along K that share one scale (OCP Microscaling specification, MX, 1.0).

    lhs [M, K] (e2m1: two codes a byte, low nibble first)   lhs_scale [M, K / block]
    rhs [K, N]                                              rhs_scale [N, K / block]

    acc + (lhs * scale) @ (rhs * scale), products and sums in float32

Scales are E8M0 bytes, 2**(byte - 127) with 255 as NaN, or e4m3 values. The block is 32 or 16. Triton's interpreter has
no dot_scaled before 3.9, and 3.9's reads bf16 operands through float16. This one serves every version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle, _ir

from harness.interpreter.number_formats import FLOAT4_E2M1, Array, decode

upstream_dot_scaled = TritonSemantic.dot_scaled


class FloatFormat(str):
    """The name of an operand's format. Until 3.8 Triton reads its `.value`, which the interpreter's strings lack."""

    @property
    def value(self) -> str:
        return str(self)


def dot_scaled(
    self: TritonSemantic,
    lhs: Any,
    lhs_scale: Any,
    lhs_format: Any,
    rhs: Any,
    rhs_scale: Any,
    rhs_format: Any,
    *rest: Any,
) -> Any:
    """Replaces TritonSemantic.dot_scaled."""
    left, right = (FloatFormat(getattr(name, "value", name)) for name in (lhs_format, rhs_format))
    return upstream_dot_scaled(self, lhs, lhs_scale, left, rhs, rhs_scale, right, *rest)


class Microscaling:
    """These methods replace those of the same names in InterpreterBuilder."""

    def create_dot_scaled(
        self,
        lhs: TensorHandle,
        lhs_scale: TensorHandle | None,
        lhs_format: Any,
        rhs: TensorHandle,
        rhs_scale: TensorHandle | None,
        rhs_format: Any,
        fast_math: bool,
        lhs_k_pack: bool,
        rhs_k_pack: bool,
        acc: TensorHandle,
    ) -> TensorHandle:
        left = unpacked(lhs, lhs_format, axis=-1 if lhs_k_pack else -2)
        right = unpacked(rhs, rhs_format, axis=-2 if rhs_k_pack else -1)
        if lhs_scale is not None:
            left = left * spread(lhs_scale, left.shape[-1])
        if rhs_scale is not None:
            right = right * np.swapaxes(spread(rhs_scale, right.shape[-2]), -1, -2)
        kind = acc.dtype.scalar
        total = np.matmul(left, right) + decode(acc.data, kind)
        return TensorHandle(total.astype(acc.data.dtype, copy=False), kind)


def unpacked(operand: TensorHandle, format: Any, axis: int) -> Array:
    """float32 values of `operand`. A byte of e2m1 becomes two values along `axis`, the low nibble first."""
    if format != _ir.ScaleDotElemTypeTY.E2M1:
        return decode(operand.data, operand.dtype.scalar).astype(np.float32, copy=False)
    codes = np.moveaxis(operand.data.view(np.uint8), axis, -1)
    pairs = np.stack([codes & 0xF, codes >> 4], axis=-1)
    return np.moveaxis(FLOAT4_E2M1[pairs].reshape(*codes.shape[:-1], -1), -1, axis)


def spread(scale: TensorHandle, k: int) -> Array:
    """The float32 factor of every element along K, from one scale per block: [..., rows, K / block] to [..., rows,
    K]."""
    if scale.dtype.scalar.is_fp8():
        factor = decode(scale.data, scale.dtype.scalar)
    else:
        byte = scale.data.view(np.uint8).astype(np.int32)
        factor = np.where(byte == 255, np.float32(np.nan), np.ldexp(np.float32(1), byte - 127)).astype(np.float32)
    return np.repeat(factor, k // scale.data.shape[-1], axis=-1)
