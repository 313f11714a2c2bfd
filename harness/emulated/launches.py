"""The launches of one process in the emulator, and their findings together.

launches = Launches("gfx942")
launches.run(..)          raises EmulatedFault at a finding that ends a kernel, LaunchError for a launch that the chip
                          would refuse, NoDevice for what is not emulated
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from harness.emulator import Allocation, KernelFinding, LaunchOutcome, of_pointer, order, run
from harness.emulator.code_object import CodeObject
from harness.emulator.encounters import EncounterWatch
from harness.emulator.findings import RACE, line_of
from harness.emulator.launch import MAX_INSTRUCTIONS
from harness.emulator.start import Three
from harness.emulator.witness import Witness
from harness.hip import LaunchError, NoDevice

TWICE_INSTRUCTIONS = 200_000
"""Launches are repeated, with other garbage and in another order, until this many instructions have run once."""

MOST_REMARKS = 16


class EmulatedFault(RuntimeError):
    """A kernel did something that is not allowed. The message names the instruction, the line and the lane."""


def of_process(target: str) -> Launches:
    """All launches of this process for a chip."""
    return _of_process.setdefault(target, Launches(target, again=True))


def emulated() -> dict[str, Any]:
    """A worker's report: the chip that this process emulated (None without launches), the number of executed
    instructions, the processor seconds spent compiling, and the remarks."""
    for target, launches in _of_process.items():
        if launches.count:
            counts = {"executed": sum(launches.instructions.values()), "compiling_s": launches.compiling_s}
            return {"emulated": target, **counts, "remarks": launches.remarks[:MOST_REMARKS]}
    return {"emulated": None}


_of_process: dict[str, Launches] = {}


class Launches:
    """The launches for one chip. instructions: executed so far, by class. findings: all, at most one per kind and
    kernel. remarks: notes on a kernel that are not faults. compiling_s: processor seconds spent in `compiling`.

    again: repeat small launches. One repetition has other garbage in registers and shared memory, to find uses of
    values never written. Others have another order of waves and workgroups. limit: the most instructions that a wave
    may run. limit_s: processor seconds in which some wave must end.
    """

    def __init__(self, target: str, again: bool = False) -> None:
        self.target, self.again = target, again
        self.count, self.limit = 0, MAX_INSTRUCTIONS
        self.limit_s = math.inf
        self.instructions: dict[str, int] = {}
        self.findings: list[KernelFinding] = []
        self.remarks: list[str] = []
        self.compiling_s = 0.0
        self.outcomes: list[tuple[str, LaunchOutcome]] | None = None
        """The outcome of each launch with its kernel's name, if this is a list."""

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Count the block's processor time as a compiler's work. It covers this process and children that it waits
        for."""
        before = sum(os.times()[:4])
        try:
            yield
        finally:
            self.compiling_s += sum(os.times()[:4]) - before

    def run(
        self,
        image: CodeObject,
        kernel: str,
        grid: Three,
        block: Three,
        arguments: Sequence[bytes],
        tensors: Sequence[tuple[str, torch.Tensor]],
        shared_bytes: int,
        assembly: str | None,
    ) -> None:
        """Launch a kernel. tensors: the tensor that each pointer is for, with its name in messages. Raises
        EmulatedFault, LaunchError and NoDevice."""
        memory = allocations(tensors)
        launch = functools.partial(
            run, image, kernel, grid, block, arguments, memory,
            shared_bytes=shared_bytes, assembly=assembly, limit=self.limit, limit_s=self.limit_s,
        )  # fmt: skip
        again = self.again and sum(self.instructions.values()) < TWICE_INSTRUCTIONS
        before = [one.bytes.copy() for one in memory] if again else []
        first = Witness() if again else None
        outcome = launch(fill=1, witness=first, conflicts=self.outcomes is not None)
        if outcome.findings and outcome.findings[0].kind == RACE:
            _put(memory, before)
            encounter = EncounterWatch(outcome.findings[0])
            launch(fill=1, encounter=encounter)
            outcome.findings[0] = encounter.named()
        self._keep(kernel, outcome)
        if first is not None:
            after = [one.bytes.copy() for one in memory]
            found = self._uninitialised(launch, memory, before, first)
            lanes, threads = image.kernel(kernel).wave_size, block[0] * block[1] * block[2]
            if found is None and (grid[0] * grid[1] * grid[2] > 1 or threads > lanes):
                found = self._order(launch, kernel, threads <= lanes, outcome, memory, before, after)
            _put(memory, after)
            if found is not None:
                found = dataclasses.replace(found, chip=self.target)
                self.findings.append(found)
                raise EmulatedFault(str(found))

    def _uninitialised(
        self, launch: Callable[..., Any], memory: Sequence[Allocation], before: Sequence[Any], first: Witness
    ) -> KernelFinding | None:
        _put(memory, before)
        second = Witness(first)
        launch(fill=2, witness=second)
        if second.differs is None:
            return None
        _put(memory, before)
        third = second.once_more()
        launch(fill=1, witness=third)
        return second.named(third)

    def _order(
        self,
        launch: Callable[..., LaunchOutcome],
        kernel: str,
        one_wave: bool,
        outcome: LaunchOutcome,
        memory: Sequence[Allocation],
        before: Sequence[Any],
        after: Sequence[Any],
    ) -> KernelFinding | None:
        """Repeat the launch in other orders. Returns a finding if a result differs. If the kernel uses atomics that do
        not commute, adds a remark and returns None."""
        for made in order.orders(sum(self.instructions.values())):
            _put(memory, before)
            other = launch(order=made(), fill=1, limit=order.PATIENCE * outcome.longest)
            differs = order.difference(memory, after)
            if differs is None or not other.clean:
                continue
            watch = order.StoreWatch(differs.address)
            _put(memory, before)
            launch(order=made(), fill=1, watch=watch)
            found = order.said(kernel, differs, made().words, one_wave, watch.stores, outcome.atomics)
            if not outcome.atomics:
                return found
            if not any(one.startswith(f"{kernel} ") for one in self.remarks):
                where = f", {line_of(found.file, found.line)}" if found.line else ""
                self.remarks.append(f"{kernel} {found.kind}: {found.message}{where}")
            return None
        return None

    def _keep(self, kernel: str, outcome: LaunchOutcome) -> None:
        """Add up an outcome. Raises EmulatedFault, LaunchError, NoDevice."""
        self.count += 1
        if self.outcomes is not None:
            self.outcomes.append((kernel, outcome))
        for name, number in outcome.instructions.items():
            self.instructions[name] = self.instructions.get(name, 0) + number
        found = [dataclasses.replace(one, chip=self.target) for one in outcome.findings]
        self.findings += found
        remarks = [str(dataclasses.replace(one, workgroup=None, wave=None)) for one in outcome.remarks]
        self.remarks += [one for one in remarks if one not in self.remarks]
        if found:
            raise EmulatedFault(str(found[0]))
        if outcome.refused is not None:
            raise LaunchError(f"launch failed: {outcome.refused}")
        if outcome.not_emulated is not None:
            raise NoDevice(outcome.not_emulated)


def _put(memory: Sequence[Allocation], contents: Sequence[Any]) -> None:
    for one, was in zip(memory, contents):
        one.bytes[:] = was


def allocations(tensors: Sequence[tuple[str, torch.Tensor]]) -> list[Allocation]:
    """The storages of the tensors that a kernel is given: the only memory that it may touch."""
    found: list[Allocation] = []
    for name, tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found.append(of_pointer(storage.data_ptr(), storage.nbytes(), name))
    return found
