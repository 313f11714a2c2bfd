"""The emulator's inner loops in C (native.c): the same bits as numpy's, but faster.

    build()      the judge, before a worker starts ─► the library's path, or None if there is no C compiler
    library()    in the worker, and wherever else the emulator runs: the built library, or None

The library lies beside the interpreter's packages. Workers may read it there but, confined, not write it. Its name is a
hash of the source, the compiler's options and the processor, so another build is never loaded by mistake. Only a worker
loads it, never the judge. Without the library numpy does everything. With it numpy does what a function declines.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from harness.emulator.arithmetic import Array

SOURCE = Path(__file__).with_suffix(".c")
COMPILE_TIMEOUT_S = 120
DONE = 0
_LONG, _POINTER = ctypes.c_int64, ctypes.c_void_p


def folder() -> Path:
    """The folder of the libraries."""
    return Path(sys.prefix) / "lib" / "podium"


def options() -> tuple[str, ...]:
    """The compiler's options. Nothing is contracted or reordered. Fused multiply-adds are used if the processor has
    them."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        flags = []
    fused = ("-mavx2", "-mfma") if platform.machine() == "x86_64" and {"avx2", "fma"} <= set(flags) else ()
    return ("-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", *fused)


def path() -> Path:
    """The path of the library for this source and this processor."""
    words = (SOURCE.read_text(), platform.machine(), platform.libc_ver()[0], *options())
    return folder() / f"emulator-{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:16]}.so"


def build() -> Path | None:
    """Compile the library if it is missing. Runs outside any sandbox and raises nothing."""
    goal = path()
    if goal.exists():
        return goal
    for compiler in _compilers():
        try:
            goal.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=goal.parent) as work:
                made = Path(work) / "made.so"
                command = [*compiler, *options(), str(SOURCE), "-o", str(made), "-lm"]
                subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S, cwd=work)
                made.chmod(0o755)
                os.replace(made, goal)
            return goal
        except (OSError, subprocess.SubprocessError):
            continue
    return None


