"""Writes of values to a kernel's vector registers, and checks against the number of its registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.findings import NotEmulated
from harness.emulator.state import Rows, State


def refuse_overflow(raw: Array, name: str) -> None:
    """Raises NotEmulated for a float16 infinity under MODE.FP16_OVFL, whose effect is not emulated. Other values
    pass."""
    halves = np.stack([np.asarray(raw) & U32(0x7FFF), np.asarray(raw) >> U32(16) & U32(0x7FFF)])
    if (halves == 0x7C00).any():
        raise NotEmulated(f"an infinity in {name} with MODE.FP16_OVFL set is not emulated")


def check_registers(kernel: KernelCode, first: int, count: int) -> None:
    """Raises NotEmulated for a register beyond the kernel's own."""
    if first < 0 or first + count > kernel.vgprs:
        raise NotEmulated(f"it uses v{first + count - 1}, and says that it has {kernel.vgprs} registers; that")


def write_lanes(state: State, rows: Rows, register: int, value: Array, valid: Any) -> None:
    if valid is None:
        state.write(register, rows, value)
    else:
        state.write(register, rows, np.where(valid(state, rows), value, state.vector[register, rows]))


def write64(state: State, rows: Rows, register: int, value: Array, valid: Any) -> None:
    low, high = (value & U64(0xFFFFFFFF)).astype(U32), (value >> U64(32)).astype(U32)
    write_lanes(state, rows, register, low, valid)
    write_lanes(state, rows, register + 1, high, valid)


def write_half(state: State, rows: Rows, register: int, value: Array, high: int, valid: Any) -> None:
    held = state.vector[register, rows]
    part = np.asarray(value) & U32(0xFFFF)
    merged = held & U32(0xFFFF) | part << U32(16) if high else held & U32(0xFFFF0000) | part
    write_lanes(state, rows, register, merged, valid)
