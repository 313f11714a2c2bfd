"""Scalar arithmetic of the emulator: each instruction's result and SCC on drawn operands, against Python's integers."""

import random

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from bench.opcodes import opcodes
from tests.assembled import launched

ALL, PAIRS = (1 << 32) - 1, 6
KEPT = 1
"""SCC before each instruction: what it is to be afterwards where an instruction leaves it alone."""


def s(value, bits=32):
    """Signed."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def some(value, bits=32):
    """A result whose SCC says that it is not 0."""
    value &= (1 << bits) - 1
    return value, int(value != 0)


def overflows(exact):
    return exact, int(not -(1 << 31) <= exact < 1 << 31)


def field(a, b, bits, signed):
    offset, width = b & bits - 1, b >> 16 & 0x7F
    part = (s(a, bits) if signed else a) >> offset & (1 << width) - 1  # the sign goes on above the last bit
    if signed and width and part >> width - 1:
        part -= 1 << width
    return some(part, bits)


def wqm(a, bits):
    return some(sum((0xF if a >> n & 0xF else 0) << n for n in range(0, bits, 4)), bits)


def quads(a, bits):
    return some(sum((a >> n & 0xF != 0) << n // 4 for n in range(0, bits, 4)))


def sign_run(a, bits):
    """How many bits from the top are like the sign; -1 where all are."""
    text = f"{a:0{bits}b}"
    run = len(text) - len(text.lstrip(text[0]))
    return -1 if run == bits else run


TWO = {
    "s_add_u32": lambda a, b: (a + b, a + b >> 32),
    "s_sub_u32": lambda a, b: (a - b, int(b > a)),
    "s_addc_u32": lambda a, b: (a + b + KEPT, a + b + KEPT >> 32),
    "s_subb_u32": lambda a, b: (a - b - KEPT, int(b + KEPT > a)),
    "s_add_i32": lambda a, b: overflows(s(a) + s(b)),
    "s_sub_i32": lambda a, b: overflows(s(a) - s(b)),
    "s_min_i32": lambda a, b: (min(s(a), s(b)), int(s(a) < s(b))),
    "s_min_u32": lambda a, b: (min(a, b), int(a < b)),
    "s_max_i32": lambda a, b: (max(s(a), s(b)), int(s(a) >= s(b))),
    "s_max_u32": lambda a, b: (max(a, b), int(a >= b)),
    "s_mul_i32": lambda a, b: (a * b, KEPT),
    "s_mul_hi_u32": lambda a, b: (a * b >> 32, KEPT),
    "s_mul_hi_i32": lambda a, b: (s(a) * s(b) >> 32, KEPT),
    "s_absdiff_i32": lambda a, b: some(abs(s(s(a) - s(b)))),
    "s_bfm_b32": lambda a, b: ((1 << a % 32) - 1 << b % 32, KEPT),
    "s_pack_ll_b32_b16": lambda a, b: (a & 0xFFFF | b << 16, KEPT),
    "s_pack_lh_b32_b16": lambda a, b: (a & 0xFFFF | b & 0xFFFF0000, KEPT),
    "s_pack_hh_b32_b16": lambda a, b: (a >> 16 | b & 0xFFFF0000, KEPT),
    "s_cselect_b32": lambda a, b: (a, KEPT),
    **{f"s_lshl{n}_add_u32": lambda a, b, n=n: ((a << n) + b, int((a << n) + b > ALL)) for n in (1, 2, 3, 4)},
    "s_lshl_b32": lambda a, b: some(a << b % 32),
    "s_lshr_b32": lambda a, b: some(a >> b % 32),
    "s_ashr_i32": lambda a, b: some(s(a) >> b % 32),
    "s_bfe_u32": lambda a, b: field(a, b, 32, False),
    "s_bfe_i32": lambda a, b: field(a, b, 32, True),
}
for _bits in (32, 64):
    TWO |= {
        f"s_and_b{_bits}": lambda a, b, n=_bits: some(a & b, n),
        f"s_or_b{_bits}": lambda a, b, n=_bits: some(a | b, n),
        f"s_xor_b{_bits}": lambda a, b, n=_bits: some(a ^ b, n),
        f"s_nand_b{_bits}": lambda a, b, n=_bits: some(~(a & b), n),
        f"s_nor_b{_bits}": lambda a, b, n=_bits: some(~(a | b), n),
        f"s_xnor_b{_bits}": lambda a, b, n=_bits: some(~(a ^ b), n),
        f"s_andn2_b{_bits}": lambda a, b, n=_bits: some(a & ~b, n),
        f"s_orn2_b{_bits}": lambda a, b, n=_bits: some(a | ~b, n),
    }
TWO_OF_64 = {
    "s_lshl_b64": lambda a, b: some(a << b % 64, 64),
    "s_lshr_b64": lambda a, b: some(a >> b % 64, 64),
    "s_ashr_i64": lambda a, b: some(s(a, 64) >> b % 64, 64),
    "s_bfe_u64": lambda a, b: field(a, b, 64, False),
    "s_bfe_i64": lambda a, b: field(a, b, 64, True),
}
"""The second operand has 32 bits."""

ONE = {
    "s_mov_b32": lambda a: (a, KEPT),
    "s_mov_b64": lambda a: (a, KEPT),
    "s_not_b32": lambda a: some(~a),
    "s_not_b64": lambda a: some(~a, 64),
    "s_wqm_b32": lambda a: wqm(a, 32),
    "s_wqm_b64": lambda a: wqm(a, 64),
    "s_quadmask_b32": lambda a: quads(a, 32),
    "s_quadmask_b64": lambda a: quads(a, 64),
    "s_brev_b32": lambda a: (int(f"{a:032b}"[::-1], 2), KEPT),
    "s_brev_b64": lambda a: (int(f"{a:064b}"[::-1], 2), KEPT),
    "s_bcnt0_i32_b32": lambda a: some(32 - a.bit_count()),
    "s_bcnt1_i32_b32": lambda a: some(a.bit_count()),
    "s_bcnt0_i32_b64": lambda a: some(64 - a.bit_count()),
    "s_bcnt1_i32_b64": lambda a: some(a.bit_count()),
    "s_ff1_i32_b32": lambda a: ((a & -a).bit_length() - 1, KEPT),
    "s_ff1_i32_b64": lambda a: ((a & -a).bit_length() - 1, KEPT),
    "s_flbit_i32_b32": lambda a: (32 - a.bit_length() if a else -1, KEPT),
    "s_flbit_i32_b64": lambda a: (64 - a.bit_length() if a else -1, KEPT),
    "s_flbit_i32": lambda a: (sign_run(a, 32), KEPT),
    "s_flbit_i32_i64": lambda a: (sign_run(a, 64), KEPT),
    "s_sext_i32_i8": lambda a: (s(a, 8), KEPT),
    "s_sext_i32_i16": lambda a: (s(a, 16), KEPT),
    "s_abs_i32": lambda a: some(abs(s(a))),
    "s_bitset0_b32": lambda a: (0x5A5A5A5A & ~(1 << a % 32), KEPT),
    "s_bitset1_b32": lambda a: (0x5A5A5A5A | 1 << a % 32, KEPT),
    "s_cmov_b32": lambda a: (a, KEPT),
}
UNTOUCHED = 0x5A5A5A5A
"""What the result's register holds before."""

