"""Where an access to global memory, scratch or a buffer goes.

    global_addresses(instruction, kernel) ─► Addresses

Addresses: (state, rows) ─► uint64 [wave, lane], and the descriptor's range (offsets and sizes) or None without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator import operands
from harness.emulator.arithmetic import U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.findings import NotEmulated
from harness.emulator.results import check_registers
from harness.emulator.state import Rows, State

Addresses = Callable[[State, Rows], tuple[Array, Any]]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def is_off(kernel: KernelCode, register: int) -> bool:
    return register in ((124,) if kernel.rdna else (127, 125))


def global_addresses(instruction: Instruction, kernel: KernelCode) -> Addresses:
    fields = instruction.fields
    width = type_bits(instruction)
    offset = U64(signed(fields["offset"], width) & (1 << 64) - 1) if width != 12 else U64(fields["offset"])
    flat = instruction.mnemonic.startswith("flat")
    register, base = fields["addr"] - 256, fields["saddr"]
    plain = flat or is_off(kernel, base)
    check_registers(kernel, register, 2 if plain else 1)

    def addresses(state: State, rows: Rows) -> tuple[Array, Any]:
        if plain:
            value = operands.pair(state.vector[register, rows], state.vector[register + 1, rows])
            return value + offset, None
        return state.vector[register, rows].astype(U64) + state.scalar64(base, rows)[:, None] + offset, None

    return addresses


def type_bits(instruction: Instruction) -> int:
    """The width of the offset field: 12 bits, unsigned, for CDNA's FLAT; else 13 bits, signed."""
    return 12 if instruction.mnemonic.startswith("flat") and "sc0" in instruction.fields else 13


def scratch_offsets(instruction: Instruction, kernel: KernelCode) -> Addresses:
    fields = instruction.fields
    offset = U64(signed(fields["offset"], 13) & (1 << 64) - 1)
    register, base = fields["addr"] - 256, fields["saddr"]
    by_vector, by_scalar = bool(fields.get("sve")), not is_off(kernel, base)

    def addresses(state: State, rows: Rows) -> tuple[Array, Any]:
        value = np.zeros(state.lanes[rows].shape, U64) + offset
        if by_vector:
            value = value + state.vector[register, rows].view(np.int32).astype(np.int64).view(U64)
        if by_scalar:
            value = value + state.scalar[base, rows].view(np.int32).astype(np.int64).view(U64)[:, None]
        return value, None

    return addresses


def buffer_addresses(instruction: Instruction, kernel: KernelCode) -> Addresses:
    """The addresses of a raw buffer access, by byte offset. CDNA3 ISA guide, "Buffer addressing"."""
    fields = instruction.fields
    if fields.get("idxen") or fields.get("tfe"):
        raise NotEmulated(f"{instruction.mnemonic} with an index is not emulated")
    soffset = operands.scalar_source(fields["soffset"], 0, "FMT_NUM_B32", 32)
    register, descriptor, offset = fields["vaddr"] - 256, fields["srsrc"], U64(fields["offset"])
    offen = bool(fields["offen"])
    if offen:
        check_registers(kernel, register, 1)

    def addresses(state: State, rows: Rows) -> tuple[Array, Any]:
        base = state.scalar64(descriptor, rows)
        if (base >> U64(63)).any():
            raise NotEmulated(f"{instruction.mnemonic} with a swizzled buffer is not emulated")
        base = (base & U64((1 << 48) - 1))[:, None]
        within = (
            state.vector[register, rows].astype(U64) if offen else np.zeros(state.lanes[rows].shape, U64)
        ) + offset
        moved = within + soffset(state, rows).astype(U64)[:, None]
        return base + moved, (moved, state.scalar[descriptor + 2, rows].astype(U64)[:, None])

    return addresses
