"""Reads an AMD code object: its kernels, their initial registers, arguments and source lines.

    CodeObject(bytes).kernel("scale") ─► KernelCode: descriptor, code, arguments, lines

Sources: LLVM's "User Guide for AMDGPU Backend": "Kernel Descriptor" (64 bytes in .rodata under NAME.kd), "Code Object
V5 Metadata" (MessagePack in a note), "Initial Kernel Execution State". Arbitrary bytes are accepted as input; invalid
ones raise Malformed.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field
from typing import Any

from harness.emulator.chips import CHIPS, called
from harness.emulator.findings import Malformed, NotEmulated
from harness.emulator.message_pack import MessagePack

NT_AMDGPU_METADATA = 32
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Argument:
    """One part of the kernel's argument segment. kind: "by_value", "global_buffer", "hidden_block_count_x", ..."""

    offset: int
    size: int
    kind: str
    name: str


@dataclass(frozen=True)
class KernelCode:
    """One kernel. base: the address of its code in the image. code: its bytes, to the end of its function."""

    name: str
    target: str
    base: int
    code: bytes
    wave_size: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    vgprs: int
    user_sgprs: int
    enabled: frozenset[str]
    """Names of the descriptor's bits that are set: "dispatch_ptr", "kernarg_segment_ptr", "workgroup_id_x", ..."""
    kernarg_preload: tuple[int, int]
    """The number of SGPRs that hold arguments at the start, and the first argument dword in them."""
    workitem_id: int
    """The highest of the work item's ids that is given: 0 is x, 1 is x and y, 2 is all."""
    float_mode: int
    ieee_mode: bool
    dx10_clamp: bool
    accum_offset: int
    arguments: tuple[Argument, ...]
    max_threads: int
    lines: dict[int, tuple[str, int]] = field(repr=False, default_factory=dict)
    """Byte offset of an instruction in `code` ─► file and line."""
    functions: dict[int, str] = field(repr=False, default_factory=dict)
    """Byte offset of each function of the code object, including this kernel ─► its symbol."""

    @property
    def rdna(self) -> bool:
        return CHIPS[self.target].rdna


@dataclass(frozen=True)
class _Descriptor:
    """The words of a kernel's descriptor (LLVM's AMDGPU usage guide, "Kernel Descriptor"). entry: from the descriptor
    to the code, in bytes."""

    lds: int
    scratch: int
    kernarg: int
    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload: int

    @classmethod
    def read(cls, kd: bytes) -> _Descriptor:
        lds, scratch, kernarg = struct.unpack_from("<III", kd, 0)
        (entry,) = struct.unpack_from("<q", kd, 16)
        rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", kd, 44)
        return cls(lds, scratch, kernarg, entry, rsrc1, rsrc2, rsrc3, properties, preload)

    @property
    def enabled(self) -> frozenset[str]:
        """What a wave finds in its scalar registers as it begins."""
        found = {word for bit, word in enumerate(_USER_REGISTERS) if self.properties >> bit & 1}
        found |= {word for bit, word in enumerate(_SYSTEM_REGISTERS) if word and self.rsrc2 >> bit & 1}
        return frozenset(found)


_USER_REGISTERS = (
    "private_segment_buffer",
    "dispatch_ptr",
    "queue_ptr",
    "kernarg_segment_ptr",
    "dispatch_id",
    "flat_scratch_init",
    "private_segment_size",
)
_SYSTEM_REGISTERS = (
    "private_segment",
    *[""] * 6,
    "workgroup_id_x",
    "workgroup_id_y",
    "workgroup_id_z",
    "workgroup_info",
)
"""By the bits of a descriptor."""


def _arguments(entry: dict[str, Any]) -> tuple[Argument, ...]:
    """Of a kernel, by its metadata."""
    return tuple(
        Argument(int(one[".offset"]), int(one[".size"]), str(one[".value_kind"]), str(one.get(".name", "")))
        for one in entry.get(".args", [])
    )


