"""The pseudocode's functions and casts, on numpy arrays of any shape.

A value has a type: ("u", 32), ("i", 16), ("f", 32), ("bf", 16), ("bool", 1). Integers of up to 32 bits are held in
uint32 and int32, longer ones in uint64 and int64. A bf16 is held as the float32 of the same value.

    bits(value, type)         ─► its bits, in uint32 or uint64
    typed(bits, type)         ─► the value again
    cast(value, from, to)     ─► N'T(value) of the pseudocode: the same number, in another type

A NaN keeps its payload if its value is only moved. Sums, products and roots are rounded correctly to nearest even.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Type = tuple[str, int]

U32, U64, F32, F64 = np.uint32, np.uint64, np.float32, np.float64


def dtype_of(kind: Type) -> Any:
    """The numpy dtype that holds values of a type."""
    letter, width = kind
    if letter == "bool":
        return np.bool_
    if letter == "bf":
        return np.float32
    if letter == "f":
        return {16: np.float16, 32: np.float32, 64: np.float64}[width]
    if width > 64:
        raise KeyError(f"{width} bits")
    return ((np.int32, np.int64) if letter == "i" else (np.uint32, np.uint64))[width > 32]


def bits(value: Any, kind: Type) -> Array:
    """The raw bits: uint32 for up to 32 bits, else uint64."""
    letter, width = kind
    array: Any = np.asarray(value)
    if letter == "bool":
        return array.astype(U32)
    if letter == "bf":
        return bf16_bits(array)
    if letter == "f":
        if width == 16:
            return array.astype(np.float16, copy=False).view(np.uint16).astype(U32)
        return array.view(U32 if width == 32 else U64)
    raw: Any = array.view(U32 if array.dtype.itemsize == 4 else U64) if array.dtype.kind == "i" else array
    return raw & raw.dtype.type((1 << width) - 1) if width not in (32, 64) else raw


def typed(raw: Array, kind: Type) -> Array:
    """The value of type `kind` in the lowest bits of `raw`."""
    letter, width = kind
    if letter == "bool":
        return (raw & raw.dtype.type(1)).astype(np.bool_)
    wanted = U32 if width <= 32 else U64
    if raw.dtype != wanted:
        raw = raw.astype(wanted)
    if letter == "f":
        return raw.astype(np.uint16).view(np.float16) if width == 16 else raw.view(F32 if width == 32 else F64)
    if letter == "bf":
        return (raw << U32(16)).view(F32)
    if letter == "i":
        signed: Any = raw.view(np.int32 if width <= 32 else np.int64)
        shift = signed.dtype.type((32 if width <= 32 else 64) - width)
        return (signed << shift) >> shift if shift else signed
    return raw & raw.dtype.type((1 << width) - 1) if width not in (32, 64) else raw


def cast(value: Any, source: Type, target: Type) -> Array:
    """The same number in another type. Floats are rounded, integers truncated or extended."""
    array, letter = np.asarray(value), target[0]
    if letter in ("f", "bf"):
        if letter == "bf":
            return typed(bf16_bits(array.astype(F32)), target)
        return array.astype(dtype_of(target))
    if source[0] in ("f", "bf"):
        return to_integer(array, target)
    if letter == "bool":
        return array != 0
    if array.dtype == np.bool_:
        array = array.astype(U32)
    return typed(array.astype(np.int64 if array.dtype.kind == "i" else U64).view(U64), target)


def bf16_bits(value: Array) -> Array:
    """The bfloat16 nearest to float32 values, ties to even. A NaN stays a NaN and becomes quiet."""
    raw = np.ascontiguousarray(value, dtype=F32).view(U32)
    rounded = (raw + U32(0x7FFF) + (raw >> U32(16) & U32(1))) >> U32(16)
    return np.where((raw & U32(0x7FFFFFFF)) > U32(0x7F800000), raw >> U32(16) | U32(0x40), rounded)


def to_integer(value: Array, target: Type) -> Array:
    """Round toward zero, saturate at the ends, and give 0 for a NaN (AMD's ISA guides: V_CVT_I32_F32 and similar)."""
    letter, width = target
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if letter == "i" else (0, (1 << width) - 1)
    whole = np.trunc(value.astype(F64))
    whole = np.where(np.isnan(whole), 0.0, whole)
    if width >= 64:
        raise KeyError("conversions to 64 bits")
    return np.clip(whole, low, high).astype(np.int64).astype(dtype_of(target))


def fma(a: Array, b: Array, c: Array) -> Array:
    """a·b + c, rounded once, in the type of its operands."""
    kind = np.result_type(a, b, c)
    if kind == F64:
        return _fma64(a, b, c)
    if kind == F32:
        from harness.emulator import native

        done = native.fused(a, b, c)
        if done is not None:
            return done
    if kind == np.float16:
        return _rounded(a.astype(F64) * b.astype(F64), c.astype(F64), 42, 2.0**-14, np.float16)
    return _rounded(a.astype(F64) * b.astype(F64), c.astype(F64), 29, 2.0**-126, F32)


def _rounded(product: Array, addend: Array, dropped: int, smallest: float, target: Any) -> Array:
    """product + addend rounded once to a narrower type. `product` must be exact.

    The sum is first rounded to 53 bits. Rounding it again errs only if it lies on a tie of the narrower type or among
    its denormals. There the 53 bits are rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums", 2008).
    """
    total = product + addend
    tie = (total.view(np.int64) & ((1 << dropped) - 1)) == 1 << dropped - 1
    doubtful = tie | ((np.abs(total) < smallest) & (total != 0))
    if doubtful.any():
        back = total - product
        error = (product - (total - back)) + (addend - back)
        even = (total.view(np.int64) & 1) == 0
        # NaN and infinities compare false or have a NaN as error.
        move = doubtful & even & (np.abs(error) > 0)
        toward = np.where(error > 0, np.inf, -np.inf)
        total = np.where(move, np.nextafter(total, toward), total)
    return total.astype(target)


_libm_fma = ctypes.CDLL("libm.so.6").fma
_libm_fma.restype, _libm_fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
_fma64 = np.vectorize(_libm_fma, otypes=[F64])


def largest(a: Array, b: Array) -> Array:
    """v_max_f32 and similar with IEEE mode on. A number beats a quiet NaN, and +0 beats -0. A signalling NaN is
    returned as a quiet one (AMD's CDNA3 ISA guide, V_MAX_F32)."""
    chosen = np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b)
    return _with_nans(chosen, a, b)


