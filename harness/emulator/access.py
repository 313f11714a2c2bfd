"""Instructions that load and store: SMEM, GLOBAL, FLAT, SCRATCH and MUBUF here, DS in `lds`.

    access(instruction, kernel) ─► step(state, rows)

Every address is checked against the allocations. A buffer access out of its descriptor's range reads 0 and writes
nothing, as on hardware. A buffer access within the range but outside all allocations is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator import atomics, native
from harness.emulator.addresses import (
    Addresses,
    buffer_addresses,
    global_addresses,
    is_off,
    scratch_offsets,
    signed,
)
from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.direct import load_to_shared
from harness.emulator.findings import OUT_OF_RANGE, NotEmulated
from harness.emulator.flat import Flat, FlatAtomic
from harness.emulator.lds import ds
from harness.emulator.memory import Outside
from harness.emulator.places import Global, Scratch, numbers, only
from harness.emulator.results import check_registers
from harness.emulator.shapes import SHAPES, Shape, put, take, unknown
from harness.emulator.state import Rows, State, WaveFault

Step = Callable[[State, Rows], None]


def access(instruction: Instruction, kernel: KernelCode) -> Step:
    """Make the step of a load, store or atomic. Raises NotEmulated with the instruction's name."""
    encoding = instruction.encoding
    if encoding.startswith("SMEM"):
        return _smem(instruction, kernel)
    if encoding.startswith("DS"):
        return ds(instruction, kernel)
    found = re.match(r"^(global|flat|scratch|buffer)_(load|store|atomic)_(\w+)$", instruction.mnemonic)
    if not found:
        raise unknown(instruction)
    addresses = {
        "global": global_addresses,
        "flat": global_addresses,
        "scratch": scratch_offsets,
        "buffer": buffer_addresses,
    }[found[1]](instruction, kernel)
    if instruction.fields.get("lds") or found[3].startswith("lds_"):
        if found[2] != "load" or found[1] not in ("global", "buffer"):
            raise unknown(instruction)
        return load_to_shared(instruction, addresses, found[3].removeprefix("lds_"))
    data = instruction.fields.get("vdata", instruction.fields.get("data", 0)) - 256
    result = instruction.fields.get("vdst", instruction.fields.get("vdata", 0)) - 256
    accum = min(kernel.accum_offset, kernel.vgprs) if instruction.fields.get("acc") and kernel.accum_offset else 0
    flat: Any = FlatAtomic() if found[2] == "atomic" else Flat()
    place: Any = Scratch() if found[1] == "scratch" else flat if found[1] == "flat" else Global()
    if found[2] == "atomic":
        operation = atomics.named(found[3])
        if operation is None:
            raise unknown(instruction)
        returns = bool(instruction.fields.get("sc0", instruction.fields.get("glc", 0)))
        check_registers(kernel, data + accum, operation.registers)
        return _atomic(place, addresses, operation, data + accum, result + accum if returns else None)
    shape = SHAPES.get(found[3])
    if shape is None:
        raise unknown(instruction)
    if found[2] == "load":
        check_registers(kernel, result + accum, shape.registers)
        return _load(place, addresses, shape, result + accum)
    check_registers(kernel, data + accum, shape.registers)
    return _store(place, addresses, shape, data + accum)


def _load(place: Any, addresses: Addresses, shape: Shape, register: int) -> Step:
    native_shape = native.shape(shape.size, shape.sign, shape.half)

    def step(state: State, rows: Rows) -> None:
        where, limit = addresses(state, rows)
        active = state.lanes[rows]
        if not active.any() or place.swift(state, rows, native_shape, where, limit, False, register):
            return
        place.tell(state, where, active if limit is None else active & _within(limit, 0, shape.size), shape.size)
        values = np.zeros((*active.shape, max(shape.size, 4)), np.uint8)
        parts = [(0, shape.size)] if limit is None else [(at, min(4, shape.size)) for at in range(0, shape.size, 4)]
        if limit is not None and shape.size > 4 and (_within(limit, 0, shape.size) == _within(limit, 0, 4)).all():
            parts = [(0, shape.size)]
        for at, size in parts:
            chosen = active if limit is None else active & _within(limit, at, size)
            if chosen.any():
                goal = where[chosen] + U64(at)
                if state.witness:
                    state.witness(goal, rows, chosen)
                values[chosen, at : at + size] = place.load(state, rows, chosen, goal, size)
        put(state, rows, register, shape, values)

    return step


