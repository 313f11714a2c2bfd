"""Whether what nobody wrote reaches an address, a branch or a stored byte: the same launch, with other garbage.

    first = Witness();          run(.., fill=1, witness=first)
    second = Witness(first);    run(.., fill=2, witness=second)     second.differs: the first event that is not the same

Registers and LDS start with random bits. Two launches whose bits differ, in the same memory and order, must compute
the same addresses, branches and stored values. Compilers read undefined registers where it does not matter, and that
is not reported. A value that the two fillings happen to agree on goes unnoticed.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.arithmetic import Array
from harness.emulator.findings import UNINITIALISED, KernelFinding
from harness.emulator.state import WaveFault

if TYPE_CHECKING:
    from harness.emulator.machine import Machine

MAX_EVENTS = 2_000_000


class Witness:
    """before: the witness of the first launch. differs: the finding, once there is one."""

    machine: Machine

    def __init__(self, before: Witness | None = None) -> None:
        self._before, self._next = before, 0
        self.marks: list[int] = []
        self._places: tuple[Array, ...] = ()
        self.differs: KernelFinding | None = None

    def same_place(self, *arrays: Array) -> tuple[Array, ...]:
        """The arrays of the first launch, whose addresses its kernel saw."""
        self._places = self._before._places if self._before else arrays
        return self._places

    def saw(self, values: Array) -> None:
        """Called by the instructions."""
        if self.differs is not None or self._next >= MAX_EVENTS:
            return
        mark = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)
        mark = zlib.crc32(self.machine.at.to_bytes(4, "little"), mark)
        if self._before is None:
            self.marks.append(mark)
        elif self._next >= len(self._before.marks) or self._before.marks[self._next] != mark:
            message = "what it branches on, or where or what it loads or stores, depends on a value that nothing wrote"
            self.differs = self.machine._finding(WaveFault(UNINITIALISED, message))
        self._next += 1
