"""Handwritten semantics of arithmetic instructions. `division` and `conversions` add theirs; `semantics` says why they
are needed.

WRITTEN[mnemonic] ─► inputs it reads, outputs it writes, apply(**inputs)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator import native
from harness.emulator.arithmetic import F32, U32, U64, Array

Apply = Callable[..., dict[str, Any]]
WRITTEN: dict[str, tuple[frozenset[str], frozenset[str], Apply]] = {}


def by_hand(*names: str, reads: str = "S0", writes: str = "D0") -> Callable[[Apply], Apply]:
    def keep(function: Apply) -> Apply:
        for name in names:
            WRITTEN[name] = frozenset(reads.split()), frozenset(writes.split()), function
        return function

    return keep


def floats(*raw: Any) -> list[Array]:
    return [np.asarray(one).view(F32) for one in raw]


def raw_result(value: Array) -> dict[str, Any]:
    kind = {2: np.uint16, 4: U32, 8: U64}[value.dtype.itemsize]
    word = np.ascontiguousarray(value).view(kind).reshape(np.shape(value))
    return {"D0": word.astype(U32) if kind is np.uint16 else word}


# Largest, smallest, rounding


def _family(kind: str, view: Callable[[Any], Array]) -> None:
    def two(function: Callable[..., Array]) -> Apply:
        return lambda S0, S1, **_: raw_result(function(view(S0), view(S1)))

    def three(function: Callable[..., Array]) -> Apply:
        return lambda S0, S1, S2, **_: raw_result(function(view(S0), view(S1), view(S2)))

    for word, function in (("max", ar.largest), ("min", ar.smallest)):
        by_hand(f"v_{word}_{kind}", reads="S0 S1")(two(function))
        by_hand(f"v_{word}3_{kind}", reads="S0 S1 S2")(
            three(lambda a, b, c, function=function: function(function(a, b), c))
        )
    by_hand(f"v_med3_{kind}", reads="S0 S1 S2")(three(ar.median))
    by_hand(f"v_maxmin_{kind}", reads="S0 S1 S2")(three(lambda a, b, c: ar.smallest(ar.largest(a, b), c)))
    by_hand(f"v_minmax_{kind}", reads="S0 S1 S2")(three(lambda a, b, c: ar.largest(ar.smallest(a, b), c)))
    by_hand(f"v_rndne_{kind}")(lambda S0, **_: raw_result(np.rint(view(S0))))
    by_hand(f"v_fract_{kind}")(lambda S0, **_: raw_result(_fraction(view(S0))))
    power = 16 if kind == "f16" else 32
    by_hand(f"v_ldexp_{kind}", reads="S0 S1")(
        lambda S0, S1, **_: raw_result(_scaled(view(S0), ar.typed(np.asarray(S1), ("i", power))))
    )
    by_hand(f"v_frexp_exp_i{power}_{kind}")(lambda S0, **_: {"D0": _exponent(view(S0)) & U32((1 << power) - 1)})


def _half(raw: Any) -> Array:
    return np.asarray(raw).astype(np.uint16).view(np.float16)


def _fraction(value: Array) -> Array:
    one = value.dtype.type(1)
    return np.minimum(value - np.floor(value), np.nextafter(one, value.dtype.type(0)))


def _scaled(value: Array, power: Array) -> Array:
    return np.where(np.isnan(value), ar.quiet(value), ar.ldexp(value, power))


def _exponent(value: Array) -> Array:
    """The exponent of frexp, as uint32. 0 for zero and for values that are not finite."""
    return np.where(np.isfinite(value), np.frexp(value)[1], 0).astype(np.int32).view(U32)


_family("f32", lambda raw: np.asarray(raw).view(F32))
_family("f16", _half)
_family("f64", lambda raw: np.asarray(raw).view(np.float64))


@by_hand("v_fmac_dx9_zero_f32", reads="S0 S1 D0")
def _fmac_dx9_zero(S0: Any, S1: Any, D0: Any, **_: Any) -> dict[str, Any]:
    a, b, c = floats(S0, S1, D0)
    return raw_result(np.where((a == 0) | (b == 0), c, ar.fma(a, b, c)))


def _packed_halves(function: Callable[..., Array]) -> Apply:
    def apply(S0: Any, S1: Any, **_: Any) -> dict[str, Any]:
        result: Any = np.uint32(0)
        for shift in (U32(0), U32(16)):
            a, b = ((np.asarray(one) >> shift).astype(np.uint16).view(np.float16) for one in (S0, S1))
            result = result | (np.asarray(function(a, b)).view(np.uint16).astype(U32) << shift)
        return {"D0": result}

    return apply


by_hand("v_pk_max_f16", reads="S0 S1")(_packed_halves(ar.largest))
by_hand("v_pk_min_f16", reads="S0 S1")(_packed_halves(ar.smallest))


# Functions that the hardware gives to 1 ulp. Here they are correctly rounded, and float32 denormals count as zero
# (LLVM's AMDGPU backend, AMDGPULegalizerInfo.cpp: "v_rcp_f32 and v_rsq_f32 do not support denormals", and the scaling
# that it adds around v_exp_f32, v_log_f32 and v_sqrt_f32).


def _flushed(value: Array) -> Array:
    return np.where(np.abs(value) < F32(2.0**-126), np.copysign(F32(0), value), value)


def _approximate(function: Callable[[Array], Array]) -> Apply:
    def apply(S0: Any, **_: Any) -> dict[str, Any]:
        value = _flushed(np.asarray(S0).view(F32))
        result = function(value.astype(np.float64)).astype(F32)
        return raw_result(np.where(np.isnan(value), ar.quiet(value), _flushed(result)))

    return apply


by_hand("v_exp_f32")(_approximate(np.exp2))
by_hand("v_log_f32")(_approximate(np.log2))
by_hand("v_rcp_f32", "v_rcp_iflag_f32")(_approximate(lambda x: 1.0 / x))
by_hand("v_rsq_f32")(_approximate(lambda x: 1.0 / np.sqrt(x)))
by_hand("v_rsq_f16")(lambda S0, **_: raw_result((1.0 / np.sqrt(_half(S0).astype(np.float64))).astype(np.float16)))
by_hand("v_sqrt_f32")(_approximate(np.sqrt))


def _turned(sines: tuple[int, ...]) -> Callable[[Array], Array]:
    """sin or cos of whole turns. Exact at quarter turns, as the ISA guides' examples are (cos 0.25 = 0)."""

    def function(x: Array) -> Array:
        quarter = np.rint(4 * x)
        rest = 2 * np.pi * (x - quarter / 4)
        s, c = np.sin(rest), np.cos(rest)
        values = [(s, c, -s, -c)[turn] for turn in sines]
        found = np.select([np.mod(quarter, 4) == turn for turn in range(4)], values, np.nan)
        return np.where(x == 0, np.copysign(found, x), found) if sines[0] == 0 else found

    return function


