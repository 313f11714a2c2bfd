"""What came of compiling one submission for one target: the document that a compiling process prints, as a value.

    python3 -m harness.offline.cross_compile   Triton kernels  ┐
    python3 -m harness.offline.inline          HIP and CUDA    ┴─► one JSON document ─► read() ─► Compilation

The process runs the submission's own code, so the document is only as good as the submission's word: it informs its
author and decides nothing. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.model import Text


class Document(BaseModel):
    """Frozen; what a later version adds is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Flaw(Document):
    """Why something does not compile or cannot be followed; `line` is the submission's, where it is known."""

    message: Text
    line: int | None = None


class Occupancy(Document):
    """Waves that a SIMD (on NVIDIA: warps that a multiprocessor) holds at once, of how many, and what limits them."""

    waves_per_simd: float
    of: float
    limited_by: str


class CompiledKernel(Document):
    """One kernel in one configuration. Registers are counted a thread (SGPRs a wave), bytes of LDS a block.

    vgprs, agprs, sgprs on AMD, registers on NVIDIA. spills: registers on AMD, bytes on NVIDIA. scratch_bytes: private
    memory a thread. cases: the labels of those that launch it so; none where it was compiled and never launched.
    Resources are None where `fault` says that there is no code.
    """

    kernel: str
    line: int | None = None
    configuration: dict[str, Any] = {}
    cases: tuple[str, ...] = ()
    vgprs: int | None = None
    agprs: int | None = None
    sgprs: int | None = None
    registers: int | None = None
    spills: int | None = None
    scratch_bytes: int | None = None
    lds_bytes: int | None = None
    lds_limit: int | None = None
    matrix_instructions: dict[str, int] = {}
    occupancy: Occupancy | None = None
    fault: Flaw | None = None


class Compilation(Document):
    """One submission, compiled for one target. `hip`: inline HIP or CUDA, which nothing here runs.

    fault: why the whole could not be compiled. missing: what is to be installed first; then there are no kernels.
    """

    target: str
    triton: str | None = None
    compiler: str | None = None
    kernels: tuple[CompiledKernel, ...] = ()
    fault: Flaw | None = None
    launches: int = 0
    hip: bool = False
    missing: str | None = None
    cached: bool = False

    @property
    def flaws(self) -> tuple[Flaw, ...]:
        """All that keeps the submission from compiling, each said once."""
        every = [self.fault, *(kernel.fault for kernel in self.kernels)]
        return tuple(dict.fromkeys(flaw for flaw in every if flaw is not None))


def read(text: str) -> Compilation | None:
    """The document in the last line that a process printed, whatever came before it; None if there is none."""
    lines = text.strip().splitlines()
    for candidate in (text, lines[-1] if lines else ""):
        try:
            return Compilation.model_validate_json(candidate)
        except ValidationError:
            continue
    return None
