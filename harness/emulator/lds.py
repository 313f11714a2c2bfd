"""DS instructions: accesses to the workgroup's LDS, which its waves share, and exchanges between lanes.

    ds(instruction, kernel) ─► step(state, rows)

Every address is checked against the workgroup's LDS. If two waves use a byte and nothing orders the uses, this is noted
as a race.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from harness.emulator import atomics, lanes, native
from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction
from harness.emulator.encounters import ANOTHER
from harness.emulator.findings import RACE, NotEmulated
from harness.emulator.memory import gather
from harness.emulator.places import fault, numbers, only
from harness.emulator.results import check_registers
from harness.emulator.shapes import SHAPES, Shape, put, take, unknown
from harness.emulator.state import Rows, State, WaveFault

Step = Callable[[State, Rows], None]


def ds(instruction: Instruction, kernel: KernelCode) -> Step:
    fields, mnemonic = instruction.fields, instruction.mnemonic
    if fields.get("gds"):
        raise unknown(instruction)
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
    shape = SHAPES.get(found[4]) if found else None
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
    returns = "_rtn" in mnemonic
    operation = atomics.named(re.sub(r"^cmp(st|store)_", "cmpswap_", mnemonic[3:].replace("_rtn", "")))
    if operation is None:
        raise unknown(instruction)
    parts: tuple[int, ...] = (data,)
    if operation.compares:
        # The new value, then the value to compare with. CDNA's data0 is the latter, RDNA3's the former (ISA guides).
        parts = (data1, data) if mnemonic.startswith("ds_cmpst_") else (data, data1)
    for one in parts:
        check_registers(kernel, one, operation.size // 4)
    if returns:
        check_registers(kernel, result, operation.size // 4)
    return _ds_atomic(address, offset, operation, parts, result if returns else None)


def _ds_load(address: int, offsets: list[int], shape: Shape, result: int) -> Step:
    kind, places = native.shape(shape.size, shape.sign, shape.half), tuple(offsets)

    def step(state: State, rows: Rows) -> None:
        active = state.lanes[rows]
        if not active.any():
            return
        if state.doors and state.lds.size and state.doors.shared_load(rows, kind, address, result, places):
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
    """gfx950's ds_read_b64_tr. 16 lanes read a tile of 8 / size rows of 16 elements; each lane reads 8 bytes of a row.
    Lane i receives column i. `size`: bytes of an element."""
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
    kind = native.shape(shape.size, shape.sign, shape.half)

    def step(state: State, rows: Rows) -> None:
        active = state.lanes[rows]
        if not active.any():
            return
        for offset, data in parts:
            if state.doors and state.lds.size and state.doors.shared_store(rows, kind, address, data, offset):
                continue
            groups, goal, waves = local(state, rows, address, offset, shape.size, active)
            values = np.ascontiguousarray(take(state, rows, data, shape, active))
            raced = state.shared.store(groups, goal, values, waves)
            if raced is not None:
                note_race(state, rows, active, raced, "writes", int(goal[raced]))

    return step


def _ds_atomic(
    address: int, offset: int, operation: atomics.Operation, data: tuple[int, ...], result: int | None
) -> Step:
    shape = Shape(operation.size)

    def step(state: State, rows: Rows) -> None:
        active = state.lanes[rows]
        if not active.any():
            return
        groups, goal, waves = local(state, rows, address, offset, operation.size, active)
        given = np.concatenate([take(state, rows, one, shape, active) for one in data], axis=1)
        state.shared.begin_atomic(groups, goal, waves)

        def load(index: Array) -> Array:
            flat = (groups[index] * state.shared.size + goal[index]).astype(U64)
            return gather(state.shared.bytes.reshape(-1), flat, operation.size)

        def store(index: Array, values: Array) -> None:
            raced = state.shared.store(groups[index], goal[index], values, waves[index], atomic=True)
            if raced is not None:
                note_race(state, rows, only(active, index), raced, "changes", int(goal[index][raced]))

        key = (groups * state.shared.size + goal).astype(U64)
        before = atomics.perform(operation, key, given, load, store)
        wins = (
            (before == given[:, operation.size :]).all(axis=1) if operation.compares else np.ones(len(before), np.bool_)
        )
        state.shared.end_atomic(groups, goal, waves, wins, result is not None)
        if result is not None:
            values = np.zeros((*active.shape, operation.size), np.uint8)
            values[active] = before
            for number in range(operation.size // 4):
                state.write(result + number, rows, values.view(U32)[..., number])

    return step


def local(state: State, rows: Rows, register: int, offset: int, size: int, active: Array) -> tuple[Array, Array, Array]:
    """For each active lane: its workgroup, the byte in its LDS, and its wave's number in the workgroup, counted from
    1."""
    return held(state, rows, active, state.vector[register, rows][active] + U32(offset), size)


def held(state: State, rows: Rows, active: Array, byte: Array, size: int) -> tuple[Array, Array, Array]:
    """As `local`, for given LDS bytes (uint32) of the active lanes."""
    value = byte.astype(np.int64)
    if state.witness:
        state.witness(value, rows, active)
    inside = state.shared.inside(value, size)
    if not inside.all():
        first = int(np.argmax(~inside))
        message = f"byte {int(value[first]):,} of shared memory; the workgroup has {state.shared.size:,}"
        raise fault(state, rows, active, first, message)
    if state.encounter is not None:
        state.encounter.saw(state, rows, active, value, size)
    if state.conflicts is not None:
        state.conflicts(value, size, active)
    wave, _ = np.nonzero(active)
    row = numbers(state, rows)[wave]
    return row // state.waves_per_group, value, (row % state.waves_per_group + 1).astype(np.uint8)


def note_race(state: State, rows: Rows, active: Array, index: int, does: str, byte: int) -> None:
    """Note a race of the index-th active lane."""
    wave, lane = (int(axis[index]) for axis in np.nonzero(active))
    message = f"it {does} byte {byte:,} of shared memory, {ANOTHER} with no barrier, flag or atomic between"
    state.note(WaveFault(RACE, message, int(numbers(state, rows)[wave]), lane, byte))
