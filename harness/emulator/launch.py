"""One launch, from the code object to its LaunchOutcome.

    run(code_object, "scale", grid, block, kernargs, memory) ─► LaunchOutcome

A launch with many workgroups runs in batches, so that its registers fit into `STATE_BYTES`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from harness.emulator import memory as memories
from harness.emulator import native, start
from harness.emulator.arithmetic import Array
from harness.emulator.banks import BANKS, passes
from harness.emulator.cache_lines import LINE_BYTES, touched
from harness.emulator.clocks import VectorClocks, hears
from harness.emulator.code_object import CodeObject
from harness.emulator.decoding import available
from harness.emulator.encounters import EncounterWatch
from harness.emulator.executions import tally
from harness.emulator.findings import KernelFault, LaunchOutcome, LaunchRefused, Malformed, NotEmulated
from harness.emulator.machine import Machine
from harness.emulator.memory import Allocation, GlobalMemory
from harness.emulator.order import Order, StoreWatch
from harness.emulator.program import DecodedProgram
from harness.emulator.shared_memory import SharedMemory
from harness.emulator.state import State
from harness.emulator.witness import Witness

STATE_BYTES = 128 << 20
MOST_OF_A_GROUP = 1 << 30
"""The most bytes of one workgroup's registers, scratch and shared memory. A kernel may ask for 16 MiB of scratch per
lane."""

MOST_WORKGROUPS = 1 << 24
"""The most workgroups of a launch. More would take hours here."""

MOST_WORK_ITEMS = 2**32 - 1
"""The most work items in one dimension of a launch: the dispatch packet has 32 bits for the number (HSA)."""

MAX_INSTRUCTIONS = 5_000_000
"""The most instructions that a wave may run. The longest wave of a bundled kernel runs less than a tenth."""

LDS_BYTES = {"gfx942": 64 << 10, "gfx950": 160 << 10, "gfx1100": 64 << 10}
MAX_THREADS = 1024


def run(
    code_object: bytes | CodeObject,
    kernel: str,
    grid: start.Three,
    block: start.Three,
    kernargs: Sequence[bytes],
    memory: Sequence[Allocation],
    *,
    shared_bytes: int = 0,
    assembly: str | None = None,
    limit: int = MAX_INSTRUCTIONS,
    limit_s: float = math.inf,
    order: Order | None = None,
    fill: int = 0,
    witness: Witness | None = None,
    watch: StoreWatch | None = None,
    encounter: EncounterWatch | None = None,
    conflicts: bool = False,
) -> LaunchOutcome:
    """Run one kernel. Its stores are in `memory` afterwards.

    grid, block: workgroups, and work items per workgroup, in x, y, z. kernargs: the bytes of each explicit argument.
    memory: the live allocations. shared_bytes: LDS beyond the kernel's static LDS. assembly: the compiler's assembly,
    to check the decoded code against. limit: the most instructions that a wave may run. limit_s: processor seconds in
    which some wave must end. order: None steps all waves together (see `order`). fill: the seed for the initial
    contents of registers and LDS. watch: is told who writes one byte. encounter: is told who uses one byte of LDS.
    conflicts: count LDS passes and cache lines of global memory.

    Nothing is raised, whatever the bytes are. Findings and reasons are in the LaunchOutcome.
    """
    outcome = LaunchOutcome()
    lacking = available()
    if lacking is not None:
        outcome.not_emulated = lacking
        return outcome
    program: DecodedProgram | None = None
    counts = None
    machine: Machine | None = None
    try:
        image = code_object if isinstance(code_object, CodeObject) else CodeObject(code_object)
        chosen = image.kernel(kernel)
        lds = chosen.lds_bytes + shared_bytes
        threads = block[0] * block[1] * block[2]
        _check(chosen.name, chosen.target, grid, block, lds, min(chosen.max_threads, MAX_THREADS))
        if chosen.float_mode != 0xF0:
            raise NotEmulated(f"its mode of rounding or denormals (0x{chosen.float_mode:02x}) is not emulated")
        code = memories.of_array(np.frombuffer(image.image, np.uint8), "the code", writable=False)
        code = dataclasses.replace(code, variables=image.variables)
        segment = start.argument_segment(chosen, kernargs, grid, block, shared_bytes)
        packet = start.dispatch_packet(grid, block)
        if witness:
            segment, packet = witness.same_place(segment, packet)
        arguments = memories.of_array(segment, "the kernel's arguments", writable=False)
        dispatch = memories.of_array(packet, "the dispatch packet", writable=False)
        space = GlobalMemory([*memory, code, arguments, dispatch])
        program = _program(image, kernel, code.address + chosen.base, assembly)
        counts = np.zeros(len(program.instructions), np.int64)
        waves = -(-threads // chosen.wave_size)
        total = grid[0] * grid[1] * grid[2]
        one_wave = chosen.vgprs * chosen.wave_size * 4 + chosen.scratch_bytes * chosen.wave_size
        if waves * one_wave + lds > MOST_OF_A_GROUP:
            asked = (
                f"{chosen.name}: registers, scratch and shared memory of a workgroup take {waves * one_wave + lds:,}"
            )
            raise Malformed(f"{asked} bytes; the emulator holds {MOST_OF_A_GROUP:,}")
        heard = waves > 1 and lds > 0 and hears(program.instructions, program.polls)
        batch = max(1, STATE_BYTES // (waves * one_wave + (3 + 8 * waves * heard) * lds + 1))
        batch = batch if order is None else min(batch, order.together(total))
        numbers = np.arange(total) if order is None else order.permutation(total)
        with np.errstate(all="ignore"):
            for first in range(0, total, batch):
                here = numbers[first : first + batch]
                groups = np.stack([here % grid[0], here // grid[0] % grid[1], here // (grid[0] * grid[1])], axis=1)
                state = State(chosen, len(here) * waves, waves, lds, fill)
                state.memory = space
                if heard:
                    state.clocks = VectorClocks(len(here) * waves, waves, state.lds.shape[1])
                state.shared = SharedMemory(state.lds, watched=waves > 1, clocks=state.clocks)
                state.witness = witness.saw if witness else None
                state.watch, state.encounter = watch, encounter
                if not (witness or watch or encounter or conflicts or heard):
                    state.doors = _doors(state)
                start.begin(state, chosen, groups, block, arguments.address, dispatch.address)
                machine = Machine(program, state, groups, limit, order, limit_s)
                if conflicts and chosen.target in BANKS:
                    state.conflicts = _counting(outcome.lds, machine, passes, BANKS[chosen.target])
                    state.touches = _counting(outcome.cached, machine, touched, LINE_BYTES[chosen.target])
                if witness:
                    witness.machine = machine
                if watch:
                    watch.machine = machine
                if encounter:
                    encounter.machine = machine
                try:
                    machine.run()
                finally:
                    counts += machine.counts
                    outcome.longest = max(outcome.longest, int(machine.done.max()))
                    outcome.findings += [
                        one for one in machine.findings.values() if one.kind not in {f.kind for f in outcome.findings}
                    ]
                    outcome.remarks = outcome.remarks or list(machine.remarks.values())
    except KernelFault as fault:
        outcome.findings.append(fault.finding)
    except LaunchRefused as why:
        outcome.refused = str(why)
    except (NotEmulated, Malformed) as reason:
        outcome.not_emulated = str(reason)
    except Exception as error:  # an unforeseen failure must be a result, never a crash
        where = program.instructions[machine.at].where() if program and machine else kernel
        outcome.not_emulated = f"the emulator failed at {where}: {type(error).__name__}: {error}"
    if program is not None and counts is not None:
        outcome.instructions, outcome.by_line, outcome.atomics = tally(program, counts)
    return outcome


def _doors(state: State) -> native.Doors | None:
    compiled = native.library()
    if compiled is None:
        return None
    doors = native.Doors(compiled, state.vector, state.lanes, state.waves_per_group)
    if state.lds.size:
        doors.share(state.lds, *state.shared.marks(), state.shared.size)
    return doors


def _counting(
    sums: dict[tuple[str, int], tuple[int, int]],
    machine: Machine,
    counted: Callable[[Array, int, Array, int], tuple[int, int]],
    of_the_chip: int,
) -> Callable[[Array, int, Array], None]:
    """A function to call for each access. It adds the access's counts to `sums`, by source line."""

    def count(places: Array, size: int, chosen: Array) -> None:
        one = machine.program.instructions[machine.at]
        line = one.line or ("", 0)
        taken, least = sums.get(line, (0, 0))
        more, fewest = counted(places, size, chosen, of_the_chip)
        sums[line] = taken + more, least + fewest

    return count


def _program(image: CodeObject, kernel: str, base: int, assembly: str | None) -> DecodedProgram:
    """The decoded program, cached in the code object: a kernel is decoded once, however often it is launched."""
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
    if lds > LDS_BYTES[target]:
        raise LaunchRefused(
            f"{name} asks for {lds:,} bytes of shared memory; a block of {target} has {LDS_BYTES[target]:,}"
        )
