"""Two hundred random instructions of each family, on three chips, against statements of their own in numpy.

Operands are registers of random bits or inline constants, with random signs and halves; a launch runs twenty.
"""

import ctypes
import random
import zlib

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from tests.assembled import BEGIN, launched
from tests.test_emulator_instructions import patterns, same_floats

COUNT, EACH, LAUNCHES = 256, 20, 10
RDNA_BEGIN = """
    s_load_b256 s[4:11], s[0:1], 0x0
    s_lshl_b32 s2, s2, 6
    s_waitcnt lgkmcnt(0)
    v_add_nc_u32_e32 v1, s2, v0
    v_lshlrev_b32_e32 v1, 2, v1
    global_load_b32 v2, v1, s[4:5]
    global_load_b32 v3, v1, s[6:7]
    global_load_b32 v4, v1, s[8:9]
    s_waitcnt vmcnt(0)
"""

U, S, F = np.uint64, np.int64, np.float32
FLOAT_CONSTANTS = {"0.5": 0.5, "-1.0": -1.0, "2.0": 2.0, "-4.0": -4.0}

_fmaf = ctypes.CDLL("libm.so.6").fmaf
_fmaf.restype, _fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
fma = np.vectorize(_fmaf, otypes=[F])


def i(value):
    """Signed."""
    return value.astype(np.uint32).view(np.int32).astype(S)


def u(value):
    return value.astype(U)


def low24(value):
    return value & 0xFFFFFF


def signed24(value):
    return (value << 40).astype(np.uint64).view(S) >> 40


def median(a, b, c):
    return np.sort(np.stack([a, b, c]), axis=0)[1]


INTEGER = {
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: i(a) * i(b) >> 32,
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << b % 32) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b) << c % 32,
    "v_lshl_or_b32": lambda a, b, c: a << b % 32 | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_mul_u32_u24": lambda a, b: low24(a) * low24(b),
    "v_mad_u32_u24": lambda a, b, c: low24(a) * low24(b) + c,
    "v_mul_i32_i24": lambda a, b: signed24(a) * signed24(b),
    "v_mad_i32_i24": lambda a, b, c: signed24(a) * signed24(b) + i(c),
    "v_min_u32": np.minimum,
    "v_max_u32": np.maximum,
    "v_min_i32": lambda a, b: np.minimum(i(a), i(b)),
    "v_max_i32": lambda a, b: np.maximum(i(a), i(b)),
    "v_min3_u32": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "v_max3_i32": lambda a, b, c: np.maximum(np.maximum(i(a), i(b)), i(c)),
    "v_med3_u32": median,
    "v_med3_i32": lambda a, b, c: median(i(a), i(b), i(c)),
}
SUMS = {
    "cdna": {"v_add_u32": lambda a, b: a + b, "v_sub_u32": lambda a, b: a - b, "v_subrev_u32": lambda a, b: b - a},
    "rdna": {
        "v_add_nc_u32": lambda a, b: a + b,
        "v_sub_nc_u32": lambda a, b: a - b,
        "v_subrev_nc_u32": lambda a, b: b - a,
    },
}


def bits_of(a, b, c):
    return a >> b % 32 & ((U(1) << c % 32) - U(1))


def arithmetic_bits(a, b, c):
    """Bits of a number that goes on with its sign above bit 31."""
    offset, width = (b % 32).astype(S), (c % 32).astype(S)
    part = (i(a) >> offset) & ((1 << width) - 1)
    return np.where((width > 0) & (part >> np.maximum(width - 1, 0) & 1 == 1), part - (1 << width), part)


def reversed_bits(a):
    return np.array([int(f"{int(word):032b}"[::-1], 2) for word in a])


def highest(a):
    return np.array([32 - int(word).bit_length() if word else -1 for word in a])


def lowest(a):
    return np.array([(int(word) & -int(word)).bit_length() - 1 for word in a])


SHIFT = {
    "v_lshlrev_b32": lambda a, b: b << a % 32,
    "v_lshrrev_b32": lambda a, b: b >> a % 32,
    "v_ashrrev_i32": lambda a, b: i(b) >> (a % 32).astype(S),
    "v_bfe_u32": bits_of,
    "v_bfe_i32": arithmetic_bits,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> c % 32,
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> c % 4 * 8,
    "v_bcnt_u32_b32": lambda a, b: np.bitwise_count(a) + b,
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": reversed_bits,
}
ZEROS = {
    "cdna": {"v_ffbh_u32": highest, "v_ffbl_b32": lowest},
    "rdna": {"v_clz_i32_u32": highest, "v_ctz_i32_b32": lowest},
}


