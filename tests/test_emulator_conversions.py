"""Conversions between number formats and sums of small products in the emulator, against numpy and torch."""

import functools

import numpy as np
import pytest
import torch

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")
pytest.importorskip("triton")

from tests.one_instruction import LANES, Row, hold, of_chip

F, H, D = np.float32, np.float16, np.float64


def whole(low, high, prepare=np.trunc):
    """To an integer that is held at the ends of its type; 0 of a NaN."""

    def apply(a):
        exact = prepare(a).astype(D)
        return np.clip(np.where(np.isnan(exact), 0, exact), low, high).astype(np.int64).tolist()

    return apply


def both(function):
    """Of two operands, for the two halves of the result."""
    return lambda a, b: np.stack([np.asarray(function(a)), np.asarray(function(b))], axis=1)


def toward_zero(a):
    """float32 ─► float16, cut off."""
    near = a.astype(H)
    beyond = np.abs(near.astype(F)) > np.abs(a)
    return np.where(beyond, (near.view(np.uint16) - beyond).astype(np.uint16).view(H), near)


def bfloat(a):
    """float32 ─► the bits of bfloat16; NaNs are all one."""
    bits = torch.from_numpy(np.ascontiguousarray(a)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return np.where(np.isnan(a), 0x7FC0, bits)


def from_bfloat(bits):
    return (np.asarray(bits).astype(np.uint32) << 16).view(F)


NEAREST = whole(-(2**31), 2**31 - 1, lambda a: np.floor(a + F(0.5)))
DOWN = whole(-(2**31), 2**31 - 1, np.floor)
SIGNED, UNSIGNED = whole(-(2**31), 2**31 - 1), whole(0, 2**32 - 1)

PLAIN = [
    Row("v_cvt_f64_i32", "i>d", lambda a: a),
    Row("v_cvt_f64_u32", "u>d", lambda a: a),
    Row("v_cvt_i32_f64", "d>i", SIGNED),
    Row("v_cvt_u32_f64", "d>u", UNSIGNED),
    Row("v_cvt_f32_f64", "d>f", lambda a: a.astype(F)),
    Row("v_cvt_f64_f32", "f>d", lambda a: a.astype(D)),
    Row("v_cvt_f16_f32", "f>h", lambda a: a.astype(H)),
    Row("v_cvt_f32_f16", "h>f", lambda a: a.astype(F)),
    Row("v_cvt_f16_u16", "w>h", lambda a: a),
    Row("v_cvt_f16_i16", "s>h", lambda a: a),
    Row("v_cvt_u16_f16", "h>w", whole(0, 65535)),
    Row("v_cvt_i16_f16", "h>s", whole(-32768, 32767)),
    *(Row(name, "f>i", NEAREST) for name in ("v_cvt_rpi_i32_f32", "v_cvt_nearest_i32_f32")),
    *(Row(name, "f>i", DOWN) for name in ("v_cvt_flr_i32_f32", "v_cvt_floor_i32_f32")),
    Row("v_cvt_f32_bf16", "p>f", from_bfloat),
    Row("v_cvt_pk_bf16_f32", "ff>P", both(bfloat)),
    Row("v_cvt_pk_f16_f32", "ff>H", both(lambda a: a.astype(H))),
    *(Row(name, "ff>H", both(toward_zero)) for name in ("v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32")),
]

# Floats of 8 bits and of 4


def eight(name, chip):
    """torch's dtype of gfx942's (without negative zero) or gfx950's (of the OCP) format."""
    fnuz = chip == "gfx942"
    if name == "fp8":
        return torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn
    return torch.float8_e5m2fnuz if fnuz else torch.float8_e5m2


def narrowed(a, dtype):
    """float32 or float64 ─► bytes. torch may hold what is too large for E4M3 at its largest; here it is a NaN."""
    values = np.ascontiguousarray(a.astype(F))
    found = torch.from_numpy(values).to(dtype).view(torch.uint8).numpy().astype(np.int64)
    over = np.abs(values) > 464 if dtype == torch.float8_e4m3fn else np.zeros(values.shape, bool)
    return np.where(over, 0x7F | np.signbit(values).astype(np.int64) << 7, found)


def widened(octets, dtype):
    return torch.from_numpy(np.ascontiguousarray(octets, np.uint8)).view(dtype).float().numpy()


FOURS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""E2M1 (OCP Microscaling Formats 1.0, section 5.3.3)."""


def to_four(a):
    """The nearest code, even on a tie; the largest for what is larger, and for a NaN."""
    found = []
    for value in a.tolist():
        size = abs(value) if value == value else np.inf
        codes = sorted(range(8), key=lambda code: (abs(min(size, 1e9) - FOURS[code]), code % 2))
        found.append(codes[0] | 8 * bool(np.signbit(value)))
    return np.array(found)


@functools.cache
def scaled_operands(kind, scale):
    """Operands with numbers near those that the small formats have; the scale's is a power of two, at times an end."""
    generator = np.random.default_rng(17)
    found = []
    for place in range(3):
        if place == scale:
            exponents = generator.integers(110, 140, LANES)
            exponents[:8] = [0, 1, 254, 127, 2, 253, 100, 150]
            words = exponents << 23 | generator.integers(0, 1 << 23, LANES) | generator.integers(0, 2, LANES) << 31
            found.append(words.astype(np.uint64))
        elif kind == "raw":
            found.append(generator.integers(0, 2**64, LANES, np.uint64))
        else:
            dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.float32}[kind]
            values = (generator.standard_normal((LANES, 4)) * 2.0 ** generator.integers(-9, 9, (LANES, 4))).astype(
                dtype
            )
            values[::37] = [np.nan, np.inf, -np.inf, -0.0]
            bits = bfloat(values).astype(np.uint16) if kind == "bf16" else values
            found.append(np.ascontiguousarray(bits).view(np.uint64).reshape(LANES, -1)[:, 0].copy())
    return tuple(found)


