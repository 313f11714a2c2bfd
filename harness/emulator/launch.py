"""One launch, from the code object to its LaunchOutcome.

    run(code_object, "scale", grid, block, kernargs, memory) ─► LaunchOutcome

A launch with many workgroups runs in batches, so that its registers fit into `STATE_BYTES`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from harness.emulator import native, start
from harness.emulator.arithmetic import Array
from harness.emulator.banks import BANKS, passes
from harness.emulator.cache_lines import LINE_BYTES, touched
from harness.emulator.clocks import VectorClocks
from harness.emulator.code_object import CodeObject
from harness.emulator.decoding import available
from harness.emulator.encounters import EncounterWatch
from harness.emulator.executions import tally
from harness.emulator.findings import KernelFault, LaunchOutcome, LaunchRefused, Malformed, NotEmulated
from harness.emulator.loaded import LoadedLaunch, load
from harness.emulator.machine import Machine
from harness.emulator.memory import Allocation
from harness.emulator.order import Order, StoreWatch
from harness.emulator.program import DecodedProgram
from harness.emulator.shared_memory import SharedMemory
from harness.emulator.state import State
from harness.emulator.witness import Witness

STATE_BYTES = 128 << 20
MAX_INSTRUCTIONS = 5_000_000
"""The most instructions that a wave may run. The longest wave of a bundled kernel runs less than a tenth."""


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
    running = _Running(outcome, _Watching(order, witness, watch, encounter, conflicts))
    try:
        image = code_object if isinstance(code_object, CodeObject) else CodeObject(code_object)
        loaded = load(image, kernel, grid, block, kernargs, memory, shared_bytes, assembly, witness)
        running.begin(loaded.program)
        with np.errstate(all="ignore"):
            for numbers in _batches(loaded, order):
                running.run(loaded, numbers, fill, limit, limit_s)
    except KernelFault as fault:
        outcome.findings.append(fault.finding)
    except LaunchRefused as why:
        outcome.refused = str(why)
    except (NotEmulated, Malformed) as reason:
        outcome.not_emulated = str(reason)
    except Exception as error:  # bytes that nobody foresaw: a verdict, and never a crash
        outcome.not_emulated = f"the emulator failed at {running.at or kernel}: {type(error).__name__}: {error}"
    running.add_up()
    return outcome


def _batches(loaded: LoadedLaunch, order: Order | None) -> Iterator[Array]:
    """The numbers of all workgroups, so many at a time that their registers fit into STATE_BYTES."""
    total, waves = loaded.workgroups, loaded.waves
    batch = max(1, STATE_BYTES // (loaded.registers_bytes + (3 + 8 * waves * loaded.heard) * loaded.lds + 1))
    batch = batch if order is None else min(batch, order.together(total))
    numbers = np.arange(total) if order is None else order.permutation(total)
    for first in range(0, total, batch):
        yield numbers[first : first + batch]


@dataclasses.dataclass(frozen=True)
class _Watching:
    """Who steps the waves of a launch, and who is told of what they do."""

    order: Order | None
    witness: Witness | None
    watch: StoreWatch | None
    encounter: EncounterWatch | None
    conflicts: bool

    def put_into(self, state: State, heard: bool) -> None:
        """Tells the waves' state whom to tell; where nobody is to be told, the inner loops may be those in C."""
        state.witness = self.witness.saw if self.witness else None
        state.watch, state.encounter = self.watch, self.encounter
        if not (self.witness or self.watch or self.encounter or self.conflicts or heard):
            state.doors = _doors(state)

    def put_onto(self, machine: Machine, state: State, outcome: LaunchOutcome) -> None:
        """Tells each of them which machine it is that runs, and has accesses counted."""
        target = machine.program.kernel.target
        if self.conflicts and target in BANKS:
            state.conflicts = _counting(outcome.lds, machine, passes, BANKS[target])
            state.touches = _counting(outcome.cached, machine, touched, LINE_BYTES[target])
        for each in (self.witness, self.watch, self.encounter):
            if each:
                each.machine = machine


class _Running:
    """A launch that runs: what it has come to stays in `outcome` wherever it ends."""

    def __init__(self, outcome: LaunchOutcome, watching: _Watching) -> None:
        self._outcome, self._watching = outcome, watching
        self._program: DecodedProgram | None = None
        self._machine: Machine | None = None

    def begin(self, program: DecodedProgram) -> None:
        self._program, self._counts = program, np.zeros(len(program.instructions), np.int64)

    @property
    def at(self) -> str:
        """Where it is; "" before its first instruction."""
        return self._program.instructions[self._machine.at].where() if self._program and self._machine else ""

    def run(self, loaded: LoadedLaunch, numbers: Array, fill: int, limit: int, limit_s: float) -> None:
        """One batch of workgroups. Raises what ends the launch."""
        waves, groups = loaded.waves, loaded.groups(numbers)
        state = State(loaded.kernel, len(numbers) * waves, waves, loaded.lds, fill)
        state.memory = loaded.space
        if loaded.heard:
            state.clocks = VectorClocks(len(numbers) * waves, waves, state.lds.shape[1])
        state.shared = SharedMemory(state.lds, watched=waves > 1, clocks=state.clocks)
        self._watching.put_into(state, loaded.heard)
        start.begin(state, loaded.kernel, groups, loaded.block, loaded.arguments.address, loaded.dispatch.address)
        self._machine = machine = Machine(loaded.program, state, groups, limit, self._watching.order, limit_s)
        self._watching.put_onto(machine, state, self._outcome)
        try:
            machine.run()
        finally:
            self._take(machine)

    def _take(self, machine: Machine) -> None:
        """What one machine has counted and found; of several findings of a kind the first."""
        outcome = self._outcome
        self._counts += machine.counts
        outcome.longest = max(outcome.longest, int(machine.done.max()))
        known = {one.kind for one in outcome.findings}
        outcome.findings += [one for one in machine.findings.values() if one.kind not in known]
        outcome.remarks = outcome.remarks or list(machine.remarks.values())

    def add_up(self) -> None:
        """The counts of all batches, by source line."""
        if self._program is not None:
            outcome = self._outcome
            outcome.instructions, outcome.by_line, outcome.atomics = tally(self._program, self._counts)


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
