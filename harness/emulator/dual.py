"""RDNA3's dual instructions: two vector instructions in one. Both read all operands before either writes.

    dual(instruction, kernel) ─► step(state, rows)

Each half means the instruction of the same name without `dual_` (RDNA3 ISA guide, "VOPD").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.emulator import operands, semantics
from harness.emulator.arithmetic import U32, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.findings import NotEmulated
from harness.emulator.results import check_registers
from harness.emulator.state import VCC, Rows, State, lanes_of
from harness.emulator.vector import Step


def dual(instruction: Instruction, kernel: KernelCode) -> Step:
    """Make the step of a dual instruction. Raises NotEmulated with its name."""
    fields = instruction.fields
    halves = []
    for side, mnemonic in (("x", instruction.mnemonic), ("y", instruction.mnemonic_y)):
        register = fields[f"vdst{side}"] - 256
        check_registers(kernel, register, 1)
        halves.append((register, _half(side, mnemonic, register, fields, kernel)))

    def step(state: State, rows: Rows) -> None:
        found = [(register, compute(state, rows)) for register, compute in halves]
        for register, value in found:
            state.write(register, rows, value)

    return step


def _half(
    side: str, mnemonic: str, register: int, fields: dict[str, int], kernel: KernelCode
) -> Callable[[State, Rows], Array]:
    plain = mnemonic.replace("v_dual_", "v_")
    meant = semantics.of_mnemonic(plain, _op(plain), kernel.target, 32)
    literal = fields.get("literal", 0)
    form = "FMT_NUM_F32" if plain.endswith("f32") else "FMT_NUM_B32"
    first = operands.source(fields[f"src{side}0"], literal, form, 32)
    second = operands.source(fields[f"vsrc{side}1"], literal, form, 32)
    old = operands.source(register + 256, 0, form, 32)
    wants_vcc = "VCC" in meant.reads

    def compute(state: State, rows: Rows) -> Array:
        vcc = lanes_of(state.mask(VCC, rows), state.wave_size) if wants_vcc else None
        values = first(state, rows), second(state, rows), None, old(state, rows)
        found = meant.apply(*values, None, vcc, None, U32(literal), state.lane_numbers, 0)
        result: Array = found["D0"]
        return result

    return compute


def _op(plain: str) -> Any:
    """The tables' key of the plain instruction that a half stands for."""
    from tinygrad.runtime.autogen.amd.rdna3.enum import VOP1Op, VOP2Op

    for table in (VOP2Op, VOP1Op):
        for spelling in (f"{plain}_e32", plain):
            if spelling.upper() in table.__members__:
                return table[spelling.upper()]
    raise NotEmulated(f"{plain} in a dual instruction is not emulated")