def _within(limit: tuple[Array, Array], at: int, size: int) -> Array:
    moved, records = limit
    return moved + U64(at + size) <= records


def _store(place: Any, addresses: Addresses, shape: Shape, register: int) -> Step:
    native_shape = native.shape(shape.size, shape.sign, shape.half)

    def step(state: State, rows: Rows) -> None:
        where, limit = addresses(state, rows)
        active = state.lanes[rows]
        if not active.any() or place.swift(state, rows, native_shape, where, limit, True, register):
            return
        place.tell(state, where, active if limit is None else active & _within(limit, 0, shape.size), shape.size)
        parts = [(0, shape.size)] if limit is None else [(at, min(4, shape.size)) for at in range(0, shape.size, 4)]
        for at, size in parts:
            chosen = active if limit is None else active & _within(limit, at, size)
            if chosen.any():
                goal = where[chosen] + U64(at)
                values = np.ascontiguousarray(take(state, rows, register, shape, chosen)[:, at : at + size])
                if state.witness:
                    state.witness(goal, rows, chosen)
                    state.witness(values, rows, chosen)
                if state.clocks:
                    state.clocks.saw_store(state, rows, chosen, goal)
                place.store(state, rows, chosen, goal, values)

    return step


def _atomic(place: Any, addresses: Addresses, operation: atomics.Operation, data: int, result: int | None) -> Step:
    def step(state: State, rows: Rows) -> None:
        where, limit = addresses(state, rows)
        chosen = state.lanes[rows]
        if limit is not None:
            chosen = chosen & _within(limit, 0, operation.size)
        if not chosen.any():
            return
        place.tell(state, where, chosen, operation.size)
        goal = where[chosen]
        given = take(state, rows, data, Shape(4 * operation.registers), chosen)
        if state.witness:
            state.witness(goal, rows, chosen)
            state.witness(given, rows, chosen)

        def load(index: Array) -> Array:
            return place.load(state, rows, only(chosen, index), goal[index], operation.size)

        def store(index: Array, values: Array) -> None:
            place.store(state, rows, only(chosen, index), goal[index], values)

        stored = state.clocks.begin_atomic(state, rows, chosen, goal) if state.clocks else None
        before = atomics.perform(operation, goal, given, load, store)
        if state.clocks and stored is not None:
            state.clocks.end_atomic(stored, result is not None)
        if result is not None:
            values = np.zeros((*chosen.shape, operation.size), np.uint8)
            values[chosen] = before
            held = state.lanes[rows]
            for number in range(operation.size // 4):
                word = values.view(U32)[..., number]
                state.vector[result + number, rows] = np.where(held & chosen, word, state.vector[result + number, rows])

    return step


# Scalar loads


def _smem(instruction: Instruction, kernel: KernelCode) -> Step:
    found = re.match(r"^s_(buffer_)?load_(dword|b32)?(?:(x|b)(\d+))?$", instruction.mnemonic)
    fields = instruction.fields
    if not found:
        raise unknown(instruction)
    words = 1 if not found[4] else int(found[4]) if found[3] == "x" else int(found[4]) // 32
    base, target = fields["sbase"], fields["sdata"]
    offset = U64(signed(fields["offset"], 21) & (1 << 64) - 1)
    register: int | None = None
    if "imm" in fields:
        if not fields["imm"]:
            register, offset = fields["offset"] & 127, U64(0)
        elif fields["soffset_en"]:
            register = fields["soffset"]
    elif not is_off(kernel, fields["soffset"]):
        register = fields["soffset"]
    if base + 2 > 128 or target + words > 128:
        raise unknown(instruction)

    def step(state: State, rows: Rows) -> None:
        where = state.scalar64(base, rows)
        more = np.zeros(where.shape, U64) + offset
        if register is not None:
            more = more + state.scalar[register, rows].astype(U64)
        if found[1]:
            where = where & U64((1 << 48) - 1)
            if (more + U64(4 * words) > state.scalar[base + 2, rows].astype(U64)).any():
                raise NotEmulated(f"{instruction.mnemonic} out of its buffer's range is not emulated")
        where = (where + more) & ~U64(3)
        if state.witness:
            state.witness(where, rows, None)
        try:
            values = state.memory.load(where, 4 * words).view(U32)
        except Outside as outside:
            row = int(numbers(state, rows)[outside.index])
            raise WaveFault(OUT_OF_RANGE, f"it reads {4 * words} bytes {outside.near}", row) from None
        for number in range(words):
            state.set_scalar(target + number, rows, values[:, number])

    return step