by_hand("v_sin_f32")(_approximate(_turned((0, 1, 2, 3))))
by_hand("v_cos_f32")(_approximate(_turned((1, 2, 3, 0))))


# Integers


@by_hand("v_mad_u64_u32", reads="S0 S1 S2", writes="D0 VCC")
def _mad_u64(S0: Any, S1: Any, S2: Any, **_: Any) -> dict[str, Any]:
    addend = np.asarray(S2)
    total = np.asarray(S0).astype(U64) * np.asarray(S1).astype(U64) + addend
    return {"D0": total, "VCC": total < addend}


@by_hand("v_mad_i64_i32", reads="S0 S1 S2", writes="D0 VCC")
def _mad_i64(S0: Any, S1: Any, S2: Any, **_: Any) -> dict[str, Any]:
    a, b = (np.asarray(one).view(np.int32).astype(np.int64) for one in (S0, S1))
    product, addend = a * b, np.asarray(S2).view(np.int64)
    total = product + addend
    # The bit above: the sign of the 65-bit sum, which an overflow flips.
    overflow = ((product ^ total) & (addend ^ total)) < 0
    return {"D0": total.view(U64), "VCC": (total < 0) ^ overflow}


@by_hand("v_perm_b32", reads="S0 S1 S2")
def _perm(S0: Any, S1: Any, S2: Any, **_: Any) -> dict[str, Any]:
    done = native.permuted(np.asarray(S0), np.asarray(S1), np.asarray(S2))
    if done is not None:
        return {"D0": done}
    data = np.asarray(S0).astype(U64) << U64(32) | np.asarray(S1).astype(U64)
    selector = np.asarray(S2)
    result: Any = U32(0)
    for byte in range(4):
        result = result | ar.byte_permute(data, selector >> U32(8 * byte) & U32(255)) << U32(8 * byte)
    return {"D0": result}


