"""Vector arithmetic of floats in the emulator: each instruction by its name, against numpy and exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from tests.one_instruction import Row, hold, of_chip, operands, ran
from tests.test_emulator_instructions import DIVISION as SINGLE_DIVISION

F, H, D = np.float32, np.float16, np.float64
QUIET = {2: (np.uint16, 0x200), 4: (np.uint32, 0x400000), 8: (np.uint64, 0x8000000000000)}
FORMS = {2: (11, -24), 4: (24, -149), 8: (53, -1074)}
"""By bytes of a float: bits of the significand, and the exponent of the smallest number."""


def signalling(a):
    whole, bit = QUIET[a.dtype.itemsize]
    return np.isnan(a) & (np.ascontiguousarray(a).view(whole) & whole(bit) == 0)


def larger(a, b):
    """A number beats a quiet NaN, +0 beats -0, and a signalling NaN makes a NaN (CDNA3 ISA guide, V_MAX_F32)."""
    found = np.where((a > b) | ((a == b) & ~np.signbit(a)) | np.isnan(b), a, b)
    return np.where(signalling(a) | signalling(b), a.dtype.type(np.nan), found)


def smaller(a, b):
    return -larger(-a, -b)


def median(a, b, c):
    middle = np.sort(np.stack([a, b, c]), axis=0)[1]
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, smaller(smaller(a, b), c), middle)


def rounded(exact, dtype):
    """A fraction other than 0, to nearest even, as a Python float: infinite where it is too large."""
    digits, least = FORMS[np.dtype(dtype).itemsize]
    size = abs(exact)
    power = size.numerator.bit_length() - size.denominator.bit_length()
    power -= size < Fraction(2) ** power
    last = max(power - digits + 1, least)
    whole = round(size / Fraction(2) ** last)
    found = math.inf if whole * Fraction(2) ** last > float(np.finfo(dtype).max) else math.ldexp(whole, last)
    return -found if exact < 0 else found


def fused(a, b, c):
    """a·b + c, rounded once."""
    found = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist()):
        if not (math.isfinite(x) and math.isfinite(y)):
            found.append(math.nan if math.isnan(x * y) else x * y + z)
        elif not math.isfinite(z):
            found.append(z)
        else:
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            sign = math.copysign(1, x) * math.copysign(1, y)
            zero = math.copysign(0.0, z) if math.copysign(1, z) == sign else 0.0
            found.append(rounded(exact, a.dtype) if exact else zero)
    return np.array(found).astype(a.dtype)


def scaled(a, power):
    """a · 2^power, rounded once."""
    found = []
    for x, n in zip(a.tolist(), power.tolist()):
        n = max(-5000, min(5000, n))
        finite = math.isfinite(x) and x
        found.append(math.copysign(rounded(Fraction(x) * Fraction(2) ** n, a.dtype), x) if finite else x)
    return np.array(found).astype(a.dtype)


def fraction(a):
    """a - floor(a), below 1 also where that rounds to 1 (LLVM, AMDGPUCodeGenPrepare: matchFractPat)."""
    return np.minimum(a - np.floor(a), np.nextafter(a.dtype.type(1), a.dtype.type(0)))


def exponent(a):
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(np.int32)


def significand(a):
    return np.where(np.isfinite(a), np.frexp(a)[0], a).astype(a.dtype)


def zero_wins(a, b, other):
    """DX9's rule: 0 times anything is 0."""
    return np.where((a == 0) | (b == 0), F(0), other)


def wide(function):
    """In float64, then rounded to the operand's type."""
    return lambda a: function(a.astype(D)).astype(a.dtype)


def flushed(function):
    """As wide, with denormals of float32 taken as zero."""

    def apply(a):
        held = np.where(np.abs(a) < F(2.0**-126), np.copysign(F(0), a), a)
        found = function(held.astype(D)).astype(F)
        return np.where(np.abs(found) < F(2.0**-126), np.copysign(F(0), found), found)

    return apply


def turned(name):
    """sin or cos of so many turns, by mpmath to 100 bits."""

    def apply(a):
        mpmath = pytest.importorskip("mpmath")
        with mpmath.workprec(300):
            function = getattr(mpmath, name)
            return np.array([float(function(2 * mpmath.mpf(x))) if np.isfinite(x) else np.nan for x in a.tolist()])

    return flushed(apply)


