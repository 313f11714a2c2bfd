"""A kernel's instructions, decoded once, and facts about them that hold for every wave.

DecodedProgram(kernel, base)     instructions, each made a step when first reached; branches; polling loads
"""

from __future__ import annotations

from harness.emulator import scalar
from harness.emulator.access import access
from harness.emulator.clocks import returns_atomic
from harness.emulator.code_object import KernelCode
from harness.emulator.decoding import Instruction, decode, hold
from harness.emulator.findings import ILLEGAL, KernelFault, KernelFinding, NoInstruction, NotEmulated
from harness.emulator.polls import polls
from harness.emulator.state import Rows, State
from harness.emulator.vector import Step, vector

_steps: dict[tuple[bytes, str, int, int, int], Step] = {}
"""All steps made in this process, by everything that a step depends on."""


class DecodedProgram:
    """base: the address of the code as the kernel sees it."""

    def __init__(self, kernel: KernelCode, base: int, assembly: str | None = None) -> None:
        """Raises NotEmulated if the decoded code contradicts the assembly, or if it cannot be decoded although there is
        an assembly: then the tables lack an instruction. Without an assembly, undecodable code raises KernelFault."""
        self.kernel, self.base = kernel, base
        try:
            self.instructions = decode(kernel)
        except NoInstruction as none:
            if assembly is not None:
                raise
            line = kernel.lines.get(none.at, (None, None))
            raise KernelFault(
                KernelFinding(
                    ILLEGAL, f"{kernel.target} has no such instruction", kernel.name, f"the word 0x{none.word:08x}",
                    none.at, line[1], line[0],
                )
            ) from None  # fmt: skip
        if assembly is not None:
            hold(self.instructions, assembly, kernel)
        self.index = {one.offset: number for number, one in enumerate(self.instructions)}
        self.steps: list[Step | None] = [None] * len(self.instructions)
        self.branches = [scalar.branch(one) for one in self.instructions]
        goals = {n: self.index.get(scalar.target(self.instructions[n]), -1) for n in self._branching()}
        self.polls = polls(self.instructions, goals)
        """Positions of loads that wait for a flag."""
        hears = {n for n, one in enumerate(self.instructions) if n in self.polls or returns_atomic(one)}
        self.waits = {n for n, goal in goals.items() if goal >= 0 and hears & set(range(goal, n))}
        self.ends = self._ends()

    def _branching(self) -> list[int]:
        return [number for number, test in enumerate(self.branches) if test is not None]

    def _ends(self) -> list[int]:
        """For each position: the end of the straight line from it, which is a steering instruction or the place before
        a branch goal."""
        goals = {scalar.target(self.instructions[number]) for number in self._branching()}
        ends = [0] * len(self.instructions)
        end = len(self.instructions)
        for number in reversed(range(len(self.instructions))):
            if self.steers(number):
                end = number
            ends[number] = end
            if self.instructions[number].offset in goals:
                end = number
        return ends

    def steers(self, number: int) -> bool:
        """True if an instruction does more than go on to the next."""
        name = self.instructions[number].mnemonic
        return self.branches[number] is not None or name in (
            "s_endpgm",
            "s_barrier",
            "s_setpc_b64",
            "s_swappc_b64",
            "s_call_b64",
            "s_endpgm_saved",
        )

    def step(self, number: int) -> Step:
        """The step of an instruction, made on first use. Raises NotEmulated with its name."""
        made = self.steps[number]
        if made is None:
            made = self._made(self.instructions[number])
            made = self.steps[number] = _polling(made) if number in self.polls else made
        return made

    def _made(self, one: Instruction) -> Step:
        if one.mnemonic in scalar.NOTHING:
            return lambda state, rows: None
        if one.mnemonic == "s_getpc_b64":
            return scalar.getpc(one, self.base)
        kernel = self.kernel
        key = (one.raw, kernel.target, kernel.vgprs, kernel.accum_offset, kernel.wave_size)
        if key not in _steps:
            _steps[key] = self._step_of(one)
        return _steps[key]

    def _step_of(self, one: Instruction) -> Step:
        try:
            if one.encoding.startswith("VOPD"):
                from harness.emulator.dual import dual

                return dual(one, self.kernel)
            if one.encoding.startswith("VOP"):
                return vector(one, self.kernel)
            if one.encoding.startswith("SOP"):
                return scalar.scalar(one, self.kernel)
            return access(one, self.kernel)
        except NotEmulated as error:
            text = str(error)
            raise NotEmulated(
                text if " is not emulated" in text else f"{text} is not emulated: {one.where()}"
            ) from None


def _polling(step: Step) -> Step:
    def poll(state: State, rows: Rows) -> None:
        if state.clocks is None:
            return step(state, rows)
        state.clocks.polling = True
        try:
            step(state, rows)
        finally:
            state.clocks.polling = False

    return poll