class CodeObject:
    """An ELF file for one of `CHIPS`. image: its loadable segments as they lie in memory, from address 0 on.
    variables: addresses and sizes of those that a kernel may write."""

    def __init__(self, data: bytes) -> None:
        """Raises Malformed, or NotEmulated for another chip."""
        try:
            self._read(data)
        except (Malformed, NotEmulated):
            raise
        except Exception as error:  # the ELF reader raises various errors for bytes that are not ELF
            raise Malformed(f"it is not a code object: {type(error).__name__}: {error}") from None

    def _read(self, data: bytes) -> None:
        from elftools.elf.constants import P_FLAGS
        from elftools.elf.elffile import ELFFile
        from elftools.elf.sections import SymbolTableSection

        if len(data) > MAX_BYTES:
            raise Malformed(f"a code object of {len(data):,} bytes is larger than {MAX_BYTES:,}")
        elf = ELFFile(io.BytesIO(data))
        if elf["e_machine"] != "EM_AMDGPU":
            raise Malformed("it is not for an AMD GPU")
        machine = elf["e_flags"] & 0xFF
        target = called(machine)
        if target is None:
            raise NotEmulated(f"its chip (e_flags 0x{machine:x}) is not emulated; {', '.join(CHIPS)} are")
        self.target = target
        loads = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        size = max((segment["p_vaddr"] + segment["p_memsz"] for segment in loads), default=0)
        if size > MAX_BYTES:
            raise Malformed(f"its image of {size:,} bytes is larger than {MAX_BYTES:,}")
        image = bytearray(size)
        for segment in loads:
            content = segment.data()
            image[segment["p_vaddr"] : segment["p_vaddr"] + len(content)] = content
        self.image = bytes(image)
        writable = [one for one in loads if one["p_flags"] & P_FLAGS.PF_W]
        self.variables = tuple((one["p_vaddr"], one["p_memsz"]) for one in writable)
        self.symbols: dict[str, tuple[int, int]] = {}
        self.functions: dict[int, str] = {}
        for section in elf.iter_sections():
            if isinstance(section, SymbolTableSection):
                for symbol in section.iter_symbols():
                    if symbol.name:
                        self.symbols[symbol.name] = symbol["st_value"], symbol["st_size"]
                        if symbol["st_info"]["type"] == "STT_FUNC":
                            self.functions[symbol["st_value"]] = symbol.name
        self.metadata = self._metadata(elf)
        self._lines = _lines(elf)

    @property
    def kernels(self) -> list[str]:
        """The names of its kernels."""
        return [str(entry.get(".name")) for entry in self.metadata.get("amdhsa.kernels", []) if isinstance(entry, dict)]

    def kernel(self, name: str) -> KernelCode:
        """The kernel `name`. Raises Malformed if there is none or if its data are impossible."""
        try:
            return self._kernel(name)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, struct.error) as error:
            raise Malformed(f"its data on {name} cannot be read: {type(error).__name__}: {error}") from None

    def _kernel(self, name: str) -> KernelCode:
        entries = [entry for entry in self.metadata.get("amdhsa.kernels", []) if entry.get(".name") == name]
        if not entries or name not in self.symbols:
            raise Malformed(f"it has no kernel {name}")
        entry = entries[0]
        at, _ = self.symbols[entry[".symbol"]]
        said = _Descriptor.read(self.image[at : at + 64])
        base, size = self.symbols[name]
        if at + said.entry != base:
            raise Malformed(f"{name}'s descriptor says that it begins at 0x{at + said.entry:x}, its symbol 0x{base:x}")
        if not 0 < size <= len(self.image) - base:
            raise Malformed(f"{name} ends outside the image")
        arguments = _arguments(entry)
        if any(one.offset < 0 or one.size < 0 or one.offset + one.size > said.kernarg for one in arguments):
            raise Malformed(f"{name} has arguments outside its {said.kernarg} bytes of them")
        if said.lds > 160 << 10 or said.scratch > 16 << 20 or said.kernarg > 1 << 16:
            asked = f"{said.lds:,} bytes of LDS, {said.scratch:,} of scratch, {said.kernarg:,} of arguments"
            raise Malformed(f"{name} asks for {asked}")
        cdna = not CHIPS[self.target].rdna
        wave_size = 64 if cdna else 32 if said.properties >> 10 & 1 else 64
        granule = 8 if cdna or wave_size == 32 else 4  # of gfx90a and later CDNA; RDNA in wave32 (LLVM, as above)
        return KernelCode(
            name=name,
            target=self.target,
            base=base,
            code=self.image[base : base + size],
            wave_size=wave_size,
            lds_bytes=said.lds,
            scratch_bytes=said.scratch,
            kernarg_bytes=said.kernarg,
            vgprs=((said.rsrc1 & 63) + 1) * granule,
            user_sgprs=said.rsrc2 >> 1 & 31,
            enabled=said.enabled,
            kernarg_preload=(said.preload & 127, said.preload >> 7) if cdna else (0, 0),
            workitem_id=said.rsrc2 >> 11 & 3,
            float_mode=said.rsrc1 >> 12 & 255,
            ieee_mode=bool(said.rsrc1 >> 23 & 1),
            dx10_clamp=bool(said.rsrc1 >> 21 & 1),
            accum_offset=((said.rsrc3 & 63) + 1) * 4 if cdna else 0,
            arguments=arguments,
            max_threads=int(entry.get(".max_flat_workgroup_size", 1024)),
            lines={address - base: line for address, line in self._lines.items() if base <= address < base + size},
            functions={address - base: other for address, other in self.functions.items()},
        )

    def _metadata(self, elf: Any) -> dict[str, Any]:
        for segment in elf.iter_segments():
            if segment["p_type"] != "PT_NOTE":
                continue
            for note in segment.iter_notes():
                if note["n_name"] == "AMDGPU" and note["n_type"] in (NT_AMDGPU_METADATA, "NT_AMDGPU_METADATA"):
                    content = note["n_descdata"]
                    read = MessagePack(content if isinstance(content, bytes) else content.encode("latin-1")).value()
                    if isinstance(read, dict):
                        return read
        raise Malformed("it has no metadata note")


def _lines(elf: Any) -> dict[int, tuple[str, int]]:
    """Address ─► file and line, for each row of the line table. Empty if the table is missing or broken."""
    found: dict[int, tuple[str, int]] = {}
    try:
        if not elf.has_dwarf_info():
            return found
        dwarf = elf.get_dwarf_info()
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            if program is None:
                continue
            files, first = program["file_entry"], 0 if program["version"] >= 5 else 1
            for row in program.get_entries():
                state = row.state
                if state is not None and not state.end_sequence and state.line:
                    number = state.file - first
                    name = files[number].name if 0 <= number < len(files) else b""
                    found[state.address] = (name.decode("utf-8", "replace"), state.line)
    except Exception:  # line numbers only improve messages
        return {}
    return found
