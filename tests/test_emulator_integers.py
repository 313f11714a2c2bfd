"""Vector arithmetic of integers in the emulator: each instruction by its name, against Python's integers."""

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from tests.one_instruction import Row, hold, of_chip

ALL = (1 << 32) - 1


def s(value, bits):
    """Signed."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def clipped(value, low, high):
    return max(low, min(high, value))


def median(a, b, c):
    return sorted((a, b, c))[1]


def run_of_sign(a):
    """How many bits from the top are like the sign; -1 where all are."""
    text = f"{a & ALL:032b}"
    run = len(text) - len(text.lstrip(text[0]))
    return -1 if run == 32 else run


def octets(a):
    return [a >> 8 * n & 255 for n in range(4)]


def joined(parts, bits=8):
    return sum((part & (1 << bits) - 1) << bits * n for n, part in enumerate(parts))


def picked(data, selector):
    """A byte of v_perm_b32: one of eight, the sign of one of four halves, 0 or 255."""
    if selector < 8:
        return data >> 8 * selector & 255
    return 255 * (data >> 16 * selector - 113 & 1) if selector < 12 else 255 * (selector > 12)


def pairs(function):
    """Of packed instructions: by halves."""
    return lambda *given: [function(*each) for each in zip(*given)]


def dotted(a, b, c):
    return sum(x * y for x, y in zip(a, b)) + c


WORDS = [
    Row("v_mul_hi_i32_i24", "uu>i", lambda a, b: s(a, 24) * s(b, 24) >> 32),
    Row("v_mul_hi_u32_u24", "uu>u", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32),
    Row("v_max3_u32", "uuu>u", max),
    Row("v_min3_u32", "uuu>u", min),
    Row("v_max3_i32", "iii>i", max),
    Row("v_min3_i32", "iii>i", min),
    Row("v_med3_u32", "uuu>u", median),
    Row("v_med3_i32", "iii>i", median),
    Row("v_maxmin_u32", "uuu>u", lambda a, b, c: min(max(a, b), c)),
    Row("v_minmax_u32", "uuu>u", lambda a, b, c: max(min(a, b), c)),
    Row("v_maxmin_i32", "iii>i", lambda a, b, c: min(max(a, b), c)),
    Row("v_minmax_i32", "iii>i", lambda a, b, c: max(min(a, b), c)),
    Row("v_xnor_b32", "uu>u", lambda a, b: ~(a ^ b)),
    Row("v_xor3_b32", "uuu>u", lambda a, b, c: a ^ b ^ c),
    Row("v_bfm_b32", "uu>u", lambda a, b: (1 << a % 32) - 1 << b % 32),
    Row("v_ffbh_i32", "u>i", run_of_sign),
    Row("v_cls_i32", "u>i", run_of_sign),
    Row("v_mov_b32", "u>u", lambda a: a),
    Row("v_mad_u32_u24", "uuu>u", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
    Row("v_mad_u32_u16", "uuu>u", lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c),
    Row("v_mad_i32_i16", "uuu>u", lambda a, b, c: s(a, 16) * s(b, 16) + c),
    Row("v_cvt_pk_u16_u32", "uu>W", lambda a, b: (min(a, 65535), min(b, 65535))),
    Row("v_cvt_pk_i16_i32", "ii>S", lambda a, b: (clipped(a, -32768, 32767), clipped(b, -32768, 32767))),
    Row("v_lerp_u8", "uuu>u", lambda a, b, c: joined(x + y + (z & 1) >> 1 for x, y, z in zip(*map(octets, (a, b, c))))),
    Row("v_add_i32", "ii>i", lambda a, b: a + b),
    Row("v_sub_i32", "ii>i", lambda a, b: a - b),
    Row("v_add_nc_i32", "ii>i", lambda a, b: a + b),
    Row("v_sub_nc_i32", "ii>i", lambda a, b: a - b),
    Row("v_cvt_i32_i16", "s>i", lambda a: a),
    Row("v_cvt_u32_u16", "w>u", lambda a: a),
    Row("v_cndmask_b32", "uu>u", lambda a, b, on: b if on else a, "{name} {d}, {s}, vcc", "in"),
    Row("v_perm_b32", "uuu>u", lambda a, b, c: joined(picked(a << 32 | b, one) for one in octets(c))),
    Row("v_alignbyte_b32", "uuu>u", lambda a, b, c: (a << 32 | b) >> c % 4 * 8),
]

CARRIES = [
    Row("v_add_co_u32", "uu>u", lambda a, b: (a + b, a + b > ALL), "{name} {d}, vcc, {s}", "out"),
    Row("v_sub_co_u32", "uu>u", lambda a, b: (a - b, b > a), "{name} {d}, vcc, {s}", "out"),
    Row("v_subrev_co_u32", "uu>u", lambda a, b: (b - a, a > b), "{name} {d}, vcc, {s}", "out"),
    Row("v_mad_u64_u32", "UUU>U", lambda a, b, c: ((a & ALL) * (b & ALL) + c, (a & ALL) * (b & ALL) + c >> 64),
        "{name} {d}, vcc, v2, v4, {a[2]}", "out"),
    Row("v_mad_i64_i32", "UUI>I", lambda a, b, c: (s(a, 32) * s(b, 32) + c, s(a, 32) * s(b, 32) + c < 0),
        "{name} {d}, vcc, v2, v4, {a[2]}", "out"),
]  # fmt: skip
for _add, _sub, _subrev in (("addc_co", "subb_co", "subbrev_co"), ("add_co_ci", "sub_co_ci", "subrev_co_ci")):
    _text = "{name} {d}, vcc, {s}, vcc"
    CARRIES += [
        Row(f"v_{_add}_u32", "uu>u", lambda a, b, c: (a + b + c, a + b + c > ALL), _text, "in out"),
        Row(f"v_{_sub}_u32", "uu>u", lambda a, b, c: (a - b - c, b + c > a), _text, "in out"),
        Row(f"v_{_subrev}_u32", "uu>u", lambda a, b, c: (b - a - c, a + c > b), _text, "in out"),
    ]

HALVES = [
    *(Row(f"v_{word}_u16", "ww>w", lambda a, b: a + b) for word in ("add", "add_nc")),
    *(Row(f"v_{word}_u16", "ww>w", lambda a, b: a - b) for word in ("sub", "sub_nc")),
    *(Row(f"v_{word}_i16", "ss>s", lambda a, b: a + b) for word in ("add", "add_nc")),
    *(Row(f"v_{word}_i16", "ss>s", lambda a, b: a - b) for word in ("sub", "sub_nc")),
    Row("v_subrev_u16", "ww>w", lambda a, b: b - a),
    Row("v_mul_lo_u16", "ww>w", lambda a, b: a * b),
    Row("v_lshlrev_b16", "ww>w", lambda a, b: b << a % 16),
    Row("v_lshrrev_b16", "ww>w", lambda a, b: b >> a % 16),
    Row("v_ashrrev_i16", "ss>s", lambda a, b: b >> a % 16),
    Row("v_max_u16", "ww>w", max),
    Row("v_min_u16", "ww>w", min),
    Row("v_max_i16", "ss>s", max),
    Row("v_min_i16", "ss>s", min),
    Row("v_max3_u16", "www>w", max),
    Row("v_min3_u16", "www>w", min),
    Row("v_max3_i16", "sss>s", max),
    Row("v_min3_i16", "sss>s", min),
    Row("v_med3_u16", "www>w", median),
    Row("v_med3_i16", "sss>s", median),
    *(Row(f"v_{word}_u16", "www>w", lambda a, b, c: a * b + c) for word in ("mad", "mad_legacy")),
    *(Row(f"v_{word}_i16", "sss>s", lambda a, b, c: a * b + c) for word in ("mad", "mad_legacy")),
    Row("v_and_b16", "ww>w", lambda a, b: a & b),
    Row("v_or_b16", "ww>w", lambda a, b: a | b),
    Row("v_xor_b16", "ww>w", lambda a, b: a ^ b),
    Row("v_not_b16", "w>w", lambda a: ~a),
    Row("v_mov_b16", "w>w", lambda a: a, "{name} v10.l, v2.l"),
    Row("v_cndmask_b16", "ww>w", lambda a, b, on: b if on else a, "{name} {d}, {s}, vcc", "in"),
]  # fmt: skip

LONG = [
    Row("v_lshlrev_b64", "UU>U", lambda a, b: b << a % 64, "{name} {d}, v2, {a[1]}"),
    Row("v_lshrrev_b64", "UU>U", lambda a, b: b >> a % 64, "{name} {d}, v2, {a[1]}"),
    Row("v_ashrrev_i64", "II>I", lambda a, b: b >> a % 64, "{name} {d}, v2, {a[1]}"),
    Row("v_lshl_add_u64", "UUU>U", lambda a, b, c: (a << b % 8) + c, "{name} {d}, {a[0]}, v4, {a[2]}"),
    Row("v_mov_b64", "U>U", lambda a: a),
    Row("v_pk_mov_b32", "UU>U", lambda a, b: a >> 32 | (b & ALL) << 32, "{name} {d}, {s} op_sel:[1,0]"),
]

PACKED = [
    Row("v_pk_add_i16", "SS>S", pairs(lambda a, b: a + b)),
    Row("v_pk_sub_u16", "WW>W", pairs(lambda a, b: a - b)),
    Row("v_pk_mad_i16", "SSS>S", pairs(lambda a, b, c: a * b + c)),
    Row("v_pk_mad_u16", "WWW>W", pairs(lambda a, b, c: a * b + c)),
    Row("v_dot2_i32_i16", "SSi>i", dotted),
    Row("v_dot2_u32_u16", "WWu>u", dotted),
    Row("v_dot4_i32_i8", "CCi>i", dotted),
    Row("v_dot4_u32_u8", "BBu>u", dotted),
    Row("v_dot8_i32_i4", "cci>i", dotted),
    Row("v_dot8_u32_u4", "bbu>u", dotted),
    Row("v_dot2c_i32_i16", "SS+i>i", dotted),
    Row("v_dot4c_i32_i8", "CC+i>i", dotted),
    Row("v_dot8c_i32_i4", "cc+i>i", dotted),
]  # fmt: skip

TABLES = {"words": WORDS, "carries": CARRIES, "halves": HALVES, "long": LONG, "packed": PACKED}


@pytest.mark.parametrize("chip", ["gfx942", "gfx950", "gfx1100"])
@pytest.mark.parametrize("table", TABLES)
def test_every_instruction_of_integers_is_what_python_says(table, chip):
    hold(of_chip(TABLES[table], chip), chip)
