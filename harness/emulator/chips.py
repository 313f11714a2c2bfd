"""The chips that are emulated: how a code object names them, whose tables theirs are, and what those have too much.

    lacks("gfx1100", "s_add_f32")  ─► True: the scalar floats came with RDNA 3.5

A table serves a family of chips, and has the instructions of its later ones. So says LLVM's assembler for each chip
("instruction not supported on this GPU"), which is asked for every mnemonic of the tables in
tests/test_emulator_chips.py.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class EmulatedChip:
    """machine: e_flags & 0xff of its code objects (EF_AMDGPU_MACH_AMDGCN_*, LLVM's BinaryFormat/ELF.h). tables: which
    of tinygrad's are its own. lds_bytes: what a block may have of shared memory. lacking: a regular expression that
    begins the mnemonics that it does not have."""

    machine: int
    tables: str
    lds_bytes: int
    lacking: str

    @property
    def rdna(self) -> bool:
        return self.tables.startswith("rdna")


CHIPS = {
    "gfx942": EmulatedChip(
        machine=0x4C,
        tables="cdna",
        lds_bytes=64 << 10,
        lacking=r"""v_bitop3 | v_ashr_pk | v_prng | v_cvt_(f32_bf16|pk_b?f16_f32|sr_b?f16_f32|scalef32)
            | v_dot2c?_f32_bf16 | v_(pk_)?(max|min)imum3 | v_permlane(16|32)_swap | v_mfma_.*f8f6f4 | v_mfma_ld_scale
            | v_mfma_f32_(16x16x32|32x32x16)_b?f16$ | v_mfma_i32_(16x16x64|32x32x32)_i8
            | v_smfmac_\w+_(16x16x128|32x32x64)_ | v_smfmac_f32_(16x16x64|32x32x32)_b?f16 | ds_read_b\d+_tr_
            | global_load_lds_dwordx | buffer_atomic_pk_add_bf16 | s_set_valu_coexec_mode""",
    ),
    "gfx950": EmulatedChip(
        machine=0x4F,
        tables="cdna",
        lds_bytes=160 << 10,
        lacking=r"v_mfma_f32_\w+_xf32 | s_set_valu_coexec_mode",  # xf32 is of the earlier chip
    ),
    "gfx1100": EmulatedChip(
        machine=0x41,
        tables="rdna3",
        lds_bytes=64 << 10,
        lacking=r"""s_(add|sub|mul|min|max|fmac|fmaak|fmamk|ceil|floor|trunc|rndne)_f(16|32) | s_cmp_\w+_f(16|32)
            | s_cvt_ | \w+_load_lds_ | flat_atomic_csub""",
    ),
}


def called(machine: int) -> str | None:
    """The chip that a code object is for, if it is emulated."""
    return next((name for name, chip in CHIPS.items() if chip.machine == machine), None)


@functools.cache
def lacks(target: str, mnemonic: str) -> bool:
    """Whether a chip has no such instruction, though its table does."""
    return re.match(CHIPS[target].lacking, mnemonic, re.VERBOSE) is not None
