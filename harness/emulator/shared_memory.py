"""LDS: a workgroup's bytes, and who touched each since the last barrier.

A race is two waves of one workgroup at one byte, one of them writing, without a barrier between them: it is found by
who touched what, whether or not the order happened to matter. Atomics do not race with each other. Nor do waves that
write the value that is there already: compilers let several waves store one replicated value.
"""

from __future__ import annotations

import numpy as np

from harness.emulator.arithmetic import Array
from harness.emulator.memory import gather, scatter

NOBODY, MANY, ATOMIC, ALIKE = 0, 255, 254, 253


class SharedMemory:
    """bytes: uint8 [workgroup, size]. watched: whether races are looked for."""

    def __init__(self, data: Array, watched: bool) -> None:
        self.bytes, self.watched = data, watched and data.size > 0
        self._flat = data.reshape(-1)
        self.size = data.shape[1]
        if self.watched:
            self._writer = np.zeros(self._flat.shape, np.uint8)
            self._reader = np.zeros(self._flat.shape, np.uint8)

    def marks(self) -> tuple[Array | None, Array | None]:
        """Who wrote and who read each byte, uint8 [workgroups · size]; None where races are not looked for."""
        return (self._writer, self._reader) if self.watched else (None, None)

    def inside(self, offsets: Array, size: int) -> Array:
        """Which of the byte offsets [n] (int64, within a workgroup) are in bounds."""
        return (offsets >= 0) & (offsets + size <= self.size)

    def load(self, groups: Array, offsets: Array, size: int, waves: Array) -> tuple[Array, int | None]:
        """uint8 [n, size], and the first of n that races. groups, waves: of each; waves count from 1 in a group."""
        flat = groups * self.size + offsets
        raced = None
        if self.watched:
            writer = gather(self._writer, flat.astype(np.uint64), size)
            mine = waves[:, None]
            wrong = (writer != NOBODY) & (writer != mine) & (writer != ALIKE)
            if wrong.any():
                raced = int(np.argmax(wrong.any(axis=1)))
            self._note(self._reader, flat, size, waves)
        return gather(self._flat, flat.astype(np.uint64), size), raced

    def store(self, groups: Array, offsets: Array, values: Array, waves: Array, atomic: bool = False) -> int | None:
        """Write; the first of n that races, or None."""
        flat, size = groups * self.size + offsets, values.shape[1]
        raced = None
        if self.watched:
            where = flat.astype(np.uint64)
            writer, reader = gather(self._writer, where, size), gather(self._reader, where, size)
            mine = waves[:, None]
            changes = gather(self._flat, where, size) != values
            other = (writer != NOBODY) & (writer != mine)
            wrong = (reader != NOBODY) & (reader != mine) | (other & (writer != ATOMIC) if atomic else other)
            wrong &= changes
            marks = np.where(other & ~changes, np.uint8(ALIKE), np.uint8(ATOMIC) if atomic else mine)
            scatter(self._writer, where, np.ascontiguousarray(marks))
            scatter(self._flat, where, values)
            # Two waves of this very step at one byte: one mark stays, and one value.
            lost = gather(self._writer, where, size) != marks
            wrong |= lost & (gather(self._flat, where, size) != values)
            self._writer[_bytes(flat, lost)] = ALIKE
            if wrong.any():
                raced = int(np.argmax(wrong.any(axis=1)))
            return raced
        scatter(self._flat, flat.astype(np.uint64), values)
        return raced

    def _note(self, marks: Array, flat: Array, size: int, waves: Array) -> None:
        where = flat.astype(np.uint64)
        held = gather(marks, where, size)
        mine = np.repeat(waves[:, None], size, axis=1)
        scatter(marks, where, np.where((held == NOBODY) | (held == mine), mine, np.uint8(MANY)))
        after = gather(marks, where, size)
        marks[_bytes(flat, (after != mine) & (after != MANY))] = MANY

    def barrier(self, group: int) -> None:
        """All waves of a workgroup have met: what was touched before is no matter any more."""
        if self.watched:
            part = slice(group * self.size, (group + 1) * self.size)
            self._writer[part] = NOBODY
            self._reader[part] = NOBODY


def _bytes(flat: Array, chosen: Array) -> Array:
    """Where the chosen bytes lie: flat of the first byte of each access, [n]; chosen: bool [n, size]."""
    return (flat[:, None] + np.arange(chosen.shape[1]))[chosen]
