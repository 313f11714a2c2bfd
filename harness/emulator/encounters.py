"""Finds the other side of a race: the wave that used the byte before. The launch is run once more for this.

watch = EncounterWatch(finding)      the finding of a race
run(.., encounter=watch)             the same launch
watch.named()                        the finding with both sides, or unchanged
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.arithmetic import Array
from harness.emulator.findings import KernelFinding
from harness.emulator.places import numbers
from harness.emulator.state import Rows, State

if TYPE_CHECKING:
    from harness.emulator.machine import Machine

ANOTHER = "which another wave used"
"""The words in a race's message that `named` replaces."""


@dataclass(frozen=True)
class Use:
    """One lane's use of the byte. row: its wave's row in the state. at: the instruction. when: the wave's own count."""

    row: int
    lane: int
    at: int
    when: int
    reads: bool
    atomic: bool


class EncounterWatch:
    """machine: the machine of the current batch, set before each batch."""

    machine: Machine

    def __init__(self, finding: KernelFinding) -> None:
        self._finding = finding
        self._uses: list[Use] = []
        self._other: tuple[Use, str] | None = None

    def saw(self, state: State, rows: Rows, active: Array, first: Array, size: int) -> None:
        """Called for every access to shared memory. first: the first byte of each active lane, int64."""
        place = self._finding.place
        if self._other is not None or place is None:
            return
        hit = (first <= place) & (place < first + size)
        if not hit.any():
            return
        waves, lanes = (axis[hit] for axis in np.nonzero(active))
        mnemonic = self.machine.program.instructions[self.machine.at].mnemonic
        reads = mnemonic.startswith(("ds_read", "ds_load"))
        atomic = not reads and not mnemonic.startswith(("ds_write", "ds_store"))
        new = []
        for row, lane in zip(numbers(state, rows)[waves].tolist(), lanes.tolist()):
            if tuple(self.machine.groups[row // state.waves_per_group].tolist()) == self._finding.workgroup:
                when = int(state.clocks.now[row]) + 1 if state.clocks else 0
                new.append(Use(row, lane, self.machine.at, when, reads, atomic))
        self._uses += new
        mine = [use for use in new if self._is_it(use, state)]
        if mine:
            self._look(mine[0], state)

    def _is_it(self, use: Use, state: State) -> bool:
        found = self._finding
        offset = self.machine.program.instructions[use.at].offset
        return (use.row % state.waves_per_group, use.lane, offset) == (found.wave, found.lane, found.address)

    def _look(self, mine: Use, state: State) -> None:
        for use in reversed(self._uses):
            wave = use.row % state.waves_per_group
            heard = state.clocks is not None and use.when <= state.clocks.known[mine.row][wave]
            together = (use.reads and mine.reads) or (use.atomic and mine.atomic)
            if use.row != mine.row and not heard and not together:
                one = self.machine.program.instructions[use.at]
                self._other = use, f"which wave {wave}, lane {use.lane} {{}} ({one.where()})"
                return

    def met(self, group: int) -> None:
        """Called when all waves of a workgroup have met at a barrier. group: its place in the batch."""
        per_group = self.machine.state.waves_per_group
        self._uses = [use for use in self._uses if use.row // per_group != group]

    def named(self) -> KernelFinding:
        if self._other is None:
            return self._finding
        use, words = self._other
        other = words.format("read" if use.reads else "wrote")
        return dataclasses.replace(self._finding, message=self._finding.message.replace(ANOTHER, other))
