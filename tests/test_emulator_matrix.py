"""Every MFMA and WMMA that is emulated, against a model of its own: elements taken one by one from lanes and registers.

The layouts are those of AMD's CDNA3 and CDNA4 ISA guides and RDNA3's, stated once more by number of rows. Elements are
small numbers of few bits, so that sums are exact in any order.
"""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from bench.opcodes import opcodes
from tests.assembled import launched

SHAPES = {
    "f32_{}_f32": ["32x32x1_2b", "16x16x1_4b", "4x4x1_16b", "32x32x2", "16x16x4"],
    "f32_{}_f16": ["32x32x4_2b", "16x16x4_4b", "4x4x4_16b", "32x32x8", "16x16x16", "16x16x32", "32x32x16"],
    "f32_{}_bf16": ["32x32x4_2b", "16x16x4_4b", "4x4x4_16b", "32x32x8", "16x16x16", "16x16x32", "32x32x16"],
    "i32_{}_i8": ["32x32x4_2b", "16x16x4_4b", "4x4x4_16b", "32x32x16", "16x16x32", "16x16x64", "32x32x32"],
    **{f"f32_{{}}_{a}_{b}": ["16x16x32", "32x32x16"] for a in ("fp8", "bf8") for b in ("fp8", "bf8")},
    "f32_{}_f8f6f4": ["16x16x128", "32x32x64"],
}
OF_GFX950 = re.compile(r"16x16x32_b?f16|32x32x16_b?f16|16x16x64_i8|32x32x32_i8|f8f6f4")
MFMA = [f"v_mfma_{form.format(shape)}" for form, shapes in SHAPES.items() for shape in shapes]
NARROW = ["fp8", "bf8", "fp6", "bf6", "fp4"]
"""In the order of f8f6f4's codes."""

BITS = {"f32": 32, "f16": 16, "bf16": 16, "i8": 8, "iu8": 8, "fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}
SMALL = {"fp6": (3, 1), "bf6": (2, 3), "fp4": (1, 1)}
"""Bits of the fraction, and the exponent's bias (OCP Microscaling Formats 1.0, section 5.3)."""


def value(code: int, kind: str, target: str) -> float:
    """Of one element's bits."""
    if kind in SMALL:
        fraction, bias = SMALL[kind]
        sign, code = code >> BITS[kind] - 1, code & (1 << BITS[kind] - 1) - 1
        exponent, low = code >> fraction, code & (1 << fraction) - 1
        size = (low + (exponent > 0) * 2**fraction) * 2.0 ** (max(exponent, 1) - bias - fraction)
        return -size if sign else size
    names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "u8": "uint8"}
    narrow = {"fp8": "float8_e4m3fn", "bf8": "float8_e5m2"}
    name = names.get(kind) or narrow[kind] + ("uz" if kind == "fp8" else "fnuz") * (target == "gfx942")
    whole = {32: np.uint32, 16: np.uint16, 8: np.uint8}[BITS.get(kind, 8)]
    return float(torch.from_numpy(np.array([code], whole)).view(getattr(torch, name)).double())


def codes(kind: str, target: str) -> list[int]:
    """Elements to draw from: whole numbers, or all that there are of few bits."""
    if kind in SMALL:
        return list(range(1 << BITS[kind]))
    if BITS.get(kind, 8) == 8:
        every = range(256)
        if kind in ("i8", "u8"):
            return list(every)
        return [code for code in every if abs(v := value(code, kind, target)) <= 8 and 4 * v == round(4 * v)]
    return [c for c in codes_of_whole(kind) if abs(value(c, kind, target)) <= 8]


def codes_of_whole(kind: str) -> list[int]:
    words = torch.arange(-8.0, 9.0).to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind])
    whole = {32: torch.int32, 16: torch.int16}[BITS[kind]]
    return [int(word) & (1 << BITS[kind]) - 1 for word in words.view(whole)]