def _compilers() -> list[list[str]]:
    found = [[name] for name in map(shutil.which, ("cc", "gcc", "clang")) if name]
    if importlib.util.find_spec("ziglang"):
        found.append([sys.executable, "-m", "ziglang", "cc"])
    return found


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library that `build` made, or None."""
    try:
        return ctypes.CDLL(str(path()))
    except OSError:
        return None


class ShapeStruct(ctypes.Structure):
    _fields_ = [("size", _LONG), ("sign", _LONG), ("half", _LONG)]


class Waves(ctypes.Structure):
    _fields_ = [
        ("vector", _POINTER),
        ("register_step", _LONG),
        ("lane_count", _LONG),
        ("lanes", _POINTER),
        ("rows", _POINTER),
        ("row_count", _LONG),
    ]


class Shared(ctypes.Structure):
    _fields_ = [
        ("bytes", _POINTER),
        ("writer", _POINTER),
        ("reader", _POINTER),
        ("size", _LONG),
        ("waves_per_group", _LONG),
    ]


class GlobalStruct(ctypes.Structure):
    _fields_ = [
        ("starts", _POINTER),
        ("ends", _POINTER),
        ("bytes", _POINTER),
        ("writable", _POINTER),
        ("count", _LONG),
    ]


@functools.cache
def shape(size: int, sign: bool, half: int) -> ShapeStruct:
    return ShapeStruct(size, sign, half)


def _at(array: Array) -> Any:
    return _POINTER(array.ctypes.data)


def _steps(array: Array, rows: int, columns: int) -> tuple[Any, Any]:
    row = array.strides[0] // 4 if array.shape[0] == rows and rows > 1 else 0
    column = array.strides[1] // 4 if array.shape[1] == columns and columns > 1 else 0
    return _LONG(row), _LONG(column)


def fused(a: Array, b: Array, c: Array) -> Array | None:
    """a·b + c of float32 [rows, columns], each broadcast. None if the library does not do it."""
    return _of_three("fused", np.float32, a, b, c)


def permuted(a: Array, b: Array, selector: Array) -> Array | None:
    """v_perm_b32 of uint32 [rows, columns], each broadcast. None if the library does not do it."""
    return _of_three("permuted", np.uint32, a, b, selector)


def _of_three(name: str, dtype: Any, *given: Array) -> Array | None:
    compiled = library()
    if compiled is None or not all(one.ndim == 2 and one.dtype == dtype for one in given):
        return None
    rows, columns = (max(one.shape[axis] for one in given) for axis in (0, 1))
    out = np.empty((rows, columns), dtype)
    places = [part for one in given for part in (_at(one), *_steps(one, rows, columns))]
    getattr(compiled, name)(_LONG(rows), _LONG(columns), *places, _at(out))
    return out


def product(a: Array, b: Array, c: Array) -> Array | None:
    """c + a·b of float32 or int32 [.., i, k] and [.., k, j], in ascending k. None if the library does not do it."""
    compiled = library()
    if compiled is None or a.dtype != b.dtype or a.dtype != c.dtype or a.dtype not in (np.float32, np.int32):
        return None
    if a.shape[:-2] != c.shape[:-2] or b.shape[:-2] != c.shape[:-2]:
        return None
    left, right, total = np.ascontiguousarray(a), np.ascontiguousarray(b), np.array(c, order="C")
    lines, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    count = total.size // (lines * columns)
    function = compiled.product_f32 if a.dtype == np.float32 else compiled.product_i32
    function(*map(_LONG, (count, lines, depth, columns)), _at(left), _at(right), _at(total))
    return total


class Doors:
    """The library's functions on one state. Each returns True if it did the instruction.

    vector: uint32 [register, wave, lane]. lanes: bool [wave, lane]. shared: bytes, writers and readers of LDS, uint8
    [workgroups · size]. Writers and readers are None if races are not checked.
    """

    def __init__(self, compiled: ctypes.CDLL, vector: Array, lanes: Array, waves_per_group: int) -> None:
        self._compiled = compiled
        self._kept = vector, lanes
        self._numbers = np.arange(vector.shape[1])
        step = vector.shape[1] * vector.shape[2]
        self._waves = Waves(vector.ctypes.data, step, vector.shape[2], lanes.ctypes.data, None, 0)
        self._per_group = waves_per_group
        self._shared: Shared | None = None

    def share(self, data: Array, writer: Array | None, reader: Array | None, size: int) -> None:
        marks = [one.ctypes.data if one is not None else None for one in (writer, reader)]
        self._shared = Shared(data.ctypes.data, *marks, size, self._per_group)

    def _stepping(self, rows: Any) -> Any:
        index = self._numbers[rows]
        self._waves.rows, self._waves.row_count = index.ctypes.data, index.shape[0]
        return index

    def shared_load(self, rows: Any, kind: ShapeStruct, address: int, result: int, offsets: tuple[int, ...]) -> bool:
        held, places = self._stepping(rows), (_LONG * len(offsets))(*offsets)
        assert self._shared is not None and held.size
        given = ctypes.byref(self._waves), ctypes.byref(self._shared), ctypes.byref(kind)
        done = self._compiled.shared_load(*given, _LONG(address), _LONG(result), _LONG(len(offsets)), places)
        return bool(done == DONE)

    def shared_store(self, rows: Any, kind: ShapeStruct, address: int, data: int, offset: int) -> bool:
        held = self._stepping(rows)
        assert self._shared is not None and held.size
        given = ctypes.byref(self._waves), ctypes.byref(self._shared), ctypes.byref(kind)
        return bool(self._compiled.shared_store(*given, _LONG(address), _LONG(data), _LONG(offset)) == DONE)

    def global_access(
        self, rows: Any, memory: GlobalStruct, kind: ShapeStruct, goals: Array, limit: Any, writing: bool, data: int
    ) -> bool:
        """goals: uint64 [wave, lane]. limit: as from `addresses`."""
        held = self._stepping(rows)
        assert held.size
        goals = np.ascontiguousarray(goals)
        moved, records = (np.ascontiguousarray(one) for one in limit) if limit is not None else (None, None)
        bounds = [_at(one) if one is not None else None for one in (moved, records)]
        given = ctypes.byref(self._waves), ctypes.byref(memory), ctypes.byref(kind)
        return bool(self._compiled.global_access(*given, _at(goals), *bounds, _LONG(writing), _LONG(data)) == DONE)

    def scratch_access(
        self, rows: Any, scratch: Array, kind: ShapeStruct, offsets: Array, writing: bool, data: int
    ) -> bool:
        held = self._stepping(rows)
        assert held.size
        offsets = np.ascontiguousarray(offsets)
        given = ctypes.byref(self._waves), _at(scratch), _LONG(scratch.shape[2]), ctypes.byref(kind)
        return bool(self._compiled.scratch_access(*given, _at(offsets), _LONG(writing), _LONG(data)) == DONE)
