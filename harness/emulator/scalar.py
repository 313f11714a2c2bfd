"""Scalar arithmetic (SOP1, SOP2, SOPC, SOPK) and control flow: branches give the next position.

scalar(instruction, kernel) ─► step(state, rows)
branch(instruction)         ─► taken(state, rows): bool [wave], or None if it is not a branch
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.emulator import operands, semantics
from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.findings import NotEmulated
from harness.emulator.state import EXEC, VCC, Rows, State
from harness.emulator.vector import Step, operand_table

NOTHING = frozenset(
    [
        "s_nop",
        "s_waitcnt",
        "s_sleep",
        "s_setprio",
        "s_clause",
        "s_delay_alu",
        "s_inst_prefetch",
        "s_set_inst_prefetch_distance",
        "s_icache_inv",
        "s_dcache_inv",
        "s_dcache_wb",
        "s_waitcnt_vscnt",
        "s_waitcnt_vmcnt",
        "s_waitcnt_expcnt",
        "s_waitcnt_lgkmcnt",
        "s_waitcnt_depctr",
        "s_wait_idle",
        "s_ttracedata",
        "s_incperflevel",
        "s_decperflevel",
        "s_wait_event",
        "s_sethalt",
        "s_sendmsg",
        "buffer_wbl2",
        "buffer_inv",
        "buffer_gl0_inv",
        "buffer_gl1_inv",
        "buffer_wbinvl1",
        "buffer_wbinvl1_vol",
        "s_gl1_inv",
    ]
)
"""Instructions without an effect that a kernel can see here: waits, caches, hints."""

FP16_OVFL = 1 | 23 << 6
"""hwreg(HW_REG_MODE, 23, 1) in s_setreg's encoding: register, first bit << 6, bits - 1 << 11."""

_SAVEEXEC = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "andn2": lambda s, e: s & ~e,
    "and_not1": lambda s, e: s & ~e,
    "orn2": lambda s, e: s | ~e,
    "or_not1": lambda s, e: s | ~e,
    "andn1": lambda s, e: ~s & e,
    "and_not0": lambda s, e: ~s & e,
    "orn1": lambda s, e: ~s | e,
    "or_not0": lambda s, e: ~s | e,
    "nand": lambda s, e: ~(s & e),
    "nor": lambda s, e: ~(s | e),
    "xnor": lambda s, e: ~(s ^ e),
}
"""s_*_saveexec: functions of the source and EXEC. CDNA's andn2 is RDNA3's and_not1 (ISA guides)."""


def scalar(instruction: Instruction, kernel: KernelCode) -> Step:
    """Make the step of a scalar instruction. Raises NotEmulated with its name."""
    mnemonic, fields = instruction.mnemonic, instruction.fields
    if "_saveexec_" in mnemonic:
        return _saveexec(instruction, kernel)
    if mnemonic == "s_setreg_imm32_b32" and fields["simm16"] == FP16_OVFL:
        value = bool(fields["literal"] & 1)
        return lambda state, rows: state.clamped.__setitem__(rows, value)
    if mnemonic.startswith(("s_setreg", "s_getreg", "s_movrel", "s_set_gpr", "s_trap")):
        raise NotEmulated(instruction.where().replace(",", " is not emulated,", 1))
    if mnemonic in ("s_mov_b32", "s_mov_b64"):
        return _move(instruction)
    table = operand_table(instruction.op)
    form, bits = table.get("sdst", ("FMT_NUM_B32", 32))
    wide = bits > 32
    meant = semantics.of(instruction, kernel.target, 64 if wide else 32)
    simm = np.full(1, fields.get("simm16", 0), U32)
    reads: list[operands.Read] = []
    if instruction.encoding.startswith("SOPK"):
        fixed = lambda state, rows: simm  # noqa: E731
        own = operands.scalar_source(fields["sdst"], 0, form, 32)
        reads = [own, fixed] if mnemonic.startswith("s_cmpk") else [fixed, fixed]
        wide = False
    else:
        for name in ("ssrc0", "ssrc1"):
            if name in fields:
                kind, width = table.get(name, ("FMT_NUM_B32", 32))
                reads.append(operands.scalar_source(fields[name], fields.get("literal", 0), kind, width))
    nothing: operands.Read = lambda state, rows: simm  # noqa: E731
    first, second = (*reads, nothing, nothing)[:2]
    gives, apply, target = meant.writes, meant.apply, fields.get("sdst", 0)
    writes = "D0" in gives and not mnemonic.startswith(("s_cmp", "s_bitcmp"))
    old = operands.scalar_source(target, 0, form, 64 if wide else 32) if writes else nothing

    def step(state: State, rows: Rows) -> None:
        scc = state.scc[rows]
        s0, s1 = first(state, rows), second(state, rows)
        found = apply(s0, s1, None, old(state, rows), scc, None, None, simm, None, 0)
        if writes:
            if wide:
                state.set_scalar64(target, rows, found["D0"])
            else:
                state.set_scalar(target, rows, found["D0"])
        if "SCC" in gives:
            state.scc[rows] = found["SCC"]

    return step


