"""The 8-, 6- and 4-bit floats of AMD's chips, to and from float32.

    gfx942            fp8 is E4M3FNUZ (bias 8, no infinities, no -0, NaN is 0x80), bf8 is E5M2FNUZ (bias 16, likewise)
    gfx950            fp8 is E4M3FN of the OCP (bias 7, NaN is 0x7f and 0xff), bf8 is E5M2 (bias 15, with infinities)
    gfx950 too        fp6 is E2M3 (bias 1), bf6 is E3M2 (bias 3), fp4 is E2M1 (bias 1): no NaN, no infinity
    scales            E8M0: 2^(code - 127), 255 is the NaN

Sources: AMD's CDNA3 and CDNA4 ISA guides, "Data formats"; OCP 8-bit Floating Point Specification 1.0; OCP Microscaling
Formats (MX) Specification 1.0.

Conversions to 8 bits round to nearest even. For a value that is too large, v_cvt_pk_fp8_f32 gives the largest number if
MODE.FP16_OVFL is set, else NaN (FNUZ and E4M3FN) or infinity (E5M2).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from harness.emulator.arithmetic import F64, U32, Array


@dataclass(frozen=True)
class Small:
    """An 8-bit float. fnuz: 0x80 is the only NaN. infinities: as in IEEE; otherwise the last code is the NaN."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    fnuz: bool
    infinities: bool

    @property
    def nan(self) -> int:
        return 0x80 if self.fnuz else 0x7F

    def value(self, code: int) -> float:
        """The value of an 8-bit code."""
        sign = -1.0 if code & 0x80 else 1.0
        places, fraction = code & 0x7F, code & ((1 << self.mantissa_bits) - 1)
        power = places >> self.mantissa_bits
        if self.fnuz and code == 0x80:
            return float("nan")
        if self.infinities and power == (1 << self.exponent_bits) - 1:
            return float("nan") if fraction else sign * float("inf")
        if not self.fnuz and not self.infinities and places == 0x7F:
            return float("nan")
        if power == 0:
            return sign * fraction * 2.0 ** (1 - self.bias - self.mantissa_bits)
        return sign * (1 + fraction / (1 << self.mantissa_bits)) * 2.0 ** (power - self.bias)


FORMATS = {
    ("gfx942", "fp8"): Small(4, 3, 8, True, False),
    ("gfx942", "bf8"): Small(5, 2, 16, True, False),
    ("gfx950", "fp8"): Small(4, 3, 7, False, False),
    ("gfx950", "bf8"): Small(5, 2, 15, False, True),
}


@functools.cache
def table(target: str, name: str) -> Array:
    """All 256 values, float32."""
    return np.array([FORMATS[target, name].value(code) for code in range(256)], np.float32)


def decoded(codes: Array, target: str, name: str) -> Array:
    """The float32 values of 8-bit codes."""
    return table(target, name)[np.asarray(codes) & 255]


def encoded(values: Array, target: str, name: str, saturated: Array | bool = False) -> Array:
    """The 8-bit codes nearest to float32 values, ties to even: uint32. A value that is too large gives NaN, or infinity
    in E5M2. Where `saturated`, it gives the largest number, also for infinities."""
    small = FORMATS[target, name]
    positive = np.abs(values.astype(F64))
    _, power = np.frexp(positive)
    least = 1 - small.bias - small.mantissa_bits
    place = np.maximum(power - 1 - small.mantissa_bits, least)
    steps = np.rint(np.ldexp(positive, -place))  # in units of the last place, to even
    rounded = np.ldexp(steps, place)
    codes = table(target, name)[:128].astype(F64)
    finite = codes[np.isfinite(codes)]
    code = np.searchsorted(finite, np.where(np.isfinite(rounded), rounded, 0)).astype(U32)
    over = rounded > finite[-1]
    limit = np.where(saturated, U32(finite.size - 1), U32(0x7C if small.infinities else small.nan))
    code = np.where(over, limit, code)
    sign = np.signbit(values).astype(U32) << U32(7)
    if small.fnuz:
        code = np.where((code == 0) | over & ~np.asarray(saturated), code, code | sign)
    else:
        code = code | sign
    return np.where(np.isnan(values), U32(small.nan), code)


NARROW = {"fp6": (2, 3, 1), "bf6": (3, 2, 3), "fp4": (2, 1, 1)}
"""Exponent bits, mantissa bits, bias."""


@functools.cache
def narrow_table(name: str) -> Array:
    """The values of all codes of a float without NaNs, float32: the positive values, then the negative ones."""
    exponent_bits, mantissa_bits, bias = NARROW[name]
    codes = np.arange(1 << exponent_bits + mantissa_bits)
    power, fraction = codes >> mantissa_bits, (codes & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    values = np.where(power == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, power - bias))
    return np.concatenate([values, -values]).astype(np.float32)


def unpacked(words: Array, name: str) -> Array:
    """uint32 [.., words] ─► the float32 values of the codes in them, lowest bits first."""
    exponent_bits, mantissa_bits, _ = NARROW[name]
    width = 1 + exponent_bits + mantissa_bits
    octets = np.ascontiguousarray(words).view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, bitorder="little").reshape(*octets.shape[:-1], -1, width)
    return narrow_table(name)[(bits << np.arange(width, dtype=np.uint8)).sum(axis=-1)]


def narrowed(values: Array, name: str) -> Array:
    """The codes nearest to the values, ties to even: uint32. Values that are too large and NaNs give the largest
    number."""
    exponent_bits, mantissa_bits, _ = NARROW[name]
    positive = narrow_table(name)[: 1 << exponent_bits + mantissa_bits].astype(F64)
    size = np.where(np.isnan(values), np.inf, np.abs(values.astype(F64)))
    middles = (positive[1:] + positive[:-1]) / 2
    above = np.searchsorted(middles, size, side="right")  # a tie goes up, then back if the code is odd
    tied = np.searchsorted(middles, size, side="left") != above
    code = above - (tied & (above % 2 == 1))
    return (code | np.signbit(values).astype(np.int64) << exponent_bits + mantissa_bits).astype(U32)


def scale(codes: Array) -> Array:
    """E8M0 codes ─► float32."""
    codes = np.asarray(codes).astype(np.int64) & 255
    return np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127)).astype(np.float32)
