"""Global memory: the live allocations with their bounds. Nothing else can be read or written.

    memory = GlobalMemory([Allocation(address, array, "out")])
    memory.load(addresses, 4)          ─► uint8 [.., 4], or the first access outside, as Outside
    memory.store(addresses, bytes)

An allocation is a numpy array of bytes at the address that the kernel gets. So a store is visible in the tensor itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator.arithmetic import U64, Array
from harness.emulator.findings import NotEmulated
from harness.emulator.native import GlobalStruct


@dataclass(frozen=True)
class Allocation:
    """bytes: uint8 [size], at `address` for the kernel. writable: False for code and arguments. variables: offsets and
    sizes of a code object's variables, which a GPU lets a kernel write."""

    address: int
    bytes: Array
    name: str
    writable: bool = True
    variables: tuple[tuple[int, int], ...] = ()


class Outside(Exception):
    """An access outside all allocations. index: of the first bad address. near: its place in words."""

    def __init__(self, index: int, address: int, size: int, near: str) -> None:
        super().__init__(near)
        self.index, self.address, self.size, self.near = index, address, size, near


def of_pointer(address: int, size: int, name: str, writable: bool = True) -> Allocation:
    """Memory of this process as an allocation. The memory must outlive the allocation."""
    buffer: Any = (ctypes.c_uint8 * size).from_address(address)
    return Allocation(address, np.frombuffer(buffer, np.uint8) if size else np.zeros(0, np.uint8), name, writable)


def of_array(array: Array, name: str, writable: bool = True) -> Allocation:
    """A contiguous numpy array as an allocation at its own address."""
    flat = array.reshape(-1).view(np.uint8)
    return Allocation(flat.ctypes.data, flat, name, writable)


class GlobalMemory:
    """allocations: one may lie wholly within another; otherwise they must not overlap."""

    def __init__(self, allocations: Sequence[Allocation]) -> None:
        self.allocations = _merged(allocations)
        self._starts = np.array([one.address for one in self.allocations], U64)
        self._ends = np.array([one.address + one.bytes.size for one in self.allocations], U64)
        self._places = np.array([one.bytes.ctypes.data for one in self.allocations], U64)
        self._writable = np.array([one.writable for one in self.allocations], np.bool_)
        tables = (self._starts, self._ends, self._places, self._writable)
        self.native = GlobalStruct(*(one.ctypes.data for one in tables), len(self.allocations))

    def load(self, addresses: Array, size: int) -> Array:
        """uint8 [n, size] at uint64 addresses [n]. Raises Outside."""
        found = np.empty((addresses.shape[0], size), np.uint8)
        for number, chosen in self._parts(addresses, size, False):
            held, offsets = self.allocations[number], addresses[chosen] - U64(self.allocations[number].address)
            found[chosen] = _gather(held.bytes, offsets, size)
        return found

    def store(self, addresses: Array, values: Array) -> None:
        """Store uint8 [n, size] at uint64 addresses [n]. Of several stores to one place the last one stays. Raises
        Outside."""
        size = values.shape[1]
        for number, chosen in self._parts(addresses, size, True):
            held, offsets = self.allocations[number], addresses[chosen] - U64(self.allocations[number].address)
            scatter(held.bytes, offsets, values[chosen])

    def aligned(self, addresses: Array) -> Array:
        """The addresses as if each allocation began at a multiple of 2^48, and so of any cache's line. A GPU's
        allocators align like this; a processor's do not. Meaningless for an address outside."""
        held = np.maximum(np.searchsorted(self._starts, addresses, side="right").astype(np.int64) - 1, 0)
        return addresses - self._starts[held] + (held.astype(U64) + U64(1) << U64(48))

    def _parts(self, addresses: Array, size: int, writing: bool) -> list[tuple[int, Array]]:
        """The addresses by allocation. Raises Outside for the first that is in none."""
        if not addresses.size:
            return []
        if not self._starts.size:
            raise Outside(0, int(addresses[0]), size, "there is no allocation")
        number = np.searchsorted(self._starts, addresses, side="right").astype(np.int64) - 1
        held = np.maximum(number, 0)
        # Compared so that nothing wraps: an address may have any value.
        wrong = (number < 0) | (addresses >= self._ends[held]) | (self._ends[held] - addresses < U64(size))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise Outside(first, int(addresses[first]), size, self.near(int(addresses[first]), size))
        numbers = np.unique(held)
        if writing:
            for one in numbers:
                if not self.allocations[one].writable:
                    first = int(np.argmax(held == one))
                    offset = int(addresses[first]) - self.allocations[one].address
                    if any(0 <= offset - start < length for start, length in self.allocations[one].variables):
                        raise NotEmulated("a store to a variable of the source (__device__) is not emulated")
                    what = f"{self.allocations[one].name}, which must not be written"
                    raise Outside(first, int(addresses[first]), size, f"in {what}")
        if numbers.size == 1:
            return [(int(numbers[0]), np.ones(addresses.shape, np.bool_))]
        return [(int(one), held == one) for one in numbers]

    def near(self, address: int, size: int) -> str:
        """Describe where an address lies, by the nearest allocation."""
        distances = []
        for one in self.allocations:
            end = one.address + one.bytes.size
            if address < one.address:
                distances.append((one.address - address, f"{one.address - address:,} bytes before {one.name}"))
            elif address >= end:
                distances.append((address - end, f"{address - end:,} bytes after the end of {one.name}"))
            else:
                distances.append((0, f"across the end of {one.name}"))
        return f"at 0x{address:x}, {min(distances)[1]}" if distances else f"at 0x{address:x}"


def _merged(allocations: Sequence[Allocation]) -> list[Allocation]:
    """Sorted. Empty allocations and those that lie within another are left out."""
    kept: list[Allocation] = []
    for one in sorted(allocations, key=lambda held: (held.address, -held.bytes.size)):
        if one.bytes.size and not (kept and one.address + one.bytes.size <= kept[-1].address + kept[-1].bytes.size):
            kept.append(one)
    return kept


def _gather(data: Array, offsets: Array, size: int) -> Array:
    word = size if size in (1, 2, 4) else 4 if size % 4 == 0 else 1
    if word > 1 and not (offsets & U64(word - 1)).any() and not data.ctypes.data % word:
        words = data[: data.size // word * word].view(f"u{word}")
        index = (offsets // U64(word)).astype(np.int64)
        found = np.empty((offsets.shape[0], size // word), words.dtype)
        for number in range(size // word):
            found[:, number] = words[index + number]
        return found.view(np.uint8)
    return data[offsets.astype(np.int64)[:, None] + np.arange(size)]


def scatter(data: Array, offsets: Array, values: Array) -> None:
    """Write rows of bytes at byte offsets. Where rows overlap, the last one stays."""
    size = values.shape[1]
    word = size if size in (1, 2, 4) else 4 if size % 4 == 0 else 1
    if word > 1 and not (offsets & U64(word - 1)).any() and not data.ctypes.data % word:
        words = data[: data.size // word * word].view(f"u{word}")
        index = (offsets // U64(word)).astype(np.int64)
        words[index[:, None] + np.arange(size // word)] = np.ascontiguousarray(values).view(f"u{word}")
        return
    data[offsets.astype(np.int64)[:, None] + np.arange(size)] = values


def gather(data: Array, offsets: Array, size: int) -> Array:
    """Rows of bytes at byte offsets."""
    return _gather(data, offsets, size)
