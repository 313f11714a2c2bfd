"""The contents of registers and of the argument segment when a wave begins.

Source: LLVM's "User Guide for AMDGPU Backend", "Initial Kernel Execution State" and "Kernarg Segment". The AQL packet
follows the HSA Platform System Architecture Specification.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.findings import Malformed, NotEmulated
from harness.emulator.state import EXEC, State, mask_of

Three = tuple[int, int, int]


def argument_segment(kernel: KernelCode, arguments: Sequence[bytes], grid: Three, block: Three, shared: int) -> Array:
    """The argument segment as uint8: the explicit arguments, each as it lies in memory, and the hidden ones.

    Raises Malformed if the arguments do not fit the kernel.
    """
    segment = bytearray(kernel.kernarg_bytes + 64)
    explicit = [one for one in kernel.arguments if not one.kind.startswith("hidden_")]
    if len(explicit) != len(arguments):
        raise Malformed(f"{kernel.name} takes {len(explicit)} arguments, not {len(arguments)}")
    for place, value in zip(explicit, arguments):
        if len(value) > place.size:
            raise Malformed(f"{kernel.name}: an argument of {len(value)} bytes in a place of {place.size}")
        segment[place.offset : place.offset + len(value)] = value
    hidden = {f"hidden_block_count_{axis}": grid[number] for number, axis in enumerate("xyz")}
    hidden |= {f"hidden_group_size_{axis}": block[number] for number, axis in enumerate("xyz")}
    hidden |= {f"hidden_remainder_{axis}": 0 for axis in "xyz"}
    hidden |= {f"hidden_global_offset_{axis}": 0 for axis in "xyz"}
    hidden |= {"hidden_grid_dims": 3, "hidden_dynamic_lds_size": shared, "hidden_none": 0}
    for place in kernel.arguments:
        if place.kind in hidden:
            value = hidden[place.kind].to_bytes(8, "little")[: place.size]
            segment[place.offset : place.offset + len(value)] = value
    return np.frombuffer(segment, np.uint8)


def dispatch_packet(grid: Three, block: Three) -> Array:
    """The AQL packet that a dispatch pointer points to: uint8 [64]."""
    sizes = [blocks * threads for blocks, threads in zip(grid, block)]
    packet = struct.pack("<HHHHHH3I", 0, 3, *block, 0, *sizes)
    return np.frombuffer(packet.ljust(64, b"\0"), np.uint8)


def begin(state: State, kernel: KernelCode, groups: Array, block: Three, segment: int, packet: int) -> None:
    """Fill the registers. groups: int64 [workgroups, 3]. segment, packet: addresses."""
    per_group = state.waves_per_group
    waves = state.position.shape[0]
    register = 0

    def give(*words: object) -> None:
        nonlocal register
        for word in words:
            state.scalar[register] = word
            register += 1

    def pointer(address: int) -> tuple[int, int]:
        return address & 0xFFFFFFFF, address >> 32

    for name in ("private_segment_buffer", "queue_ptr", "dispatch_id", "flat_scratch_init"):
        if name in kernel.enabled and name not in ("dispatch_id", "flat_scratch_init"):
            raise NotEmulated(f"{kernel.name} asks for {name}, which is not emulated")
    if "dispatch_ptr" in kernel.enabled:
        give(*pointer(packet))
    if "kernarg_segment_ptr" in kernel.enabled:
        give(*pointer(segment))
    for name in ("dispatch_id", "flat_scratch_init"):
        if name in kernel.enabled:
            give(0, 0)
    if "private_segment_size" in kernel.enabled:
        give(kernel.scratch_bytes)
    # Preloaded arguments are not filled in. The code before the entry loads them, for firmware that does not preload.
    register = max(register, kernel.user_sgprs)
    of_wave = np.repeat(groups, per_group, axis=0)
    for axis, name in enumerate(("workgroup_id_x", "workgroup_id_y", "workgroup_id_z")):
        if name in kernel.enabled:
            give(of_wave[:, axis].astype(U32))
    if "workgroup_info" in kernel.enabled:
        give(0)
    if "private_segment" in kernel.enabled and kernel.rdna:
        give(0)
    thread = np.arange(per_group * state.wave_size)
    ids = [thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])]
    packed = (ids[0] | ids[1] << 10 | ids[2] << 20).astype(U32)
    if kernel.workitem_id < 2:
        packed &= U32((1 << 10 * (kernel.workitem_id + 1)) - 1)
    copies = waves // per_group
    state.vector[0] = np.tile(packed.reshape(per_group, state.wave_size), (copies, 1))
    alive = thread < block[0] * block[1] * block[2]
    lanes = np.tile(alive.reshape(per_group, state.wave_size), (copies, 1))
    state.set_scalar64(EXEC, slice(None), mask_of(lanes).astype(U64))