TEST = {
    f"s_cmp_{word}_{kind}32": lambda a, b, word=word, kind=kind: getattr(int, f"__{word.replace('lg', 'ne')}__")(
        *((s(a), s(b)) if kind == "i" else (a, b))
    )
    for word in ("eq", "lg", "gt", "ge", "lt", "le")
    for kind in "iu"
}
TEST |= {
    "s_cmp_eq_u64": lambda a, b: a == b,
    "s_cmp_lg_u64": lambda a, b: a != b,
    "s_bitcmp0_b32": lambda a, b: not a >> b % 32 & 1,
    "s_bitcmp1_b32": lambda a, b: a >> b % 32 & 1,
}
OF_RDNA = {
    "s_andn2_b": "s_and_not1_b", "s_orn2_b": "s_or_not1_b", "s_ff1_i32_b": "s_ctz_i32_b",
    "s_flbit_i32_b32": "s_clz_i32_u32", "s_flbit_i32_b64": "s_clz_i32_u64",
    "s_flbit_i32_i64": "s_cls_i32_i64", "s_flbit_i32": "s_cls_i32",
}  # fmt: skip


def spelt(name, chip):
    if chip != "gfx1100":
        return name
    for old, new in OF_RDNA.items():
        if name.startswith(old):
            return name.replace(old, new)
    return name