def power(word):
    return (np.asarray(word).astype(np.int64) >> 23 & 255) - 127


def placed(value, old, shift, width):
    mask = (1 << width) - 1 << shift
    return (np.asarray(old).astype(np.int64) & ~mask) | (np.asarray(value).astype(np.int64) << shift & mask)


def small_rows(chip):
    """v_cvt_pk_fp8_f32 and its kin, with the half or byte that op_sel or SDWA names."""
    rows = []
    for name in ("fp8", "bf8"):
        dtype = eight(name, chip)

        def pack(a, b, old, shift, dtype=dtype):
            return placed(narrowed(a, dtype) | narrowed(b, dtype) << 8, old, shift, 16).tolist()

        given = scaled_operands("f32", 3)
        for half, words in ((0, ""), (1, " op_sel:[0,0,1]")):
            model = functools.partial(
                lambda a, b, c, shift, pack=pack: pack(a, b, c.view(np.uint32), shift), shift=16 * half
            )
            rows.append(Row(f"v_cvt_pk_{name}_f32", "ff+f>u", model, "{name} {d}, {s}" + words, given=given))
        raw = scaled_operands("raw", 3)
        for byte in range(4):
            rows.append(Row(f"v_cvt_f32_{name}", "B>f", lambda a, n=byte, t=dtype: widened(a[:, n], t),
                            f"{{name}}_sdwa {{d}}, {{s}} src0_sel:BYTE_{byte}", given=raw, arrays=True))  # fmt: skip
        for half in range(2):
            rows.append(Row(f"v_cvt_pk_f32_{name}", "B>F",
                            lambda a, n=half, t=dtype: widened(a[:, 2 * n : 2 * n + 2], t),
                            f"{{name}}_sdwa {{d}}, v2 src0_sel:WORD_{half}", given=raw, arrays=True))  # fmt: skip
    return rows


def scaled_rows():
    """gfx950's v_cvt_scalef32_pk and its kin, with the byte or half that op_sel names."""
    rows = []
    for name in ("fp8", "bf8", "fp4"):
        dtype = None if name == "fp4" else eight(name, "gfx950")
        width = 4 if name == "fp4" else 8
        for place in range(0, 32, 2 * width):
            part = place // (2 * width)
            to = f"{part & 1},{part >> 1}" if name == "fp4" else f"{part}"
            of = f" op_sel:[{part & 1},{part >> 1}]" if name == "fp4" else f" op_sel:[{part},0]"
            for wide, result in (("f32", "F"), ("f16", "H"), ("bf16", "P")):
                model = functools.partial(scaled_down, dtype=dtype, wide=wide, place=place)
                three = wide == "f32"  # operands, each with a bit of op_sel before those of the result
                rows.append(Row(
                    f"v_cvt_scalef32_pk_{name}_{wide}", "ffu+u>u" if three else f"{result}u+u>u", model,
                    f"{{name}} {{d}}, {{s}} op_sel:[{'0,' * (three and name != 'fp4')}0,0,{to}]",
                    given=scaled_operands(wide, 2 if three else 1), arrays=True))  # fmt: skip
                model = functools.partial(scaled_up, dtype=dtype, wide=wide, place=place)
                rows.append(Row(f"v_cvt_scalef32_pk_{wide}_{name}", f"Bu>{result}", model, "{name} {d}, {s}" + of,
                                given=scaled_operands("raw", 1), arrays=True))  # fmt: skip
        for byte in range(4 if dtype else 0):
            model = functools.partial(scaled_up, dtype=dtype, wide="one", place=8 * byte)
            rows.append(Row(f"v_cvt_scalef32_f32_{name}", "Bu>f", model,
                            f"{{name}} {{d}}, {{s}} op_sel:[{byte & 1},{byte >> 1}]",
                            given=scaled_operands("raw", 1), arrays=True))  # fmt: skip
    return rows


