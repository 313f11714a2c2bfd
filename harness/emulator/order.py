"""Checks whether a launch's result in memory depends on the order of its waves and workgroups.

    watch = StoreWatch(address);    run(.., watch=watch)     watch.stores: the writers of that byte, in turn

Hardware promises no order. A launch is repeated in orders other than all waves side by side. If the resulting bits
differ, it is run again while the first differing byte is watched. In the orders of `InTurn` each workgroup sees all
writes of the workgroups before it, from the first on or from the last on. If one workgroup depends on another, one of
the two orders shows it.

Integer atomics that return nothing commute and leave the same bits in any order. Other atomics depend on the order by
nature: sums of floats round differently, and tickets are drawn in another order. So a kernel that executed such atomics
gets a remark instead of a finding. In any other kernel, waves or workgroups write to one place, or read what another
writes, without synchronization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harness.emulator.arithmetic import U64, Array
from harness.emulator.findings import ORDER, ORDER_OF_WORKGROUPS, KernelFinding
from harness.emulator.memory import Allocation
from harness.emulator.places import numbers
from harness.emulator.state import Rows, State, WaveFault

if TYPE_CHECKING:
    from harness.emulator.machine import Machine

SEED = 7
BATCHES = 3
"""The number of parts into which a launch in random order is divided. The parts run one after another. Workgroups that
step together would all read a place before any of them writes it."""

IN_TURN_INSTRUCTIONS = 50_000
"""Launches are run in turn only until this many instructions have run once: in turn, nothing steps together, which is
slow."""

PATIENCE = 8
"""In another order a wave may run this many times as many instructions before the comparison is given up. It may be
waiting for a workgroup of a later part."""


class Order(Protocol):
    """The order of the workgroups, and of the waves in each. words: the order's name in messages."""

    words: str

    def permutation(self, count: int) -> Array:
        """The numbers from 0 to count - 1, in the order to use."""

    def together(self, workgroups: int) -> int:
        """The number of a launch's workgroups that run side by side."""


class Shuffled:
    """A random order. Each barrier shuffles the waves again. The same seed gives the same order."""

    def __init__(self, seed: int) -> None:
        self.words = f"in a random order of waves and workgroups (seed {seed})"
        self._generator = np.random.default_rng(seed)

    def permutation(self, count: int) -> Array:
        return self._generator.permutation(count)

    def together(self, workgroups: int) -> int:
        return -(-workgroups // BATCHES)


class InTurn:
    """One workgroup after another, and one of its waves after another, from the first on or from the last on."""

    def __init__(self, last_first: bool) -> None:
        self._last_first = last_first
        self.words = (
            f"where waves and workgroups run one after another, the {'last' if last_first else 'first'} one first"
        )

    def permutation(self, count: int) -> Array:
        return np.arange(count)[:: -1 if self._last_first else 1]

    def together(self, workgroups: int) -> int:
        return 1


def orders(executed: int) -> list[Callable[[], Order]]:
    """The orders in which a launch is repeated. executed: instructions of the process so far, each run counted once."""
    found: list[Callable[[], Order]] = [lambda: Shuffled(SEED)]
    if executed <= IN_TURN_INSTRUCTIONS:
        found += [lambda: InTurn(True), lambda: InTurn(False)]
    return found


class StoreWatch:
    """Records the writers of the byte at an address."""

    machine: Machine

    def __init__(self, address: int) -> None:
        self.address = address
        self.stores: list[KernelFinding] = []

    def saw(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> None:
        """Called for every store to global memory."""
        hit = (addresses <= U64(self.address)) & (U64(self.address) - addresses < U64(size))
        for index in np.nonzero(hit)[0]:
            wave, lane = (int(axis[index]) for axis in np.nonzero(chosen))
            row = int(numbers(state, rows)[wave])
            self.stores.append(self.machine._finding(WaveFault(ORDER, "", row, lane)))


@dataclass(frozen=True)
class OrderDifference:
    """The first byte that two orders leave different. offset: within the allocation `name`."""

    name: str
    offset: int
    address: int
    count: int


def difference(memory: Sequence[Allocation], before: Sequence[Array]) -> OrderDifference | None:
    """The first difference from `before`, uint8 arrays of the allocations. None if all bits agree."""
    for one, was in zip(memory, before):
        wrong = one.bytes != was
        if wrong.any():
            offset = int(np.argmax(wrong))
            return OrderDifference(one.name, offset, one.address + offset, int(wrong.sum()))
    return None


def said(
    kernel: str,
    found: OrderDifference,
    words: str,
    one_wave: bool,
    stores: Sequence[KernelFinding],
    atomics: Sequence[str],
) -> KernelFinding:
    """The finding in words, with the instruction, line and wave of the last store to the byte, if one was seen. words:
    the order's name. one_wave: a workgroup has only one wave."""
    message = f"byte {found.offset:,} of {found.name} differs {words}; {found.count:,} bytes differ"
    kind = ORDER_OF_WORKGROUPS if one_wave or len({one.workgroup for one in stores}) > 1 else ORDER
    writers = list(dict.fromkeys((one.workgroup, one.wave) for one in stores))
    if atomics:
        message += f"; it uses {', '.join(atomics)}, and what those leave depends on the order by nature"
    elif len(writers) > 1:
        message += f"; {len(writers)} waves write it, the first in workgroup {writers[0][0]}, wave {writers[0][1]}"
    else:
        message += "; one wave writes it, so it read what others write, without synchronization"
    last = stores[-1] if stores else None
    if last is None:
        return KernelFinding(kind, message, kernel)
    return KernelFinding(
        kind, message, kernel, last.instruction, last.address, last.line, last.file, last.workgroup, last.wave,
        last.lane,
    )  # fmt: skip
