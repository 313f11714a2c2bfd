"""Decodes bytes to instructions by tinygrad's tables, and checks the result against the compiler's assembly.

    decode(kernel)            ─► Instruction, Instruction, ..: offset, size, mnemonic, encoding, fields
    hold(decoded, assembly)      raises NotEmulated at the first instruction that the compiler spelt otherwise

The tables have faults (see `_format`). Without the check, a wrongly decoded program might run. Mnemonics have no suffix
for their encoding: v_add_f32 stands for v_add_f32_e32, _e64, _dpp and _sdwa.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.command import how_to_get_offline
from harness.emulator.chips import CHIPS, lacks
from harness.emulator.code_object import KernelCode
from harness.emulator.findings import NoInstruction, NotEmulated, line_of

SPELT = {
    "v_accvgpr_read": "v_accvgpr_read_b32",
    "v_accvgpr_write": "v_accvgpr_write_b32",
    "v_accvgpr_mov": "v_accvgpr_mov_b32",
    "v_mad_mix_f32": "v_fma_mix_f32",
    "v_mad_mixlo_f16": "v_fma_mixlo_f16",
    "v_mad_mixhi_f16": "v_fma_mixhi_f16",
}
"""The names in the tables that the compiler spells otherwise. The emulated chips have fma where older ones have mad
(LLVM, FeatureFmaMixInsts)."""

PADDING = ("s_nop", "s_code_end", "s_endpgm")


@dataclass(frozen=True)
class Instruction:
    """One instruction. offset, size: bytes in the kernel. encoding: the name of tinygrad's class ("VOP2_DPP16").

    fields: the fields of the encoding; registers are numbers in the 9-bit space of sources (VGPRs from 256). op: the
    key in the tables of pseudocode and operands. op_y, mnemonic_y: the same for the second half of a dual instruction.
    raw: its bytes.
    """

    offset: int
    size: int
    mnemonic: str
    encoding: str
    fields: dict[str, int]
    op: Any
    line: tuple[str, int] | None = None
    op_y: Any = None
    mnemonic_y: str = ""
    raw: bytes = b""

    @property
    def spelt(self) -> str:
        return f"{self.mnemonic} :: {self.mnemonic_y}" if self.mnemonic_y else self.mnemonic

    def where(self) -> str:
        """The instruction and its place, for messages."""
        return f"{self.spelt}, " + (line_of(*self.line) if self.line else f"at 0x{self.offset:x} of the kernel")


def available() -> str | None:
    """The reason why nothing can be decoded here, with a remedy. None if it can."""
    import importlib.util

    found = all(importlib.util.find_spec(name) for name in ("tinygrad", "elftools"))
    return None if found else f"the decoder (tinygrad, pyelftools) is not installed; run `{how_to_get_offline()}`"


def decode(kernel: KernelCode) -> list[Instruction]:
    """The instructions of a kernel. Raises NoInstruction for bytes that the tables do not know or the kernel's chip
    lacks."""
    found: list[Instruction] = []
    at, line = 0, None
    while at + 4 <= len(kernel.code):
        line = kernel.lines.get(at, line)
        try:
            instruction = _placed(kernel.code[at : at + 24], at, CHIPS[kernel.target].tables, line)
        except Exception:  # the tables raise what they like at bytes that they do not know
            word = int.from_bytes(kernel.code[at : at + 4], "little")
            what = f"the word 0x{word:08x} at 0x{at:x} of {kernel.name} is not a known instruction"
            raise NoInstruction(what, word, at) from None
        for name in filter(None, (instruction.mnemonic, instruction.mnemonic_y)):
            if lacks(kernel.target, name):
                word = int.from_bytes(kernel.code[at : at + 4], "little")
                what = f"the {name} at 0x{at:x} of {kernel.name} is not an instruction of {kernel.target}"
                raise NoInstruction(what, word, at)
        found.append(instruction)
        at += instruction.size
    return found


def mnemonics(assembly: str, name: str) -> list[str]:
    """The mnemonics of one function in an assembly file, in order, without suffixes for encodings.

    ".p2align 8" stands for the s_nop up to the next multiple of 256 bytes.
    """
    body = re.search(rf"^{re.escape(name)}:(.*?)^\.Lfunc_end", assembly, re.DOTALL | re.MULTILINE)
    found = []
    for line in (body[1] if body else "").splitlines():
        text = line.partition(";")[0].strip()
        if aligned := re.match(r"\.p2align\s+(\d+)", text):
            found.append(f".p2align {aligned[1]}")
        if text and not text.startswith((".", "#", "//")) and not text.endswith(":"):
            halves = [half.split()[0] for half in text.split(" :: ")]
            found.append(" :: ".join(_plain(half) for half in halves))
    return found


def hold(decoded: Sequence[Instruction], assembly: str, kernel: KernelCode) -> None:
    """Raises NotEmulated if the decoded mnemonics differ from those of the assembly.

    This also finds wrong lengths, because the code after one is decoded from the middle of an instruction.
    """
    stated = mnemonics(assembly, kernel.name)
    if not stated:
        raise NotEmulated(f"the compiler's assembly has no {kernel.name}")
    at = 0
    for theirs in stated:
        if theirs.startswith(".p2align"):
            while at < len(decoded) and decoded[at].offset % (1 << min(int(theirs.split()[1]), 16)):
                if decoded[at].mnemonic not in PADDING:
                    raise NotEmulated(f"{kernel.name}: {decoded[at].where()} stands where the compiler left a gap")
                at += 1
            continue
        mine = decoded[at].spelt if at < len(decoded) else "nothing"
        if mine != theirs:
            raise NotEmulated(f"{kernel.name}: instruction {at} is {mine} as decoded and {theirs} to the compiler")
        at += 1
    if any(one.mnemonic not in PADDING for one in decoded[at:]):
        raise NotEmulated(f"{kernel.name}: {len(decoded)} instructions decoded, {at} in the assembly")


def _plain(mnemonic: str) -> str:
    return re.sub(r"(_e32|_e64)?(_dpp|_sdwa)?$", "", mnemonic.lower())


def spelled(op: Any) -> str:
    """The mnemonic for a key of the tables, in the form of `Instruction.mnemonic`."""
    name = re.sub(r"_(E32|E64)$", "", op.name).lower()
    return SPELT.get(name, name)


_known: dict[tuple[str, bytes], Instruction] = {}
"""All instructions decoded in this process. Kernels made from one source share most of their instructions."""


def _placed(data: bytes, at: int, architecture: str, line: tuple[str, int] | None) -> Instruction:
    """The first instruction of `data`. Its first 4 bytes tell whether it has more, and 8 bytes whether a literal
    follows. Only v_mfma_ld_scale_b32 is longer, and it is not cached."""
    for size in (4, 8, 12):
        held = _known.get((architecture, data[:size]))
        if held is not None:
            return dataclasses.replace(held, offset=at, line=line)
    made = _decoded(data, at, architecture, line)
    if made.size <= 12:
        _known[architecture, made.raw] = made
    return made


def _decoded(data: bytes, at: int, architecture: str, line: tuple[str, int] | None) -> Instruction:
    instruction = _format(data, architecture).from_bytes(data)
    encoding = type(instruction).__name__
    fields: dict[str, int] = {}
    for name, _ in instruction._fields:
        if name in ("op", "opx", "opy", "encoding", "seg"):
            continue
        value = getattr(instruction, name)
        fields[name] = value if isinstance(value, int) else value.offset
    size = _size(instruction, fields)
    if size > len(data):
        raise LookupError("the code ends within an instruction")
    if size > instruction._base_size:
        fields["literal"] = int.from_bytes(data[size - 4 : size], "little")
    if encoding.startswith("VOPD"):
        x, y = instruction.opx, instruction.opy
        return Instruction(at, size, spelled(x), encoding, fields, x, line, y, spelled(y), data[:size])
    return Instruction(at, size, spelled(instruction.op), encoding, fields, instruction.op, line, raw=data[:size])


def _size(instruction: Any, fields: dict[str, int]) -> int:
    """The size in bytes. An operand 255 means that a literal follows; the tables have no class for it in some
    encodings."""
    size: int = instruction._base_size
    if "literal" in fields or not type(instruction).__name__.startswith(("SOP", "VOP")):
        return size
    sources = ("src0", "src1", "src2", "ssrc0", "ssrc1", "srcx0", "srcy0")
    return size + 4 * any(fields.get(name) == 255 for name in sources)


@functools.cache
def _formats(architecture: str) -> list[tuple[int, int, Any]]:
    """The formats, each with the mask and value of the fixed bits in its first word. These rule most formats out
    quickly."""
    from tinygrad.renderer import amd
    from tinygrad.renderer.amd.dsl import FixedBitField

    formats = list(amd._load_formats()[architecture])
    if architecture == "rdna3":
        from tinygrad.runtime.autogen.amd.rdna3.ins import MUBUF

        formats.insert(0, MUBUF)
    found = []
    for candidate in formats:
        fixed = [one for _, one in candidate._fields if isinstance(one, FixedBitField) and one.lo < 32]
        mask = sum(int(one.mask) << one.lo for one in fixed)
        found.append((mask, sum(int(one.default) << one.lo for one in fixed), candidate))
    return found


def _format(data: bytes, architecture: str) -> Any:
    """tinygrad's choice of format, with corrections for faults of its list in 0.14.0.

    gfx950's VOP3PX2 is tried first, and only its second half is checked, so it would match any instruction before a
    v_mfma_*_f8f6f4. It must begin with v_mfma_ld_scale_b32 (0xD3AC). gfx1100's MUBUF is missing from the list.
    """
    from tinygrad.renderer import amd

    word = int.from_bytes(data[:4], "little")
    for mask, value, candidate in _formats(architecture):
        if word & mask == value and amd._matches(data, candidate):
            if candidate.__name__ == "VOP3PX2" and int.from_bytes(data[2:4], "little") != 0xD3AC:
                continue
            return candidate
    raise LookupError("unknown encoding")
