"""The operands of an instruction: reads from registers, constants and literals, with modifiers.

    source(code, format, bits, ..)  ─► read(state, rows): uint32 or uint64, [wave, lane] or [wave, 1]
    scalar_source(..)               ─► the same for one value a wave: [wave]

Operand numbers: CDNA3 ISA guide, "Source operands": SGPRs from 0, VCC 106, M0 124 (RDNA: 125, with NULL at 124), EXEC
126, integers from 128 (0) and 193 (-1), floats 240 to 248, literal 255, VGPRs from 256.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.findings import NotEmulated
from harness.emulator.state import EXEC, VCC, Rows, State

Read = Callable[[State, Rows], Array]

FLOATS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0, 248: 0.15915494309189535}
SHARED_BASE, SHARED_LIMIT, PRIVATE_BASE, PRIVATE_LIMIT = 235, 236, 237, 238
APERTURES = {SHARED_BASE: 0x0001_0000_0000_0000, PRIVATE_BASE: 0x0002_0000_0000_0000}
"""The flat addresses of LDS and scratch. On hardware the driver chooses them; these are the emulator's."""


def constant(code: int, literal: int, form: str, bits: int) -> int | None:
    """The bits of an inline constant or literal as an operand of `bits` bits. None for a register."""
    if 128 <= code <= 192:
        return code - 128
    if 193 <= code <= 208:
        return (192 - code) & ((1 << max(bits, 32)) - 1)
    if code in FLOATS:
        value = FLOATS[code]
        if bits == 64 and not form.startswith("FMT_NUM_PK2_"):
            return int(struct.unpack("<Q", struct.pack("<d", value))[0])
        if "16" in form:
            word = np.array(value, np.float32)
            if "BF16" in form:
                return int(word.view(U32)) >> 16
            return int(word.astype(np.float16).view(np.uint16))
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    if code == 255:
        if bits == 64 and form.endswith("NUM_F64"):
            return literal << 32
        if bits == 64 and form.endswith("NUM_I64") and literal >> 31:
            return literal | 0xFFFFFFFF_00000000
        return literal
    return None


def source(code: int, literal: int, form: str, bits: int, accum: int | None = None) -> Read:
    """An operand of a vector instruction. accum: the first AGPR, if the operand is an AGPR."""
    value = constant(code, literal, form, bits)
    wide = bits > 32
    if value is not None:
        fixed = np.full((1, 1), value & ((1 << 64) - 1 if wide else (1 << 32) - 1), U64 if wide else U32)
        return lambda state, rows: fixed
    if code >= 256:
        register = code - 256 + (accum or 0)
        if wide:
            return lambda state, rows: pair(state.vector[register, rows], state.vector[register + 1, rows])
        return lambda state, rows: state.vector[register, rows]
    one = scalar_source(code, literal, form, bits)
    return lambda state, rows: one(state, rows)[:, None]


def scalar_source(code: int, literal: int, form: str, bits: int) -> Read:
    """An operand of a scalar instruction, or a scalar operand of a vector instruction: [wave]."""
    value = constant(code, literal, form, bits)
    wide = bits > 32
    if value is not None:
        fixed = np.full(1, value & ((1 << 64) - 1 if wide else (1 << 32) - 1), U64 if wide else U32)
        return lambda state, rows: fixed
    if code in APERTURES:
        base = np.full(1, APERTURES[code] if wide else APERTURES[code] >> 32, U64 if wide else U32)
        return lambda state, rows: base
    if code in (251, 252, 253):
        if code == 253:
            return lambda state, rows: state.scc[rows].astype(U64 if wide else U32)
        register = VCC if code == 251 else EXEC
        return lambda state, rows: (state.mask(register, rows) == 0).astype(U64 if wide else U32)
    if code >= 128:
        raise NotEmulated(f"the operand {code}")
    if wide:
        return lambda state, rows: state.scalar64(code, rows)
    return lambda state, rows: state.scalar[code, rows]


def pair(low: Array, high: Array) -> Array:
    """Two 32-bit words as one 64-bit word."""
    if low.shape == high.shape and low.ndim == 2:
        joined = np.empty((*low.shape, 2), U32)
        joined[..., 0], joined[..., 1] = low, high
        return joined.view(U64)[..., 0]
    return low.astype(U64) | high.astype(U64) << U64(32)


SIGN = {16: 0x8000, 32: 0x80000000, 64: 0x8000000000000000}


def modified(read: Read, neg: int, absolute: int, bits: int, offset: int = 0) -> Read:
    """A float operand with |x| and -x applied. Its sign is the highest of `bits` bits."""
    if not neg and not absolute:
        return read
    kind = U64 if bits == 64 else U32
    sign = kind(SIGN[bits] << offset)

    def changed(state: State, rows: Rows) -> Array:
        value = read(state, rows)
        if absolute:
            value = value & ~sign
        return value ^ sign if neg else value

    return changed


def half(read: Read, high: int) -> Read:
    """The operand's upper 16 bits if `high`, else the operand."""
    return (lambda state, rows: read(state, rows) >> U32(16)) if high else read


def packed(read: Read, low: int, high: int, neg: int, neg_hi: int, bits: int) -> Read:
    """An operand of a packed instruction. low, high: which half of the operand each half of the result uses. Each has
    its own sign."""
    width = bits // 2
    kind: Any = U64 if bits == 64 else U32
    mask, shift, sign = kind((1 << width) - 1), kind(width), kind(SIGN[width])
    if not low and high and not neg and not neg_hi:
        return read

    def chosen(state: State, rows: Rows) -> Array:
        value = read(state, rows)
        first = (value >> shift if low else value) & mask
        second = (value >> shift if high else value) & mask
        if neg:
            first = first ^ sign
        if neg_hi:
            second = second ^ sign
        return first | second << shift

    return chosen


def subdword(read: Read, select: int, extend: int) -> Read:
    """The byte or word of an operand that SDWA selects."""
    if select == 6:
        return read
    width, place = (8, select) if select < 4 else (16, select - 4)

    def part(state: State, rows: Rows) -> Array:
        value = read(state, rows) >> U32(width * place) & U32((1 << width) - 1)
        if extend:
            shift = 32 - width
            return (np.ascontiguousarray(value << U32(shift)).view(np.int32) >> np.int32(shift)).view(U32)
        return value

    return part
