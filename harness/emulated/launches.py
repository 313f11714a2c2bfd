"""The launches of one process in the emulator, and what is to be said of them together.

launches = Launches("gfx942")
launches.run(..)          raises EmulatedFault at the first finding that ends a kernel, NotEmulatedHere by name
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.emulator import Allocation, LaunchOutcome, of_pointer, run
from harness.emulator.code_object import CodeObject
from harness.emulator.findings import KernelFinding
from harness.emulator.start import Three
from harness.emulator.witness import Witness
from harness.hip import NoDevice


class EmulatedFault(RuntimeError):
    """A kernel did what it must not; the message names the instruction, the line and the lane."""


def of_process(target: str) -> Launches:
    """All launches of this process for a chip."""
    return _of_process.setdefault(target, Launches(target))


def emulated() -> str | None:
    """The chip that launches of this process were emulated for; None where there were none."""
    return next((target for target, launches in _of_process.items() if launches.count), None)


_of_process: dict[str, Launches] = {}


class Launches:
    """instructions: executed so far, by class. findings: all, at most one of a kind and kernel.

    witnessed: launches are run twice, with different garbage in registers and shared memory, as long as they are
    small, to find what is used and never written.
    """

    def __init__(self, target: str, witnessed: bool = False, seed: int | None = None) -> None:
        self.target, self.witnessed, self.seed = target, witnessed, seed
        self.count = 0
        self.instructions: dict[str, int] = {}
        self.findings: list[KernelFinding] = []

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
        """tensors: what each pointer is of, by the name that messages use. Raises EmulatedFault and NoDevice."""
        memory = allocations(tensors)
        before = [one.bytes.copy() for one in memory] if self.witnessed else []
        first = Witness() if self.witnessed else None
        outcome = run(
            image, kernel, grid, block, arguments, memory,
            shared_bytes=shared_bytes, assembly=assembly, seed=self.seed, fill=1, witness=first,
        )  # fmt: skip
        self._keep(outcome)
        if first is not None and outcome.clean:
            after = [one.bytes.copy() for one in memory]
            for one, was in zip(memory, before):
                one.bytes[:] = was
            second = Witness(first)
            run(image, kernel, grid, block, arguments, memory, shared_bytes=shared_bytes, fill=2, witness=second,
                seed=self.seed)  # fmt: skip
            for one, was in zip(memory, after):
                one.bytes[:] = was
            if second.differs is not None:
                self.findings.append(second.differs)
                raise EmulatedFault(str(second.differs))

    def _keep(self, outcome: LaunchOutcome) -> None:
        """Add up an outcome. Raises EmulatedFault and NoDevice."""
        self.count += 1
        for name, number in outcome.instructions.items():
            self.instructions[name] = self.instructions.get(name, 0) + number
        self.findings += outcome.findings
        if outcome.findings:
            raise EmulatedFault(str(outcome.findings[0]))
        if outcome.not_emulated is not None:
            raise NoDevice(outcome.not_emulated)


def allocations(tensors: Sequence[tuple[str, torch.Tensor]]) -> list[Allocation]:
    """The storages of the tensors that a kernel is given: all it may touch."""
    found: list[Allocation] = []
    for name, tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found.append(of_pointer(storage.data_ptr(), storage.nbytes(), name))
    return found