FLOAT = {
    "v_add_f32": lambda a, b: a + b,
    "v_sub_f32": lambda a, b: a - b,
    "v_subrev_f32": lambda a, b: b - a,
    "v_mul_f32": lambda a, b: a * b,
    "v_fma_f32": fma,
    "v_floor_f32": np.floor,
    "v_ceil_f32": np.ceil,
    "v_trunc_f32": np.trunc,
    "v_rndne_f32": np.rint,
}

ORDERED = {"lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPARE = {f"v_cmp_{word}_f32": test for word, test in ORDERED.items()}
COMPARE |= {f"v_cmp_n{word}_f32": lambda a, b, test=test: ~test(a, b) for word, test in ORDERED.items()}
COMPARE |= {
    "v_cmp_lg_f32": lambda a, b: (a < b) | (a > b),
    "v_cmp_o_f32": lambda a, b: (a == a) & (b == b),
    "v_cmp_u_f32": lambda a, b: (a != a) | (b != b),
}
COMPARE |= {f"v_cmp_{word}_u32": test for word, test in (ORDERED | {"ne": np.not_equal}).items()}
COMPARE |= {
    f"v_cmp_{word}_i32": lambda a, b, test=test: test(i(a), i(b))
    for word, test in (ORDERED | {"ne": np.not_equal}).items()
}


def whole(a, low, high):
    exact = np.trunc(a.astype(np.float64))
    return np.clip(np.where(np.isnan(exact), 0, exact), low, high).astype(S)


CONVERT = {
    "v_cvt_i32_f32": lambda a: whole(a, -(2**31), 2**31 - 1),
    "v_cvt_u32_f32": lambda a: whole(a, 0, 2**32 - 1),
    "v_cvt_f32_i32": lambda a: i(a).astype(F).view(np.uint32),
    "v_cvt_f32_u32": lambda a: a.astype(F).view(np.uint32),
    **{f"v_cvt_f32_ubyte{n}": lambda a, n=n: (a >> 8 * n & 255).astype(F).view(np.uint32) for n in range(4)},
}


def halves(function, kind=np.uint16):
    """A packed instruction by its two halves; each is given as [lanes] of `kind`."""
    return lambda a, b: (np.asarray(function(a.view(kind), b.view(kind))).view(np.uint16)).astype(np.uint16)


PACKED = {
    "v_pk_add_u16": halves(lambda a, b: a + b),
    "v_pk_sub_i16": halves(lambda a, b: a - b),
    "v_pk_mul_lo_u16": halves(lambda a, b: a * b),
    "v_pk_lshlrev_b16": halves(lambda a, b: b << (a & 15)),
    "v_pk_lshrrev_b16": halves(lambda a, b: b >> (a & 15)),
    "v_pk_ashrrev_i16": halves(lambda a, b: b >> (a & 15), np.int16),
    "v_pk_min_i16": halves(np.minimum, np.int16),
    "v_pk_max_i16": halves(np.maximum, np.int16),
    "v_pk_min_u16": halves(np.minimum),
    "v_pk_max_u16": halves(np.maximum),
    "v_pk_add_f16": halves(lambda a, b: a + b, np.float16),
    "v_pk_mul_f16": halves(lambda a, b: a * b, np.float16),
}

ONE_SPELLING = ("v_mul_lo_u32", "v_mul_hi_u32", "v_mul_hi_i32", "v_bcnt_u32_b32")
"""Of two operands, and with no shorter encoding."""

FAMILIES = {
    "integer": INTEGER, "shift": SHIFT, "float": FLOAT, "compare": COMPARE, "convert": CONVERT, "packed": PACKED,
}  # fmt: skip
BY_CHIP = {"integer": SUMS, "shift": ZEROS}


def operand(pick, name, given, floats):
    """Its text, and its bits as uint32 [COUNT]."""
    kind = pick.random()
    if kind < 0.7:
        register = pick.randrange(3)
        text, bits = f"v{2 + register}", given[register]
    elif floats and kind < 0.85:
        text = pick.choice(list(FLOAT_CONSTANTS))
        bits = np.full(COUNT, np.array(FLOAT_CONSTANTS[text], F).view(np.uint32))
    else:
        value = pick.randrange(-16, 65)
        text, bits = str(value), np.full(COUNT, value & 0xFFFFFFFF, np.uint32)
    if floats and text.startswith("v"):
        if pick.random() < 0.3:
            text, bits = f"|{text}|", bits & np.uint32(0x7FFFFFFF)
        if pick.random() < 0.3:
            text, bits = f"-{text}", bits ^ np.uint32(0x80000000)
    return text, bits


def half_of(bits, high):
    return (bits >> np.uint32(16 * high)).astype(np.uint16)


def instance(pick, family, name, statement, given, number, vcc):
    """One instruction whose result goes to v5 and on, and what that must be: uint32 [COUNT]."""
    floats = (name.endswith("_f32") and family != "convert") or name in ("v_cvt_i32_f32", "v_cvt_u32_f32")
    count = 1 if family == "convert" else operands_of(name)
    if family == "packed":
        registers = [pick.randrange(3) for _ in range(2)]
        low, high = [pick.randrange(2) for _ in range(2)], [pick.randrange(2) for _ in range(2)]
        text = f"{name} v{5 + number}, v{2 + registers[0]}, v{2 + registers[1]}"
        text += f" op_sel:[{low[0]},{low[1]}] op_sel_hi:[{high[0]},{high[1]}]"
        with np.errstate(all="ignore"):
            first, second = (
                statement(*(half_of(given[one], where) for one, where in zip(registers, side))) for side in (low, high)
            )
        return text, first.astype(np.uint32) | second.astype(np.uint32) << np.uint32(16)
    texts, bits = zip(*(operand(pick, name, given, floats) for _ in range(count)))
    values = [one.view(F) if floats else u(one) for one in bits]
    with np.errstate(all="ignore"):
        found = np.asarray(statement(*values))
    if family == "compare":
        text = f"{name}_e64 {vcc}, {', '.join(texts)}\n    v_cndmask_b32_e64 v{5 + number}, 0, 1, {vcc}"
        return text, found.astype(np.uint32)
    text = f"{name}_e64 v{5 + number}, {', '.join(texts)}" if count < 3 else f"{name} v{5 + number}, {', '.join(texts)}"
    if name in ONE_SPELLING:
        text = text.replace("_e64", "", 1)
    if found.dtype == F:
        return text, found.view(np.uint32)
    return text, (found.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)


def operands_of(name):
    """How many it has."""
    three = ("3_", "_add_u32", "_lshl_", "_or_b32", "mad_", "fma_", "xad_", "bfe", "bfi", "align")
    one = ("not_", "bfrev", "ffbh", "ffbl", "clz", "ctz", "floor", "ceil", "trunc", "rndne")
    if any(part in name for part in one):
        return 1
    if name in ("v_or_b32", "v_add_u32", "v_add_nc_u32", "v_bcnt_u32_b32"):
        return 2
    return 3 if any(part in name for part in three) else 2


def launch_of(family, target, number):
    """Twenty random instructions and what they gave: text, found, expected."""
    rdna = target == "gfx1100"
    known = FAMILIES[family] | BY_CHIP.get(family, {}).get("rdna" if rdna else "cdna", {})
    pick = random.Random(zlib.crc32(f"{family} {number}".encode()))
    given = [np.random.default_rng(number + n).choice(patterns(7 * number + n), COUNT) for n in range(3)]
    lines, expected = [], []
    for place in range(EACH):
        name = pick.choice(list(known))
        text, should = instance(pick, family, name, known[name], given, place, "vcc_lo" if rdna else "vcc")
        lines.append(text)
        expected.append(should)
    store = "global_store_b32" if rdna else "global_store_dword"
    add = "v_add_nc_u32_e32" if rdna else "v_add_u32_e32"
    stores = [f"{store} v1, v{5 + n}, s[10:11]\n    {add} v1, {4 * COUNT}, v1" for n in range(EACH)]
    body = "\n    ".join([RDNA_BEGIN if rdna else BEGIN, *lines, *stores, "s_endpgm\n"])
    out = np.zeros(EACH * COUNT, np.uint32)
    outcome = launched(body, [*given, out], grid=COUNT // 64, block=64, target=target)
    assert outcome.clean, outcome
    return list(zip(lines, out.reshape(EACH, COUNT), expected))


def is_float(text):
    return text.startswith(tuple(FLOAT)) or "_f16" in text.split()[0]


def check(text, found, expected):
    if "_f16" in text.split()[0]:
        mine, theirs = found.view(np.float16), expected.view(np.float16)
        nan = np.isnan(theirs)
        assert np.isnan(mine[nan]).all(), text
        np.testing.assert_array_equal(found.view(np.uint16)[~nan], expected.view(np.uint16)[~nan], err_msg=text)
    elif is_float(text):
        same_floats(found, expected.view(F))
    else:
        np.testing.assert_array_equal(found, expected, err_msg=text)


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "gfx1100"])
@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_random_instructions_of_a_family_are_what_numpy_says(family, target):
    for text, found, expected in launch_of(family, target, 0):
        check(text, found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", "gfx950", "gfx1100"])
@pytest.mark.parametrize("family", FAMILIES)
def test_two_hundred_random_instructions_of_a_family_are_what_numpy_says(family, target):
    checked = 0
    for number in range(LAUNCHES):
        for text, found, expected in launch_of(family, target, number):
            check(text, found, expected)
            checked += 1
    assert checked == 200
