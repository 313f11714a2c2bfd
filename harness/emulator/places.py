"""The memories behind addresses: global memory and a lane's scratch. `flat` serves addresses that may mean either."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.arithmetic import U64, Array
from harness.emulator.findings import OUT_OF_RANGE
from harness.emulator.memory import Outside, gather, scatter
from harness.emulator.state import Rows, State, WaveFault


class Global:
    """Global memory.

    swift: do a whole access in compiled code. Returns False if numpy must do it. goals: uint64 [wave, lane].
    """

    def swift(self, state: State, rows: Rows, kind: Any, goals: Array, limit: Any, writing: bool, data: int) -> bool:
        if state.doors is None:
            return False
        return state.doors.global_access(rows, state.memory.native, kind, goals, limit, writing, data)

    def tell(self, state: State, goals: Array, chosen: Array, size: int) -> None:
        """Called for a whole access, before it is done. goals: uint64 [wave, lane]."""
        if state.touches is not None and chosen.any():
            state.touches(state.memory.aligned(goals[chosen]), size, chosen)

    def load(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> Array:
        if state.clocks and state.clocks.polling:
            state.clocks.saw_load(state, rows, chosen, addresses)
        try:
            return state.memory.load(addresses, size)
        except Outside as outside:
            raise fault(state, rows, chosen, outside.index, f"it reads {size} bytes {outside.near}") from None

    def store(self, state: State, rows: Rows, chosen: Array, addresses: Array, values: Array) -> None:
        if state.watch is not None:
            state.watch.saw(state, rows, chosen, addresses, values.shape[1])
        try:
            state.memory.store(addresses, values)
        except Outside as outside:
            message = f"it writes {values.shape[1]} bytes {outside.near}"
            raise fault(state, rows, chosen, outside.index, message) from None


class Scratch:
    """A lane's own memory: spills and local arrays."""

    def swift(self, state: State, rows: Rows, kind: Any, goals: Array, limit: Any, writing: bool, data: int) -> bool:
        if state.doors is None or state.scratch is None:
            return False
        return state.doors.scratch_access(rows, state.scratch, kind, goals, writing, data)

    def tell(self, state: State, goals: Array, chosen: Array, size: int) -> None:
        """Nothing counts accesses to scratch."""

    def _flat(self, state: State, rows: Rows, chosen: Array, offsets: Array, size: int) -> tuple[Array, Array]:
        if state.scratch is None:
            raise fault(state, rows, chosen, 0, "it uses scratch, and the kernel says that it has none")
        length = state.scratch.shape[2]
        wrong = offsets.view(np.int64) + size > length
        wrong |= offsets.view(np.int64) < 0
        if wrong.any():
            first = int(np.argmax(wrong))
            message = f"scratch byte {int(offsets.view(np.int64)[first])} of {length} a lane"
            raise fault(state, rows, chosen, first, message)
        wave, lane = np.nonzero(chosen)
        row = numbers(state, rows)[wave]
        return state.scratch.reshape(-1), ((row * state.wave_size + lane) * length).astype(U64) + offsets

    def load(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> Array:
        data, offsets = self._flat(state, rows, chosen, addresses, size)
        return gather(data, offsets, size)

    def store(self, state: State, rows: Rows, chosen: Array, addresses: Array, values: Array) -> None:
        data, offsets = self._flat(state, rows, chosen, addresses, values.shape[1])
        scatter(data, offsets, values)


def numbers(state: State, rows: Rows) -> Array:
    """The waves of `rows`, as indices into the state."""
    return np.arange(state.position.shape[0])[rows]


def fault(state: State, rows: Rows, chosen: Array, index: int, message: str) -> WaveFault:
    """The fault of the index-th active lane."""
    wave, lane = (int(axis[index]) for axis in np.nonzero(chosen))
    return WaveFault(OUT_OF_RANGE, message, int(numbers(state, rows)[wave]), lane)


def only(chosen: Array, index: Array) -> Array:
    some = np.zeros_like(chosen)
    wave, lane = np.nonzero(chosen)
    some[wave[index], lane[index]] = True
    return some
