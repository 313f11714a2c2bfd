"""Atomic operations on memory. Lanes at one address act one after another.

    named("add_f32") ─► Operation, or None
    perform(..)      ─► the earlier contents, by lane

Lanes that meet at one address act in the order of waves and lanes. Hardware promises no order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator.arithmetic import Array


@dataclass(frozen=True)
class Operation:
    """size: bytes in memory. apply(old, given) ─► new, both of `dtype`. compares: `given` holds the new value, then the
    value to compare with."""

    size: int
    dtype: Any
    apply: Callable[[Array, Array], Array]
    compares: bool = False

    @property
    def registers(self) -> int:
        return self.size // 4 * (2 if self.compares else 1)


def _halves(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda old, given: function(old.view(np.float16), given.view(np.float16)).view(np.uint32)


def _bf16_sum(old: Array, given: Array) -> Array:
    def wide(word: Array) -> Array:
        return (word.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)

    return ar.bf16_bits(wide(old) + wide(given)).astype(np.uint16).view(np.uint32)


_PLAIN: dict[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "add": ("u", lambda old, new: old + new),
    "sub": ("u", lambda old, new: old - new),
    "rsub": ("u", lambda old, new: new - old),
    "swap": ("u", lambda old, new: new),
    "wrxchg": ("u", lambda old, new: new),
    "storexchg": ("u", lambda old, new: new),
    "and": ("u", lambda old, new: old & new),
    "or": ("u", lambda old, new: old | new),
    "xor": ("u", lambda old, new: old ^ new),
    "smin": ("i", np.minimum),
    "smax": ("i", np.maximum),
    "umin": ("u", np.minimum),
    "umax": ("u", np.maximum),
    "inc": ("u", lambda old, new: np.where(old >= new, np.zeros_like(old), old + np.ones_like(old))),
    "dec": ("u", lambda old, new: np.where((old == 0) | (old > new), new, old - np.ones_like(old))),
}


def named(name: str) -> Operation | None:
    """The operation with this name after `atomic_`: CDNA's `add_x2` and `smax`, RDNA3's and DS's `add_u32` and
    `max_i32`. None if it is unknown."""
    if name in ("pk_add_f16", "pk_add_bf16"):
        return Operation(4, np.uint32, _halves(lambda a, b: a + b) if name == "pk_add_f16" else _bf16_sum)
    found = re.match(r"^(add|min|max)_f(32|64)$", name)
    if found:
        dtype: Any = np.float32 if found[2] == "32" else np.float64
        function: Any = {"add": np.add, "min": ar.smallest, "max": ar.largest}[found[1]]
        return Operation(int(found[2]) // 8, dtype, function)
    found = re.match(r"^(cmpswap)(?:_b(32|64))?(_x2)?$", name)
    if found:
        size = 8 if found[3] or found[2] == "64" else 4
        dtype = np.uint64 if size == 8 else np.uint32
        return Operation(size, dtype, lambda old, given: old, compares=True)
    found = re.match(r"^([a-z]+)(?:_([uib])(32|64))?(_x2)?$", name)
    if not found:
        return None
    word = found[1]
    if word in ("min", "max") and found[2]:
        word = ("s" if found[2] == "i" else "u") + word
    if word not in _PLAIN:
        return None
    letter, function = _PLAIN[word]
    size = 8 if found[4] or found[3] == "64" else 4
    return Operation(size, np.dtype(f"{letter}{size}"), function)


def perform(
    operation: Operation,
    keys: Array,
    given: Array,
    load: Callable[[Array], Array],
    store: Callable[[Array, Array], None],
) -> Array:
    """Act for each of n lanes; lanes with equal keys (uint64 [n]) act in turn. given: uint8 [n, 4 · registers].

    load(index) and store(index, bytes) access the memory of the lanes with these indices. Returns the earlier contents:
    uint8 [n, size].
    """
    before = np.zeros((keys.shape[0], operation.size), np.uint8)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    first = np.maximum.accumulate(np.where(starts, np.arange(keys.shape[0]), 0))
    turn = np.arange(keys.shape[0]) - first
    for number in range(int(turn.max()) + 1):
        index = np.sort(order[turn == number])
        old = np.ascontiguousarray(load(index))
        before[index] = old
        mine = np.ascontiguousarray(given[index])
        held = old.view(operation.dtype)[:, 0]
        if operation.compares:
            words = mine.view(operation.dtype)
            new = np.where(held == words[:, 1], words[:, 0], held)
        else:
            new = operation.apply(held, mine.view(operation.dtype)[:, 0])
        store(index, np.ascontiguousarray(new.astype(operation.dtype, copy=False))[:, None].view(np.uint8))
    return before
