"""Instructions of gfx942 in the emulator, against statements of their own in numpy, over random bit patterns."""

import numpy as np
import pytest
import torch

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from bench.opcodes import opcodes
from tests.assembled import computed

COUNT = 1024
SPECIAL = [0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF]
SPECIAL += [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7FA00000, 0x3EFFFFFF, 0x4B000001, 0xCB000001]


def patterns(seed: int) -> np.ndarray:
    """Random bits; a quarter of them numbers of moderate size, and every special value among them."""
    generator = np.random.default_rng(seed)
    words = generator.integers(0, 2**32, COUNT, np.uint32)
    words[: COUNT // 4] = generator.standard_normal(COUNT // 4).astype(np.float32).view(np.uint32)
    words[-len(SPECIAL) * 8 :] = generator.permutation(np.repeat(np.array(SPECIAL, np.uint32), 8))
    return words


A, B, C = patterns(1), patterns(2), patterns(3)


def same_floats(found: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit, but for which NaN a NaN is."""
    expected = expected.astype(np.float32)
    nan = np.isnan(expected)
    assert np.isnan(found.view(np.float32)[nan]).all()
    np.testing.assert_array_equal(found[~nan], expected.view(np.uint32)[~nan])


def tensor(words: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(words.view(np.float32).copy())


@pytest.mark.parametrize(
    ("instruction", "statement"),
    [
        ("v_add_f32_e32 v5, v2, v3", lambda a, b: a + b),
        ("v_sub_f32_e32 v5, v2, v3", lambda a, b: a - b),
        ("v_subrev_f32_e32 v5, v2, v3", lambda a, b: b - a),
        ("v_mul_f32_e64 v5, -v2, |v3|", lambda a, b: -a * b.abs()),
        ("v_max_f32_e32 v5, v2, v3", torch.fmax),
        ("v_min_f32_e32 v5, v2, v3", torch.fmin),
        ("v_floor_f32_e32 v5, v2", lambda a, b: a.floor()),
        ("v_ceil_f32_e32 v5, v2", lambda a, b: a.ceil()),
        ("v_trunc_f32_e32 v5, v2", lambda a, b: a.trunc()),
        ("v_rndne_f32_e32 v5, v2", lambda a, b: a.round()),
    ],
)
def test_a_float_instruction_is_what_torch_says(instruction, statement):
    with np.errstate(all="ignore"):
        expected = statement(tensor(A), tensor(B)).numpy()
    if "max" in instruction or "min" in instruction:
        # Of two zeros torch takes either; a signalling NaN wins over a number on hardware.
        plain = (expected != 0) & ~signalling(A) & ~signalling(B)
        found = computed(instruction, A, B)
        return same_floats(found[plain], expected[plain])
    same_floats(computed(instruction, A, B), expected)


def signalling(words: np.ndarray) -> np.ndarray:
    return np.isnan(words.view(np.float32)) & (words & 0x00400000 == 0)


def test_fma_is_rounded_once():
    from fractions import Fraction

    found = computed("v_fma_f32 v5, v2, v3, v4", A, B, C).view(np.float32)
    checked = 0
    for a, b, c, mine in zip(*(one.view(np.float32) for one in (A, B, C)), found):
        if not np.isfinite([a, b, c]).all():
            continue
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        if abs(exact) >= Fraction(2) ** 128 or exact == 0:
            continue
        here = abs(Fraction(float(mine)) - exact) if np.isfinite(mine) else None
        below, above = np.nextafter(mine, np.float32(-np.inf)), np.nextafter(mine, np.float32(np.inf))
        for other in (below, above):
            if here is not None and np.isfinite(other):
                assert here <= abs(Fraction(float(other)) - exact), (a, b, c, mine)
        checked += 1
    assert checked > 200


DIVISION = """
    v_div_scale_f32 v6, s[12:13], v3, v3, v2
    v_rcp_f32_e32 v7, v6
    v_div_scale_f32 v8, vcc, v2, v3, v2
    v_fma_f32 v9, -v6, v7, 1.0
    v_fmac_f32_e32 v7, v9, v7
    v_mul_f32_e32 v9, v8, v7
    v_fma_f32 v10, -v6, v9, v8
    v_fmac_f32_e32 v9, v10, v7
    v_fma_f32 v6, -v6, v9, v8
    v_div_fmas_f32 v6, v6, v7, v9
    v_div_fixup_f32 v5, v6, v3, v2
"""
"""What LLVM makes of a / b."""


def test_llvms_division_is_correctly_rounded():
    with np.errstate(all="ignore"):
        same_floats(computed(DIVISION, A, B), A.view(np.float32) / B.view(np.float32))


@pytest.mark.parametrize(
    ("instruction", "statement"),
    [
        ("v_add_u32_e32 v5, v2, v3", lambda a, b, c: a + b),
        ("v_sub_u32_e32 v5, v2, v3", lambda a, b, c: a - b),
        ("v_mul_lo_u32 v5, v2, v3", lambda a, b, c: a * b),
        ("v_mul_hi_u32 v5, v2, v3", lambda a, b, c: a * b >> 32),
        ("v_and_or_b32 v5, v2, v3, v4", lambda a, b, c: a & b | c),
        ("v_or3_b32 v5, v2, v3, v4", lambda a, b, c: a | b | c),
        ("v_xor_b32_e32 v5, v2, v3", lambda a, b, c: a ^ b),
        ("v_add3_u32 v5, v2, v3, v4", lambda a, b, c: a + b + c),
        ("v_lshl_add_u32 v5, v2, v3, v4", lambda a, b, c: (a << b % 32) + c),
        ("v_lshlrev_b32_e32 v5, v2, v3", lambda a, b, c: b << a % 32),
        ("v_lshrrev_b32_e32 v5, v2, v3", lambda a, b, c: b >> a % 32),
        ("v_ashrrev_i32_e32 v5, v2, v3", lambda a, b, c: signed(b) >> a % 32),
        ("v_bfe_u32 v5, v2, v3, v4", lambda a, b, c: a >> b % 32 & (1 << c % 32) - 1),
        ("v_bfi_b32 v5, v2, v3, v4", lambda a, b, c: a & b | ~a & c),
        ("v_alignbit_b32 v5, v2, v3, v4", lambda a, b, c: (a << 32 | b) >> c % 32),
        ("v_mad_u32_u24 v5, v2, v3, v4", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
        ("v_max_i32_e32 v5, v2, v3", lambda a, b, c: max(signed(a), signed(b))),
        ("v_min_u32_e32 v5, v2, v3", lambda a, b, c: min(a, b)),
        ("v_med3_i32 v5, v2, v3, v4", lambda a, b, c: sorted(map(signed, (a, b, c)))[1]),
        ("v_bfrev_b32_e32 v5, v2", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
        ("v_ffbh_u32_e32 v5, v2", lambda a, b, c: 32 - a.bit_length() if a else -1),
        ("v_ffbl_b32_e32 v5, v2", lambda a, b, c: (a & -a).bit_length() - 1),
        ("v_bcnt_u32_b32 v5, v2, v3", lambda a, b, c: a.bit_count() + b),
        ("v_xad_u32 v5, v2, v3, v4", lambda a, b, c: (a ^ b) + c),
        ("v_or_b32_sdwa v5, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_0",
         lambda a, b, c: (a >> 16 & 255 | b & 0xFFFF) << 16),
    ],
)  # fmt: skip
def test_an_integer_instruction_is_what_python_says(instruction, statement):
    expected = [statement(int(a), int(b), int(c)) & 0xFFFFFFFF for a, b, c in zip(A, B, C)]
    np.testing.assert_array_equal(computed(instruction, A, B, C), np.array(expected, np.uint32))


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def test_perm_takes_bytes_signs_and_constants():
    def byte(a: int, b: int, selector: int) -> int:
        data = a << 32 | b
        if selector >= 13:
            return 255
        if selector == 12:
            return 0
        if selector >= 8:
            return 255 * (data >> (selector - 8) * 16 + 15 & 1)
        return data >> 8 * selector & 255

    selectors = C & 0x0F0F0F0F
    expected = [
        sum(byte(int(a), int(b), int(s) >> 8 * place & 255) << 8 * place for place in range(4))
        for a, b, s in zip(A, B, selectors)
    ]
    np.testing.assert_array_equal(computed("v_perm_b32 v5, v2, v3, v4", A, B, selectors), expected)


@pytest.mark.parametrize(
    "name", ["lt", "eq", "le", "gt", "lg", "ge", "o", "u", "nge", "nlg", "ngt", "nle", "neq", "nlt"]
)
def test_a_comparison_of_floats_treats_nan_as_it_should(name):
    a, b = A.view(np.float32), B.view(np.float32)
    b = np.where(np.arange(COUNT) % 3 == 0, a, b)
    unordered = np.isnan(a) | np.isnan(b)
    ordered = {"lt": a < b, "eq": a == b, "le": a <= b, "gt": a > b, "lg": (a < b) | (a > b), "ge": a >= b}
    ordered |= {"o": ~unordered, "u": unordered}
    expected = ordered[name] if name in ordered else ~ordered[name[1:] if name != "neq" else "eq"]
    code = f"v_cmp_{name}_f32_e32 vcc, v2, v3\n v_cndmask_b32_e64 v5, 0, 1, vcc"
    np.testing.assert_array_equal(computed(code, A, b.view(np.uint32)), expected)


def test_conversions_round_and_saturate_as_torch_does():
    floats = tensor(A)
    same = computed("v_cvt_f16_f32_e32 v5, v2", A)
    expected = floats.to(torch.float16).view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
    number = ~np.isnan(floats.numpy())
    np.testing.assert_array_equal(same[number], expected[number])
    integers = computed("v_cvt_i32_f32_e32 v5, v2", A).view(np.int32)
    exact = np.nan_to_num(np.trunc(A.view(np.float32).astype(np.float64)), nan=0, posinf=2**31 - 1, neginf=-(2**31))
    np.testing.assert_array_equal(integers, np.clip(exact, -(2**31), 2**31 - 1).astype(np.int64))


def test_fp8_of_gfx942_is_the_one_without_negative_zero():
    number = np.isfinite(A.view(np.float32)) & (np.abs(A.view(np.float32)) <= 240)
    words = np.where(number, A, 0).astype(np.uint32)
    found = computed("v_mov_b32_e32 v5, 0\n v_cvt_pk_fp8_f32 v5, v2, v3", words, words)
    expected = tensor(words).to(torch.float8_e4m3fnuz).view(torch.uint8).numpy().astype(np.uint32)
    np.testing.assert_array_equal(found, expected | expected << 8)
    back = computed("v_cvt_f32_fp8_e32 v5, v2", found)
    np.testing.assert_array_equal(
        back.view(np.float32), tensor(words).to(torch.float8_e4m3fnuz).to(torch.float32).numpy()
    )


@pytest.mark.parametrize(
    ("control", "source"),
    [
        ("quad_perm:[3,2,1,0]", lambda lane: lane ^ 3),
        ("row_shr:1", lambda lane: lane - 1 if lane % 16 else None),
        ("row_shl:3", lambda lane: lane + 3 if lane % 16 < 13 else None),
        ("row_ror:5", lambda lane: lane // 16 * 16 + (lane - 5) % 16),
        ("row_mirror", lambda lane: lane ^ 15),
        ("row_half_mirror", lambda lane: lane ^ 7),
        ("row_bcast:15", lambda lane: lane // 16 * 16 - 1 if lane >= 16 else None),
        ("row_bcast:31", lambda lane: 31 if lane >= 32 else None),
        ("row_newbcast:4", lambda lane: lane // 16 * 16 + 4),
    ],
)
def test_dpp_reads_the_lane_that_it_should_and_leaves_the_others(control, source):
    code = f"v_mov_b32_e32 v5, v3\n s_nop 1\n v_mov_b32_dpp v5, v2 {control} row_mask:0xf bank_mask:0xf"
    found = computed(code, A, B).reshape(-1, 64)
    a, b = A.reshape(-1, 64), B.reshape(-1, 64)
    for lane in range(64):
        expected = b[:, lane] if source(lane) is None else a[:, source(lane)]
        np.testing.assert_array_equal(found[:, lane], expected, err_msg=f"lane {lane}")


def test_bpermute_reads_any_lane():
    found = computed("v_lshlrev_b32_e32 v6, 2, v3\n ds_bpermute_b32 v5, v6, v2\n s_waitcnt lgkmcnt(0)", A, B)
    lane = (B % 64).reshape(-1, 64).astype(np.int64)
    np.testing.assert_array_equal(found.reshape(-1, 64), np.take_along_axis(A.reshape(-1, 64), lane, 1))


def test_a_carry_goes_from_word_to_word():
    code = "v_add_co_u32_e32 v6, vcc, v2, v3\n v_addc_co_u32_e32 v5, vcc, 0, v4, vcc"
    expected = ((C.astype(np.uint64) << 32) + A + B) >> 32
    np.testing.assert_array_equal(computed(code, A, B, C), expected.astype(np.uint32))


@pytest.mark.parametrize(("shape", "k", "registers"), [("16x16x16", 16, 4), ("32x32x8", 8, 16)])
def test_an_mfma_is_the_product_of_its_matrices(shape, k, registers):
    """One element of A and one of B at a time: D has their product in one place, the one that the layout says."""
    m = int(shape.split("x")[0])
    generator = np.random.default_rng(5)
    for _ in range(3):
        a, b = (generator.integers(-4, 5, size).astype(np.float32) for size in ((m, k), (k, m)))
        lanes = np.arange(64)
        words = np.zeros((4, 64), np.uint32)
        for lane in lanes:
            line, group = lane % m, lane // m
            for pair in range(2):
                first = group * 4 + pair * 2
                for operand, values in ((0, a[line]), (2, b[:, line])):
                    low, high = values[first : first + 2].astype(np.float16).view(np.uint16).astype(np.uint32)
                    words[operand + pair, lane] = low | high << 16
        expected = a @ b
        for register in range(registers):
            zeros = "\n".join(f"v_mov_b32_e32 v{number}, 0" for number in range(16, 16 + registers))
            code = f"""
    v_mov_b32_e32 v8, v2
    v_mov_b32_e32 v9, v3
    v_mov_b32_e32 v10, v4
    v_lshlrev_b32_e32 v12, 2, v0
    global_load_dword v11, v12, s[8:9] offset:256
    s_waitcnt vmcnt(0)
    {zeros}
    v_mfma_f32_{shape}_f16 v[16:{15 + registers}], v[8:9], v[10:11], v[16:{15 + registers}]
    v_mov_b32_e32 v5, v{16 + register}
"""
            from tests.assembled import BEGIN, END, launched

            out = np.zeros(64, np.uint32)
            third = np.concatenate([words[2], words[3]])
            assert launched(BEGIN + code + END, [words[0].copy(), words[1].copy(), third, out]).clean
            for lane in lanes:
                row = register // 4 * (4 * 64 // m) + lane // m * 4 + register % 4
                assert out.view(np.float32)[lane] == expected[row, lane % m]


def test_written_semantics_agree_with_the_pseudocode_bit_for_bit():
    """Where the pseudocode can be translated and is not among the corrections, both are the same function."""
    from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

    from harness.emulator import semantics
    from harness.emulator.decoding import spelled
    from harness.emulator.pseudocode import Untranslatable, translated

    compared = 0
    for op, code in PCODE.items():
        name = spelled(op)
        if name not in semantics.WRITTEN or name in semantics.CORRECTIONS or "f16" in name or "64" in name:
            continue
        try:
            pseudo = translated(code)
        except Untranslatable:
            continue
        mine = semantics.of_mnemonic(name, op, "gfx942", 32)
        lane = np.arange(COUNT, dtype=np.uint32) % 64
        given = (A, B, C, np.zeros_like(A), np.zeros(COUNT, bool), np.zeros(COUNT, bool), None, np.uint32(0), lane, 0)
        with np.errstate(all="ignore"):
            left, right = mine.apply(*given)["D0"], pseudo.apply(*given)["D0"]
        if name in ("v_exp_f32", "v_log_f32", "v_rcp_f32", "v_rcp_iflag_f32", "v_rsq_f32", "v_sqrt_f32"):
            continue  # the pseudocode does not take denormals as zero
        nan = np.isnan(left.view(np.float32)) if name.endswith("f32") else np.zeros(COUNT, bool)
        np.testing.assert_array_equal(left[~nan], right[~nan], err_msg=name)
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize("code", ["D0.u32 = S0.f32 == 0.0 ? INF : 1U", "D0.i32 = -INF", "D0.u32[INF] = 1U"])
def test_infinity_where_an_integer_is_due_is_left_to_whoever_writes_it_by_hand(code):
    from harness.emulator.pseudocode import Untranslatable, translated

    with pytest.raises(Untranslatable, match="infinity"):
        translated(code)


def test_the_list_of_opcodes_tells_those_that_are_emulated_from_the_others():
    known = opcodes("rdna3")
    assert len(known) > 1000
    for name in ("v_dual_fmac_f32", "v_readlane_b32", "s_cbranch_scc1", "global_load_b128", "v_wmma_f32_16x16x16_f16"):
        assert known[name], name
    for name in ("s_trap", "v_sin_f16", "v_sad_u8"):
        assert not known[name], name
    assert "s_add_f32" not in known  # of RDNA 3.5
    assert not known["s_code_end"] and not opcodes("cdna")["s_setvskip"]
