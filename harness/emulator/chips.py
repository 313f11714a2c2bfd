"""Which instructions of the tables a chip lacks: they serve a family of chips, and have those of its later ones.

    lacks("gfx1100", "s_add_f32")  ─► True: the scalar floats came with RDNA 3.5

So says LLVM's assembler for each chip ("instruction not supported on this GPU"), which is asked for every mnemonic of
the tables in tests/test_emulator_chips.py.
"""

from __future__ import annotations

import functools
import re

_LATER = {
    "gfx942": r"""v_bitop3 | v_ashr_pk | v_prng | v_cvt_(f32_bf16|pk_b?f16_f32|sr_b?f16_f32|scalef32)
        | v_dot2c?_f32_bf16 | v_(pk_)?(max|min)imum3 | v_permlane(16|32)_swap | v_mfma_.*f8f6f4 | v_mfma_ld_scale
        | v_mfma_f32_(16x16x32|32x32x16)_b?f16$ | v_mfma_i32_(16x16x64|32x32x32)_i8
        | v_smfmac_\w+_(16x16x128|32x32x64)_ | v_smfmac_f32_(16x16x64|32x32x32)_b?f16 | ds_read_b\d+_tr_
        | global_load_lds_dwordx | buffer_atomic_pk_add_bf16 | s_set_valu_coexec_mode""",
    "gfx950": r"v_mfma_f32_\w+_xf32 | s_set_valu_coexec_mode",
    "gfx1100": r"""s_(add|sub|mul|min|max|fmac|fmaak|fmamk|ceil|floor|trunc|rndne)_f(16|32) | s_cmp_\w+_f(16|32)
        | s_cvt_ | \w+_load_lds_ | flat_atomic_csub""",
}
"""Regular expressions that begin a mnemonic. Of gfx950's one is of the earlier chip: it has no xf32 any more."""


@functools.cache
def lacks(target: str, mnemonic: str) -> bool:
    """Whether a chip has no such instruction, though its table does."""
    return re.match(_LATER[target], mnemonic, re.VERBOSE) is not None
