"""What a worker on a CPU does with kernels that need a GPU: interpret Triton's, emulate a chip, or neither."""

from __future__ import annotations

from dataclasses import dataclass

from harness.chips.targets import EMULATED_TARGET
from harness.model import Limits

LONGER_CALLS = 5.0
"""So many times longer may a call take in which Triton's kernels run as machine code: calls that
compile mla/triton_mxfp4_dot_scaled for gfx1100 take 24 and 33 s of a processor beside the emulator (2026-11-23)."""


SHARE_OF_A_WAVE = 0.5
"""Of a call's limit: so much processor time may pass in a launch in which no wave ends. A kernel that needs more is run
up to three times, and would not end within the call."""


@dataclass(frozen=True)
class Emulation:
    """target: the chip that harness.hip's kernels are emulated for; None where they are not run. triton: Triton's
    kernels too, as the machine code that LLVM makes for it, and not in the interpreter."""

    target: str | None = EMULATED_TARGET
    triton: bool = False

    def of(self, source: str) -> str | None:
        """The chip that a worker emulates for `source`; None where it sets no emulator up."""
        return self.target if "harness.hip" in source or (self.triton and "triton" in source) else None

    def prepare(self, source: str) -> None:
        """Before a worker starts: have the emulator's inner loops compiled, where `source` would be emulated."""
        if self.of(source) is not None:
            from harness.emulator import available, native

            if available() is None:
                native.build()

    def limits(self, limits: Limits) -> Limits:
        """Triton compiles its kernels within a call: for a chip that may take most of a minute."""
        if not self.triton:
            return limits
        return limits.model_copy(update={"call_s": min(LONGER_CALLS * limits.call_s, limits.evaluation_s)})

    def environment(self, limits: Limits) -> dict[str, str]:
        """How the worker is told. limits: those of its session."""
        told = {} if self.triton else {"TRITON_INTERPRET": "1"}
        if self.target is not None:
            told["PODIUM_EMULATE"] = self.target
            told["PODIUM_EMULATE_WAVE_S"] = str(SHARE_OF_A_WAVE * limits.call_s)
            if self.triton:
                told["PODIUM_EMULATE_TRITON"] = "1"
        return told


EMULATION = Emulation()
"""As `eval` does it."""
