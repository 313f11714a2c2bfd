"""MFMA of CDNA and WMMA of RDNA3: the placement of elements in lanes, and the products.

    matrix(instruction, kernel) ─► step(state, rows)

v_mfma_D_MxNxK_BLOCKS_AB, by waves of 64 (AMD's CDNA3 ISA guide, chapter 7, and AMD's Matrix Instruction Calculator):
    A[i, k]   lane i + M·(k // L) of a block, element k % L of its registers, L = K·M·BLOCKS / 64 elements a lane
    B[k, j]   lane j + N·(k // L), likewise
    D[i, j]   lane j + N·((i // 4) % G), register 4·(i // (4 G)) + i % 4, G = 64 / N groups of lanes, for one block
    blocks    of A and B: in the lanes, from M·b; of D: in the registers for 32x32 and 16x16, in the lanes for 4x4
    f8f6f4    with 8 bits a lane's elements are two runs of 16 (see `_split`), else one of 32; each scale is for 32
              elements along k, in lane i + M·g for block g. Triton's lowering of tl.dot_scaled agrees, also with mixed
              formats
v_wmma_*_16x16x16 by waves of 32: A's row and B's column in lane % 16, all of K in its registers, the same in both
halves of the wave; D[i, j] in lane j + 16·(i % 2), register i // 2.

Sums are in float32, in ascending k. Each product is exact and each addition is rounded once. Hardware documents neither
the order of its additions nor the width of its adder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator import native, number_formats, operands
from harness.emulator.arithmetic import F32, U32, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.findings import NotEmulated
from harness.emulator.results import check_registers
from harness.emulator.state import Rows, State

Step = Callable[[State, Rows], None]

_MFMA = re.compile(
    r"^v_mfma_(?:scale_)?(f32|i32)_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_(f32|f16|bf16|i8|fp8|bf8|f8f6f4)(?:_(fp8|bf8))?$"
)
_WMMA = re.compile(r"^v_wmma_(f32|f16|bf16|i32)_16x16x16_(f16|bf16|iu8)$")

BITS = {"f32": 32, "f16": 16, "bf16": 16, "i8": 8, "fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}


def matrix(instruction: Instruction, kernel: KernelCode) -> Step:
    """Make the step of a matrix instruction. Raises NotEmulated with its name: sparse, float64, xf32."""
    found = _MFMA.match(instruction.mnemonic)
    if found:
        return _mfma(instruction, kernel, found)
    found = _WMMA.match(instruction.mnemonic)
    if found:
        return _wmma(instruction, kernel, found)
    raise NotEmulated(instruction.where().replace(",", " is not emulated,", 1))


def elements(words: Array, kind: str, target: str) -> Array:
    """uint32 [.., words] ─► the elements in them as float32 or int32 [.., words · 32 / bits], lowest first."""
    words = np.ascontiguousarray(words)
    if kind == "f32":
        return words.view(F32)
    if kind == "bf16":
        return (words.view(np.uint16).astype(U32) << U32(16)).view(F32)
    if kind == "f16":
        return words.view(np.float16).astype(F32)
    if kind == "i8":
        return words.view(np.int8).astype(np.int32)
    if kind == "u8":
        return words.view(np.uint8).astype(np.int32)
    if kind in number_formats.NARROW:
        return number_formats.unpacked(words, kind)
    return number_formats.decoded(words.view(np.uint8), target, kind)


def product(a: Array, b: Array, c: Array) -> Array:
    """c[.., i, j] + the sum over ascending k of a[.., i, k] b[.., k, j]. Each addition is rounded to c's type."""
    done = native.product(a, b, c)
    if done is not None:
        return done
    total = c.copy()
    exact = a.dtype != F32 or not _may_round(a, b)
    for k in range(a.shape[-1]):
        left, right = a[..., :, k, None], b[..., None, k, :]
        total = total + left * right if exact else ar.fma(left, right, total)
    return total


def _may_round(a: Array, b: Array) -> bool:
    """True if a product of two elements may need more bits than a float32 has."""
    long = [(np.ascontiguousarray(one).view(U32) & U32(0xFFF)).any() for one in (a, b)]
    if long[0] or long[1]:
        return True
    tiny = [bool(((one != 0) & (np.abs(one) < 2.0**-62)).any()) for one in (a, b)]
    return tiny[0] or tiny[1]


