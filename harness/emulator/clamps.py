"""The clamp bit: limits float results to 0..1 and integer results to the range of their type.

    of_float(form, bits)  ─► clamp(raw) or None       of_integer(mnemonic) ─► Apply or None

AMD's ISA guides, "Clamp": a float is clamped to [0, 1], and a NaN becomes 0 (DX10_CLAMP, which compilers set). An
integer instruction saturates instead of wrapping. Wrapping is visible only before the result is truncated, so integer
instructions with the bit have their own semantics here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.arithmetic import U32, Array, typed
from harness.emulator.handwritten import Apply

_SUM = re.compile(r"^v_(pk_)?(add|sub|subrev)(?:_nc|_co)?_([ui])(16|32)$")
_MAD = re.compile(r"^v_(pk_)?mad_([ui])(16|32_[ui]24)$")


def of_float(form: str, bits: int) -> Callable[[Array], Array] | None:
    """The clamp for a result in tinygrad's format `form`. None if it is not a float or not known here."""
    kinds: dict[tuple[str, int], Any] = {
        ("FMT_NUM_F32", 32): np.float32,
        ("FMT_NUM_F64", 64): np.float64,
        ("FMT_NUM_F16", 16): np.float16,
        ("FMT_NUM_PK2_F16", 32): np.float16,
        ("FMT_NUM_PK2_F32", 64): np.float32,
    }
    dtype = kinds.get((form, bits))
    if dtype is None:
        return None

    def clamp(raw: Array) -> Array:
        raw = np.ascontiguousarray(raw)
        narrow = raw.astype(np.uint16) if bits == 16 else raw
        held = np.clip(np.nan_to_num(narrow.view(dtype)), 0, 1).astype(dtype).view(narrow.dtype)
        return held.astype(raw.dtype)

    return clamp


def of_integer(mnemonic: str) -> Apply | None:
    """The semantics of a saturating instruction, which replace its usual ones. None if it is not known."""
    added, multiplied = _SUM.match(mnemonic), _MAD.match(mnemonic)
    if added:
        packed, letter, width, word = added[1], added[3], int(added[4]), added[2]
    elif multiplied:
        packed, letter, word = multiplied[1], multiplied[2], "mad"
        width = 16 if multiplied[3] == "16" else 32
    else:
        return None
    operand = 24 if multiplied and width == 32 else width
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if letter == "i" else (0, (1 << width) - 1)

    def one(raws: list[Any]) -> tuple[Array, Array]:
        widths = (operand, operand, width)
        a, b, *rest = [
            typed(raw, (letter, bits)).astype(np.int64) for raw, bits in zip(raws, widths) if raw is not None
        ]
        exact = {"add": lambda: a + b, "sub": lambda: a - b, "subrev": lambda: b - a, "mad": lambda: a * b + rest[0]}[
            word
        ]()
        held = np.clip(exact, low, high)
        return (held & ((1 << width) - 1)).astype(U32), held != exact

    def apply(S0: Any, S1: Any, S2: Any = None, **_: Any) -> dict[str, Any]:
        given = [np.asarray(raw) if raw is not None else None for raw in (S0, S1, S2 if word == "mad" else None)]
        if not packed:
            result, carry = one(given)
            return {"D0": result, "VCC": carry}
        halves = [one([raw >> U32(shift) if raw is not None else None for raw in given])[0] for shift in (0, 16)]
        return {"D0": halves[0] | halves[1] << U32(16)}

    return apply