def fixed_up(a, b, c):
    """v_div_fixup: a is about c / b (CDNA3 ISA guide). In double precision too small a quotient is zero, and an
    estimate that is no number overflowed."""
    sign = np.where(np.signbit(b) ^ np.signbit(c), a.dtype.type(-1), a.dtype.type(1))
    special = ~np.isfinite(b) | ~np.isfinite(c) | (b == 0) | (c == 0)
    usual = np.copysign(np.abs(a), sign)
    if a.dtype == D:
        small = np.frexp(c)[1].clip(-1022) - np.frexp(b)[1].clip(-1022) < -1075
        usual = np.where(small, sign * 0, np.where(np.isnan(a), sign * np.inf, usual))
    return np.where(special, c / b, usual)


def cube(x, y, z):
    """Which face a direction meets, with its s, t and twice the major axis (CDNA3 ISA guide, V_CUBEID_F32)."""
    of_z = (abs(z) >= abs(x)) & (abs(z) >= abs(y))
    of_y = ~of_z & (abs(y) >= abs(x))
    face = np.where(of_y, np.where(y < 0, F(3), F(2)), np.where(x < 0, F(1), F(0)))
    return [
        np.where(of_z, np.where(z < 0, F(5), F(4)), face),
        np.where(of_z, np.where(z < 0, -x, x), np.where(of_y, x, np.where(x < 0, z, -z))),
        np.where(of_z, -y, np.where(of_y, np.where(y < 0, -z, z), -y)),
        2 * np.where(of_z, z, np.where(of_y, y, x)),
    ]  # fmt: skip


SINGLE = [
    Row("v_max_f32", "ff>f", larger),
    Row("v_min_f32", "ff>f", smaller),
    Row("v_max3_f32", "fff>f", lambda a, b, c: larger(larger(a, b), c)),
    Row("v_min3_f32", "fff>f", lambda a, b, c: smaller(smaller(a, b), c)),
    Row("v_med3_f32", "fff>f", median, any_zero=True),
    Row("v_maxmin_f32", "fff>f", lambda a, b, c: smaller(larger(a, b), c)),
    Row("v_minmax_f32", "fff>f", lambda a, b, c: larger(smaller(a, b), c)),
    Row("v_fmac_f32", "ff+f>f", fused),
    Row("v_fmamk_f32", "ff>f", lambda a, b: fused(a, np.full_like(a, 2.7182817459106445), b),
        "{name} {d}, v2, 0x402df854, v4"),
    Row("v_fmaak_f32", "ff>f", lambda a, b: fused(a, b, np.full_like(a, 2.7182817459106445)),
        "{name} {d}, {s}, 0x402df854"),
    *(Row(name, "ff>f", lambda a, b: zero_wins(a, b, a * b)) for name in ("v_mul_legacy_f32", "v_mul_dx9_zero_f32")),
    Row("v_fma_dx9_zero_f32", "fff>f", lambda a, b, c: np.where((a == 0) | (b == 0), c, fused(a, b, c))),
    Row("v_fmac_dx9_zero_f32", "ff+f>f", lambda a, b, c: np.where((a == 0) | (b == 0), c, fused(a, b, c))),
    Row("v_fract_f32", "f>f", fraction, any_zero=True),
    Row("v_frexp_exp_i32_f32", "f>i", exponent),
    Row("v_frexp_mant_f32", "f>f", significand),
    Row("v_ldexp_f32", "fi>f", scaled),
    Row("v_exp_f32", "f>f", flushed(np.exp2)),
    Row("v_log_f32", "f>f", flushed(np.log2)),
    *(Row(name, "f>f", flushed(lambda a: 1 / a)) for name in ("v_rcp_f32", "v_rcp_iflag_f32")),
    Row("v_rsq_f32", "f>f", flushed(lambda a: 1 / np.sqrt(a))),
    Row("v_sqrt_f32", "f>f", flushed(np.sqrt)),
    Row("v_sin_f32", "f>f", turned("sinpi"), any_zero=True),
    Row("v_cos_f32", "f>f", turned("cospi"), any_zero=True),
    Row("v_cubeid_f32", "fff>f", lambda *xyz: cube(*xyz)[0]),
    Row("v_cubesc_f32", "fff>f", lambda *xyz: cube(*xyz)[1]),
    Row("v_cubetc_f32", "fff>f", lambda *xyz: cube(*xyz)[2]),
    Row("v_cubema_f32", "fff>f", lambda *xyz: cube(*xyz)[3]),
    Row("v_pk_add_f32", "FF>F", lambda a, b: a + b),
    Row("v_pk_mul_f32", "FF>F", lambda a, b: a * b),
    Row("v_pk_mul_f32", "FF>F", lambda a, b: np.stack([-a[:, 1] * b[:, 0], a[:, 0] * b[:, 1]], axis=1),
        "{name} {d}, {s} op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[1,0]"),
    Row("v_pk_fma_f32", "FFF>F", lambda a, b, c: fused(a.ravel(), b.ravel(), c.ravel()).reshape(a.shape)),
]  # fmt: skip

