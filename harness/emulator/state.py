"""The waves of a launch: registers, masks and program counters, as arrays over [wave, lane].

    vector[register, wave, lane]    uint32; architectural VGPRs, then the AGPRs from `accum` on
    scalar[register, wave]          uint32; SGPRs, VCC at 106, M0, EXEC at 126, numbered as operands are
    scc[wave]  lanes[wave, lane]    bool; lanes is EXEC by lane
    position[wave]                  the index of the next instruction
    clamped[wave]                   MODE.FP16_OVFL: conversions to small floats saturate

`rows` selects the waves that step together: a slice if they are adjacent, else an array of indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.arithmetic import U32, U64, Array
from harness.emulator.code_object import KernelCode
from harness.emulator.memory import GlobalMemory
from harness.emulator.native import Doors
from harness.emulator.shared_memory import SharedMemory

if TYPE_CHECKING:
    from harness.emulator.clocks import VectorClocks
    from harness.emulator.encounters import EncounterWatch
    from harness.emulator.order import StoreWatch

Rows = Any

EXEC, VCC = 126, 106


class WaveFault(Exception):
    """An instruction did something that is not allowed. row: of the state. lane: of its wave. They are None if no
    single one is meant. place: a byte of shared memory."""

    def __init__(
        self, kind: str, message: str, row: int | None = None, lane: int | None = None, place: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.row, self.lane, self.place = kind, message, row, lane, place


class State:
    """fill: the seed for the initial contents of registers and LDS.

    The following are None unless they are needed. witness(values, rows, lanes): called for every address, stored value
    and branch; lanes [wave, lane] are the lanes of the values, None for values of whole waves. watch: called for every
    store to global memory. encounter: called for every access to LDS and for barriers. conflicts(bytes, size, lanes):
    called for every access to LDS. touches(addresses, size, lanes): called for every vector access to global memory,
    with `GlobalMemory.aligned` addresses. clocks: what waves have heard of each other. doors: the compiled functions,
    which call none of the others; None if one of the others is set or nothing is compiled.

    note(fault): called for a fault that does not end the run.
    """

    memory: GlobalMemory
    shared: SharedMemory
    witness: Callable[[Array, Rows, Array | None], None] | None = None
    watch: StoreWatch | None = None
    encounter: EncounterWatch | None = None
    conflicts: Callable[[Array, int, Array], None] | None = None
    touches: Callable[[Array, int, Array], None] | None = None
    note: Callable[[WaveFault], None]
    clocks: VectorClocks | None = None
    doors: Doors | None = None

    def __init__(self, kernel: KernelCode, waves: int, waves_per_group: int, lds_bytes: int, fill: int) -> None:
        self.kernel = kernel
        self.wave_size = kernel.wave_size
        self.accum = kernel.vgprs if kernel.rdna else kernel.accum_offset
        self.accum = min(self.accum, kernel.vgprs)
        self.waves_per_group = waves_per_group
        shape = (max(kernel.vgprs, 1), waves, self.wave_size)
        self.vector = _garbage(shape, fill)
        self.scalar = _garbage((128, waves), fill + 1)
        self.null = 124 if kernel.rdna else -1
        if self.null >= 0:
            self.scalar[self.null] = 0
        self.scc = np.zeros(waves, np.bool_)
        self.lanes = np.ones((waves, self.wave_size), np.bool_)
        self.full = np.ones(waves, np.bool_)
        self.clamped = np.zeros(waves, np.bool_)
        self.position = np.zeros(waves, np.int64)
        self.lane_numbers = np.arange(self.wave_size, dtype=U32)[None, :]
        groups = -(-waves // waves_per_group)
        self.lds = _garbage((groups, lds_bytes + 3 & ~3), fill + 2, np.uint8)
        self.scratch: Array | None = None
        if kernel.scratch_bytes:
            self.scratch = _garbage((waves, self.wave_size, kernel.scratch_bytes + 3 & ~3), fill + 3, np.uint8)

    def scalar64(self, register: int, rows: Rows) -> Array:
        """A pair of SGPRs: uint64 [waves]."""
        return self.scalar[register, rows].astype(U64) | self.scalar[register + 1, rows].astype(U64) << U64(32)

    def set_scalar(self, register: int, rows: Rows, value: Array) -> None:
        if register == self.null:
            return
        self.scalar[register, rows] = value
        if register == EXEC or register == EXEC + 1:
            self.refresh(rows)

    def set_scalar64(self, register: int, rows: Rows, value: Array) -> None:
        if register == self.null:
            return
        self.scalar[register, rows] = (value & U64(0xFFFFFFFF)).astype(U32)
        self.scalar[register + 1, rows] = (value >> U64(32)).astype(U32)
        if register == EXEC:
            self.refresh(rows)

    def refresh(self, rows: Rows) -> None:
        """Update `lanes` from EXEC."""
        self.lanes[rows] = lanes_of(self.mask(EXEC, rows), self.wave_size)
        self.full[rows] = self.lanes[rows].all(axis=1)

    def mask(self, register: int, rows: Rows) -> Array:
        """A lane mask: uint64 [waves]. In waves of 32 it is one SGPR."""
        if self.wave_size == 32:
            return self.scalar[register, rows].astype(U64)
        return self.scalar64(register, rows)

    def set_mask(self, register: int, rows: Rows, lanes: Array) -> None:
        """Write lanes [waves, lane] as a mask."""
        value = mask_of(lanes)
        if self.wave_size == 32:
            self.set_scalar(register, rows, value.astype(U32))
        else:
            self.set_scalar64(register, rows, value)

    def write(self, register: int, rows: Rows, value: Array) -> None:
        """Write uint32 to a vector register in the active lanes."""
        if isinstance(rows, slice):
            if self.full[rows].all():
                self.vector[register, rows] = value
            else:
                np.copyto(self.vector[register, rows], value, where=self.lanes[rows])
        else:
            held = self.vector[register, rows]
            self.vector[register, rows] = np.where(self.lanes[rows], value, held)


def lanes_of(mask: Array, wave_size: int) -> Array:
    """uint64 [waves] ─► bool [waves, lane]."""
    octets = np.ascontiguousarray(mask).view(np.uint8).reshape(-1, 8)
    return np.unpackbits(octets, axis=1, bitorder="little")[:, :wave_size].astype(np.bool_)


def mask_of(lanes: Array) -> Array:
    """bool [waves, lane] ─► uint64 [waves]."""
    if lanes.shape[1] < 64:
        lanes = np.concatenate([lanes, np.zeros((lanes.shape[0], 64 - lanes.shape[1]), np.bool_)], axis=1)
    return np.packbits(lanes, axis=1, bitorder="little").view(U64)[:, 0]


def _garbage(shape: tuple[int, ...], seed: int, dtype: Any = np.uint32) -> Array:
    """The contents of memory that nobody has written. The same seed gives the same contents."""
    generator = np.random.Generator(np.random.SFC64(seed))
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(generator.bytes(size)), dtype).reshape(shape)
