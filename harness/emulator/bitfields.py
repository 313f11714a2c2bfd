"""Functions that translated pseudocode calls, beyond `arithmetic`: parts of words, shifts, extremes of three."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator.arithmetic import Type


def _extract(raw: Any, low: Any, width: int) -> Any:
    mask = raw.dtype.type((1 << width) - 1 if width < 64 else (1 << 64) - 1)
    found = (raw >> np.asarray(low).astype(raw.dtype)) & mask
    return found.astype(np.uint32) if width <= 32 and found.dtype != np.uint32 else found


def _insert(held: Any, low: Any, width: int, value: Any) -> Any:
    unsigned = held.dtype if held.dtype.kind == "u" else np.dtype(f"u{held.dtype.itemsize}")
    word = held.view(unsigned)
    place = np.asarray(low).astype(unsigned)
    mask = unsigned.type((1 << width) - 1 if width < 64 else (1 << 64) - 1) << place
    return ((word & ~mask) | ((value.astype(unsigned) << place) & mask)).view(held.dtype)


def _shift_left(value: Any, count: Any, width: int) -> Any:
    return _shift(value, count, width, lambda a, b: a << b, lambda a: np.zeros_like(a))


def _shift_right(value: Any, count: Any, width: int) -> Any:
    return _shift(
        value,
        count,
        width,
        lambda a, b: a >> b,
        lambda a: a >> a.dtype.type(a.dtype.itemsize * 8 - 1) if a.dtype.kind == "i" else np.zeros_like(a),
    )


def _shift(value: Any, count: Any, width: int, within: Any, beyond: Any) -> Any:
    value, count = np.asarray(value), np.asarray(count)
    most = value.dtype.itemsize * 8 - 1
    shifted = within(value, np.minimum(count, most).astype(value.dtype))
    if np.any(count > most):
        shifted = np.where(count > most, beyond(np.broadcast_to(value, np.shape(shifted))), shifted)
    kind = ("i" if value.dtype.kind == "i" else "u", width)
    return shifted if width in (32, 64) else ar.typed(ar.bits(shifted, kind), kind)


def _sign_extended(raw: Any, width: Any, kind: Type) -> Any:
    whole = 32 if kind[1] <= 32 else 64
    signed = raw.view(np.int32 if whole == 32 else np.int64)
    shift = (whole - np.clip(width, 1, whole)).astype(signed.dtype)
    return np.where(np.asarray(width) == 0, signed.dtype.type(0), (signed << shift) >> shift)


def _power(base: Any, power: Any) -> Any:
    raise AssertionError("a power is folded into ldexp")


FUNCTIONS = {
    "_extract": _extract,
    "_insert": _insert,
    "_shift_left": _shift_left,
    "_shift_right": _shift_right,
    "_sign_extended": _sign_extended,
    "_power": _power,
    "_largest3": lambda a, b, c: ar.largest(ar.largest(a, b), c),
    "_smallest3": lambda a, b, c: ar.smallest(ar.smallest(a, b), c),
    "_maximum3": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "_minimum3": lambda a, b, c: np.minimum(np.minimum(a, b), c),
}
