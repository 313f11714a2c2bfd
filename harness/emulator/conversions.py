"""Handwritten conversions between number formats. They are added to WRITTEN."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator import number_formats
from harness.emulator.arithmetic import F32, U32, U64, Array
from harness.emulator.division import WRITTEN  # those of `handwritten`, and its own
from harness.emulator.handwritten import Apply, by_hand, floats, raw_result

__all__ = ["WRITTEN"]


@by_hand("v_cvt_f32_bf16")
def _from_bf16(S0: Any, **_: Any) -> dict[str, Any]:
    return {"D0": np.asarray(S0) << U32(16)}


def _pair(low: Array, high: Array) -> dict[str, Any]:
    return {"D0": low.astype(U32) | high.astype(U32) << U32(16)}


@by_hand("v_cvt_pk_bf16_f32", reads="S0 S1")
def _pk_bf16(S0: Any, S1: Any, **_: Any) -> dict[str, Any]:
    return _pair(*(ar.bf16_bits(one) for one in floats(S0, S1)))


@by_hand("v_cvt_pk_f16_f32", reads="S0 S1")
def _pk_f16(S0: Any, S1: Any, **_: Any) -> dict[str, Any]:
    return _pair(*(one.astype(np.float16).view(np.uint16) for one in floats(S0, S1)))


@by_hand("v_cvt_pk_u16_u32", reads="S0 S1")
def _pk_u16(S0: Any, S1: Any, **_: Any) -> dict[str, Any]:
    return _pair(*(np.minimum(np.asarray(one), U32(0xFFFF)) for one in (S0, S1)))


@by_hand("v_cvt_pk_i16_i32", reads="S0 S1")
def _pk_i16(S0: Any, S1: Any, **_: Any) -> dict[str, Any]:
    return _pair(
        *(np.clip(np.asarray(one).view(np.int32), -0x8000, 0x7FFF).view(U32) & U32(0xFFFF) for one in (S0, S1))
    )


@by_hand("v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32", reads="S0 S1")
def _pkrtz(S0: Any, S1: Any, **_: Any) -> dict[str, Any]:
    halves = []
    for value in floats(S0, S1):
        near = value.astype(np.float16)
        beyond = np.abs(near.astype(F32)) > np.abs(value)
        halves.append((near.view(np.uint16) - beyond.astype(np.uint16)).astype(np.uint16))
    return _pair(*halves)


def _to_small(name: str) -> Apply:
    def apply(S0: Any, S1: Any, D0: Any, SCC: Any, OPSEL: Any, target: str, **_: Any) -> dict[str, Any]:
        # For a vector instruction SCC carries MODE.FP16_OVFL, by wave.
        low, high = (number_formats.encoded(one, target, name, SCC) for one in floats(S0, S1))
        pair = low | high << U32(8)
        if OPSEL >> 3 & 1:
            return {"D0": (D0 & U32(0xFFFF)) | pair << U32(16)}
        return {"D0": (D0 & U32(0xFFFF0000)) | pair}

    return apply


def _from_small(name: str, pair: bool) -> Apply:
    def apply(S0: Any, OPSEL: Any, target: str, **_: Any) -> dict[str, Any]:
        raw = np.asarray(S0)
        if pair:
            raw = raw >> U32(16 * (OPSEL & 1))
            low, high = (number_formats.decoded(raw >> U32(8 * place), target, name).view(U32) for place in (0, 1))
            return {"D0": low.astype(U64) | high.astype(U64) << U64(32)}
        byte = (OPSEL & 1) * 2 + (OPSEL >> 1 & 1)  # OPSEL's bits are read in reverse (CDNA4 ISA guide, 6.2.6)
        return raw_result(number_formats.decoded(raw >> U32(8 * byte), target, name))

    return apply


for _kind in ("fp8", "bf8"):
    by_hand(f"v_cvt_pk_{_kind}_f32", reads="S0 S1 D0 OPSEL TARGET")(_to_small(_kind))
    by_hand(f"v_cvt_f32_{_kind}", reads="S0 OPSEL TARGET")(_from_small(_kind, False))
    by_hand(f"v_cvt_pk_f32_{_kind}", reads="S0 OPSEL TARGET")(_from_small(_kind, True))


# gfx950: conversions with a scale, whose exponent counts. OPSEL selects the byte or half that is read or written.


def _power(raw: Any) -> Array:
    return (np.asarray(raw) >> U32(23) & U32(255)).astype(np.int64) - 127


def _halves(raw: Any, kind: str) -> tuple[Array, Array]:
    words = np.asarray(raw)
    return ar.typed(words & U32(0xFFFF), (kind, 16)), ar.typed(words >> U32(16), (kind, 16))


def _scaled_to_small(name: str, wide: str) -> Apply:
    def apply(S0: Any, S1: Any, D0: Any, SCC: Any, OPSEL: Any, target: str, S2: Any = None, **_: Any) -> dict[str, Any]:
        both = floats(S0, S1) if wide == "f32" else _halves(S0, wide.removesuffix("16"))
        power = _power(S2 if wide == "f32" else S1)
        low, high = (np.ldexp(one.astype(np.float64), -power) for one in both)
        width = 4 if name == "fp4" else 8
        if name == "fp4":
            pair = number_formats.narrowed(low, name) | number_formats.narrowed(high, name) << U32(4)
        else:
            low, high = (number_formats.encoded(one, target, name, SCC) for one in (low, high))
            pair = low | high << U32(8)
        shift = U32(8 * (OPSEL >> 2 & 3) if name == "fp4" else 16 * (OPSEL >> 3 & 1))
        mask = U32((1 << 2 * width) - 1) << shift
        return {"D0": (D0 & ~mask) | pair << shift}

    return apply


def _scaled_from_small(name: str, wide: str, pair: bool) -> Apply:
    def apply(S0: Any, S1: Any, OPSEL: Any, target: str, **_: Any) -> dict[str, Any]:
        raw, power = np.asarray(S0), _power(S1)
        if name == "fp4":
            byte = raw >> U32(8 * (OPSEL & 3))
            values = [number_formats.narrow_table(name)[byte >> U32(shift) & U32(15)] for shift in (0, 4)]
        elif pair:
            half = raw >> U32(16 * (OPSEL & 1))
            values = [number_formats.decoded(half >> U32(shift), target, name) for shift in (0, 8)]
        else:
            values = [number_formats.decoded(raw >> U32(8 * (OPSEL & 3)), target, name)]
        exact = [np.ldexp(one.astype(np.float64), power) for one in values]
        if wide == "f32":
            words = [one.astype(F32).view(U32) for one in exact]
            return {"D0": words[0].astype(U64) | words[1].astype(U64) << U64(32)} if pair else {"D0": words[0]}
        kind = (wide.removesuffix("16"), 16)
        halves = [ar.bits(one.astype(F32 if wide == "bf16" else np.float16), kind) for one in exact]
        return _pair(*halves)

    return apply


for _kind in ("fp8", "bf8", "fp4"):
    for _wide in ("f32", "f16", "bf16"):
        _sources = "S0 S1 S2 D0 OPSEL TARGET" if _wide == "f32" else "S0 S1 D0 OPSEL TARGET"
        by_hand(f"v_cvt_scalef32_pk_{_kind}_{_wide}", reads=_sources)(_scaled_to_small(_kind, _wide))
        by_hand(f"v_cvt_scalef32_pk_{_wide}_{_kind}", reads="S0 S1 OPSEL TARGET")(
            _scaled_from_small(_kind, _wide, True)
        )
    if _kind != "fp4":
        by_hand(f"v_cvt_scalef32_f32_{_kind}", reads="S0 S1 OPSEL TARGET")(_scaled_from_small(_kind, "f32", False))