def smallest(a: Array, b: Array) -> Array:
    """v_min_f32 and similar: as `largest`, but the smaller value, and -0 beats +0."""
    chosen = np.where((a < b) | ((a == b) & np.signbit(a)), a, b)
    return _with_nans(chosen, a, b)


def _with_nans(chosen: Array, a: Array, b: Array) -> Array:
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    if not (nan_a.any() or nan_b.any()):
        return chosen
    chosen = np.where(nan_a, b, np.where(nan_b, a, chosen))
    signalling_a, signalling_b = is_signalling(a), is_signalling(b)
    chosen = np.where(signalling_b & ~signalling_a, quiet(b), chosen)
    return np.where(signalling_a, quiet(a), chosen)


def median(a: Array, b: Array, c: Array) -> Array:
    """v_med3_f32: the middle value. If one is NaN, the smallest."""
    low = smallest(smallest(a, b), c)
    high = largest(largest(a, b), c)
    middle = np.where(high == a, largest(b, c), np.where(high == b, largest(a, c), largest(a, b)))
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), low, middle)


_QUIET = {2: (np.uint16, 0x0200), 4: (U32, 0x00400000), 8: (U64, 0x0008000000000000)}


def is_signalling(value: Array) -> Array:
    """A NaN whose quiet bit is off."""
    raw_type, quiet_bit = _QUIET[value.dtype.itemsize]
    return np.isnan(value) & ((np.ascontiguousarray(value).view(raw_type) & raw_type(quiet_bit)) == 0)


def is_quiet(value: Array) -> Array:
    """A NaN whose quiet bit is on."""
    return np.isnan(value) & ~is_signalling(value)


def quiet(value: Array) -> Array:
    """A NaN with its quiet bit set. Other values are unchanged."""
    raw_type, quiet_bit = _QUIET[value.dtype.itemsize]
    raw = np.ascontiguousarray(value).view(raw_type)
    return np.where(np.isnan(value), raw | raw_type(quiet_bit), raw).view(value.dtype)


def exponent(value: Array) -> Array:
    """The exponent field, as int32."""
    places, mask = {2: (10, 31), 4: (23, 255), 8: (52, 2047)}[value.dtype.itemsize]
    raw = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}").astype(np.int64)
    return (raw >> places & mask).astype(np.int32)


def mantissa(value: Array) -> Array:
    """The signed fraction of a number, in [0.5, 1), as v_frexp_mant gives it."""
    return np.frexp(value)[0].astype(value.dtype)


def ldexp(value: Array, power: Array) -> Array:
    """value · 2^power, rounded once."""
    return np.ldexp(value, np.clip(power, -5000, 5000).astype(np.int32)).astype(value.dtype)


def exact(function: Any, value: Array) -> Array:
    """A function computed in float64 and rounded to the value's type. For functions that the hardware gives to 1
    ulp."""
    if value.dtype == F64:
        return function(value)
    return function(value.astype(F64)).astype(value.dtype)


def divided(a: Array, b: Array) -> Array:
    """a / b."""
    return np.divide(a, b)


def byte_permute(data: Array, selector: Array) -> Array:
    """BYTE_PERMUTE of v_perm_b32. data has 64 bits. A selector of 8 to 11 repeats a sign, 12 gives 0, higher ones
    0xff."""
    data, selector = data.astype(U64), selector.astype(U64)
    byte = data >> (np.minimum(selector, U64(7)) * U64(8)) & U64(255)
    sign = data >> ((np.clip(selector, 8, 11) - U64(8)) * U64(16) + U64(15)) & U64(1)
    value = np.where(selector < 8, byte, np.where(selector < 12, sign * U64(255), np.where(selector == 12, 0, 255)))
    return value.astype(U32)


def leading_zeros(value: Array, width: int) -> Array:
    """The number of zeros above the highest set bit, -1 if no bit is set: int32."""
    found = np.full(value.shape, -1, np.int32)
    for place in range(width):
        one = (value >> value.dtype.type(place) & value.dtype.type(1)) != 0
        found = np.where(one, np.int32(width - 1 - place), found)
    return found


def trailing_zeros(value: Array, width: int) -> Array:
    """The place of the lowest set bit, -1 if no bit is set: int32."""
    found = np.full(value.shape, -1, np.int32)
    for place in reversed(range(width)):
        one = (value >> value.dtype.type(place) & value.dtype.type(1)) != 0
        found = np.where(one, np.int32(place), found)
    return found


def population(value: Array) -> Array:
    """The number of set bits: int32."""
    return np.bitwise_count(value).astype(np.int32)