HALF = [
    Row("v_add_f16", "hh>h", lambda a, b: a + b),
    Row("v_sub_f16", "hh>h", lambda a, b: a - b),
    Row("v_subrev_f16", "hh>h", lambda a, b: b - a),
    Row("v_mul_f16", "hh>h", lambda a, b: a * b),
    Row("v_max_f16", "hh>h", larger),
    Row("v_min_f16", "hh>h", smaller),
    Row("v_max3_f16", "hhh>h", lambda a, b, c: larger(larger(a, b), c)),
    Row("v_min3_f16", "hhh>h", lambda a, b, c: smaller(smaller(a, b), c)),
    Row("v_med3_f16", "hhh>h", median, any_zero=True),
    Row("v_maxmin_f16", "hhh>h", lambda a, b, c: smaller(larger(a, b), c)),
    Row("v_minmax_f16", "hhh>h", lambda a, b, c: larger(smaller(a, b), c)),
    *(Row(name, "hhh>h", fused) for name in ("v_fma_f16", "v_fma_legacy_f16")),
    *(Row(name, "hhh>h", lambda a, b, c: a * b + c) for name in ("v_mad_f16", "v_mad_legacy_f16")),
    Row("v_mac_f16", "hh+h>h", lambda a, b, c: a * b + c),
    Row("v_madmk_f16", "hh>h", lambda a, b: a * H(2.71875) + b, "{name} {d}, v2, 0x4170, v4"),
    Row("v_madak_f16", "hh>h", lambda a, b: a * b + H(2.71875), "{name} {d}, {s}, 0x4170"),
    Row("v_fmac_f16", "hh+h>h", fused),
    Row("v_fmamk_f16", "hh>h", lambda a, b: fused(a, np.full_like(a, 2.71875), b), "{name} {d}, v2, 0x4170, v4"),
    Row("v_fmaak_f16", "hh>h", lambda a, b: fused(a, b, np.full_like(a, 2.71875)), "{name} {d}, {s}, 0x4170"),
    Row("v_floor_f16", "h>h", np.floor),
    Row("v_ceil_f16", "h>h", np.ceil),
    Row("v_trunc_f16", "h>h", np.trunc),
    Row("v_rndne_f16", "h>h", np.rint),
    Row("v_fract_f16", "h>h", fraction, any_zero=True),
    Row("v_frexp_exp_i16_f16", "h>s", exponent),
    Row("v_frexp_mant_f16", "h>h", significand),
    Row("v_ldexp_f16", "hs>h", scaled),
    Row("v_rcp_f16", "h>h", wide(lambda a: 1 / a)),
    Row("v_rsq_f16", "h>h", wide(lambda a: 1 / np.sqrt(a))),
    Row("v_sqrt_f16", "h>h", wide(np.sqrt)),
    Row("v_div_fixup_f16", "hhh>h", fixed_up),
    Row("v_exp_f16", "h>h", wide(np.exp2)),
    Row("v_log_f16", "h>h", wide(np.log2)),
    Row("v_pack_b32_f16", "hh>H", lambda a, b: np.stack([a, b], axis=1)),
    Row("v_pk_max_f16", "HH>H", larger),
    Row("v_pk_min_f16", "HH>H", smaller),
    *(Row(name, signs, lambda a, b, c: fused(a.ravel(), b.ravel(), c.ravel()).reshape(a.shape))
      for name, signs in (("v_pk_fma_f16", "HHH>H"), ("v_pk_fmac_f16", "HH+H>H"))),
]  # fmt: skip