def result_bits(name):
    return 64 if name.endswith("64") and not name.startswith(("s_bcnt", "s_ff1", "s_flbit")) else 32


@pytest.mark.parametrize("chip", ["gfx942", "gfx950", "gfx1100"])
def test_every_scalar_instruction_is_what_python_says(chip):
    pick = random.Random(3)
    lines, expected = [], []
    has = opcodes("rdna3" if chip == "gfx1100" else "cdna")
    known = {name: one for name, one in (TWO | TWO_OF_64 | ONE | TEST).items() if has[spelt(name, chip)]}
    assert len(known) >= 80
    for name, statement in known.items():
        wide = name.endswith(("b64", "u64", "i64"))
        for number in range(PAIRS):
            a, b = pick.getrandbits(64 if wide else 32), pick.getrandbits(64 if wide else 32)
            if number == 0:
                a = b
            if number == 1:
                a, b = pick.choice([0, 1, 1 << 31, ALL]), pick.choice([0, 1, 1 << 31, ALL])
            moves = [f"s_mov_b32 s{16 + n}, 0x{a >> 32 * n & ALL:x}" for n in (0, 1)]
            moves += [f"s_mov_b32 s{18 + n}, 0x{b >> 32 * n & ALL:x}" for n in (0, 1)]
            moves += [f"s_mov_b32 s{20 + n}, 0x{UNTOUCHED:x}" for n in (0, 1)]
            first, second, result = ("s[16:17]", "s[18:19]", "s[20:21]") if wide else ("s16", "s18", "s20")
            if name in TWO_OF_64:
                second = "s18"
            if result_bits(name) == 32 or name in ("s_quadmask_b64",):
                result = "s20" if name != "s_quadmask_b64" else "s[20:21]"
            operands = [result, first] + [second] * (name in TWO or name in TWO_OF_64)
            if name in TEST:
                operands = [first, second]
                should = UNTOUCHED, int(bool(statement(a, b)))
            else:
                should = statement(a, b & ALL if name in TWO_OF_64 else b) if name not in ONE else statement(a)
            high = should[0] >> 32 & ALL if result_bits(name) == 64 and name not in TEST else UNTOUCHED
            expected.append((name, a, b, should[0] & ALL, high, should[1]))
            lines += [*moves, "s_cmp_eq_u32 0, 0", f"{spelt(name, chip)} {', '.join(operands)}"]
            lines += ["s_cselect_b32 s22, 1, 0", *(f"v_mov_b32_e32 v{2 + n}, s{20 + n}" for n in range(3))]
            lines += ["global_store_dwordx4 v1, v[2:5], s[10:11]", "v_add_u32_e32 v1, 16, v1"]
    begin = [
        "s_load_dwordx8 s[4:11], s[0:1], 0x0",
        "s_waitcnt lgkmcnt(0)",
        "v_mov_b32_e32 v1, 0",
        "v_mov_b32_e32 v5, 0",
    ]
    text = "\n".join([*begin, *lines, "s_endpgm\n"])
    if chip == "gfx1100":
        text = text.replace("dwordx8", "b256").replace("dwordx4", "b128").replace("v_add_u32", "v_add_nc_u32")
    out = np.zeros((len(expected), 4), np.uint32)
    outcome = launched(text, [out.reshape(-1)] * 4, block=1, target=chip)
    assert outcome.clean, outcome
    wrong = [(one, found[:3].tolist()) for one, found in zip(expected, out) if tuple(found[:3]) != one[3:]]
    assert not wrong, "\n".join(map(str, wrong))
