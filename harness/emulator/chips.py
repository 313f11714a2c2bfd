"""The emulated chips: their numbers in code objects, their tables, and the instructions of these that they lack.

    lacks("gfx1100", "s_add_f32")  ─► True: the scalar floats came with RDNA 3.5

A table serves a family of chips and includes instructions of later ones. The source for the missing instructions is
LLVM's assembler ("instruction not supported on this GPU"). tests/test_emulator_chips.py asks it for every mnemonic of
the tables.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class EmulatedChip:
    """machine: e_flags & 0xff of its code objects (EF_AMDGPU_MACH_AMDGCN_*, LLVM's BinaryFormat/ELF.h). tables: the
    name of its tables in tinygrad. lds_bytes: the most shared memory per block. lacking: a regular expression for the
    beginning of the mnemonics that it lacks."""

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
        lacking=r"v_mfma_f32_\w+_xf32 | s_set_valu_coexec_mode",  # the earlier chip has xf32
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
    """The emulated chip with this machine number, or None."""
    return next((name for name, chip in CHIPS.items() if chip.machine == machine), None)


@functools.cache
def lacks(target: str, mnemonic: str) -> bool:
    """True if a chip lacks an instruction that its table has."""
    return re.match(CHIPS[target].lacking, mnemonic, re.VERBOSE) is not None
