"""What one access moves between memory and registers: the number of bytes, and their place in a register."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.emulator.arithmetic import U32, Array
from harness.emulator.decoding import Instruction
from harness.emulator.findings import NotEmulated
from harness.emulator.state import Rows, State


@dataclass(frozen=True)
class Shape:
    """What one access moves. size: bytes. sign: sign-extended. half: 0, or for a load the half of the register that is
    written (1 lower, 2 upper; the other half stays); for a store, 2 takes the upper half."""

    size: int
    sign: bool = False
    half: int = 0

    @property
    def registers(self) -> int:
        return max(1, self.size // 4)


SHAPES = {
    "ubyte": Shape(1),
    "u8": Shape(1),
    "sbyte": Shape(1, True),
    "i8": Shape(1, True),
    "ushort": Shape(2),
    "u16": Shape(2),
    "sshort": Shape(2, True),
    "i16": Shape(2, True),
    "byte": Shape(1),
    "b8": Shape(1),
    "short": Shape(2),
    "b16": Shape(2),
    "dword": Shape(4),
    "b32": Shape(4),
    "dwordx2": Shape(8),
    "b64": Shape(8),
    "dwordx3": Shape(12),
    "b96": Shape(12),
    "dwordx4": Shape(16),
    "b128": Shape(16),
    "short_d16": Shape(2, half=1),
    "d16_b16": Shape(2, half=1),
    "u16_d16": Shape(2, half=1),
    "short_d16_hi": Shape(2, half=2),
    "d16_hi_b16": Shape(2, half=2),
    "u16_d16_hi": Shape(2, half=2),
    "b16_d16_hi": Shape(2, half=2),
    "ubyte_d16": Shape(1, half=1),
    "d16_u8": Shape(1, half=1),
    "u8_d16": Shape(1, half=1),
    "sbyte_d16": Shape(1, True, 1),
    "d16_i8": Shape(1, True, 1),
    "i8_d16": Shape(1, True, 1),
    "ubyte_d16_hi": Shape(1, half=2),
    "d16_hi_u8": Shape(1, half=2),
    "u8_d16_hi": Shape(1, half=2),
    "sbyte_d16_hi": Shape(1, True, 2),
    "d16_hi_i8": Shape(1, True, 2),
    "i8_d16_hi": Shape(1, True, 2),
    "byte_d16_hi": Shape(1, half=2),
    "d16_hi_b8": Shape(1, half=2),
    "b8_d16_hi": Shape(1, half=2),
}


def unknown(instruction: Instruction) -> NotEmulated:
    return NotEmulated(instruction.where().replace(",", " is not emulated,", 1))


def put(state: State, rows: Rows, register: int, shape: Shape, values: Array) -> None:
    """Write loaded bytes [wave, lane, 4 or more] to registers: extended, or into one half of a register."""
    words = values.view(U32)
    if shape.size >= 4:
        for number in range(shape.registers):
            state.write(register + number, rows, words[..., number])
        return
    word = words[..., 0]
    if shape.sign:
        shift = np.int32(32 - 8 * shape.size)
        word = ((word.view(np.int32) << shift) >> shift).view(U32)
    if shape.half:
        held = state.vector[register, rows]
        word = word & U32(0xFFFF)
        word = held & U32(0xFFFF0000) | word if shape.half == 1 else held & U32(0xFFFF) | word << U32(16)
    state.write(register, rows, word)


def take(state: State, rows: Rows, register: int, shape: Shape, chosen: Array) -> Array:
    """The bytes of a store: uint8 [active lanes, size]."""
    count = shape.registers
    words = np.empty((int(chosen.sum()), count), U32)
    for number in range(count):
        words[:, number] = state.vector[register + number, rows][chosen]
    if shape.half == 2:
        words >>= U32(16)
    return words.view(np.uint8)[:, : shape.size]
