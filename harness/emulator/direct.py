"""Loads that write to LDS instead of registers: buffer_load with LDS, global_load_lds.

A wave's lanes write side by side: lane n at M0[15:0] + the instruction's offset + n times the size (CDNA3 ISA guide,
"Memory buffer load to LDS"; 12 and 16 bytes a lane exist on gfx950 only). Lanes out of a buffer descriptor's range
write 0. Hardware signals completion by vmcnt. Here loads complete at once, so a missing wait is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.emulator.addresses import Addresses
from harness.emulator.arithmetic import U32, U64
from harness.emulator.decoding import Instruction
from harness.emulator.flat import store_shared
from harness.emulator.places import Global
from harness.emulator.shapes import unknown
from harness.emulator.state import Rows, State

SIZES = {"dword": 4, "dwordx3": 12, "dwordx4": 16}
M0 = 124


def load_to_shared(instruction: Instruction, addresses: Addresses, name: str) -> Callable[[State, Rows], None]:
    """name: the part after `load_` or `load_lds_`. Raises NotEmulated with the instruction's name."""
    size = SIZES.get(name)
    if size is None:
        raise unknown(instruction)
    offset = U32(instruction.fields["offset"] & 0xFFF)
    if instruction.fields["offset"] >> 12:  # a negative offset of a global load
        raise unknown(instruction)
    place = Global()

    def step(state: State, rows: Rows) -> None:
        where, limit = addresses(state, rows)
        active = state.lanes[rows]
        if not active.any():
            return
        values = np.zeros((*active.shape, size), np.uint8)
        place.tell(state, where, active if limit is None else active & (limit[0] + U64(size) <= limit[1]), size)
        for at in range(0, size, 4):
            inside = active if limit is None else active & (limit[0] + U64(at + 4) <= limit[1])
            if inside.any():
                goal = where[inside] + U64(at)
                if state.witness:
                    state.witness(goal, rows, inside)
                values[inside, at : at + 4] = place.load(state, rows, inside, goal, 4)
        base = (state.scalar[M0, rows] & U32(0xFFFF))[:, None] + offset + state.lane_numbers * U32(size)
        if state.witness:
            state.witness(values[active], rows, active)
        store_shared(state, rows, active, base[active], np.ascontiguousarray(values[active]))

    return step
