"""Checks whether a value that was never written reaches an address, a branch or a stored byte. The launch is repeated
with other garbage.

    first = Witness();          run(.., fill=1, witness=first)
    second = Witness(first);    run(.., fill=2, witness=second)     second.differs: the first event that differs
    third = second.once_more(); run(.., fill=1, witness=third)      second.named(third): the same, with wave and lane

Registers and LDS start with random bits. Two launches with different bits, in the same memory and order, must compute
the same addresses, branches and stored values. Compilers read undefined registers where it does not matter, and that is
not reported. A value on which the two fillings happen to agree is not noticed.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.arithmetic import Array
from harness.emulator.findings import UNINITIALISED, KernelFinding
from harness.emulator.places import numbers
from harness.emulator.state import Rows, WaveFault

if TYPE_CHECKING:
    from harness.emulator.machine import Machine

MAX_EVENTS = 2_000_000
MESSAGE = "a branch, an address or a stored value depends on a value that was never written"


class Witness:
    """before: the witness of the first launch. wanted: the event whose values are kept. differs: the finding, if there
    is one."""

    machine: Machine

    def __init__(self, before: Witness | None = None, wanted: int | None = None) -> None:
        self._before, self._next, self._wanted = before, 0, wanted
        self.marks: list[int] = []
        self._places: tuple[Array, ...] = ()
        self._kept: tuple[Array, Array, Array | None] | None = None
        self.differs: KernelFinding | None = None

    def same_place(self, *arrays: Array) -> tuple[Array, ...]:
        """The arrays of the first launch, so that the kernel sees the same addresses."""
        self._places = self._before._places if self._before else arrays
        return self._places

    def saw(self, values: Array, rows: Rows, lanes: Array | None) -> None:
        """Called by the instructions; see `State`."""
        if self.differs is not None or self._next >= MAX_EVENTS:
            return
        mark = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)
        mark = zlib.crc32(self.machine.at.to_bytes(4, "little"), mark)
        different = False
        if self._before is None:
            self.marks.append(mark)
        else:
            different = self._next >= len(self._before.marks) or self._before.marks[self._next] != mark
        if different or self._next == self._wanted:
            waves = numbers(self.machine.state, rows)
            self._kept = np.array(values), waves, None if lanes is None else lanes.copy()
        if different:
            self.differs = self.machine._finding(WaveFault(UNINITIALISED, MESSAGE))
            return
        self._next += 1

    def once_more(self) -> Witness:
        """A witness for the first launch again that keeps the values of the event that differed here."""
        return Witness(self._before, self._next)

    def named(self, other: Witness) -> KernelFinding | None:
        """The finding, with the first wave and lane that differs."""
        if self.differs is None or self._kept is None or other._kept is None:
            return self.differs
        (mine, waves, lanes), (theirs, _, their_lanes) = self._kept, other._kept
        if lanes is not None and their_lanes is not None and (lanes != their_lanes).any():
            wave, lane = (int(axis[0]) for axis in np.nonzero(lanes != their_lanes))
            return self._at(int(waves[wave]), lane)
        first = int(np.argmax((mine != theirs).reshape(len(mine), -1).any(axis=1)))
        if lanes is None:
            return self._at(int(waves[first]), None)
        wave, lane = (int(axis[first]) for axis in np.nonzero(lanes))
        return self._at(int(waves[wave]), lane)

    def _at(self, row: int, lane: int | None) -> KernelFinding:
        assert self.differs is not None
        self.machine.at = self.machine.program.index[self.differs.address]
        return self.machine._finding(WaveFault(UNINITIALISED, MESSAGE, row, lane))
