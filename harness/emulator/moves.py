"""Vector instructions that move values between lanes and registers, and two kinds that no operand table describes.

MOVES[mnemonic](instruction, kernel) ─► step(state, rows)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator import lanes, operands
from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.findings import NotEmulated
from harness.emulator.results import check_registers, refuse_overflow, write_half
from harness.emulator.state import Rows, State

Step = Callable[[State, Rows], None]


def _readfirstlane(instruction: Instruction, kernel: KernelCode) -> Step:
    read = operands.source(instruction.fields["src0"], 0, "FMT_NUM_B32", 32)
    target = instruction.fields["vdst"] & 127 if instruction.fields["vdst"] >= 256 else instruction.fields["vdst"]

    def step(state: State, rows: Rows) -> None:
        values = np.broadcast_to(read(state, rows), state.lanes[rows].shape)
        state.set_scalar(target, rows, lanes.of_lane(values, lanes.first_active(state, rows)))

    return step


def _readlane(instruction: Instruction, kernel: KernelCode) -> Step:
    fields = instruction.fields
    read = operands.source(fields["src0"], 0, "FMT_NUM_B32", 32)
    lane = operands.scalar_source(fields["src1"], 0, "FMT_NUM_B32", 32)
    target = fields["vdst"] & 127 if fields["vdst"] >= 256 else fields["vdst"]

    def step(state: State, rows: Rows) -> None:
        values = np.broadcast_to(read(state, rows), state.lanes[rows].shape)
        chosen = np.broadcast_to(lane(state, rows) % U32(state.wave_size), values.shape[:1]).astype(np.int64)
        state.set_scalar(target, rows, lanes.of_lane(values, chosen))

    return step


def _writelane(instruction: Instruction, kernel: KernelCode) -> Step:
    fields = instruction.fields
    value = operands.scalar_source(fields["src0"], fields.get("literal", 0), "FMT_NUM_B32", 32)
    lane = operands.scalar_source(fields["src1"], 0, "FMT_NUM_B32", 32)
    register = fields["vdst"] - 256
    check_registers(kernel, register, 1)

    def step(state: State, rows: Rows) -> None:
        held = state.vector[register, rows].copy()
        chosen = np.broadcast_to(lane(state, rows) % U32(state.wave_size), held.shape[:1]).astype(np.int64)
        held[np.arange(held.shape[0]), chosen] = value(state, rows)
        state.vector[register, rows] = held

    return step


def _swap(instruction: Instruction, kernel: KernelCode) -> Step:
    first, second = instruction.fields["vdst"] - 256, instruction.fields["src0"] - 256
    check_registers(kernel, max(first, second), 1)
    width = {"v_permlane16_swap_b32": 16, "v_permlane32_swap_b32": 32}.get(instruction.mnemonic)

    def step(state: State, rows: Rows) -> None:
        a, b = state.vector[first, rows].copy(), state.vector[second, rows].copy()
        if width:
            b, a = lanes.swap(a, b, width)
        state.write(first, rows, b)
        state.write(second, rows, a)

    return step


def _accvgpr(instruction: Instruction, kernel: KernelCode) -> Step:
    fields, accum = instruction.fields, min(kernel.accum_offset, kernel.vgprs)
    read_from = accum if instruction.mnemonic != "v_accvgpr_write_b32" and fields["src0"] >= 256 else 0
    target = fields["vdst"] - 256 + (accum if instruction.mnemonic != "v_accvgpr_read_b32" else 0)
    read = operands.source(fields["src0"], fields.get("literal", 0), "FMT_NUM_B32", 32, read_from)
    check_registers(kernel, target, 1)
    if fields["src0"] >= 256:
        check_registers(kernel, fields["src0"] - 256 + read_from, 1)
    return lambda state, rows: state.write(target, rows, read(state, rows))


def _bitop3(instruction: Instruction, kernel: KernelCode) -> Step:
    fields = instruction.fields
    truth = fields["neg"] | fields["abs"] << 3 | fields["omod"] << 6
    reads = [operands.source(fields[f"src{n}"], fields.get("literal", 0), "FMT_NUM_B32", 32) for n in range(3)]
    opsel = fields.get("opsel", 0)
    halves = instruction.mnemonic == "v_bitop3_b16"
    if halves:
        reads = [operands.half(read, opsel >> n & 1) for n, read in enumerate(reads)]
    register = fields["vdst"] - 256
    check_registers(kernel, register, 1)

    def step(state: State, rows: Rows) -> None:
        a, b, c = (read(state, rows) for read in reads)
        result = np.zeros(state.lanes[rows].shape, U32)
        for place in range(8):
            if truth >> place & 1:
                result |= (a if place & 4 else ~a) & (b if place & 2 else ~b) & (c if place & 1 else ~c)
        if halves:
            write_half(state, rows, register, result, opsel >> 3 & 1, None)
        else:
            state.write(register, rows, result)

    return step


def _mix(instruction: Instruction, kernel: KernelCode) -> Step:
    """v_fma_mix: float32 a·b + c. Each operand is a float32 or one half of a register. NEG_HI means |x| here."""
    fields, mnemonic = instruction.fields, instruction.mnemonic
    if fields.get("clmp"):
        raise NotEmulated(f"{mnemonic} with a clamp is not emulated")
    register = fields["vdst"] - 256
    check_registers(kernel, register, 1)

    def operand(number: int) -> Callable[[State, Rows], Array]:
        low = fields["opsel"] >> number & 1
        is_half = fields["opsel_hi2"] if number == 2 else fields["opsel_hi"] >> number & 1
        form = "FMT_NUM_F16" if is_half else "FMT_NUM_F32"
        read = operands.source(fields[f"src{number}"], fields.get("literal", 0), form, 32)
        absolute, negated = fields["neg_hi"] >> number & 1, fields["neg"] >> number & 1

        def value(state: State, rows: Rows) -> Array:
            raw = read(state, rows)
            if is_half:
                found = (raw >> U32(16 * low)).astype(np.uint16).view(np.float16).astype(np.float32)
            else:
                found = raw.view(np.float32)
            found = np.abs(found) if absolute else found
            return -found if negated else found

        return value

    values = [operand(number) for number in range(3)]

    def step(state: State, rows: Rows) -> None:
        total = ar.fma(*(value(state, rows) for value in values))
        if mnemonic == "v_fma_mix_f32":
            return state.write(register, rows, total.view(U32))
        half = total.astype(np.float16).view(np.uint16).astype(U32)
        if state.clamped[rows].any():
            refuse_overflow(half, mnemonic)
        write_half(state, rows, register, half, int(mnemonic == "v_fma_mixhi_f16"), None)

    return step


def _permlane(instruction: Instruction, kernel: KernelCode) -> Step:
    """v_permlane16 and v_permlanex16: read a lane of the own, or of the other, row of 16. 4 bits of two scalars select
    the lane (RDNA3 ISA guide). An inactive source lane writes nothing, unless FI (OPSEL[0]) reads it anyway, or
    BOUND_CTRL (OPSEL[1]) makes it read as 0."""
    fields, other = instruction.fields, "x16" in instruction.mnemonic
    selects = [
        operands.scalar_source(fields[name], fields.get("literal", 0), "FMT_NUM_B32", 32) for name in ("src1", "src2")
    ]
    source, register = fields["src0"] - 256, fields["vdst"] - 256
    fetch, bound = fields["opsel"] & 1, fields["opsel"] >> 1 & 1
    check_registers(kernel, max(source, register), 1)
    lane = np.arange(kernel.wave_size)

    def step(state: State, rows: Rows) -> None:
        low, high = (np.broadcast_to(read(state, rows), state.position[rows].shape) for read in selects)
        word = low.astype(U64) | high.astype(U64) << U64(32)
        choice = (word[:, None] >> (lane % 16 * 4).astype(U64) & U64(15)).astype(np.int64)
        goal = (lane // 16 * 16 ^ (16 if other else 0)) + choice
        value = np.take_along_axis(state.vector[source, rows], goal, axis=1)
        if not fetch:
            usable = np.take_along_axis(state.lanes[rows], goal, axis=1)
            value = np.where(usable, value, U32(0) if bound else state.vector[register, rows])
        state.write(register, rows, value)

    return step


MOVES: dict[str, Callable[[Instruction, KernelCode], Step]] = {
    "v_readfirstlane_b32": _readfirstlane,
    "v_readlane_b32": _readlane,
    "v_writelane_b32": _writelane,
    "v_swap_b32": _swap,
    "v_permlane16_swap_b32": _swap,
    "v_permlane32_swap_b32": _swap,
    "v_accvgpr_read_b32": _accvgpr,
    "v_accvgpr_write_b32": _accvgpr,
    "v_accvgpr_mov_b32": _accvgpr,
    "v_bitop3_b32": _bitop3,
    "v_bitop3_b16": _bitop3,
    "v_permlane16_b32": _permlane,
    "v_permlanex16_b32": _permlane,
    "v_fma_mix_f32": _mix,
    "v_fma_mixlo_f16": _mix,
    "v_fma_mixhi_f16": _mix,
}
