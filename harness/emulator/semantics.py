"""What an instruction does: AMD's pseudocode, or handwritten where that is prose, wrong or too slow.

    of(instruction, target, bits of its D0) ─► Semantics; raises NotEmulated with the instruction's place

`CORRECTIONS` lists each instruction whose pseudocode is wrong, with the evidence. `WRITTEN` also has instructions whose
pseudocode cannot be translated (functions, other lanes' modes, 65 bits).
"""

from __future__ import annotations

import functools
import re
from typing import Any

from harness.emulator.chips import CHIPS
from harness.emulator.conversions import WRITTEN  # those of `handwritten` and `division`, and its own
from harness.emulator.decoding import Instruction, spelled
from harness.emulator.findings import NotEmulated
from harness.emulator.handwritten import Apply
from harness.emulator.pseudocode import Semantics, translated
from harness.emulator.terms import Untranslatable

CORRECTIONS = {
    "v_div_scale_f32": "The pseudocode begins with VCC = 0 for the whole wave and compares with DENORM as if it were a "
    "number. It means the lane's bit, and `is a denormal`. D0 is S0 if no branch scales. If both 1/S1 and S2/S1 are "
    "denormals, S1 is near the largest float and 2^64 times it is infinite: 2^-64 is meant. With these corrections "
    "LLVM's division is correctly rounded, denormals included (tests/test_emulator_instructions.py).",
    "v_div_fmas_f32": "2^32 does not undo v_div_scale's 2^64. The scale is 2^64 or 2^-64, by the exponent of S2. "
    "Evidence as above.",
    "v_div_fixup_f32": "32'F(0xffc00000) is a bit pattern, not a number. UNDERFLOW and OVERFLOW are results: zero and "
    "infinity when rounding to nearest even. A quotient that overflows arrives as NaN. Evidence as above.",
    "v_div_scale_f64": "as v_div_scale_f32, with 2^128",
    "v_div_fmas_f64": "as v_div_fmas_f32, with 2^128",
    "v_div_fixup_f64": "as v_div_fixup_f32",
    "v_div_fixup_f16": "16'F(0xfe00) is a bit pattern, not a number.",
    "v_rndne_f32": "floor(x + 0.5) rounds 0.49999997 and odd numbers from 2^23 on to the wrong integer; rint is meant "
    "by the instruction's title, `round to nearest even integer`.",
    "v_rndne_f16": "as v_rndne_f32",
    "v_rndne_f64": "as v_rndne_f32",
    "v_ldexp_f32": "S0 * 2 ** S1 overflows if the power is out of range, even if the product is not.",
    "v_ldexp_f16": "as v_ldexp_f32",
    "v_ldexp_f64": "as v_ldexp_f32",
    "v_rsq_f16": "1 / sqrt(S0) would be rounded twice, for which the hardware's 1 ulp leaves no room.",
    "v_fract_f32": "S0 - floor(S0) rounds to 1 for a small negative number. LLVM uses the instruction for "
    "min(x - floor(x), the largest number below 1) (AMDGPUCodeGenPrepare.cpp, matchFractPat).",
    "v_fract_f16": "as v_fract_f32",
    "v_fract_f64": "as v_fract_f32",
    "v_frexp_exp_i32_f32": "The exponent field of zero and of denormals is not their power of two. By its title the "
    "instruction is C's frexp, and LLVM compiles frexp to it.",
    "v_frexp_exp_i16_f16": "as v_frexp_exp_i32_f32",
    "v_frexp_exp_i32_f64": "as v_frexp_exp_i32_f32",
    "v_lerp_u8": "The sum of two bytes has nine bits. A sum of byte slices would lose the highest.",
    "v_cvt_pk_u16_u32": "u32_to_u16 saturates: LLVM uses v_cvt_pk_i16_i32 as a clamp "
    "(AMDGPUPreLegalizerCombiner.cpp, matchClampI64ToI16).",
    "v_cvt_pk_i16_i32": "as v_cvt_pk_u16_u32",
    "v_fmac_dx9_zero_f32": "S2 is D0: the instruction has no third operand.",
    "v_cvt_f32_bf16": "32'F({ S0.b16, 16'0 }) would convert the bit pattern as an integer.",
    "s_brev_b32": "The slice [0 : 31] means bits in reverse.",
}
"""Pseudocode that is not followed, and the evidence that it is wrong."""


@functools.cache
def _pcode(architecture: str) -> dict[Any, str]:
    if architecture == "cdna":
        from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE
    else:
        from tinygrad.runtime.autogen.amd.rdna3.str_pcode import PCODE
    return dict(PCODE)


@functools.cache
def _by_name(architecture: str) -> dict[str, str]:
    """The pseudocode by mnemonic. CDNA's v_floor_f32_e64 has its own key, but its pseudocode is under
    v_floor_f32_e32."""
    return {spelled(op): code for op, code in _pcode(architecture).items() if op.name.startswith("V_")}


@functools.cache
def of_mnemonic(mnemonic: str, op: Any, target: str, d0_bits: int) -> Semantics:
    """The semantics of a mnemonic. Raises NotEmulated with the mnemonic."""
    if mnemonic in WRITTEN:
        reads, writes, apply = WRITTEN[mnemonic]
        if "TARGET" in reads:
            apply = functools.partial(apply, target=target)
        return Semantics(reads, writes, by_name(apply), "")
    architecture = CHIPS[target].tables
    code = _pcode(architecture).get(op) or _by_name(architecture).get(mnemonic)
    if code is None:
        raise NotEmulated(mnemonic)
    if mnemonic.startswith("v_cmpx"):
        code = re.sub(r"EXEC\.u64\[laneId\] = (D0\.u64\[laneId\] = )?", "D0.u64[laneId] = ", code)
        code = re.sub(r"EXEC\.u64\[laneId\] = D0\.u64\[laneId\]", "", code)
    if "saveexec" in mnemonic or "wrexec" in mnemonic:
        raise NotEmulated(mnemonic)
    try:
        return translated(code, d0_bits=d0_bits)
    except Untranslatable:
        raise NotEmulated(mnemonic) from None


def by_name(apply: Apply) -> Apply:
    def call(
        S0: Any, S1: Any, S2: Any, D0: Any, SCC: Any, VCC: Any, EXEC: Any, SIMM: Any, LANE: Any, OPSEL: Any
    ) -> Any:
        return apply(S0=S0, S1=S1, S2=S2, D0=D0, SCC=SCC, VCC=VCC, SIMM=SIMM, LANE=LANE, OPSEL=OPSEL)

    return call


def of(instruction: Instruction, target: str, d0_bits: int) -> Semantics:
    """The semantics of a decoded instruction. Raises NotEmulated with its place."""
    try:
        return of_mnemonic(instruction.mnemonic, instruction.op, target, d0_bits)
    except NotEmulated:
        raise NotEmulated(instruction.where().replace(",", " is not emulated,", 1)) from None
