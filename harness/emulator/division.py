"""The three instructions that LLVM builds a division of, added to WRITTEN. Half precision has the last alone.

v_div_scale scales an operand if the quotient or its reciprocal would leave the normal numbers, and reports it in VCC.
v_div_fmas undoes the scaling when it rounds. v_div_fixup handles special cases. `semantics.CORRECTIONS` lists the
deviations from AMD's pseudocode.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator.arithmetic import F32, F64, U32, U64, Array
from harness.emulator.handwritten import WRITTEN, Apply, by_hand, raw_result

__all__ = ["WRITTEN"]


@dataclass(frozen=True)
class _Precision:
    """scale: the power of two by which operands are scaled. far: the difference of exponents from which a quotient is
    near the largest. tiny: the exponent field up to which a numerator is scaled. lost: the difference of exponents from
    which a quotient is zero."""

    name: str
    dtype: Any
    word: Any
    smallest: float
    scale: int
    far: int
    tiny: int
    lost: int
    bias: int

    def numbers(self, *raw: Any) -> list[Array]:
        return [np.asarray(one).view(self.dtype) for one in raw]

    def denormal(self, value: Array) -> Array:
        return (value != 0) & (np.abs(value) < self.dtype(self.smallest))


SINGLE = _Precision("f32", F32, U32, 2.0**-126, 64, 96, 23, 150, 127)
DOUBLE = _Precision("f64", F64, U64, 2.0**-1022, 128, 768, 53, 1075, 1023)


def _scale(of: _Precision) -> Apply:
    def apply(S0: Any, S1: Any, S2: Any, **_: Any) -> dict[str, Any]:
        s0, s1, s2 = of.numbers(S0, S1, S2)
        shape = np.broadcast_shapes(s0.shape, s1.shape, s2.shape)
        denominator, numerator = s0.view(of.word) == s1.view(of.word), s0.view(of.word) == s2.view(of.word)
        tiny_inverse, tiny_quotient = of.denormal(of.dtype(1) / s1), of.denormal(s2 / s1)
        up, down = np.ldexp(s0, of.scale), np.ldexp(s0, -of.scale)
        far = ar.exponent(s2) - ar.exponent(s1) >= of.far
        chosen: list[tuple[Any, Any, bool]] = [
            ((s1 == 0) | (s2 == 0), np.full_like(s0, np.nan), False),
            (far, np.where(denominator, up, s0), True),
            (of.denormal(s1), up, False),
            (tiny_inverse & tiny_quotient, np.where(denominator, down, s0), True),
            (tiny_inverse, down, False),
            (tiny_quotient, np.where(numerator, up, s0), True),
            (ar.exponent(s2) <= of.tiny, up, False),
        ]
        cases = [np.broadcast_to(case, shape) for case, _, _ in chosen]
        vcc = np.select(cases, [np.broadcast_to(np.bool_(flag), shape) for _, _, flag in chosen], False)
        results = [np.broadcast_to(result, shape) for _, result, _ in chosen]
        return {**raw_result(np.select(cases, results, np.broadcast_to(s0, shape)).astype(of.dtype)), "VCC": vcc}

    return apply


def _fmas(of: _Precision) -> Apply:
    def apply(S0: Any, S1: Any, S2: Any, VCC: Any, **_: Any) -> dict[str, Any]:
        s0, s1, s2 = of.numbers(S0, S1, S2)
        power = np.where(ar.exponent(s2) > of.bias, of.scale, -of.scale)
        scaled = _scaled32(s0, s1, s2, power) if of is SINGLE else _scaled64(s0, s1, s2, power, VCC)
        return raw_result(np.where(VCC, scaled, ar.fma(s0, s1, s2)))

    return apply


def _scaled32(a: Array, b: Array, c: Array, power: Array) -> Array:
    """(a·b + c) · 2^power, rounded once. The sum is far from the denormals, so float64 holds all bits that matter."""
    exact = a.astype(F64) * b.astype(F64) + c.astype(F64)
    return np.ldexp(exact, power).astype(F32)


def _scaled64(a: Array, b: Array, c: Array, power: Array, wanted: Array) -> Array:
    """The same for float64. If the scaled sum is a denormal it would be rounded twice, so fractions are used."""
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape, np.shape(wanted))
    a, b, c, power, wanted = (np.broadcast_to(one, shape) for one in (a, b, c, power, wanted))
    scaled = np.ldexp(ar.fma(a, b, c), power)
    twice = wanted & DOUBLE.denormal(scaled)
    for place in zip(*np.nonzero(twice)):
        exact = Fraction(float(a[place])) * Fraction(float(b[place])) + Fraction(float(c[place]))
        scaled[place] = np.copysign(float(exact * Fraction(2) ** int(power[place])), scaled[place])
    return scaled


def _fixup(dtype: Any, lost: int | None = None) -> Apply:
    """`lost`: exponents so much apart give zero, and an estimate that is no number is a quotient that overflowed. In
    half precision the estimate is made in single precision, where neither happens."""

    def apply(S0: Any, S1: Any, S2: Any, **_: Any) -> dict[str, Any]:
        s0, s1, s2 = (_viewed(one, dtype) for one in (S0, S1, S2))
        shape = np.broadcast_shapes(s0.shape, s1.shape, s2.shape)
        sign = np.where(np.signbit(s1) ^ np.signbit(s2), dtype(-1), dtype(1))
        infinite, zero = sign * dtype(np.inf), sign * dtype(0)
        minus_nan = -np.array(np.nan, dtype)
        chosen: list[tuple[Any, Any]] = [
            (np.isnan(s2), ar.quiet(s2)),
            (np.isnan(s1), ar.quiet(s1)),
            (((s1 == 0) & (s2 == 0)) | (np.isinf(s1) & np.isinf(s2)), minus_nan),
            ((s1 == 0) | np.isinf(s2), infinite),
            (np.isinf(s1) | (s2 == 0), zero),
        ]
        if lost is not None:
            chosen += [
                (ar.exponent(s2) - ar.exponent(s1) < -lost, zero),
                (np.isnan(s0), infinite),  # the estimate was an infinity, and the residual of that is none
            ]
        cases = [np.broadcast_to(case, shape) for case, _ in chosen]
        results = [np.broadcast_to(result, shape) for _, result in chosen]
        usual = np.copysign(np.broadcast_to(s0, shape), sign)
        return raw_result(np.select(cases, results, usual).astype(dtype))

    return apply


def _viewed(raw: Any, dtype: Any) -> Array:
    raw = np.asarray(raw)
    return (raw.astype(np.uint16) if dtype is np.float16 else raw).view(dtype)


for _of in (SINGLE, DOUBLE):
    by_hand(f"v_div_scale_{_of.name}", reads="S0 S1 S2", writes="D0 VCC")(_scale(_of))
    by_hand(f"v_div_fmas_{_of.name}", reads="S0 S1 S2 VCC")(_fmas(_of))
    by_hand(f"v_div_fixup_{_of.name}", reads="S0 S1 S2")(_fixup(_of.dtype, _of.lost))
by_hand("v_div_fixup_f16", reads="S0 S1 S2")(_fixup(np.float16))