def _move(instruction: Instruction) -> Step:
    fields, wide = instruction.fields, instruction.mnemonic.endswith("64")
    form = "FMT_NUM_B64" if wide else "FMT_NUM_B32"
    read = operands.scalar_source(fields["ssrc0"], fields.get("literal", 0), form, 64 if wide else 32)
    target = fields["sdst"]
    if wide:
        return lambda state, rows: state.set_scalar64(target, rows, read(state, rows))
    return lambda state, rows: state.set_scalar(target, rows, read(state, rows))


def _saveexec(instruction: Instruction, kernel: KernelCode) -> Step:
    operation, _, kind = instruction.mnemonic[2:].partition("_saveexec_")
    wide, function = kind == "b64", _SAVEEXEC[operation]
    if wide != (kernel.wave_size == 64):
        raise NotEmulated(f"{instruction.mnemonic} in waves of {kernel.wave_size} is not emulated")
    form = "FMT_NUM_B64" if wide else "FMT_NUM_B32"
    read = operands.scalar_source(
        instruction.fields["ssrc0"], instruction.fields.get("literal", 0), form, 64 if wide else 32
    )
    target = instruction.fields["sdst"]

    def step(state: State, rows: Rows) -> None:
        old = state.scalar64(EXEC, rows) if wide else state.scalar[EXEC, rows].copy()
        new = function(read(state, rows), old)
        if wide:
            state.set_scalar64(target, rows, old)
            state.set_scalar64(EXEC, rows, new)
        else:
            state.set_scalar(target, rows, old)
            state.set_scalar(EXEC, rows, new)
        state.scc[rows] = new != 0

    return step


def branch(instruction: Instruction) -> Callable[[State, Rows], Array] | None:
    """The test of a branch: True for each wave that takes it. None for other instructions."""
    tests: dict[str, Callable[[State, Rows], Array]] = {
        "s_branch": lambda state, rows: np.ones(state.position[rows].shape, np.bool_),
        "s_cbranch_scc0": lambda state, rows: ~state.scc[rows],
        "s_cbranch_scc1": lambda state, rows: state.scc[rows].copy(),
        "s_cbranch_vccz": lambda state, rows: state.mask(VCC, rows) == 0,
        "s_cbranch_vccnz": lambda state, rows: state.mask(VCC, rows) != 0,
        "s_cbranch_execz": lambda state, rows: state.mask(EXEC, rows) == 0,
        "s_cbranch_execnz": lambda state, rows: state.mask(EXEC, rows) != 0,
    }
    return tests.get(instruction.mnemonic)


def target(instruction: Instruction) -> int:
    """The byte offset that a branch goes to."""
    words = instruction.fields["simm16"]
    return instruction.offset + 4 + 4 * (words - (1 << 16) if words >> 15 else words)


def jump(instruction: Instruction) -> Callable[[State, Rows, int], Array] | None:
    """The goal of s_setpc, s_swappc and s_call, as an address by wave. None for other instructions."""
    fields, mnemonic = instruction.fields, instruction.mnemonic
    after = instruction.offset + instruction.size
    if mnemonic not in ("s_setpc_b64", "s_swappc_b64", "s_call_b64"):
        return None

    def go(state: State, rows: Rows, base: int) -> Array:
        count = state.position[rows].shape[0]
        if mnemonic == "s_call_b64":
            goal = np.full(count, base + target(instruction), U64)
        else:
            goal = state.scalar64(fields["ssrc0"], rows)
        if mnemonic != "s_setpc_b64":
            state.set_scalar64(fields["sdst"], rows, np.full(count, base + after, U64))
        return goal

    return go


def getpc(instruction: Instruction, base: int) -> Step:
    """s_getpc_b64: the address of the next instruction."""
    value = np.full(1, base + instruction.offset + instruction.size, U64)
    register = instruction.fields["sdst"]
    return lambda state, rows: state.set_scalar64(register, rows, value)
