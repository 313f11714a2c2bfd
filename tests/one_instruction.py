"""Runs one vector instruction at a time in the emulator, by its name and the kinds of its operands, against a model.

    Row("v_fma_f16", "hhh>h", model)      hold(rows, "gfx942")

The letters say how a model sees an operand's bits: as one number per lane, or several.

    h f d       float16, float32, float64             w s  u i  U I    unsigned and signed of 16, 32 and 64 bits
    H W S       two of 16 bits: float16, u, i         F                two of float32
    p P         one and two of bfloat16, as their bits
    B C  b c    four bytes; eight halves of a byte: unsigned, signed

A + before the last operand means that it is the result's own register. After each instruction all 64 bits of the result
are compared with the model, including the bits that must stay, and VCC if the model has two results.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.opcodes import of_target
from tests.assembled import launched, refused

LANES = 768
KINDS: dict[str, tuple[Any, int]] = {
    "h": (np.float16, 1), "f": (np.float32, 1), "d": (np.float64, 1), "w": (np.uint16, 1), "s": (np.int16, 1),
    "u": (np.uint32, 1), "i": (np.int32, 1), "U": (np.uint64, 1), "I": (np.int64, 1), "H": (np.float16, 2),
    "W": (np.uint16, 2), "S": (np.int16, 2), "F": (np.float32, 2), "p": (np.uint16, 1), "P": (np.uint16, 2),
    "B": (np.uint8, 4), "C": (np.int8, 4), "b": (np.uint8, 8), "c": (np.int8, 8),
}  # fmt: skip
BEFORE = 0x5C5C333396963C3C
"""VCC before each instruction, by lane of its wave. Waves of 32 use the lower half."""

BEGIN = """
    s_load_dwordx8 s[4:11], s[0:1], 0x0
    s_lshl_b32 s2, s2, 6
    s_mov_b32 s12, 0x96963c3c
    s_mov_b32 s13, 0x5c5c3333
    s_waitcnt lgkmcnt(0)
    v_add_u32_e32 v0, s2, v0
    v_lshlrev_b32_e32 v1, 3, v0
    global_load_dwordx2 v[2:3], v1, s[4:5]
    global_load_dwordx2 v[4:5], v1, s[6:7]
    global_load_dwordx2 v[6:7], v1, s[8:9]
    s_waitcnt vmcnt(0)
    v_lshlrev_b32_e32 v1, 4, v0
    v_mov_b32_e32 v13, 0
"""
EACH = """
    v_mov_b32_e32 v10, v6
    v_mov_b32_e32 v11, v7
    s_mov_b64 vcc, s[12:13]
    {}
    v_cndmask_b32_e64 v12, 0, 1, vcc
    global_store_dwordx4 v1, v[10:13], s[10:11]
    v_add_u32_e32 v1, 0x3000, v1