DOUBLE = [
    Row("v_add_f64", "dd>d", lambda a, b: a + b),
    Row("v_mul_f64", "dd>d", lambda a, b: a * b),
    Row("v_max_f64", "dd>d", larger),
    Row("v_min_f64", "dd>d", smaller),
    Row("v_fma_f64", "ddd>d", fused),
    Row("v_fmac_f64", "dd+d>d", fused),
    Row("v_floor_f64", "d>d", np.floor),
    Row("v_ceil_f64", "d>d", np.ceil),
    Row("v_trunc_f64", "d>d", np.trunc),
    Row("v_rndne_f64", "d>d", np.rint),
    Row("v_fract_f64", "d>d", fraction, any_zero=True),
    Row("v_frexp_exp_i32_f64", "d>i", exponent),
    Row("v_frexp_mant_f64", "d>d", significand),
    Row("v_ldexp_f64", "di>d", scaled),
    Row("v_rcp_f64", "d>d", lambda a: 1 / a),
    Row("v_rsq_f64", "d>d", lambda a: 1 / np.sqrt(a)),
    Row("v_sqrt_f64", "d>d", np.sqrt),
    Row("v_div_fixup_f64", "ddd>d", fixed_up),
]

DIVISION = """v_div_scale_f64 v[20:21], {unused}, v[4:5], v[4:5], v[2:3]
v_rcp_f64_e32 v[22:23], v[20:21]
v_fma_f64 v[24:25], -v[20:21], v[22:23], 1.0
v_fma_f64 v[22:23], v[22:23], v[24:25], v[22:23]
v_fma_f64 v[24:25], -v[20:21], v[22:23], 1.0
v_fma_f64 v[22:23], v[22:23], v[24:25], v[22:23]
v_div_scale_f64 v[24:25], vcc, v[2:3], v[4:5], v[2:3]
v_mul_f64 v[26:27], v[24:25], v[22:23]
v_fma_f64 v[28:29], -v[20:21], v[26:27], v[24:25]
v_div_fmas_f64 v[28:29], v[28:29], v[22:23], v[26:27]
v_div_fixup_f64 v[10:11], v[28:29], v[4:5], v[2:3]
s_mov_b64 vcc, s[12:13]"""
"""What LLVM makes of a / b in double precision."""

TABLES = {"float32": SINGLE, "float16": HALF, "float64": DOUBLE}


@pytest.mark.parametrize("chip", ["gfx942", "gfx950", "gfx1100"])
@pytest.mark.parametrize("table", TABLES)
def test_every_instruction_of_floats_is_what_numpy_says(table, chip):
    hold(of_chip(TABLES[table], chip), chip)


def modified(row):
    """With -|x| for the first operand, and a clamp of the result to 0 to 1, a NaN to 0 (ISA guides, "Clamp")."""

    def model(a, *others):
        found = row.model(-np.abs(a), *others)
        return np.clip(np.where(np.isnan(found), found.dtype.type(0), found), 0, 1).astype(found.dtype)

    return Row(row.name, row.signature, model, "{name} {d}, {signed} clamp", any_zero=True)


@pytest.mark.parametrize("chip", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("table", TABLES)
def test_every_instruction_of_floats_takes_a_sign_and_a_clamp(table, chip):
    plain = [row for row in TABLES[table] if row.signature[-1] in "hfd" and row.text == Row.text]
    hold(of_chip([modified(row) for row in plain], chip), chip)


@pytest.mark.parametrize("chip", ["gfx942", "gfx1100"])
def test_llvms_division_in_single_precision_is_correctly_rounded(chip):
    text = "\n".join(line.strip() for line in SINGLE_DIVISION.strip().splitlines())
    text = text.replace("v5,", "v10,").replace("v3", "v4").replace("v10, -v6", "v14, -v6").replace("v10, v7", "v14, v7")
    text = text.replace("s[12:13]", "s14" if chip == "gfx1100" else "s[14:15]") + "\ns_mov_b64 vcc, s[12:13]"
    hold([Row("v_div_fixup_f32", "ff>f", lambda a, b: a / b, text)], chip)


@pytest.mark.parametrize("chip", ["gfx942", "gfx1100"])
def test_llvms_division_in_double_precision_is_correctly_rounded(chip):
    given = operands("d")
    a, b = (one.view(np.float64) for one in given[:2])
    (found,), _ = ran([DIVISION.replace("{unused}", "s14" if chip == "gfx1100" else "s[14:15]")], given, chip)
    with np.errstate(all="ignore"):
        expected = a / b
    nan, tiny = np.isnan(expected), np.abs(expected) <= 2.0**-1022
    assert np.isnan(found.view(np.float64)[nan]).all()
    np.testing.assert_array_equal(found[~nan & ~tiny], expected.view(np.uint64)[~nan & ~tiny])
    # A denormal quotient may lie nearer to a tie than the last step's operands tell.
    assert (np.abs(found[tiny].view(np.int64) - expected[tiny].view(np.int64)) <= 1).all()