def packed(drawn: np.ndarray, bits: int) -> np.ndarray:
    """Codes [lane, element], the first lowest ─► uint32 [register, lane]."""
    count = drawn.shape[1] * bits // 32
    found = np.zeros((count, drawn.shape[0]), np.uint32)
    for lane, of_lane in enumerate(drawn):
        number = sum(int(code) << bits * place for place, code in enumerate(of_lane))
        found[:, lane] = [number >> 32 * register & 0xFFFFFFFF for register in range(count)]
    return found


def depth_of(group: int, element: int, per_lane: int, depth: int, twice: bool) -> int:
    """Which k an element of the group-th lane of a row is. twice: f8f6f4 with 8 bits, in two runs of 16."""
    if twice:
        return element // 16 * (depth // 2) + 16 * group + element % 16
    return group * per_lane + element


def loaded(registers: int, first: int, pointer: int) -> str:
    """Load registers that lie one after another in memory, 64 words each."""
    lines = ["v_mov_b32_e32 v1, v62"]
    for register in range(registers):
        lines.append(f"global_load_dword v{first + register}, v1, s[{pointer}:{pointer + 1}]")
        lines.append("v_add_u32_e32 v1, 0x100, v1")
    return "\n".join([*lines, "s_waitcnt vmcnt(0)"])


def multiplied(text: str, words: list[np.ndarray], target: str) -> np.ndarray:
    """Run one matrix instruction on v[8..], v[16..] and v[24..]: its result, uint32 [register, lane]."""
    rdna = target == "gfx1100"
    counts = [len(one) for one in words]
    begin = "s_load_dwordx8 s[4:11], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\nv_lshlrev_b32_e32 v62, 2, v0\n"
    body = begin + "\n".join(loaded(n, first, at) for n, first, at in zip(counts, (8, 16, 24), (4, 6, 8)))
    body += f"\n{text}\ns_nop 15\nv_mov_b32_e32 v1, v62\n"
    for register in range(counts[2]):
        body += f"global_store_dword v1, v{24 + register}, s[10:11]\nv_add_u32_e32 v1, 0x100, v1\n"
    body += "s_endpgm\n"
    if rdna:
        body = body.replace("dwordx8", "b256").replace("dword", "b32").replace("v_add_u32", "v_add_nc_u32")
        body = body.replace("0x100, v1", "0x80, v1")  # a register of 32 lanes
    out = np.zeros((counts[2], words[2].shape[1]), np.uint32)
    given = [np.ascontiguousarray(one) for one in words]
    outcome = launched(body, [*given, out], block=words[2].shape[1], target=target)
    assert outcome.clean, outcome
    return out


