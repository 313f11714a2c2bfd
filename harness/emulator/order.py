"""Whether what a launch leaves in memory depends on the order in which its waves and workgroups run.

    watch = StoreWatch(address);    run(.., watch=watch)     watch.stores: who wrote that byte, in turn

Hardware promises no order. A launch is run in others than all waves side by side, and where its bits differ, it is run
again with an eye on the first byte that does. In the orders of `InTurn` each workgroup sees what all before it wrote,
from the first on or from the last on: of two that depend on each other one order shows it.

Atomics on integers that return nothing commute, and leave the same bits in any order. Others depend on it by nature:
sums of floats are rounded in another sequence, and tickets are drawn in another one. So a kernel that executed such
ones is not accused; any other has waves or workgroups that write to one place, or read what another one writes, with
nothing between them.
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
"""A launch whose order is random is run in so many parts, one after another: workgroups that step together would all
read what is there before any of them writes."""

IN_TURN_INSTRUCTIONS = 50_000
"""Launches are run in turn until so many instructions were run once: nothing steps together there."""

PATIENCE = 8
"""How many times as many instructions a wave may run in another order, before the comparison is given up: it may wait
for a workgroup of a later part."""


class Order(Protocol):
    """In which sequence workgroups run, and the waves of each. words: as messages have it."""

    words: str

    def permutation(self, count: int) -> Array:
        """The numbers from 0 to count - 1."""

    def together(self, workgroups: int) -> int:
        """How many workgroups of a launch run side by side."""


class Shuffled:
    """At random; each barrier shuffles the waves again. The same for the same seed."""

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
    """In which a launch is run beside the first one. executed: instructions of the process so far, counted once."""
    found: list[Callable[[], Order]] = [lambda: Shuffled(SEED)]
    if executed <= IN_TURN_INSTRUCTIONS:
        found += [lambda: InTurn(True), lambda: InTurn(False)]
    return found


class StoreWatch:
    """Who writes the byte at an address."""

    machine: Machine

    def __init__(self, address: int) -> None:
        self.address = address
        self.stores: list[KernelFinding] = []

    def saw(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> None:
        """Called with every store to global memory."""
        hit = (addresses <= U64(self.address)) & (U64(self.address) - addresses < U64(size))
        for index in np.nonzero(hit)[0]:
            wave, lane = (int(axis[index]) for axis in np.nonzero(chosen))
            row = int(numbers(state, rows)[wave])
            self.stores.append(self.machine._finding(WaveFault(ORDER, "", row, lane)))


@dataclass(frozen=True)
class OrderDifference:
    """The first byte that two orders leave differently. offset: within the allocation `name`."""

    name: str
    offset: int
    address: int
    count: int


def difference(memory: Sequence[Allocation], before: Sequence[Array]) -> OrderDifference | None:
    """What is no longer as in `before`, uint8 arrays of the allocations; None where all bits agree."""
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
    """In words; with the instruction, line and wave of the last store there, where one was seen. words: of the order.
    one_wave: whether a workgroup has no other wave."""
    message = f"byte {found.offset:,} of {found.name} is another {words}; {found.count:,} bytes are"
    kind = ORDER_OF_WORKGROUPS if one_wave or len({one.workgroup for one in stores}) > 1 else ORDER
    writers = list(dict.fromkeys((one.workgroup, one.wave) for one in stores))
    if atomics:
        message += f"; it uses {', '.join(atomics)}, and what those leave depends on the order by nature"
    elif len(writers) > 1:
        message += f"; {len(writers)} waves write it, first that of workgroup {writers[0][0]}, wave {writers[0][1]}"
    else:
        message += "; one wave writes it, so it read what others write, with nothing between"
    last = stores[-1] if stores else None
    if last is None:
        return KernelFinding(kind, message, kernel)
    return KernelFinding(
        kind, message, kernel, last.instruction, last.address, last.line, last.file, last.workgroup, last.wave,
        last.lane,
    )  # fmt: skip
