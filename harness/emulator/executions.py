"""Counts executed instructions: by unit of the chip, by source line, and the atomics among them."""

from __future__ import annotations

import re

from harness.emulator.arithmetic import Array
from harness.emulator.clocks import returns_atomic
from harness.emulator.decoding import Instruction
from harness.emulator.program import DecodedProgram


def class_of(instruction: Instruction) -> str:
    """The unit of the chip that executes an instruction: matrix, vector, scalar, LDS or global."""
    name = instruction.mnemonic
    if name.startswith(("v_mfma", "v_wmma", "v_smfmac")):
        return "matrix"
    if name.startswith("v_"):
        return "vector"
    if name.startswith("ds_"):
        return "LDS"
    return "scalar" if name.startswith("s_") else "global"


_ATOMIC = re.compile(r"_atomic_|^ds_(add|r?sub|inc|dec|min|max|and|or|xor|pk_add|wrxchg|storexchg|cmpst|cmpstore)_")
_COMMUTES = re.compile(
    r"_atomic_(?:p?k?_?)(add|sub|[su]?min|[su]?max|and|or|xor)(?:_[uib]\d+)?(?:_x2)?$"
    r"|^ds_(add|sub|min|max|and|or|xor)_[uib]\d+$"
)


def _by_order(one: Instruction) -> bool:
    """True for an atomic whose result depends on the order. Integer atomics that return nothing and commute leave the
    same result in any order."""
    if not _ATOMIC.search(one.mnemonic):
        return False
    return returns_atomic(one) or not _COMMUTES.search(one.mnemonic)


def tally(program: DecodedProgram, counts: Array) -> tuple[dict[str, int], dict[tuple[str, int], int], list[str]]:
    """Executed instructions by class and by source line, and the executed atomics that do not commute."""
    by_class: dict[str, int] = {}
    atomics: dict[str, None] = {}
    by_line: dict[tuple[str, int], int] = {}
    for one, count in zip(program.instructions, counts):
        if count:
            if _by_order(one):
                atomics[one.mnemonic] = None
            by_class[class_of(one)] = by_class.get(class_of(one), 0) + int(count)
            if one.line:
                by_line[one.line] = by_line.get(one.line, 0) + int(count)
    return by_class, by_line, list(atomics)