def _mfma(instruction: Instruction, kernel: KernelCode, found: re.Match[str]) -> Step:
    fields, target = instruction.fields, kernel.target
    result, rows_m, columns, depth = found[1], int(found[2]), int(found[3]), int(found[4])
    blocks = int(found[5] or 1)
    kind_a, kind_b = found[6], found[7] or found[6]
    if kind_a == "f8f6f4":
        kinds = {0: "fp8", 1: "bf8", 2: "fp6", 3: "bf6", 4: "fp4"}
        if fields.get("cbsz", 0) not in kinds or fields.get("blgp", 0) not in kinds:
            raise NotEmulated(instruction.where().replace(",", " in this format is not emulated,", 1))
        kind_a, kind_b = kinds[fields["cbsz"]], kinds[fields["blgp"]]
    elif fields.get("cbsz") or fields.get("abid") or fields.get("blgp"):
        raise NotEmulated(instruction.where().replace(",", " with cbsz, abid or blgp is not emulated,", 1))
    per_lane = depth * rows_m * blocks // 64
    accum = min(kernel.accum_offset, kernel.vgprs)
    acc = fields.get("acc", 0)
    words_a, words_b = per_lane * BITS[kind_a] // 32, per_lane * BITS[kind_b] // 32
    read_a = _registers(fields["src0"], words_a, accum if acc & 1 else 0, kernel)
    read_b = _registers(fields["src1"], words_b, accum if acc >> 1 & 1 else 0, kernel)
    size = rows_m * columns * blocks // 64
    shift = accum if fields.get("acc_cd") else 0
    read_c = _registers(fields["src2"], size, shift, kernel)
    first = fields["vdst"] - 256 + shift
    _check(kernel, first, size)
    place = _places(rows_m, columns, blocks)
    dtype = F32 if result == "f32" else np.int32
    scale_a, scale_b = (_scales(instruction, side, kernel) for side in (0, 1))
    split_a, split_b = (_split(depth) if found[6] == "f8f6f4" and BITS[one] == 8 else None for one in (kind_a, kind_b))

    def step(state: State, rows: Rows) -> None:
        count = state.position[rows].shape[0]
        a = _operand(elements(read_a(state, rows, count), kind_a, target), rows_m, blocks)
        b = _operand(elements(read_b(state, rows, count), kind_b, target), columns, blocks)
        if split_a:
            a = a[..., split_a]
        if split_b:
            b = b[..., split_b]
        if scale_a and scale_b:  # exact: powers of two
            a = a * _by_block(scale_a(state, rows, count), rows_m)
            b = b * _by_block(scale_b(state, rows, count), columns)
        b = b.swapaxes(-1, -2)
        c = read_c(state, rows, count).view(dtype)  # [wave, lane, register]
        block, i, j = place
        sums = np.empty((count, blocks, rows_m, columns), dtype)
        sums[:, block, i, j] = c
        total = product(a, b, sums)
        out = np.ascontiguousarray(total[:, block, i, j]).view(U32)
        for register in range(size):
            state.vector[first + register, rows] = out[:, :, register]  # MFMA ignores EXEC

    return step


def _scales(instruction: Instruction, side: int, kernel: KernelCode) -> Any:
    """For v_mfma_scale: read(state, rows, waves) ─► float32 [wave, lane, 1], the power of two for each lane's elements.

    The E8M0 code is byte op_sel[side] + 2 op_sel_hi[side] of the scale's register. None for an instruction without
    scales.
    """
    fields = instruction.fields
    if "scale_src0" not in fields:
        return None
    byte = (fields["opsel"] >> side & 1) | (fields["opsel_hi"] >> side & 1) << 1
    read = _registers(fields[f"scale_src{side}"], 1, 0, kernel)
    return lambda state, rows, count: number_formats.scale(read(state, rows, count) >> U32(8 * byte))


