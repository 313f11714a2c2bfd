"""What an emulated run ends with: counts, findings, or why it could not go on.

KernelFinding       what is wrong with a kernel, with the instruction, the source line and the lane
NotEmulated   the emulator cannot tell: an instruction, a mode or a form of code that it does not know
NoInstruction the same of bytes that may be no instruction at all
Malformed     the code object is none, or says of itself what cannot be
LaunchRefused       a launch that the chip would not do
LaunchOutcome       what `run` returns
"""

from __future__ import annotations

from dataclasses import dataclass, field

OUT_OF_RANGE = "out-of-range access"
ENDLESS = "endless loop"
BARRIER = "barrier not reached by all waves"
RACE = "race in shared memory"
UNINITIALISED = "uninitialised value"
DIVERGENT = "barrier that some lanes of a wave skip"
ORDER = "depends on the order of waves"
ORDER_OF_WORKGROUPS = "depends on the order of workgroups"
BAD_JUMP = "jump outside the kernel"
ILLEGAL = "illegal instruction"

OF_THE_STRING = " of the source string"


def line_of(file: str | None, line: int) -> str:
    """A line as messages name it: that of a file, or of a string that harness.hip was given."""
    return f"line {line}{OF_THE_STRING}" if (file or "").endswith("source") else f"line {line}"


class NotEmulated(Exception):
    """The emulator does not know something that the kernel needs; no verdict on the kernel follows."""


class NoInstruction(NotEmulated):
    """Bytes that the tables know no instruction for: `word`, its first 4 bytes, at the kernel's byte `at`."""

    def __init__(self, message: str, word: int, at: int) -> None:
        super().__init__(message)
        self.word, self.at = word, at


class Malformed(Exception):
    """The bytes are no code object that a loader would take."""


class LaunchRefused(Exception):
    """A launch that is beyond what the chip can do: on a GPU it fails."""


@dataclass(frozen=True)
class KernelFinding:
    """One thing that is wrong. `kind` is one of this module's constants.

    instruction: the mnemonic. address: its byte offset in the kernel. line: of the source, None without a line table.
    workgroup: x, y, z. lane: of its wave; wave: of its workgroup; None where no single one is meant. chip: that was
    emulated. place: the byte of shared memory that a race is for.
    """

    kind: str
    message: str
    kernel: str = ""
    instruction: str = ""
    address: int = 0
    line: int | None = None
    file: str | None = None
    workgroup: tuple[int, int, int] | None = None
    wave: int | None = None
    lane: int | None = None
    chip: str = ""
    place: int | None = None

    def __str__(self) -> str:
        at = f", {line_of(self.file, self.line)}" if self.line else f", at 0x{self.address:x} of the kernel"
        who = f", workgroup {self.workgroup}" if self.workgroup is not None else ""
        who += f", wave {self.wave}" if self.wave is not None else ""
        who += f", lane {self.lane}" if self.lane is not None else ""
        who += f", {self.chip}" if self.chip else ""
        return f"{self.kind}: {self.kernel}: {self.message} ({self.instruction}{at}{who})"


class KernelFault(Exception):
    """A finding that ends the run."""

    def __init__(self, finding: KernelFinding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass
class LaunchOutcome:
    """What became of a launch.

    findings: all that is wrong, at most one of a kind and instruction. remarks: what is no fault on hardware. refused:
    why the chip would not do the launch, or None. not_emulated: why the run stopped without a verdict, or None.
    instructions: instructions that waves executed, by class (matrix, vector, scalar, LDS, global).
    by_line: the same by source line. atomics: which ones on global memory were executed that do not commute. longest:
    how many instructions the busiest wave executed. lds: by source line how often LDS banks were asked, and how often
    without conflicts they would have been, if it was counted (see `banks`). cached: likewise how many cache lines of
    global memory were touched, and how few would have done (see `cache_lines`).
    """

    findings: list[KernelFinding] = field(default_factory=list)
    remarks: list[KernelFinding] = field(default_factory=list)
    refused: str | None = None
    not_emulated: str | None = None
    instructions: dict[str, int] = field(default_factory=dict)
    by_line: dict[tuple[str, int], int] = field(default_factory=dict)
    atomics: list[str] = field(default_factory=list)
    longest: int = 0
    lds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    cached: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Ran to the end, with nothing found."""
        return self.not_emulated is None and self.refused is None and not self.findings

    @property
    def total(self) -> int:
        """Instructions of all classes."""
        return sum(self.instructions.values())