def of_mfma(name: str, kinds: tuple[str, str], target: str) -> None:
    """Draw operands for an MFMA, run it, and hold D against the sums."""
    generator = np.random.default_rng(len(name))
    result, rows, columns, depth, blocks = re.match(r"v_mfma_(...)_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?", name).groups()
    rows, depth, blocks = int(rows), int(depth), int(blocks or 1)
    assert int(columns) == rows
    per_lane, size = depth * rows * blocks // 64, rows * rows * blocks // 64
    operands, words = [], []
    for kind in kinds:
        drawn = generator.choice(codes(kind, target), (64, per_lane))
        matrix = np.zeros((blocks, rows, depth))
        for lane in range(64):
            block, row = lane // rows % blocks, lane % rows
            for element in range(per_lane):
                twice = name.endswith("f8f6f4") and BITS[kind] == 8
                k = depth_of(lane // (rows * blocks), element, per_lane, depth, twice)
                matrix[block, row, k] = value(int(drawn[lane, element]), kind, target)
        operands.append(matrix)
        words.append(packed(drawn, BITS[kind]))
    c = generator.integers(-9, 10, (size, 64))
    dtype = np.float32 if result == "f32" else np.int32
    words.append(c.astype(dtype).view(np.uint32))
    registers = [f"v[{first}:{first + len(w) - 1}]" if len(w) > 1 else f"v{first}" for first, w in zip((8, 16), words)]
    text = f"{name} v[24:{23 + size}], {registers[0]}, {registers[1]}, v[24:{23 + size}]"
    if name.endswith("f8f6f4"):
        text += f" cbsz:{NARROW.index(kinds[0])} blgp:{NARROW.index(kinds[1])}"
    found = multiplied(text, words, target).view(dtype)
    sums = np.einsum("bik,bjk->bij", *operands)
    for lane in range(64):
        for register in range(size):
            if rows == 4:
                block, row, column = lane // 4, register, lane % 4
            elif rows == 16:
                block, row, column = register // 4, lane // 16 * 4 + register % 4, lane % 16
            else:
                block, column = register // 16, lane % 32
                row = register % 16 // 4 * 8 + lane // 32 * 4 + register % 4
            assert found[register, lane] == sums[block, row, column] + c[register, lane], (register, lane)


def kinds_of(name: str) -> tuple[str, str]:
    words = name.split("_")
    return (words[-2], words[-1]) if words[-2] in ("fp8", "bf8") else (words[-1], words[-1])


@pytest.mark.parametrize("name", [one for one in MFMA if not one.endswith("f8f6f4")])
def test_an_mfma_is_the_sum_of_products_that_its_layout_says(name):
    of_mfma(name, kinds_of(name), "gfx950" if OF_GFX950.search(name) else "gfx942")


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_fp8_of_gfx950_is_that_of_ocp(kind):
    of_mfma(f"v_mfma_f32_16x16x32_{kind}_{kind}", (kind, kind), "gfx950")


MIXED = [(a, b) for a in NARROW for b in NARROW if a == b or (a, b) in (("fp8", "fp4"), ("fp4", "bf6"), ("fp6", "bf8"))]


@pytest.mark.parametrize("kinds", MIXED, ids="-".join)
@pytest.mark.parametrize("shape", SHAPES["f32_{}_f8f6f4"])
def test_f8f6f4_takes_each_format_on_each_side(shape, kinds):
    of_mfma(f"v_mfma_f32_{shape}_f8f6f4", kinds, "gfx950")


WMMA = [("f16", (0, 0)), ("bf16", (0, 0)), *(("iu8", signs) for signs in ((0, 0), (1, 0), (0, 1), (1, 1)))]


@pytest.mark.parametrize(("kind", "signs"), WMMA)
def test_a_wmma_is_the_sum_of_products_that_its_layout_says(kind, signs):
    generator = np.random.default_rng(7)
    kinds = [("u8", "i8")[sign] for sign in signs] if kind == "iu8" else [kind, kind]
    operands, words = [], []
    for one in kinds:
        half = generator.choice(codes(one, "gfx1100"), (16, 16))
        operands.append(np.array([[value(int(code), one, "gfx1100") for code in line] for line in half]))
        words.append(packed(np.concatenate([half, half]), BITS[kind]))
    c = generator.integers(-9, 10, (8, 32))
    dtype = np.int32 if kind == "iu8" else np.float32
    words.append(c.astype(dtype).view(np.uint32))
    last = len(words[0]) - 1
    name = f"v_wmma_{'i32' if kind == 'iu8' else 'f32'}_16x16x16_{kind}"
    text = f"{name} v[24:31], v[8:{8 + last}], v[16:{16 + last}], v[24:31]"
    if kind == "iu8":
        text += f" neg_lo:[{signs[0]},{signs[1]},0]"
    found = multiplied(text, words, "gfx1100").view(dtype)
    sums = operands[0] @ operands[1].T
    for lane in range(32):
        for register in range(8):
            assert found[register, lane] == sums[2 * register + lane // 16, lane % 16] + c[register, lane]


def test_no_matrix_instruction_is_emulated_and_left_out_here():
    cdna = {name for name, has in opcodes("cdna").items() if has and re.match("v_s?mf", name)}
    assert cdna == set(MFMA)
    rdna = {name for name, has in opcodes("rdna3").items() if has and "wmma" in name}
    assert rdna == {"v_wmma_f32_16x16x16_f16", "v_wmma_f32_16x16x16_bf16", "v_wmma_i32_16x16x16_iu8"}
