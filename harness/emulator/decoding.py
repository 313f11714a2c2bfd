"""From bytes to instructions, by tinygrad's tables, held against the assembly that the compiler printed.

    decode(kernel)            ─► Instruction, Instruction, ..: offset, size, mnemonic, encoding, fields
    hold(decoded, assembly)      raises NotEmulated at the first one that the compiler spelt otherwise

The tables have faults (see `_format`), so a decoder that is believed alone would run another program. A mnemonic here
has no suffix for its encoding: v_add_f32 for v_add_f32_e32, _e64, _dpp and _sdwa alike.
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
"""Of the tables' names those that the compiler spells otherwise. The chips that are emulated have fma where older ones
have mad (LLVM, FeatureFmaMixInsts)."""

PADDING = ("s_nop", "s_code_end", "s_endpgm")


@dataclass(frozen=True)
class Instruction:
    """One instruction. offset, size: bytes in the kernel. encoding: the name of tinygrad's class ("VOP2_DPP16").

    fields: the encoding's, registers as numbers in the 9-bit space of sources (VGPRs from 256 on). op: the key of the
    tables of pseudocode and operands; `op_y` and `mnemonic_y` of the second half of a dual instruction. raw: its bytes.
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
        """As messages name it."""
        return f"{self.spelt}, " + (line_of(*self.line) if self.line else f"at 0x{self.offset:x} of the kernel")


def available() -> str | None:
    """Why nothing can be decoded here, with what to do; None where it can."""
    import importlib.util

    found = all(importlib.util.find_spec(name) for name in ("tinygrad", "elftools"))
    return None if found else f"the decoder (tinygrad, pyelftools) is not installed; run `{how_to_get_offline()}`"


def decode(kernel: KernelCode) -> list[Instruction]:
    """Raises NoInstruction for bytes that are none by the tables, or none of the kernel's chip."""
    found: list[Instruction] = []
    at, line = 0, None
    while at + 4 <= len(kernel.code):
        line = kernel.lines.get(at, line)
        try:
            instruction = _placed(kernel.code[at : at + 24], at, CHIPS[kernel.target].tables, line)
        except Exception:  # the tables raise what they like at bytes that they do not know
            word = int.from_bytes(kernel.code[at : at + 4], "little")
            what = f"the word 0x{word:08x} at 0x{at:x} of {kernel.name} is no known instruction"
            raise NoInstruction(what, word, at) from None
        for name in filter(None, (instruction.mnemonic, instruction.mnemonic_y)):
            if lacks(kernel.target, name):
                word = int.from_bytes(kernel.code[at : at + 4], "little")
                what = f"the {name} at 0x{at:x} of {kernel.name} is no instruction of {kernel.target}"
                raise NoInstruction(what, word, at)
        found.append(instruction)
        at += instruction.size
    return found


def mnemonics(assembly: str, name: str) -> list[str]:
    """The mnemonics of one function of an assembly file, in its order, without suffixes for encodings.

    ".p2align 8" stands for as many s_nop as lead to the next multiple of 256 bytes.
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
    """Raises NotEmulated where the decoded mnemonics are not those of the assembly, one for one.

    A wrong length shows as well: what follows it is decoded from the middle of an instruction.
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
    """The mnemonic of a table's key, as `Instruction` has it."""
    name = re.sub(r"_(E32|E64)$", "", op.name).lower()
    return SPELT.get(name, name)


_known: dict[tuple[str, bytes], Instruction] = {}
"""What was decoded in this process: kernels made of one source have most of their instructions in common."""


def _placed(data: bytes, at: int, architecture: str, line: tuple[str, int] | None) -> Instruction:
    """The first instruction of `data`. Its first 4 bytes say whether it has more, and 8 whether a literal follows; but
    for v_mfma_ld_scale_b32, which is kept nowhere."""
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
    """An operand 255 is a literal that follows; the tables have no class for it in some encodings."""
    size: int = instruction._base_size
    if "literal" in fields or not type(instruction).__name__.startswith(("SOP", "VOP")):
        return size
    sources = ("src0", "src1", "src2", "ssrc0", "ssrc1", "srcx0", "srcy0")
    return size + 4 * any(fields.get(name) == 255 for name in sources)


@functools.cache
def _formats(architecture: str) -> list[tuple[int, int, Any]]:
    """Each with the mask and the value of the bits that it fixes in the first word, which rule most of them out."""
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
    """tinygrad's choice, but for three faults of its list in 0.14.0.

    gfx950's VOP3PX2 is tried first and only its second half is looked at, so that it swallows whatever stands before
    a v_mfma_*_f8f6f4; it begins with v_mfma_ld_scale_b32 (0xD3AC). gfx1100's MUBUF is missing from the list.
    """
    from tinygrad.renderer import amd

    word = int.from_bytes(data[:4], "little")
    for mask, value, candidate in _formats(architecture):
        if word & mask == value and amd._matches(data, candidate):
            if candidate.__name__ == "VOP3PX2" and int.from_bytes(data[2:4], "little") != 0xD3AC:
                continue
            return candidate
    raise LookupError("unknown encoding")
