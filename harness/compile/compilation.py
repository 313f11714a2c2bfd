"""The result of compiling one submission for one target: the document that a compiling process prints.

    python3 -m harness.compile.cross_compile   Triton kernels  ┐
    python3 -m harness.compile.inline          HIP and CUDA    ┴─► one JSON document ─► read() ─► Compilation

The process runs the submission's own code, so the submission can forge the document. It informs the author and decides
nothing. `read` therefore accepts any text: an invalid document counts as none, numbers and texts are bounded, and
control characters for a terminal are removed. Nothing here imports torch.
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
"""A parameter's value, as `triton_compiler.readable` returns it."""


class Document(BaseModel):
    """A frozen model. Fields that a later version adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Flaw(Document):
    """The reason why something does not compile or cannot be followed. `line`: the submission's line, if known.
    `unfinished`: a compiler was stopped, so nobody knows whether it compiles. `refused`: the submission says that it is
    for another device (NoDevice)."""

    message: Said
    line: Line | None = None
    unfinished: bool = False
    refused: bool = False


class OccupancyDocument(Document):
    """The waves that fit on a SIMD at once (on NVIDIA: warps on a multiprocessor), the maximum, and the limiting
    resource."""

    waves_per_simd: Number
    of: Number
    limited_by: Said


class CompiledKernel(Document):
    """One kernel in one configuration. Registers are counted per thread (SGPRs per wave), bytes of LDS per block.

    `arguments`: the type of each argument that is no constexpr, and what Triton knows of its value ("*bf16,
      16-aligned"). `vgprs`, `agprs`, `sgprs`: on AMD only. `registers`: on NVIDIA only. `spills`: registers on AMD,
      bytes on NVIDIA.
    `autotuned`: an autotuner chooses among several configurations, of which this is one.
    `scratch_bytes`: private memory per thread. `cases`: the labels of the cases that launch it in this configuration;
      none if it was compiled but never launched. Resources are None if `fault` says that there is no code.
    """

    kernel: Said
    line: Line | None = None
    configuration: dict[Said, Scalar] = {}
    arguments: dict[Said, Said] = {}
    autotuned: bool = False
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
    """One submission, compiled for one target. `hip`: whether its kernels are inline HIP or CUDA.

    `fault`: the reason why the whole submission could not be compiled. `missing`: what must be installed first.
      `refusal`: the submission or its sources are for other targets. In these cases there are no kernels.
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
        """The reason why nothing was compiled, if that is not a fault."""
        return self.refusal or self.missing

    @property
    def flaws(self) -> tuple[Flaw, ...]:
        """All distinct flaws that keep the submission from compiling."""
        every = [self.fault, *(kernel.fault for kernel in self.kernels)]
        return tuple(dict.fromkeys(flaw for flaw in every if flaw is not None))

    def cases_with(self, flaw: Flaw) -> tuple[Said, ...]:
        """The labels of the cases that launch a kernel with this flaw."""
        return tuple(dict.fromkeys(case for kernel in self.kernels if kernel.fault == flaw for case in kernel.cases))


def read(text: str) -> Compilation | None:
    """Read the document in the last line of a process's output, whatever precedes it. Return None if there is none."""
    lines = text.strip().splitlines()
    for candidate in (text, lines[-1] if lines else ""):
        try:
            return Compilation.model_validate_json(candidate)
        except ValidationError:
            continue
    return None