"""
OF_RDNA = {
    "s_load_dwordx8": "s_load_b256", "global_load_dwordx2": "global_load_b64", "v_add_u32_e32": "v_add_nc_u32_e32",
    "global_store_dwordx4": "global_store_b128", "s_mov_b64 vcc, s[12:13]": "s_mov_b32 vcc, s12",
}  # fmt: skip


def in_rdna(text: str) -> str:
    for old, new in OF_RDNA.items():
        text = text.replace(old, new)
    return re.sub(r"\bvcc\b", "vcc_lo", text)


def vcc_before(chip: str) -> np.ndarray:
    wave = 32 if chip == "gfx1100" else 64
    return (BEFORE >> np.arange(LANES, dtype=np.uint64) % np.uint64(wave) & np.uint64(1)).astype(bool)


def ran(texts: Sequence[str], given: Sequence[np.ndarray], chip: str) -> tuple[np.ndarray, np.ndarray]:
    """The contents of v[10:11] after each instruction, uint64 [texts, LANES], and of VCC, by lane.

    v[2:3], v[4:5] and v[6:7] hold the operands. v[10:11] holds the third operand before.
    """
    out = np.zeros((len(texts), LANES, 4), np.uint32)
    body = BEGIN + "".join(EACH.format(text.replace("\n", "\n    ")) for text in texts) + "    s_endpgm\n"
    if chip == "gfx1100":
        body = in_rdna(body)
    outcome = launched(
        body, [*given, out.reshape(-1)], grid=LANES // 64, target=chip, agprs=0 if chip == "gfx1100" else 8
    )
    assert outcome.clean, (texts if len(texts) == 1 else "", outcome)
    return np.ascontiguousarray(out[:, :, :2]).view(np.uint64)[:, :, 0], out[:, :, 2].astype(bool)


# Operands: pairs of special numbers, and random bits

FLOATS = {
    16: [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x3BFF, 0x3E00, 0xC100, 0x37FF, 0x7BFF, 0xFBFF, 0x7C00,
         0xFC00, 0x7E01, 0x7D01, 0x6401, 0xE3FF, 0x0C00, 0x4248, 0x8C01],
    32: [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x3F7FFFFF, 0x3FC00000, 0xC0200000,
         0x3EFFFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7FA00000, 0x4B000001, 0xCAFFFFFF,
         0x33800000, 0x40490FDB, 0xB3800001],
    64: [0, 1 << 63, 1, (1 << 63) + (1 << 52) - 1, 1 << 52, 0x3FF << 52, 0xBFF << 52, (0x3FF << 52) - 1,
         0x3FF8000000000000, 0xC004000000000000, 0x3FDFFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF,
         0x7FF << 52, 0xFFF << 52, 0x7FF8000000000001, 0x7FF4000000000000, 0x4330000000000001, 0xC32FFFFFFFFFFFFF,
         0x41EFFFFFFFF00000, 0x400921FB54442D18, 0xC1E0000000200000],
}  # fmt: skip
INTEGERS = {
    bits: [0, 1, 2, 3, 7, 15, 16, 31, 32, 33, 63, 64, 127, (1 << bits) - 1, (1 << bits) - 2, (1 << bits) - 31,
           1 << bits - 1, (1 << bits - 1) - 1, (1 << bits - 1) + 1, 0x5555555555555555 & (1 << bits) - 1, 255, 128]
    for bits in (16, 32, 64)
}  # fmt: skip


@functools.cache
def operands(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three operands, uint64 [LANES]: each pair of special numbers with a third; then random bits and numbers of
    similar size."""
    dtype, _ = KINDS[kind]
    bits = max(np.dtype(dtype).itemsize * 8, 16)
    special = np.array((FLOATS if np.dtype(dtype).kind == "f" else INTEGERS)[bits], np.uint64)
    if kind in "pP":
        special = np.array(FLOATS[32], np.uint64) >> np.uint64(16)
    count = len(special)
    generator = np.random.default_rng(ord(kind))
    pair = np.arange(count * count)
    picked = [special[pair // count], special[pair % count], special[(pair * 7 + pair // count * 5 + 3) % count]]
    found = []
    for number, first in enumerate(picked):
        rest = generator.integers(0, 2**64, LANES - pair.size, np.uint64)
        if np.dtype(dtype).kind == "f":
            near = (generator.standard_normal(rest.size * 64 // bits) * 4).astype(dtype).view(np.uint64)
            rest[::2] = near[::2]
        whole = first.copy()
        for place in range(1, 64 // bits):  # other special numbers in the upper parts
            whole |= np.roll(first, place * 11 + number) << np.uint64(place * bits)
        found.append(np.concatenate([whole, rest]))
    return found[0], found[1], found[2]


def typed(raw: np.ndarray, kind: str) -> np.ndarray:
    """uint64 [lanes] ─► numbers of a kind, [lanes] or [lanes, several]."""
    dtype, count = KINDS[kind]
    size = np.dtype(dtype).itemsize
    octets = np.ascontiguousarray(raw).view(np.uint8).reshape(-1, 8)
    if kind in "bc":
        halves = np.stack([octets[:, :4] & 15, octets[:, :4] >> 4], axis=2).reshape(-1, 8)
        return np.where(halves > 7, halves.astype(np.int16) - 16, halves).astype(dtype) if kind == "c" else halves
    values = np.ascontiguousarray(octets[:, : size * count]).view(dtype)
    return values[:, 0] if count == 1 else values


def bits_of(values: Any, kind: str) -> np.ndarray:
    """Numbers of a kind ─► their bytes, uint8 [LANES, size]. Integers wrap."""
    dtype, count = KINDS[kind]
    if np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(np.asarray(values).astype(dtype))
    else:
        width = np.dtype(dtype).itemsize * 8
        rows = values.tolist() if isinstance(values, np.ndarray) else values
        rows = rows if count > 1 else [[one] for one in rows]
        array = np.array([[int(one) & (1 << width) - 1 for one in row] for row in rows], f"u{width // 8}")
    return array.reshape(LANES, -1).view(np.uint8)


# Models and comparisons


def registers(number: int, kind: str) -> str:
    dtype, count = KINDS[kind]
    wide = np.dtype(dtype).itemsize * count > 4 and kind not in "bc"
    return f"v[{number}:{number + 1}]" if wide else f"v{number}"


KEEPS_UPPER_HALF = ("v_mad_f16", "v_mad_u16", "v_mad_i16", "v_fma_f16", "v_div_fixup_f16", "v_fma_mixlo_f16",
                    "v_bitop3_b16")  # fmt: skip
"""The 16-bit instructions of gfx9 that leave the rest of the result's register (LLVM,
GCNSubtarget::zeroesHigh16BitsOfDest). On RDNA3 all do."""


def expected_bits(name: str, kind: str, values: Any, old: np.ndarray, chip: str) -> np.ndarray:
    """All 64 bits of the result's registers, as uint8 [LANES, 8]."""
    after = np.ascontiguousarray(old).view(np.uint8).reshape(LANES, 8).copy()
    made = bits_of(values, kind)
    after[:, : made.shape[1]] = made
    if made.shape[1] == 2 and chip != "gfx1100" and name not in KEEPS_UPPER_HALF:
        after[:, 2:4] = 0
    return after


def differing(kind: str, found: np.ndarray, expected: np.ndarray, any_zero: bool = False) -> np.ndarray:
    """Lanes whose bits differ. Any NaN equals any NaN."""
    dtype, count = KINDS[kind]
    if np.dtype(dtype).kind == "f" or kind in "pP":
        mine, theirs = (typed(one.view(np.uint64)[:, 0], kind).reshape(LANES, -1) for one in (found, expected))
        if kind in "pP":
            mine, theirs = ((one.astype(np.uint32) << 16).view(np.float32) for one in (mine, theirs))
        alike = np.isnan(theirs) & np.isnan(mine) | ((theirs == 0) & (mine == 0) & any_zero)
        size = np.dtype(dtype).itemsize
        for place in range(count):
            at = slice(place * size, place * size + size)
            found[alike[:, place], at] = expected[alike[:, place], at]
    return np.flatnonzero((found != expected).any(axis=1))


def modelled(row: Row, kinds: str, given: Sequence[np.ndarray], vcc: np.ndarray | None) -> Any:
    """The model's result: on arrays if one operand is a float, else lane by lane on Python's integers."""
    model = row.model
    values = [typed(raw, kind) for raw, kind in zip(given, kinds)]
    if vcc is not None:
        values.append(vcc)
    with np.errstate(all="ignore"):
        if row.arrays or any(kind in "hfdHFpP" for kind in kinds):
            return model(*values)
        return [model(*lane) for lane in zip(*(one.tolist() for one in values))]


@dataclass(frozen=True)
class Row:
    """One instruction and its model. carry: "in", "out" or both, if VCC is the model's last operand, or the second part
    of its result. any_zero: do not compare the sign of a zero. given: special operands. arrays: the model takes arrays
    of all lanes although its operands are integers."""

    name: str
    signature: str
    model: Callable[..., Any]
    text: str = "{name} {d}, {s}"
    carry: str = ""
    any_zero: bool = False
    given: tuple[np.ndarray, ...] | None = None
    arrays: bool = False

    def spelt(self, low: bool = False) -> str:
        """The instruction's text with registers. In `text` a[0], a[1] and a[2] are the operands, and s those before a
        +. `signed` is s with -|x| first. low: name a 16-bit operand as half of a register, as LLVM requires for some of
        RDNA3's instructions."""
        kinds, result = self.signature.split(">")
        half = {kind: ".l" if low and kind in "hwsp" else "" for kind in KINDS}
        sources = [registers(2 + 2 * number, kind) + half[kind] for number, kind in enumerate(kinds.replace("+", ""))]
        listed = sources[: kinds.index("+")] if "+" in kinds else sources
        signed = ", ".join([f"-|{listed[0]}|", *listed[1:]])
        return self.text.format(
            name=self.name, d=registers(10, result) + half[result], s=", ".join(listed), a=sources, signed=signed
        )


def hold(rows: Sequence[Row], chip: str) -> None:
    """Run the instructions of a chip and compare each with its model. The error lists all differences."""
    wrong = []
    for kind in dict.fromkeys(row.signature[0] for row in rows):
        alike = [row for row in rows if row.signature[0] == kind]
        for given in {id(row.given): row.given or operands(kind) for row in alike}.values():
            mine = [row for row in alike if (row.given or operands(kind)) is given]
            texts = [row.spelt() for row in mine]
            if chip == "gfx1100":
                halves = refused([in_rdna(text) for text in texts if "\n" not in text], chip)
                texts = [row.spelt(in_rdna(text) in halves) for row, text in zip(mine, texts)]
            for row, result, vcc in zip(mine, *ran(texts, given, chip)):
                wrong += compare(row, given, result, vcc, chip)
    assert not wrong, "\n".join(wrong)


def compare(row: Row, given: Sequence[np.ndarray], result: np.ndarray, vcc: np.ndarray, chip: str) -> list[str]:
    """The differences, at most three lanes."""
    kinds, kind = row.signature.split(">")
    plain = kinds.replace("+", "")
    wanted = [*given[: len(plain) - 1], given[2]] if "+" in kinds else given[: len(plain)]
    before = vcc_before(chip)
    values = modelled(row, plain, wanted, before if "in" in row.carry else None)
    should = before
    if "out" in row.carry:
        values, should = zip(*values)
    expected = expected_bits(row.name, kind, values, given[2], chip)
    found = np.ascontiguousarray(result).view(np.uint8).reshape(LANES, 8).copy()
    lanes = differing(kind, found, expected, row.any_zero)
    told = []
    for lane in lanes[:3]:
        words = ", ".join(f"{int(one[lane]):016x}" for one in given)
        mine, theirs = (int(one.view(np.uint64)[lane, 0]) for one in (found, expected))
        told.append(f"  of {words} it makes {mine:016x}, the model {theirs:016x}")
    turned = np.flatnonzero(vcc != np.array(should, bool))
    told += [f"  VCC of lane {lane}, of {', '.join(f'{int(one[lane]):016x}' for one in given)}" for lane in turned[:2]]
    return [f"{row.spelt()}: {len(lanes)} lanes, VCC of {len(turned)}", *told] if told else []


def of_chip(rows: Sequence[Row], chip: str) -> list[Row]:
    """The rows that are emulated for a chip."""
    return [row for row in rows if of_target(chip).get(row.name)]