@by_hand("v_lerp_u8", reads="S0 S1 S2")
def _lerp(S0: Any, S1: Any, S2: Any, **_: Any) -> dict[str, Any]:
    result: Any = U32(0)
    for shift in (U32(0), U32(8), U32(16), U32(24)):
        a, b, up = (np.asarray(one) >> shift & U32(mask) for one, mask in ((S0, 255), (S1, 255), (S2, 1)))
        result = result | (a + b + up >> U32(1)) << shift
    return {"D0": result}


@by_hand("s_brev_b32", "v_bfrev_b32")
def _reverse(S0: Any, **_: Any) -> dict[str, Any]:
    value = np.asarray(S0)
    for width, mask in ((16, 0x0000FFFF), (8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        value = (value >> U32(width) & U32(mask)) | (value & U32(mask)) << U32(width)
    return {"D0": value}


def _scan(function: Callable[[Array, int], Array], width: int) -> Apply:
    return lambda S0, **_: {"D0": function(np.asarray(S0), width).view(U32)}


for _name, _function, _width in (
    ("v_ffbh_u32", ar.leading_zeros, 32),
    ("v_clz_i32_u32", ar.leading_zeros, 32),
    ("s_flbit_i32_b32", ar.leading_zeros, 32),
    ("s_clz_i32_u32", ar.leading_zeros, 32),
    ("s_flbit_i32_b64", ar.leading_zeros, 64),
    ("v_ffbl_b32", ar.trailing_zeros, 32),
    ("v_ctz_i32_b32", ar.trailing_zeros, 32),
    ("s_ff1_i32_b32", ar.trailing_zeros, 32),
    ("s_ctz_i32_b32", ar.trailing_zeros, 32),
    ("s_ff1_i32_b64", ar.trailing_zeros, 64),
    ("s_ctz_i32_b64", ar.trailing_zeros, 64),
):
    by_hand(_name)(_scan(_function, _width))


@by_hand("s_bcnt1_i32_b32", "s_bcnt1_i32_b64", writes="D0 SCC")
def _count(S0: Any, **_: Any) -> dict[str, Any]:
    count = ar.population(np.asarray(S0)).view(U32)
    return {"D0": count, "SCC": count != 0}


@by_hand("v_bcnt_u32_b32", reads="S0 S1")
def _count_add(S0: Any, S1: Any, **_: Any) -> dict[str, Any]:
    return {"D0": ar.population(np.asarray(S0)).view(U32) + S1}


@by_hand("v_mbcnt_lo_u32_b32", reads="S0 S1 LANE")
def _mbcnt_lo(S0: Any, S1: Any, LANE: Any, **_: Any) -> dict[str, Any]:
    below = (U64(1) << np.minimum(LANE, 32).astype(U64)) - U64(1)
    return {"D0": ar.population(np.asarray(S0) & below.astype(U32)).view(U32) + S1}


@by_hand("v_mbcnt_hi_u32_b32", reads="S0 S1 LANE")
def _mbcnt_hi(S0: Any, S1: Any, LANE: Any, **_: Any) -> dict[str, Any]:
    below = (U64(1) << np.maximum(LANE.astype(np.int64) - 32, 0).astype(U64)) - U64(1)
    return {"D0": ar.population(np.asarray(S0) & below.astype(U32)).view(U32) + S1}


# Packed


@by_hand("v_pk_mov_b32", reads="S0 S1 OPSEL")
def _pk_mov(S0: Any, S1: Any, OPSEL: Any, **_: Any) -> dict[str, Any]:
    low = np.asarray(S0) >> U64(32 * (OPSEL & 1)) & U64(0xFFFFFFFF)
    high = np.asarray(S1) >> U64(32 * (OPSEL >> 1 & 1)) & U64(0xFFFFFFFF)
    return {"D0": low | high << U64(32)}
