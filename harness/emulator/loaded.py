"""A launch that can run: its code, arguments and packet lie in memory, and it asks for no more than there may be."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from harness.emulator import memory as memories
from harness.emulator import start
from harness.emulator.arithmetic import Array
from harness.emulator.chips import CHIPS
from harness.emulator.clocks import hears
from harness.emulator.code_object import CodeObject, KernelCode
from harness.emulator.findings import LaunchRefused, Malformed, NotEmulated
from harness.emulator.memory import Allocation, GlobalMemory
from harness.emulator.program import DecodedProgram
from harness.emulator.witness import Witness

MOST_OF_A_GROUP = 1 << 30
"""Bytes of one workgroup's registers, scratch and shared memory: a kernel may ask for 16 MiB of scratch a lane."""

MOST_WORKGROUPS = 1 << 24
"""Of a launch: more would take hours here."""

MOST_WORK_ITEMS = 2**32 - 1
"""In one dimension of a launch: the dispatch packet has 32 bits for them (HSA)."""

MAX_THREADS = 1024


@dataclasses.dataclass(frozen=True)
class LoadedLaunch:
    """A launch whose code, arguments and packet lie in memory. `lds`: bytes a workgroup; `waves`: of one workgroup."""

    kernel: KernelCode
    program: DecodedProgram
    space: GlobalMemory
    arguments: Allocation
    dispatch: Allocation
    grid: start.Three
    block: start.Three
    lds: int
    waves: int

    @property
    def workgroups(self) -> int:
        return math.prod(self.grid)

    @property
    def registers_bytes(self) -> int:
        """Of one workgroup, with its scratch."""
        lane_bytes = self.kernel.vgprs * 4 + self.kernel.scratch_bytes
        return self.waves * lane_bytes * self.kernel.wave_size

    @functools.cached_property
    def heard(self) -> bool:
        """Whether flags and atomics may order what its waves do in shared memory."""
        return self.waves > 1 and self.lds > 0 and hears(self.program.instructions, self.program.polls)

    def groups(self, numbers: Array) -> Array:
        """The x, y and z of workgroups."""
        x, y, _ = self.grid
        return np.stack([numbers % x, numbers // x % y, numbers // (x * y)], axis=1)


def load(
    image: CodeObject,
    name: str,
    grid: start.Three,
    block: start.Three,
    kernargs: Sequence[bytes],
    memory: Sequence[Allocation],
    shared_bytes: int,
    assembly: str | None,
    witness: Witness | None,
) -> LoadedLaunch:
    """Raises LaunchRefused, NotEmulated, Malformed."""
    kernel = image.kernel(name)
    lds, threads = kernel.lds_bytes + shared_bytes, math.prod(block)
    _check(kernel.name, kernel.target, grid, block, lds, min(kernel.max_threads, MAX_THREADS))
    if kernel.float_mode != 0xF0:
        raise NotEmulated(f"its mode of rounding or denormals (0x{kernel.float_mode:02x}) is not emulated")
    code = memories.of_array(np.frombuffer(image.image, np.uint8), "the code", writable=False)
    code = dataclasses.replace(code, variables=image.variables)
    segment = start.argument_segment(kernel, kernargs, grid, block, shared_bytes)
    packet = start.dispatch_packet(grid, block)
    if witness:
        segment, packet = witness.same_place(segment, packet)
    arguments = memories.of_array(segment, "the kernel's arguments", writable=False)
    dispatch = memories.of_array(packet, "the dispatch packet", writable=False)
    space = GlobalMemory([*memory, code, arguments, dispatch])
    program = _program(image, name, code.address + kernel.base, assembly)
    waves = -(-threads // kernel.wave_size)
    loaded = LoadedLaunch(kernel, program, space, arguments, dispatch, grid, block, lds, waves)
    taken = loaded.registers_bytes + lds
    if taken > MOST_OF_A_GROUP:
        asked = f"{kernel.name}: registers, scratch and shared memory of a workgroup take {taken:,}"
        raise Malformed(f"{asked} bytes; the emulator holds {MOST_OF_A_GROUP:,}")
    return loaded


def _program(image: CodeObject, kernel: str, base: int, assembly: str | None) -> DecodedProgram:
    """Kept with the code object: a kernel is decoded once, however often it is launched."""
    kept: dict[tuple[str, int], DecodedProgram] = image.__dict__.setdefault("programs", {})
    if (kernel, base) not in kept:
        kept[kernel, base] = DecodedProgram(image.kernel(kernel), base, assembly)
    return kept[kernel, base]


def _check(name: str, target: str, grid: start.Three, block: start.Three, lds: int, most: int) -> None:
    threads = block[0] * block[1] * block[2]
    if min(*grid, *block) < 1 or max(block) > 1024:
        raise LaunchRefused(
            f"{name}: a grid of {grid} and blocks of {block}: from 1 block and 1 thread on, up to 1,024"
        )
    for axis, groups, items in zip("xyz", grid, block):
        if groups * items > MOST_WORK_ITEMS:
            too_large = f"the grid {grid} of blocks {block} is too large in {axis}"
            raise LaunchRefused(f"{name}: {too_large}: a launch has at most {MOST_WORK_ITEMS:,} threads a dimension")
    if math.prod(grid) > MOST_WORKGROUPS:
        raise Malformed(
            f"{name}: the grid {grid} is too large: {math.prod(grid):,} blocks; the emulator runs {MOST_WORKGROUPS:,}"
        )
    if threads > most:
        raise LaunchRefused(f"{name} was compiled for blocks of up to {most:,} threads, not {threads:,}")
    if lds > CHIPS[target].lds_bytes:
        raise LaunchRefused(
            f"{name} asks for {lds:,} bytes of shared memory; a block of {target} has {CHIPS[target].lds_bytes:,}"
        )
