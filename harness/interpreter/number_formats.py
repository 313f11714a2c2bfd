"""The number formats that numpy lacks: bf16, fp8 and fp4, from bit patterns to values and back.

    bf16      float8e5 (e5m2)   float8e4nv (e4m3fn)   float8e5b16 (e5m2fnuz)   float8e4b8 (e4m3fnuz)   e2m1
      |            |                  |                       |                        |              |
      +--- decode: exact, to float32 ------------------------------------------------------------------+
      +--- encode: round to nearest even -------------------------------------------------------------- (not e2m1)

Rounding follows the code that Triton 3.7.1 emits for sm_90, gfx942 and gfx950. bf16 overflows to Inf. fp8 saturates to
the largest finite value (`cvt.rn.satfinite` on NVIDIA, mode bit FP16_OVFL on AMD, triton pull request 7337). Inf
saturates too in the OCP formats, as on sm_90 and in gfx942's software conversion. The FNUZ formats turn Inf into their
one NaN. torch's `.to(torch.float8_*)` differs: it gives NaN or Inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import triton.language as tl

from harness.interpreter.refusal import CannotInterpret

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Float8:
    """One 8-bit format: sign, `8 - 1 - mantissa_bits` exponent bits, mantissa. `fnuz`: no Inf, no -0, NaN is 0x80."""

    mantissa_bits: int
    bias: int
    largest_code: int
    nan_code: int
    has_inf: bool
    fnuz: bool

    @cached_property
    def values(self) -> Array:
        """float32 value of each of the 256 codes."""
        code = np.arange(256)
        exponent, mantissa = (code & 0x7F) >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
        fraction = np.where(exponent > 0, 1.0, 0.0) + mantissa / (1 << self.mantissa_bits)
        value = np.ldexp(fraction, np.maximum(exponent, 1) - self.bias)
        value[(code & 0x7F) > self.largest_code] = np.nan
        if self.has_inf:
            value[(code & 0x7F) == self.largest_code + 1] = np.inf
        value = np.where(code < 0x80, value, -value)
        if self.fnuz:
            value[0x80] = np.nan
        return value.astype(np.float32)

    @cached_property
    def midpoints(self) -> Array:
        """float32 midpoints between neighbouring finite magnitudes. They are exact, because they need one bit more than
        the format."""
        finite = self.values[: self.largest_code + 1]
        return (finite[1:] + finite[:-1]) / 2

    def encode(self, values: Array) -> Array:
        """The uint8 codes nearest to float16 or float32 `values`. Ties go to the even code; magnitudes saturate."""
        magnitude = np.abs(values).astype(np.float32)
        below = np.searchsorted(self.midpoints, magnitude, side="left")
        above = np.searchsorted(self.midpoints, magnitude, side="right")  # differs from `below` on a tie only
        code = np.where(below & 1, above, below).astype(np.uint8)
        negative = np.signbit(values)
        if self.fnuz:
            negative &= code != 0
            is_nan = ~np.isfinite(values)
        else:
            is_nan = np.isnan(values)
        code |= negative.astype(np.uint8) << 7
        code[is_nan] = self.nan_code
        return code


# OCP 8-bit floating point specification (OFP8) and, for FNUZ, arXiv:2206.02915.
FLOAT8 = {
    "fp8e5": Float8(mantissa_bits=2, bias=15, largest_code=0x7B, nan_code=0x7F, has_inf=True, fnuz=False),
    "fp8e4nv": Float8(mantissa_bits=3, bias=7, largest_code=0x7E, nan_code=0x7F, has_inf=False, fnuz=False),
    "fp8e5b16": Float8(mantissa_bits=2, bias=16, largest_code=0x7F, nan_code=0x80, has_inf=False, fnuz=True),
    "fp8e4b8": Float8(mantissa_bits=3, bias=8, largest_code=0x7F, nan_code=0x80, has_inf=False, fnuz=True),
}

# OCP Microscaling specification (MX) 1.0, table 4: sign, two exponent bits, one mantissa bit.
FLOAT4_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

BF16_NAN = np.uint16(0x7FC0)
TF32_BITS = np.uint32(0xFFFFE000)


def is_stored_as_bits(kind: tl.dtype) -> bool:
    """True if the interpreter holds `kind` as unsigned integers, because numpy has no such type."""
    return kind.name == "bf16" or kind.name.startswith("fp8")


def decode(bits: Array, kind: tl.dtype) -> Array:
    """The values of `bits`: float32 for formats stored as bits, `bits` itself for every other type."""
    if kind.name == "bf16":
        return decode_bf16(bits)
    if kind.name.startswith("fp8"):
        return float8(kind).values[bits.view(np.uint8)]
    return bits


def float8(kind: tl.dtype) -> Float8:
    """The format of an fp8 Triton type. Raises CannotInterpret for float8e4b15, which no current chip has."""
    if kind.name not in FLOAT8:
        raise CannotInterpret(f"the number format {kind.name}")
    return FLOAT8[kind.name]


def decode_bf16(bits: Array) -> Array:
    """float32 values of uint16 bf16 `bits`: exact."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def encode_bf16(values: Array) -> Array:
    """uint16 bf16 bits of float16, float32 or float64 `values`, rounded once to nearest even; NaN becomes 0x7fc0."""
    if values.dtype == np.float64:
        values = round_to_odd(values)
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    code = rounded.astype(np.uint16)
    is_nan = np.isnan(values)
    # Adding to a NaN's mantissa could carry into Inf or -0.
    return np.where(is_nan, BF16_NAN, code) if is_nan.any() else code


def encode_bf16_toward_zero(values: Array) -> Array:
    """uint16 bf16 bits of float32 or float64 `values`, rounded toward zero; NaN becomes 0x7fc0."""
    values = toward_zero(values, np.float32)
    return np.where(np.isnan(values), BF16_NAN, (values.view(np.uint32) >> 16).astype(np.uint16))


def tf32_toward_zero(values: Array) -> Array:
    """float32 `values` truncated to the 10 mantissa bits that a tensor core reads. NaN stays NaN."""
    return np.where(np.isnan(values), values, (values.view(np.uint32) & TF32_BITS).view(np.float32))


def tf32_nearest(values: Array) -> Array:
    """float32 `values` rounded to 10 mantissa bits, ties away from zero, as cvt.rna.tf32.f32 does."""
    return np.where(np.isfinite(values), ((values.view(np.uint32) + 0x1000) & TF32_BITS).view(np.float32), values)


def toward_zero(values: Array, dtype: type[np.floating[Any]]) -> Array:
    """`values` in the narrower float16 or float32 `dtype`, rounded toward zero."""
    nearest = values.astype(dtype)
    bits: Array = nearest.view(np.uint16 if dtype is np.float16 else np.uint32)
    too_large = np.abs(nearest.astype(values.dtype)) > np.abs(values)
    return (bits - too_large).astype(bits.dtype).view(dtype)  # one step down in magnitude, from Inf too


def round_to_odd(values: Array) -> Array:
    """float64 `values` as float32. Inexact values go to the neighbour with an odd last bit.

    A second rounding to bf16 is then correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums",
    2008). LLVM lowers float64 to bf16 the same way.
    """
    truncated = toward_zero(values, np.float32)
    inexact = (truncated.astype(np.float64) != values) & np.isfinite(values)
    return (truncated.view(np.uint32) | inexact).view(np.float32)
