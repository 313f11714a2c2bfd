"""The results of an emulated run: counts, findings, or the reason why it stopped.

KernelFinding       a fault of a kernel, with the instruction, the source line and the lane
NotEmulated         the emulator does not know an instruction, a mode or a form of code: no verdict
NoInstruction       the same for bytes that may not be an instruction
Malformed           the code object is not valid
LaunchRefused       a launch that the chip would refuse
LaunchOutcome       the result of `run`
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
    """A line number for messages: of a file, or of a source string that harness.hip was given."""
    return f"line {line}{OF_THE_STRING}" if (file or "").endswith("source") else f"line {line}"


class NotEmulated(Exception):
    """The emulator does not know something that the kernel needs. This gives no verdict on the kernel."""


class NoInstruction(NotEmulated):
    """Bytes that are no instruction in the tables. `word`: its first 4 bytes. `at`: its byte offset in the kernel."""

    def __init__(self, message: str, word: int, at: int) -> None:
        super().__init__(message)
        self.word, self.at = word, at


class Malformed(Exception):
    """The bytes are not a code object that a loader would accept."""


class LaunchRefused(Exception):
    """A launch that exceeds the chip's limits. On a GPU it fails."""


@dataclass(frozen=True)
class KernelFinding:
    """One fault. `kind` is one of this module's constants.

    instruction: the mnemonic. address: its byte offset in the kernel. line: of the source, None without a line table.
    workgroup: x, y, z. wave: its number in the workgroup. lane: its number in the wave. They are None if no single one
    is meant. chip: the emulated chip. place: the byte of shared memory that a race is about.
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
    """The result of a launch.

    findings: all faults, at most one per kind and instruction. remarks: behaviour that is not a fault on hardware.
    refused: why the chip would refuse the launch, or None. not_emulated: why the run stopped without a verdict, or
    None.

    instructions: executed instructions, counted per wave, by class (matrix, vector, scalar, LDS, global). by_line: the
    same by source line. atomics: the executed atomics on memory that do not commute. longest: the number of
    instructions of the busiest wave. lds: LDS passes by source line, and the passes without conflicts, if counted (see
    `banks`). cached: likewise the touched cache lines of global memory, and the fewest possible (see `cache_lines`).
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
        """True if the launch ran to its end without a finding."""
        return self.not_emulated is None and self.refused is None and not self.findings

    @property
    def total(self) -> int:
        """The instructions of all classes together."""
        return sum(self.instructions.values())
