"""Instructions that load and store: SMEM, GLOBAL, FLAT, SCRATCH, MUBUF and DS.

    access(instruction, kernel) ─► step(state, rows)

Every address is held against the allocations, or against the workgroup's LDS. A buffer access that its descriptor
calls out of range reads 0 and writes nothing, as on hardware; one that the descriptor lets through and that is in no
allocation is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator import atomics, lanes, operands
from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.findings import OUT_OF_RANGE, RACE, NotEmulated
from harness.emulator.memory import Outside
from harness.emulator.state import Rows, State, WaveFault
from harness.emulator.vector import check_registers

Step = Callable[[State, Rows], None]


@dataclass(frozen=True)
class Shape:
    """What one access moves. size: bytes. sign: extended. half: 1 or 2 where 16 bits of a register are kept, else 0;
    of a store, 2 takes the upper half."""

    size: int
    sign: bool = False
    half: int = 0

    @property
    def registers(self) -> int:
        return max(1, self.size // 4)


_NAMES = {
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


def access(instruction: Instruction, kernel: KernelCode) -> Step:
    """Raises NotEmulated by name."""
    encoding = instruction.encoding
    if encoding.startswith("SMEM"):
        return _smem(instruction, kernel)
    if encoding.startswith("DS"):
        return _ds(instruction, kernel)
    found = re.match(r"^(global|flat|scratch|buffer)_(load|store|atomic)_(\w+)$", instruction.mnemonic)
    if not found or instruction.fields.get("lds"):
        raise _unknown(instruction)
    addresses = {
        "global": _global_addresses,
        "flat": _global_addresses,
        "scratch": _scratch_offsets,
        "buffer": _buffer_addresses,
    }[found[1]](instruction, kernel)
    data = instruction.fields.get("vdata", instruction.fields.get("data", 0)) - 256
    result = instruction.fields.get("vdst", instruction.fields.get("vdata", 0)) - 256
    accum = min(kernel.accum_offset, kernel.vgprs) if instruction.fields.get("acc") and kernel.accum_offset else 0
    place: Any = Scratch() if found[1] == "scratch" else Flat() if found[1] == "flat" else Global()
    if found[2] == "atomic":
        operation = atomics.named(found[3])
        if operation is None:
            raise _unknown(instruction)
        returns = bool(instruction.fields.get("sc0", instruction.fields.get("glc", 0)))
        check_registers(kernel, data + accum, operation.registers)
        return _atomic(place, addresses, operation, data + accum, result + accum if returns else None)
    shape = _NAMES.get(found[3])
    if shape is None:
        raise _unknown(instruction)
    if found[2] == "load":
        check_registers(kernel, result + accum, shape.registers)
        return _load(place, addresses, shape, result + accum)
    check_registers(kernel, data + accum, shape.registers)
    return _store(place, addresses, shape, data + accum)


def _unknown(instruction: Instruction) -> NotEmulated:
    return NotEmulated(instruction.where().replace(",", " is not emulated,", 1))


# Addresses: (state, rows) ─► uint64 [wave, lane], and which lanes are in range of their descriptor, or None

Addresses = Callable[[State, Rows], tuple[Array, Any]]


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _off(kernel: KernelCode, register: int) -> bool:
    return register in ((124,) if kernel.target == "gfx1100" else (127, 125))


def _global_addresses(instruction: Instruction, kernel: KernelCode) -> Addresses:
    fields = instruction.fields
    width = type_bits(instruction)
    offset = U64(_signed(fields["offset"], width) & (1 << 64) - 1) if width != 12 else U64(fields["offset"])
    flat = instruction.mnemonic.startswith("flat")
    register, base = fields["addr"] - 256, fields["saddr"]
    plain = flat or _off(kernel, base)
    check_registers(kernel, register, 2 if plain else 1)

    def addresses(state: State, rows: Rows) -> tuple[Array, Any]:
        if plain:
            value = operands.pair(state.vector[register, rows], state.vector[register + 1, rows])
            return value + offset, None
        return state.vector[register, rows].astype(U64) + state.scalar64(base, rows)[:, None] + offset, None

    return addresses


def type_bits(instruction: Instruction) -> int:
    """How wide the offset's field is: 12 bits without a sign for CDNA's FLAT, else 13 with one."""
    return 12 if instruction.mnemonic.startswith("flat") and "sc0" in instruction.fields else 13


def _scratch_offsets(instruction: Instruction, kernel: KernelCode) -> Addresses:
    fields = instruction.fields
    offset = U64(_signed(fields["offset"], 13) & (1 << 64) - 1)
    register, base = fields["addr"] - 256, fields["saddr"]
    by_vector, by_scalar = bool(fields.get("sve")), not _off(kernel, base)

    def addresses(state: State, rows: Rows) -> tuple[Array, Any]:
        value = np.zeros(state.lanes[rows].shape, U64) + offset
        if by_vector:
            value = value + state.vector[register, rows].view(np.int32).astype(np.int64).view(U64)
        if by_scalar:
            value = value + state.scalar[base, rows].view(np.int32).astype(np.int64).view(U64)[:, None]
        return value, None

    return addresses


def _buffer_addresses(instruction: Instruction, kernel: KernelCode) -> Addresses:
    """CDNA3 ISA guide, "Buffer addressing": raw buffers, by byte offset."""
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


# What is behind the addresses


class Global:
    """Global memory."""

    def load(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> Array:
        try:
            return state.memory.load(addresses, size)
        except Outside as outside:
            raise fault(state, rows, chosen, outside.index, f"it reads {size} bytes {outside.near}") from None

    def store(self, state: State, rows: Rows, chosen: Array, addresses: Array, values: Array) -> None:
        try:
            state.memory.store(addresses, values)
        except Outside as outside:
            message = f"it writes {values.shape[1]} bytes {outside.near}"
            raise fault(state, rows, chosen, outside.index, message) from None


class Scratch:
    """A lane's own memory: spills and local arrays."""

    def _flat(self, state: State, rows: Rows, chosen: Array, offsets: Array, size: int) -> tuple[Array, Array]:
        if state.scratch is None:
            raise fault(state, rows, chosen, 0, "it uses scratch, and the kernel says that it has none")
        length = state.scratch.shape[2]
        wrong = offsets.view(np.int64) + size > length
        wrong |= offsets.view(np.int64) < 0
        if wrong.any():
            first = int(np.argmax(wrong))
            message = f"scratch byte {int(offsets.view(np.int64)[first])} of {length} a lane"
            raise fault(state, rows, chosen, first, message)
        wave, lane = np.nonzero(chosen)
        row = numbers(state, rows)[wave]
        return state.scratch.reshape(-1), ((row * state.wave_size + lane) * length).astype(U64) + offsets

    def load(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> Array:
        from harness.emulator.memory import gather

        data, offsets = self._flat(state, rows, chosen, addresses, size)
        return gather(data, offsets, size)

    def store(self, state: State, rows: Rows, chosen: Array, addresses: Array, values: Array) -> None:
        from harness.emulator.memory import scatter

        data, offsets = self._flat(state, rows, chosen, addresses, values.shape[1])
        scatter(data, offsets, values)


class Flat(Global):
    """Flat addresses: global memory, or an aperture."""

    def load(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> Array:
        self._check(addresses)
        return super().load(state, rows, chosen, addresses, size)

    def store(self, state: State, rows: Rows, chosen: Array, addresses: Array, values: Array) -> None:
        self._check(addresses)
        super().store(state, rows, chosen, addresses, values)

    def _check(self, addresses: Array) -> None:
        top = addresses >> U64(32)
        for base in operands.APERTURES.values():
            if (top == U64(base >> 32)).any():
                raise NotEmulated("a flat access to LDS or scratch is not emulated")


def numbers(state: State, rows: Rows) -> Array:
    """The waves of `rows`, as indices of the state."""
    return np.arange(state.position.shape[0])[rows]


def fault(state: State, rows: Rows, chosen: Array, index: int, message: str) -> WaveFault:
    """The fault of the index-th active lane."""
    wave, lane = (int(axis[index]) for axis in np.nonzero(chosen))
    return WaveFault(OUT_OF_RANGE, message, int(numbers(state, rows)[wave]), lane)


def _load(place: Any, addresses: Addresses, shape: Shape, register: int) -> Step:
    def step(state: State, rows: Rows) -> None:
        where, limit = addresses(state, rows)
        active = state.lanes[rows]
        if not active.any():
            return
        values = np.zeros((*active.shape, max(shape.size, 4)), np.uint8)
        parts = [(0, shape.size)] if limit is None else [(at, min(4, shape.size)) for at in range(0, shape.size, 4)]
        if limit is not None and shape.size > 4 and (_within(limit, 0, shape.size) == _within(limit, 0, 4)).all():
            parts = [(0, shape.size)]
        for at, size in parts:
            chosen = active if limit is None else active & _within(limit, at, size)
            if chosen.any():
                goal = where[chosen] + U64(at)
                if state.witness:
                    state.witness(goal)
                values[chosen, at : at + size] = place.load(state, rows, chosen, goal, size)
        put(state, rows, register, shape, values)

    return step


def _within(limit: tuple[Array, Array], at: int, size: int) -> Array:
    moved, records = limit
    return moved + U64(at + size) <= records


def put(state: State, rows: Rows, register: int, shape: Shape, values: Array) -> None:
    """Write loaded bytes [wave, lane, 4 or more] to registers, extended or beside the half that stays."""
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


def _store(place: Any, addresses: Addresses, shape: Shape, register: int) -> Step:
    def step(state: State, rows: Rows) -> None:
        where, limit = addresses(state, rows)
        active = state.lanes[rows]
        if not active.any():
            return
        parts = [(0, shape.size)] if limit is None else [(at, min(4, shape.size)) for at in range(0, shape.size, 4)]
        for at, size in parts:
            chosen = active if limit is None else active & _within(limit, at, size)
            if chosen.any():
                goal = where[chosen] + U64(at)
                values = np.ascontiguousarray(take(state, rows, register, shape, chosen)[:, at : at + size])
                if state.witness:
                    state.witness(goal)
                    state.witness(values)
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
        goal = where[chosen]
        given = take(state, rows, data, Shape(4 * operation.registers), chosen)
        if state.witness:
            state.witness(goal)
            state.witness(given)

        def load(index: Array) -> Array:
            return place.load(state, rows, _only(chosen, index), goal[index], operation.size)

        def store(index: Array, values: Array) -> None:
            place.store(state, rows, _only(chosen, index), goal[index], values)

        before = atomics.perform(operation, goal, given, load, store)
        if result is not None:
            values = np.zeros((*chosen.shape, operation.size), np.uint8)
            values[chosen] = before
            held = state.lanes[rows]
            for number in range(operation.size // 4):
                word = values.view(U32)[..., number]
                state.vector[result + number, rows] = np.where(held & chosen, word, state.vector[result + number, rows])

    return step


def _only(chosen: Array, index: Array) -> Array:
    some = np.zeros_like(chosen)
    wave, lane = np.nonzero(chosen)
    some[wave[index], lane[index]] = True
    return some


# Scalar loads


def _smem(instruction: Instruction, kernel: KernelCode) -> Step:
    found = re.match(r"^s_(buffer_)?load_(dword|b32)?(?:(x|b)(\d+))?$", instruction.mnemonic)
    fields = instruction.fields
    if not found:
        raise _unknown(instruction)
    words = 1 if not found[4] else int(found[4]) if found[3] == "x" else int(found[4]) // 32
    base, target = fields["sbase"], fields["sdata"]
    offset = U64(_signed(fields["offset"], 21) & (1 << 64) - 1)
    register: int | None = None
    if "imm" in fields:
        if not fields["imm"]:
            register, offset = fields["offset"] & 127, U64(0)
        elif fields["soffset_en"]:
            register = fields["soffset"]
    elif not _off(kernel, fields["soffset"]):
        register = fields["soffset"]
    if base + 2 > 128 or target + words > 128:
        raise _unknown(instruction)

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
            state.witness(where)
        try:
            values = state.memory.load(where, 4 * words).view(U32)
        except Outside as outside:
            row = int(numbers(state, rows)[outside.index])
            raise WaveFault(OUT_OF_RANGE, f"it reads {4 * words} bytes {outside.near}", row) from None
        for number in range(words):
            state.set_scalar(target + number, rows, values[:, number])

    return step


# LDS


def _ds(instruction: Instruction, kernel: KernelCode) -> Step:
    fields, mnemonic = instruction.fields, instruction.mnemonic
    if fields.get("gds"):
        raise _unknown(instruction)
    offset = fields["offset0"] | fields["offset1"] << 8
    accum = min(kernel.accum_offset, kernel.vgprs) if fields.get("acc") and kernel.accum_offset else 0
    address, result = fields["addr"] - 256, fields["vdst"] - 256 + accum
    data, data1 = fields["data0"] - 256 + accum, fields["data1"] - 256 + accum
    if mnemonic in ("ds_bpermute_b32", "ds_permute_b32"):
        move = lanes.bpermute if mnemonic == "ds_bpermute_b32" else lanes.permute
        check_registers(kernel, max(address, data, result), 1)
        return lambda state, rows: state.write(
            result, rows, move(state.vector[address, rows], state.vector[data, rows], state.lanes[rows], offset)
        )
    if mnemonic == "ds_swizzle_b32":
        source = lanes.swizzle_lanes(offset, kernel.wave_size)
        check_registers(kernel, max(address, result), 1)

        def swizzle(state: State, rows: Rows) -> None:
            value = np.where(state.lanes[rows], state.vector[address, rows], U32(0))
            state.write(result, rows, value[:, source])

        return swizzle
    check_registers(kernel, address, 1)
    if mnemonic in ("ds_read_b64_tr_b16", "ds_read_b64_tr_b8"):
        check_registers(kernel, result, 2)
        return _ds_transposed(address, offset, 2 if mnemonic.endswith("b16") else 1, result)
    found = re.match(r"^ds_(read|load|write|store)(2|_2addr)?(st64|_stride64)?_(\w+)$", mnemonic)
    shape = _NAMES.get(found[4]) if found else None
    if found and shape is not None:
        loads = found[1] in ("read", "load")
        step = shape.size * (64 if found[3] else 1)
        offsets = [fields["offset0"] * step, fields["offset1"] * step] if found[2] else [offset]
        if loads:
            check_registers(kernel, result, shape.registers * len(offsets))
            return _ds_load(address, offsets, shape, result)
        check_registers(kernel, data, shape.registers)
        if found[2]:
            check_registers(kernel, data1, shape.registers)
        return _ds_store(address, list(zip(offsets, (data, data1))), shape)
    found = re.match(r"^ds_(\w+)$", mnemonic)
    returns = "_rtn" in mnemonic
    operation = atomics.named(mnemonic[3:].replace("_rtn", "")) if found else None
    if operation is None:
        raise _unknown(instruction)
    if operation.compares:
        raise _unknown(instruction)
    check_registers(kernel, data, operation.registers)
    return _ds_atomic(address, offset, operation, data, result if returns else None)


def _ds_load(address: int, offsets: list[int], shape: Shape, result: int) -> Step:
    def step(state: State, rows: Rows) -> None:
        active = state.lanes[rows]
        if not active.any():
            return
        loaded = []
        for offset in offsets:
            values = np.zeros((*active.shape, max(shape.size, 4)), np.uint8)
            groups, goal, waves = local(state, rows, address, offset, shape.size, active)
            values[active, : shape.size], raced = state.shared.load(groups, goal, shape.size, waves)
            if raced is not None:
                note_race(state, rows, active, raced, "reads", int(goal[raced]))
            loaded.append(values)
        for number, values in enumerate(loaded):
            put(state, rows, result + number * shape.registers, shape, values)

    return step


def _ds_transposed(address: int, offset: int, size: int, result: int) -> Step:
    """gfx950's ds_read_b64_tr: 16 lanes read a tile of 8 / size rows of 16 elements, each a row's part of 8 bytes; lane
    i is given column i. `size`: bytes of an element."""
    count = 8 // size
    lane, element = np.arange(16)[:, None], np.arange(count)[None, :]
    source, place = 16 // count * element + lane // count, lane % count + 0 * element

    def step(state: State, rows: Rows) -> None:
        active = state.lanes[rows]
        if not active.any():
            return
        if not active.all():
            raise NotEmulated("a transposed read with lanes that are not active is not emulated")
        groups, goal, waves = local(state, rows, address, offset, 8, active)
        loaded, raced = state.shared.load(groups, goal, 8, waves)
        if raced is not None:
            note_race(state, rows, active, raced, "reads", int(goal[raced]))
        parts = loaded.view(f"u{size}").reshape(active.shape[0], -1, 16, count)
        turned = np.ascontiguousarray(parts[:, :, source, place]).reshape(*active.shape, count)
        put(state, rows, result, Shape(8), turned.view(np.uint8))

    return step


def _ds_store(address: int, parts: list[tuple[int, int]], shape: Shape) -> Step:
    def step(state: State, rows: Rows) -> None:
        active = state.lanes[rows]
        if not active.any():
            return
        for offset, data in parts:
            groups, goal, waves = local(state, rows, address, offset, shape.size, active)
            values = np.ascontiguousarray(take(state, rows, data, shape, active))
            raced = state.shared.store(groups, goal, values, waves)
            if raced is not None:
                note_race(state, rows, active, raced, "writes", int(goal[raced]))

    return step


def _ds_atomic(address: int, offset: int, operation: atomics.Operation, data: int, result: int | None) -> Step:
    def step(state: State, rows: Rows) -> None:
        active = state.lanes[rows]
        if not active.any():
            return
        groups, goal, waves = local(state, rows, address, offset, operation.size, active)
        given = take(state, rows, data, Shape(4 * operation.registers), active)

        def load(index: Array) -> Array:
            flat = (groups[index] * state.shared.size + goal[index]).astype(U64)
            from harness.emulator.memory import gather

            return gather(state.shared.bytes.reshape(-1), flat, operation.size)

        def store(index: Array, values: Array) -> None:
            raced = state.shared.store(groups[index], goal[index], values, waves[index], atomic=True)
            if raced is not None:
                note_race(state, rows, _only(active, index), raced, "changes", int(goal[index][raced]))

        key = (groups * state.shared.size + goal).astype(U64)
        before = atomics.perform(operation, key, given, load, store)
        if result is not None:
            values = np.zeros((*active.shape, operation.size), np.uint8)
            values[active] = before
            for number in range(operation.size // 4):
                state.write(result + number, rows, values.view(U32)[..., number])

    return step


def local(state: State, rows: Rows, register: int, offset: int, size: int, active: Array) -> tuple[Array, Array, Array]:
    """Of each active lane: its workgroup, the byte in its LDS, and its wave in the workgroup, from 1 on."""
    value = (state.vector[register, rows][active] + U32(offset)).astype(np.int64)
    if state.witness:
        state.witness(value)
    inside = state.shared.inside(value, size)
    if not inside.all():
        first = int(np.argmax(~inside))
        message = f"byte {int(value[first]):,} of shared memory; the workgroup has {state.shared.size:,}"
        raise fault(state, rows, active, first, message)
    wave, _ = np.nonzero(active)
    row = numbers(state, rows)[wave]
    return row // state.waves_per_group, value, (row % state.waves_per_group + 1).astype(np.uint8)


def note_race(state: State, rows: Rows, active: Array, index: int, does: str, byte: int) -> None:
    """Tell of a race of the index-th active lane."""
    wave, lane = (int(axis[index]) for axis in np.nonzero(active))
    message = f"it {does} byte {byte:,} of shared memory, which another wave used with no barrier between"
    state.note(WaveFault(RACE, message, int(numbers(state, rows)[wave]), lane))
