"""What came of compiling one submission for one target: the document that a compiling process prints, as a value.

    python3 -m harness.compile.cross_compile   Triton kernels  ┐
    python3 -m harness.compile.inline          HIP and CUDA    ┴─► one JSON document ─► read() ─► Compilation

The process runs the submission's own code, so the document is only as good as the submission's word: it informs its
author and decides nothing. It may be anything: what is no such document counts as none, numbers and texts have bounds,
and no text obeys a terminal. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harness.model import Text

MAX_TEXT = 2000
MAX_KERNELS = 10_000

Said = Annotated[Text, AfterValidator(lambda text: text[:MAX_TEXT])]
Line = Annotated[int, Field(ge=1, le=1 << 31)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Number = Annotated[float, Field(ge=0, le=1 << 53, allow_inf_nan=False)]
Integer = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
Scalar = bool | Integer | float | Said | None
"""A parameter's value, as `triton_compiler.readable` puts it."""


class Document(BaseModel):
    """Frozen; what a later version adds is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Flaw(Document):
    """Why something does not compile or cannot be followed; `line` is the submission's, where it is known."""

    message: Said
    line: Line | None = None


class OccupancyDocument(Document):
    """Waves that a SIMD (on NVIDIA: warps that a multiprocessor) holds at once, of how many, and what limits them."""

    waves_per_simd: Number
    of: Number
    limited_by: Said


class CompiledKernel(Document):
    """One kernel in one configuration. Registers are counted a thread (SGPRs a wave), bytes of LDS a block.

    arguments: of those that are no constexpr the type, and what Triton knows of the value ("*bf16, 16-aligned").
    vgprs, agprs, sgprs on AMD, registers on NVIDIA. spills: registers on AMD, bytes on NVIDIA. scratch_bytes: private
    memory a thread. cases: the labels of those that launch it so; none where it was compiled and never launched.
    Resources are None where `fault` says that there is no code.
    """

    kernel: Said
    line: Line | None = None
    configuration: dict[Said, Scalar] = {}
    arguments: dict[Said, Said] = {}
    cases: tuple[Said, ...] = ()
    vgprs: Count | None = None
    agprs: Count | None = None
    sgprs: Count | None = None
    registers: Count | None = None
    spills: Count | None = None
    scratch_bytes: Count | None = None
    lds_bytes: Count | None = None
    lds_limit: Count | None = None
    matrix_instructions: dict[Said, Count] = {}
    occupancy: OccupancyDocument | None = None
    fault: Flaw | None = None


class Compilation(Document):
    """One submission, compiled for one target. `hip`: inline HIP or CUDA, which nothing here runs.

    fault: why the whole could not be compiled. missing: what is to be installed first; refusal: that the sources are
    for other targets; then there are no kernels.
    """

    target: Said
    triton: Said | None = None
    compiler: Said | None = None
    kernels: tuple[CompiledKernel, ...] = Field(default=(), max_length=MAX_KERNELS)
    fault: Flaw | None = None
    launches: Count = 0
    hip: bool = False
    missing: Said | None = None
    refusal: Said | None = None
    cached: bool = False

    @property
    def skipped(self) -> Said | None:
        """Why nothing was compiled, which is no fault."""
        return self.refusal or self.missing

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
