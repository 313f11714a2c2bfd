"""How a worker on a CPU runs kernels that need a GPU: in Triton's interpreter, in the emulator of a chip, or not at
all."""

from __future__ import annotations

from dataclasses import dataclass

from harness.chips.targets import EMULATED_TARGET
from harness.model import Limits

LONGER_CALLS = 5.0
"""Factor on the limit of a call if Triton's kernels run as machine code. Calls that compile mla/triton_mxfp4_dot_scaled
for gfx1100 take 24 and 33 processor seconds in addition to the emulation (2026-11-23)."""


SHARE_OF_A_WAVE = 0.5
"""Share of a call's limit: the processor time that a launch may take in which no wave ends. A kernel that needs more is
run up to three times and would not end within the call."""


@dataclass(frozen=True)
class Emulation:
    """target: the chip that the emulator runs harness.hip's kernels for; None: they do not run.
    triton: run Triton's kernels in the emulator too, as LLVM's machine code for the chip, instead of in the
    interpreter."""

    target: str | None = EMULATED_TARGET
    triton: bool = False

    def of(self, source: str) -> str | None:
        """The chip that a worker emulates for `source`, or None if it sets up no emulator."""
        return self.target if "harness.hip" in source or (self.triton and "triton" in source) else None

    def prepare(self, source: str) -> None:
        """Compile the emulator's inner loops if `source` will be emulated. Called before a worker starts."""
        if self.of(source) is not None:
            from harness.emulator import available, native

            if available() is None:
                native.build()

    def limits(self, limits: Limits) -> Limits:
        """The limits with more time for a call if Triton compiles for a chip: that may take most of a minute."""
        if not self.triton:
            return limits
        return limits.model_copy(update={"call_s": min(LONGER_CALLS * limits.call_s, limits.evaluation_s)})

    def environment(self, limits: Limits) -> dict[str, str]:
        """The environment variables that tell the worker. limits: those of its session."""
        told = {} if self.triton else {"TRITON_INTERPRET": "1"}
        if self.target is not None:
            told["PODIUM_EMULATE"] = self.target
            told["PODIUM_EMULATE_WAVE_S"] = str(SHARE_OF_A_WAVE * limits.call_s)
            if self.triton:
                told["PODIUM_EMULATE_TRITON"] = "1"
        return told


EMULATION = Emulation()
"""The default of `eval`."""
