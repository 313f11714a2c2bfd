"""What a worker on a CPU does with kernels that need a GPU: interpret Triton's, emulate a chip, or neither."""

from __future__ import annotations

from dataclasses import dataclass

from harness.chips.targets import EMULATED_TARGET


@dataclass(frozen=True)
class Emulation:
    """target: the chip that harness.hip's kernels are emulated for; None where they are not run. triton: Triton's
    kernels too, as the machine code that LLVM makes for it, and not in the interpreter."""

    target: str | None = EMULATED_TARGET
    triton: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """How the worker is told."""
        told = {} if self.triton else {"TRITON_INTERPRET": "1"}
        if self.target is not None:
            told["PODIUM_EMULATE"] = self.target
            if self.triton:
                told["PODIUM_EMULATE_TRITON"] = "1"
        return told


EMULATION = Emulation()
"""As `eval` does it."""
