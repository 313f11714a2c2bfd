"""Accesses to flat addresses: global memory, or LDS or a lane's scratch if the upper half is that aperture's.

Source: LLVM's "User Guide for AMDGPU Backend", "Address Spaces". The lower 32 bits are the byte in LDS or in the lane's
scratch. The driver chooses where the apertures lie; `operands` has the choice used here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.findings import NotEmulated
from harness.emulator.lds import held, note_race
from harness.emulator.operands import APERTURES, PRIVATE_BASE, SHARED_BASE
from harness.emulator.places import Global, Scratch, only
from harness.emulator.state import Rows, State

_SHARED, _PRIVATE = (U64(APERTURES[base] >> 32) for base in (SHARED_BASE, PRIVATE_BASE))


class Flat(Global):
    """Each lane's access goes to the memory that its own address selects."""

    def tell(self, state: State, goals: Array, chosen: Array, size: int) -> None:
        top = goals >> U64(32)
        super().tell(state, goals, chosen & (top != _SHARED) & (top != _PRIVATE), size)

    def load(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> Array:
        top = addresses >> U64(32)
        found = np.empty((addresses.shape[0], size), np.uint8)
        for index, lanes, there in _parts(top, chosen):
            goal = addresses[index]
            if there == _SHARED:
                found[index] = _load_shared(state, rows, lanes, goal, size)
            elif there == _PRIVATE:
                found[index] = Scratch().load(state, rows, lanes, goal & U64(0xFFFFFFFF), size)
            else:
                found[index] = super().load(state, rows, lanes, goal, size)
        return found

    def store(self, state: State, rows: Rows, chosen: Array, addresses: Array, values: Array) -> None:
        top = addresses >> U64(32)
        for index, lanes, there in _parts(top, chosen):
            goal, given = addresses[index], np.ascontiguousarray(values[index])
            if there == _SHARED:
                store_shared(state, rows, lanes, (goal & U64(0xFFFFFFFF)).astype(U32), given)
            elif there == _PRIVATE:
                Scratch().store(state, rows, lanes, goal & U64(0xFFFFFFFF), given)
            else:
                super().store(state, rows, lanes, goal, given)


class FlatAtomic(Global):
    """An atomic's flat address, which must be in global memory."""

    def load(self, state: State, rows: Rows, chosen: Array, addresses: Array, size: int) -> Array:
        top = addresses >> U64(32)
        if ((top == _SHARED) | (top == _PRIVATE)).any():
            raise NotEmulated("a flat atomic on LDS or scratch is not emulated")
        return super().load(state, rows, chosen, addresses, size)


def _parts(top: Array, chosen: Array) -> list[tuple[Array, Array, Any]]:
    """For each aperture: the active lanes, as indices and as a mask [wave, lane], and its upper half."""
    kinds = np.where((top == _SHARED) | (top == _PRIVATE), top, U64(0))
    parts = []
    for one in np.unique(kinds):
        index = np.nonzero(kinds == one)[0]
        parts.append((index, only(chosen, index), one))
    return parts


def _load_shared(state: State, rows: Rows, lanes: Array, goal: Array, size: int) -> Array:
    groups, byte, waves = held(state, rows, lanes, (goal & U64(0xFFFFFFFF)).astype(U32), size)
    loaded, raced = state.shared.load(groups, byte, size, waves)
    if raced is not None:
        note_race(state, rows, lanes, raced, "reads", int(byte[raced]))
    return loaded


def store_shared(state: State, rows: Rows, lanes: Array, goal: Array, values: Array) -> None:
    """Store bytes [active lanes, size] at byte `goal` (uint32) of each lane's LDS."""
    groups, byte, waves = held(state, rows, lanes, goal, values.shape[1])
    raced = state.shared.store(groups, byte, values, waves)
    if raced is not None:
        note_race(state, rows, lanes, raced, "writes", int(byte[raced]))
