"""LDS: a workgroup's bytes, and the waves that used each since the last barrier.

A race is two waves of one workgroup using one byte, at least one writing, without a barrier between them. It is found
by recording the users, whether or not the order mattered. Atomics do not race with each other. Waves that write the
value that is already there do not race either, because compilers let several waves store one replicated value. Where
waves wait for each other's flags or atomics, `clocks` knows what each wave has heard of, and an access that a wave has
heard of is no race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.arithmetic import Array
from harness.emulator.memory import gather, scatter

if TYPE_CHECKING:
    from harness.emulator.clocks import VectorClocks

NOBODY, MANY, ATOMIC, ALIKE = 0, 255, 254, 253


class SharedMemory:
    """bytes: uint8 [workgroup, size]. watched: check for races. clocks: what each wave has heard of; None if only
    barriers order accesses."""

    def __init__(self, data: Array, watched: bool, clocks: VectorClocks | None = None) -> None:
        self.clocks = clocks
        self.bytes, self.watched = data, watched and data.size > 0
        self._flat = data.reshape(-1)
        self.size = data.shape[1]
        if self.watched:
            self._writer = np.zeros(self._flat.shape, np.uint8)
            self._reader = np.zeros(self._flat.shape, np.uint8)

    def marks(self) -> tuple[Array | None, Array | None]:
        """The writer and the reader of each byte, uint8 [workgroups · size]. None if races are not checked."""
        return (self._writer, self._reader) if self.watched else (None, None)

    def inside(self, offsets: Array, size: int) -> Array:
        """True for each byte offset [n] (int64, within a workgroup) that is in bounds."""
        return (offsets >= 0) & (offsets + size <= self.size)

    def load(self, groups: Array, offsets: Array, size: int, waves: Array) -> tuple[Array, int | None]:
        """Load uint8 [n, size]. Also returns the first of n that races, or None. groups, waves: of each access; waves
        count from 1 in a group."""
        flat = groups * self.size + offsets
        raced = None
        clocks = self.clocks
        if self.watched and clocks and clocks.polling:
            self._hear(flat, clocks.rows(groups, waves))
        elif self.watched:
            writer = gather(self._writer, flat.astype(np.uint64), size)
            mine = waves[:, None]
            wrong = (writer != NOBODY) & (writer != mine) & (writer != ALIKE)
            if clocks:
                rows = clocks.rows(groups, waves)
                clocks.tick(rows)
                wrong &= clocks.unheard(clocks.wrote, flat, size, rows)
                clocks.note(clocks.read, flat, size, rows)
            if wrong.any():
                raced = int(np.argmax(wrong.any(axis=1)))
            self._note(self._reader, flat, size, waves)
        return gather(self._flat, flat.astype(np.uint64), size), raced

    def store(self, groups: Array, offsets: Array, values: Array, waves: Array, atomic: bool = False) -> int | None:
        """Store. Returns the first of n that races, or None."""
        flat, size = groups * self.size + offsets, values.shape[1]
        raced = None
        if self.watched:
            where = flat.astype(np.uint64)
            writer, reader = gather(self._writer, where, size), gather(self._reader, where, size)
            mine = waves[:, None]
            changes = gather(self._flat, where, size) != values
            other = (writer != NOBODY) & (writer != mine)
            of_reader = (reader != NOBODY) & (reader != mine)
            if self.clocks:
                rows = self.clocks.rows(groups, waves)
                if not atomic:
                    self.clocks.tick(rows)
                other &= self.clocks.unheard(self.clocks.wrote, flat, size, rows)
                of_reader &= self.clocks.unheard(self.clocks.read, flat, size, rows)
                noted = changes.any(axis=1) | (not atomic)
                self.clocks.note(self.clocks.wrote, flat[noted], size, rows[noted])
            wrong = of_reader | (other & (writer != ATOMIC) if atomic else other)
            wrong &= changes
            as_atomic = (writer == ATOMIC) & ~other if self.clocks and not atomic else np.full(writer.shape, atomic)
            marks = np.where(as_atomic, np.uint8(ATOMIC), mine)
            marks = np.where(other & ~changes & ~(as_atomic & (writer == ATOMIC)), np.uint8(ALIKE), marks)
            if self.clocks and not atomic:
                self._unlock(flat[as_atomic[:, 0]], rows[as_atomic[:, 0]])
            scatter(self._writer, where, np.ascontiguousarray(marks))
            scatter(self._flat, where, values)
            # Two waves store to one byte in this very step: only one mark and one value stay.
            lost = gather(self._writer, where, size) != marks
            wrong |= lost & (gather(self._flat, where, size) != values)
            self._writer[_bytes(flat, lost)] = ALIKE
            if wrong.any():
                raced = int(np.argmax(wrong.any(axis=1)))
            return raced
        scatter(self._flat, flat.astype(np.uint64), values)
        return raced

    def begin_atomic(self, groups: Array, offsets: Array, waves: Array) -> None:
        """Called before atomics of these lanes, so that knowledge that plain stores left at their places is not
        lost."""
        if self.watched and self.clocks:
            rows = self.clocks.rows(groups, waves)
            self.clocks.tick(rows)
            for row, place in _pairs(rows, groups * self.size + offsets):
                self._last(row, place)

    def end_atomic(self, groups: Array, offsets: Array, waves: Array, changed: Array, returned: bool) -> None:
        """Called after the atomics. Waves whose atomic returned hear; waves whose atomic changed something (bool [n])
        leave their knowledge."""
        if self.watched and self.clocks:
            rows, flat = self.clocks.rows(groups, waves), groups * self.size + offsets
            tell = set(_pairs(rows[changed], flat[changed]))
            for row, place in sorted(_pairs(rows, flat)):
                if returned:
                    self.clocks.hear(row, place)
                if (row, place) in tell:
                    self.clocks.leave(row, place)

    def _hear(self, flat: Array, rows: Array) -> None:
        assert self.clocks is not None
        self.clocks.tick(rows)
        for row, place in _pairs(rows, flat):
            self._last(row, place)
            self.clocks.hear(row, place)

    def _last(self, row: int, place: int) -> None:
        """Tell the clocks of a plain store that was the last at a place."""
        assert self.clocks is not None
        mark = int(self._writer[place])
        if NOBODY < mark < ALIKE:
            first = row - row % self.clocks.waves_per_group
            self.clocks.wrote_alone(place, first + mark - 1, int(self.clocks.wrote[place, mark - 1]))
        elif mark != ATOMIC:
            self.clocks.forget(row, place)

    def _unlock(self, flat: Array, rows: Array) -> None:
        """Plain stores to places of atomics, by waves that have heard of all those atomics. They pass on knowledge as
        an atomic does."""
        assert self.clocks is not None
        for row, place in _pairs(rows, flat):
            self.clocks.wrote_alone(place, row, int(self.clocks.now[row]))

    def _note(self, marks: Array, flat: Array, size: int, waves: Array) -> None:
        where = flat.astype(np.uint64)
        held = gather(marks, where, size)
        mine = np.repeat(waves[:, None], size, axis=1)
        scatter(marks, where, np.where((held == NOBODY) | (held == mine), mine, np.uint8(MANY)))
        after = gather(marks, where, size)
        marks[_bytes(flat, (after != mine) & (after != MANY))] = MANY

    def barrier(self, group: int) -> None:
        """All waves of a workgroup have met: earlier uses no longer matter."""
        if self.watched:
            part = slice(group * self.size, (group + 1) * self.size)
            self._writer[part] = NOBODY
            self._reader[part] = NOBODY
        if self.clocks:
            self.clocks.meet(group)


def _pairs(rows: Array, flat: Array) -> list[tuple[int, int]]:
    """The distinct (wave, place) pairs, in the order of lanes."""
    return list(dict.fromkeys(zip(rows.tolist(), flat.tolist())))


def _bytes(flat: Array, chosen: Array) -> Array:
    """The places of the chosen bytes. flat: the first byte of each access, [n]; chosen: bool [n, size]."""
    return (flat[:, None] + np.arange(chosen.shape[1]))[chosen]
