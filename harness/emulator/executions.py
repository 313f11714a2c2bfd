"""What waves executed: by unit of the chip, by source line, and which atomics on global memory were among it."""

from __future__ import annotations

import re

from harness.emulator.arithmetic import Array
from harness.emulator.clocks import returns_atomic
from harness.emulator.decoding import Instruction
from harness.emulator.program import DecodedProgram


def class_of(instruction: Instruction) -> str:
    """matrix, vector, scalar, LDS or global: by what unit of the chip an instruction goes to."""
    name = instruction.mnemonic
    if name.startswith(("v_mfma", "v_wmma", "v_smfmac")):
        return "matrix"
    if name.startswith("v_"):
        return "vector"
    if name.startswith("ds_"):
        return "LDS"
    return "scalar" if name.startswith("s_") else "global"


def _commutes(one: Instruction) -> bool:
    """Whether an atomic on global memory leaves the same in any order: one on integers that returns nothing."""
    found = re.search(r"_atomic_(?:p?k?_?)(add|sub|[su]?min|[su]?max|and|or|xor)(?:_[uib]\d+)?(?:_x2)?$", one.mnemonic)
    return found is not None and not returns_atomic(one)


def tally(program: DecodedProgram, counts: Array) -> tuple[dict[str, int], dict[tuple[str, int], int], list[str]]:
    """Executed instructions by class and by source line, and which atomics that do not commute were among them."""
    by_class: dict[str, int] = {}
    atomics: dict[str, None] = {}
    by_line: dict[tuple[str, int], int] = {}
    for one, count in zip(program.instructions, counts):
        if count:
            if "_atomic_" in one.mnemonic and not _commutes(one):
                atomics[one.mnemonic] = None
            by_class[class_of(one)] = by_class.get(class_of(one), 0) + int(count)
            if one.line:
                by_line[one.line] = by_line.get(one.line, 0) + int(count)
    return by_class, by_line, list(atomics)
