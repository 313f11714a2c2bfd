"""Which accesses of a workgroup's waves are ordered by flags and atomics, without a barrier between them.

Each wave counts its own accesses. `known` holds, for each other wave of the workgroup, up to which access this wave has
heard of it. A wave hears at an atomic that returns the earlier contents, and at a load that polls (see `polls`). It
then knows all that the writer of that place knew at the time, and all that the writer had done before (vector clocks:
Lamport 1978, Mattern 1989). An atomic that changes a place passes on what was left there before, like C++'s release
sequences.

A wave's accesses to LDS happen in the order of its instructions, so no fence is needed here. A missing wait
(`s_waitcnt`) is not noticed. Orders through a wave of another workgroup are not followed.

Only kernels in which a wave can hear of another are checked this way. In all others only barriers order accesses.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Sequence

import numpy as np

from harness.emulator.arithmetic import Array
from harness.emulator.decoding import Instruction
from harness.emulator.places import numbers
from harness.emulator.state import Rows, State

MOST_PLACES = 1 << 20
"""The most bytes of global memory for which the last writer is remembered."""


def hears(instructions: Sequence[Instruction], polls: Collection[int]) -> bool:
    """True if a wave of the kernel can hear of another, by polling loads or returning atomics."""
    return bool(polls) or any(returns_atomic(one) for one in instructions)


def returns_atomic(one: Instruction) -> bool:
    """True if an instruction is an atomic that returns the earlier contents."""
    if one.mnemonic.startswith("ds_"):
        return "_rtn_" in one.mnemonic
    return "_atomic_" in one.mnemonic and bool(one.fields.get("sc0") or one.fields.get("glc"))


class VectorClocks:
    """waves: in all workgroups together. size: bytes of LDS per workgroup. polling: True while the current load
    polls."""

    def __init__(self, waves: int, waves_per_group: int, size: int) -> None:
        self.waves_per_group, self.size, self.polling = waves_per_group, size, False
        self.now = np.zeros(waves, np.int32)
        self.known = np.zeros((waves, waves_per_group), np.int32)
        self._heard: list[list[tuple[int, Array]]] = [[(0, np.zeros(waves_per_group, np.int32))] for _ in range(waves)]
        bytes_of_all = waves // waves_per_group * size
        self.read = np.zeros((bytes_of_all, waves_per_group), np.int32)
        self.wrote = np.zeros((bytes_of_all, waves_per_group), np.int32)
        self._left: dict[tuple[int, int], Array] = {}
        self._stored: dict[int, tuple[int, int]] = {}

    def rows(self, groups: Array, waves: Array) -> Array:
        """The row number of each lane's wave. `waves` counts from 1 within the workgroup."""
        return groups * self.waves_per_group + waves.astype(np.int64) - 1

    def tick(self, rows: Array) -> None:
        """An access of each of these waves begins."""
        self.now[np.unique(rows)] += 1

    def note(self, seen: Array, flat: Array, size: int, rows: Array) -> None:
        """Record an access. seen: `read` or `wrote`. flat: the first of `size` bytes of each lane."""
        places = flat[:, None] + np.arange(size)
        seen[places, (rows % self.waves_per_group)[:, None]] = self.now[rows][:, None]

    def unheard(self, seen: Array, flat: Array, size: int, rows: Array) -> Array:
        """bool [lanes, size]: bytes that another wave has read or written without this wave having heard of it."""
        late = seen[flat[:, None] + np.arange(size)] > self.known[rows][:, None, :]
        late[np.arange(rows.size), :, rows % self.waves_per_group] = False
        return np.asarray(late.any(axis=2))

    # Flags and atomics. A place is a byte: an index over all LDS, or -1 - address in global memory.

    def wrote_alone(self, place: int, row: int, when: int) -> None:
        """A plain store was the last write to a place: a wave that hears there learns what this wave knew."""
        self._left[row // self.waves_per_group, place] = self._at(row, when)

    def hear(self, row: int, place: int) -> None:
        """A wave hears what its workgroup left at a place."""
        left = self._left.get((row // self.waves_per_group, place))
        if left is not None and (left > self.known[row]).any():
            self.known[row] = np.maximum(self.known[row], left)
            self._heard[row].append((int(self.now[row]), self.known[row].copy()))

    def leave(self, row: int, place: int) -> None:
        """A wave's atomic changed a place. The knowledge left there stays, and the wave's own is added."""
        key = row // self.waves_per_group, place
        mine = self._at(row, int(self.now[row]))
        self._left[key] = np.maximum(self._left[key], mine) if key in self._left else mine

    def forget(self, row: int, place: int) -> None:
        """The last writer of a place is not known to the workgroup."""
        self._left.pop((row // self.waves_per_group, place), None)

    def _at(self, row: int, when: int) -> Array:
        """The knowledge of a wave at one of its accesses, that access included."""
        heard = self._heard[row]
        held = heard[max(bisect.bisect_right(heard, when, key=lambda one: one[0]) - 1, 0)][1].copy()
        held[row % self.waves_per_group] = when
        return held

    def meet(self, group: int) -> None:
        """A barrier: each wave of the workgroup hears of all others."""
        waves = slice(group * self.waves_per_group, (group + 1) * self.waves_per_group)
        self.known[waves] = self.now[waves]
        for row in range(waves.start, waves.stop):
            self._heard[row] = [(int(self.now[row]), self.known[row].copy())]
        for key in [one for one in self._left if one[0] == group]:
            del self._left[key]

    # Global memory.

    def saw_store(self, state: State, rows: Rows, chosen: Array, addresses: Array) -> None:
        """Record every store to global memory, by lane."""
        for row, place in self.of_lanes(state, rows, chosen, addresses):
            if len(self._stored) < MOST_PLACES or place in self._stored:
                self._stored[place] = row, int(self.now[row])
                self.forget(row, place)

    def saw_load(self, state: State, rows: Rows, chosen: Array, addresses: Array) -> None:
        """A polling load from global memory: its waves hear."""
        pairs = self.of_lanes(state, rows, chosen, addresses)
        self.tick(np.array([row for row, _ in pairs]))
        for row, place in pairs:
            self.adopt(row, place)
            self.hear(row, place)

    def adopt(self, row: int, place: int) -> None:
        """Take over what a store of the wave's own workgroup left at a place of global memory."""
        writer, when = self._stored.get(place, (-1, 0))
        if writer >= 0 and writer // self.waves_per_group == row // self.waves_per_group:
            if (row // self.waves_per_group, place) not in self._left:
                self.wrote_alone(place, writer, when)

    def begin_atomic(self, state: State, rows: Rows, chosen: Array, addresses: Array) -> list[tuple[int, int]]:
        """Called before atomics on global memory. Returns (wave, place) pairs."""
        pairs = self.of_lanes(state, rows, chosen, addresses)
        self.tick(np.array([row for row, _ in pairs]))
        for row, place in pairs:
            self.adopt(row, place)
        return pairs

    def end_atomic(self, pairs: list[tuple[int, int]], returned: bool) -> None:
        """Called after the atomics: waves whose atomic returned hear, and all waves leave their knowledge."""
        for row, place in pairs:
            if returned:
                self.hear(row, place)
            self.leave(row, place)

    def of_lanes(self, state: State, rows: Rows, chosen: Array, addresses: Array) -> list[tuple[int, int]]:
        """The distinct (wave, place) pairs of the active lanes' accesses to global memory."""
        wave, _ = np.nonzero(chosen)
        pairs = zip(numbers(state, rows)[wave].tolist(), addresses.tolist())
        return list(dict.fromkeys((row, -1 - address) for row, address in pairs))