def _by_block(scales: Array, lines: int) -> Array:
    """float32 [wave, lane, 1] ─► [wave, 1, line, k]. Lane i + lines·g holds the scale of elements 32 g to 32 g + 31."""
    count = scales.shape[0]
    return np.repeat(scales.reshape(count, 1, 64 // lines, lines).swapaxes(-1, -2), 32, axis=-1)


def _split(depth: int) -> list[int]:
    """For f8f6f4 with 8 bits: the place of each k among a line's elements. Each group g of lanes holds 32 elements. Its
    first 16 are k = 16 g and following; the other 16 are at 16 g in the second half of K."""
    groups = depth // 32
    held = [[half * 16 * groups + 16 * group + e for half in (0, 1) for e in range(16)] for group in range(groups)]
    order = [k for of_group in held for k in of_group]
    return [order.index(k) for k in range(depth)]


def _operand(values: Array, lines: int, blocks: int) -> Array:
    """[wave, lane, element] ─► [wave, block, line, k]."""
    count, _, per_lane = values.shape
    groups = 64 // (lines * blocks)
    # lane = line + lines·(group, or block). With several blocks there is one group.
    split = values.reshape(count, groups, blocks, lines, per_lane)
    return split.transpose(0, 2, 3, 1, 4).reshape(count, blocks, lines, groups * per_lane)


def _places(rows_m: int, columns: int, blocks: int) -> tuple[Array, Array, Array]:
    """The block, row and column of D for each lane and register."""
    lane = np.arange(64)[:, None]
    size = rows_m * columns * blocks // 64
    register = np.arange(size)[None, :]
    if rows_m == 4:
        block, j = lane // 4 + 0 * register, lane % 4 + 0 * register
        return block, register + 0 * lane, j
    groups = 64 // columns
    each = size // blocks
    within = register % each
    i = within // 4 * (4 * groups) + lane // columns * 4 + within % 4
    return register // each + 0 * lane, i, lane % columns + 0 * register


def _registers(code: int, count: int, shift: int, kernel: KernelCode) -> Any:
    """read(state, rows, waves) ─► uint32 [wave, lane, register]."""
    if code < 256:
        value = operands.constant(code, 0, "FMT_NUM_F32", 32)
        if value is None:
            raise NotEmulated("a matrix operand in scalar registers is not emulated")
        return lambda state, rows, waves: np.full((waves, state.wave_size, count), value, U32)
    first = code - 256 + shift
    _check(kernel, first, count)

    def read(state: State, rows: Rows, waves: int) -> Array:
        return np.ascontiguousarray(np.moveaxis(state.vector[first : first + count, rows], 0, -1))

    return read


def _check(kernel: KernelCode, first: int, count: int) -> None:
    check_registers(kernel, first, count)


def _wmma(instruction: Instruction, kernel: KernelCode, found: re.Match[str]) -> Step:
    if kernel.wave_size != 32:
        raise NotEmulated(f"{instruction.mnemonic} in waves of 64 is not emulated")
    fields, result, kind = instruction.fields, found[1], found[2]
    neg, neg_hi = fields.get("neg", 0), fields.get("neg_hi", 0)
    kinds = [kind, kind]
    if kind == "iu8":
        kinds = ["i8" if neg >> side & 1 else "u8" for side in (0, 1)]
        if fields.get("clmp"):
            raise NotEmulated(instruction.where().replace(",", " with a clamp is not emulated,", 1))
    elif neg or neg_hi or result in ("f16", "bf16"):
        raise NotEmulated(instruction.where().replace(",", " in this form is not emulated,", 1))
    words = 4 if kind == "iu8" else 8
    read_a = _registers(fields["src0"], words, 0, kernel)
    read_b = _registers(fields["src1"], words, 0, kernel)
    read_c = _registers(fields["src2"], 8, 0, kernel)
    first = fields["vdst"] - 256
    _check(kernel, first, 8)
    dtype = F32 if result == "f32" else np.int32
    lane, register = np.arange(32)[:, None], np.arange(8)[None, :]
    i, j = register * 2 + lane // 16, lane % 16 + 0 * register

    def step(state: State, rows: Rows) -> None:
        count = state.position[rows].shape[0]
        a = elements(read_a(state, rows, count), kinds[0], kernel.target)[:, :16]
        b = elements(read_b(state, rows, count), kinds[1], kernel.target)[:, :16].swapaxes(-1, -2)
        sums = np.empty((count, 16, 16), dtype)
        sums[:, i, j] = read_c(state, rows, count).view(dtype)
        out = np.ascontiguousarray(product(a, b, sums)[:, i, j]).view(U32)
        for number in range(8):
            state.vector[first + number, rows] = out[:, :, number]

    return step