def scaled_down(*given, dtype, wide, place):
    """Two numbers over a power of two, as codes beside what the register holds."""
    *numbers, scale, old = given
    if wide != "f32":
        values = from_bfloat(numbers[0]) if wide == "bf16" else numbers[0]
        numbers = [values[:, 0], values[:, 1]]
    exact = [np.ldexp(one.astype(D), -power(scale)) for one in numbers]
    low, high = (to_four(one) if dtype is None else narrowed(one, dtype) for one in exact)
    width = 4 if dtype is None else 8
    return placed(low | high << width, old, place, 2 * width)


def scaled_up(octets, scale, *, dtype, wide, place):
    """Codes times a power of two."""
    at = place // 8
    if dtype is None:
        values = FOURS[np.stack([octets[:, at] & 15, octets[:, at] >> 4], axis=1)]
    else:
        values = widened(octets[:, at : at + 2], dtype) if wide != "one" else widened(octets[:, at : at + 1], dtype)
    exact = np.ldexp(values.astype(D), power(scale)[:, None])
    if wide == "bf16":
        return bfloat(exact.astype(F))
    return exact.astype(H if wide == "f16" else F)


# Sums of products: of small numbers, so that they are exact in any order


@functools.cache
def small_numbers(factors, addend="f32"):
    generator = np.random.default_rng(23)
    found = []
    for kind in (factors, factors, addend):
        values = generator.integers(-8, 9, (LANES, 4)).astype(H if kind == "f16" else F)
        bits = bfloat(values).astype(np.uint16) if kind == "bf16" else values
        found.append(np.ascontiguousarray(bits).view(np.uint64).reshape(LANES, -1)[:, 0].copy())
    return tuple(found)


def summed(a, b, c):
    return (a.astype(F) * b.astype(F)).sum(axis=1) + c.astype(F)


def summed_bfloat(a, b, c):
    return (from_bfloat(a) * from_bfloat(b)).sum(axis=1) + c


DOTS = [
    Row("v_dot2_f32_f16", "HHf>f", summed, given=small_numbers("f16")),
    *(Row(name, "HH+f>f", summed, given=small_numbers("f16")) for name in ("v_dot2c_f32_f16", "v_dot2acc_f32_f16")),
    Row("v_dot2_f32_bf16", "PPf>f", summed_bfloat, given=small_numbers("bf16")),
    Row("v_dot2c_f32_bf16", "PP+f>f", summed_bfloat, given=small_numbers("bf16")),
    Row("v_dot2_f16_f16", "HHh>h", lambda a, b, c: summed(a, b, c).astype(H), given=small_numbers("f16", "f16")),
    Row("v_dot2_bf16_bf16", "PPp>p", lambda a, b, c: bfloat(summed_bfloat(a, b, from_bfloat(c))),
        given=small_numbers("bf16", "bf16"), arrays=True),
]  # fmt: skip


@pytest.mark.parametrize("chip", ["gfx942", "gfx950", "gfx1100"])
def test_every_conversion_is_numpys(chip):
    hold(of_chip(PLAIN, chip), chip)


@pytest.mark.parametrize("chip", ["gfx942", "gfx950", "gfx1100"])
def test_every_sum_of_small_products_is_exact(chip):
    hold(of_chip(DOTS, chip), chip)


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
def test_every_conversion_of_floats_of_8_bits_is_torchs(chip):
    hold(of_chip(small_rows(chip), chip), chip)


@pytest.mark.slow(ci=True)
def test_every_conversion_with_a_scale_is_torchs_times_a_power_of_two():
    rows = of_chip(scaled_rows(), "gfx950")
    assert len({row.name for row in rows}) >= 20
    hold(rows, "gfx950")
