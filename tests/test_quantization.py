"""The quantizers agree, byte for byte, with their rules written out in exact rational arithmetic."""

import math
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference.quantization
from reference.quantization import (
    dequantize_fp8,
    dequantize_mxfp4,
    e8m0_to_float32,
    fp8_dtype,
    pack_fp4,
    quantize_fp8,
    quantize_mxfp4,
    unpack_fp4,
)

FP8 = [torch.float8_e4m3fn, torch.float8_e4m3fnuz]
MAGNITUDES = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]

# --- the rules, one scalar at a time -----------------------------------------------------------------------------


def nearest_even(x, grid):
    """Index of the grid point nearest to x >= 0, a tie to the even index; past the end, the last."""
    return min(range(len(grid)), key=lambda code: (abs(grid[code] - x), code % 2))


def naive_mxfp4_block(values):
    """(codes, E8M0 byte) of 32 float32 values, in fractions: the power of two first, then each value."""
    amax = max(abs(Fraction(value)) for value in values)
    power = -200
    while amax >= Fraction(7, 4) * Fraction(2) ** power:
        power += 1
    byte = 254 if power == 128 else max(0, power - 2 + 127)
    scale = Fraction(2) ** (byte - 127)
    codes = []
    for value in values:
        sign = 8 if math.copysign(1.0, value) < 0 else 0
        codes.append(sign + nearest_even(abs(Fraction(value)) / scale, MAGNITUDES))
    return codes, byte


def e4m3_grid(dtype):
    """Non-negative values of an e4m3 flavour by code, from its bias and its largest code."""
    bias, last = (7, 0x7E) if dtype == torch.float8_e4m3fn else (8, 0x7F)
    grid = []
    for code in range(last + 1):
        exponent, mantissa = code >> 3, code & 7
        significand = Fraction(mantissa, 8) + (1 if exponent else 0)
        grid.append(significand * Fraction(2) ** (max(exponent, 1) - bias))
    return grid


def float32(x):
    return torch.tensor(x, dtype=torch.float64).float().item()


def naive_fp8(values, dtype):
    """(codes, scale): the float32 scale, the float32 quotient, then the nearest value, a tie to the even code."""
    grid = e4m3_grid(dtype)
    scale = float32(max(float32(1e-12), *(abs(value) for value in values)) / float(grid[-1]))
    codes = []
    for value in values:
        code = nearest_even(Fraction(float32(abs(value) / scale)), grid)
        negative = math.copysign(1.0, value) < 0
        if dtype == torch.float8_e4m3fnuz and code == 0:
            negative = False  # no negative zero: 0x80 is its NaN
        codes.append(code + (0x80 if negative else 0))
    return codes, scale


# --- inputs ------------------------------------------------------------------------------------------------------

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
moderate = st.floats(-100, 100, width=32)
quarters = st.integers(-32, 32).map(lambda n: n * 0.25)  # every value and midpoint of E2M1, and beyond
one_binade = st.floats(1, 8, width=32)
blocks = st.one_of(
    [st.lists(kind, min_size=32, max_size=32) for kind in (finite, moderate, quarters, one_binade)]
    + [st.lists(st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38]), min_size=32, max_size=32)]
)
powers = st.integers(-140, 120)


def as_block(values, power=0):
    """float32 (1, 32), scaled by a power of two in float64 and rounded once."""
    return (torch.tensor([values], dtype=torch.float64) * 2.0**power).clamp(-3.4e38, 3.4e38).float()


# --- mxfp4 -------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(values=blocks, power=powers)
def test_mxfp4_follows_the_rules_in_exact_arithmetic(values, power):
    x = as_block(values, power)
    packed, e8m0 = quantize_mxfp4(x)
    codes, byte = naive_mxfp4_block(x[0].tolist())
    assert e8m0.tolist() == [[byte]]
    assert unpack_fp4(packed)[0].tolist() == codes


@pytest.mark.parametrize("power", [-100, -20, 0, 20, 100])
@pytest.mark.parametrize("sign", [1, -1])
def test_every_midpoint_goes_to_the_even_code_and_its_neighbours_to_the_nearer(sign, power):
    midpoints = [(a + b) / 2 for a, b in pairwise(MAGNITUDES)]
    exact = torch.tensor([float(m) for m in midpoints])
    up, down = torch.nextafter(exact, torch.tensor(9.0)), torch.nextafter(exact, torch.tensor(0.0))
    block = torch.cat([exact, up, down, torch.tensor([6.0]), torch.zeros(32 - 22)])
    packed, e8m0 = quantize_mxfp4((sign * block * 2.0**power)[None])
    assert e8m0.item() == 127 + power
    codes = (unpack_fp4(packed)[0] & 7).tolist()
    assert codes[:7] == [0, 2, 2, 4, 4, 6, 6]
    assert codes[7:14] == [1, 2, 3, 4, 5, 6, 7]
    assert codes[14:21] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("power", [-100, -1, 0, 3, 100])
def test_the_scale_steps_up_at_seven_quarters_of_a_power_of_two(power):
    edge = torch.tensor(1.75 * 2.0**power)
    below = torch.nextafter(edge, torch.tensor(0.0))
    for amax, byte, code in ((below, power - 2 + 127, 7), (edge, power - 1 + 127, 6)):
        block = torch.zeros(1, 32)
        block[0, 5] = -amax
        packed, e8m0 = quantize_mxfp4(block)
        assert e8m0.item() == byte
        assert unpack_fp4(packed)[0, 5].item() == 8 + code


def test_only_magnitudes_between_six_and_seven_scales_saturate():
    block = torch.zeros(1, 32)
    block[0, :4] = torch.tensor([6.99, -6.5, 6.0, 5.01])
    packed, e8m0 = quantize_mxfp4(block)
    assert dequantize_mxfp4(packed, e8m0)[0, :4].tolist() == [6.0, -6.0, 6.0, 6.0]


@settings(max_examples=200, deadline=None)
@given(values=blocks, power=powers)
def test_mxfp4_round_trip_is_within_half_a_step_and_keeps_the_block_maximum(values, power):
    x = as_block(values, power)
    packed, e8m0 = quantize_mxfp4(x)
    byte = e8m0.item()
    if byte == 254:
        return  # past 1.75 * 2^127; see the test below
    scale = Fraction(2) ** (byte - 127)
    back = dequantize_mxfp4(packed, e8m0)
    codes = unpack_fp4(packed)[0].tolist()
    for value, result, code in zip(x[0].tolist(), back[0].tolist(), codes):
        error = abs(Fraction(value) - Fraction(result)) / scale
        # steps .5 .5 .5 | 1 1 | 2, and 6 takes everything up to 7
        assert error <= (Fraction(1, 4), Fraction(1, 2), Fraction(1))[0 if code & 7 < 4 else 1 if code & 7 < 6 else 2]
        assert math.copysign(1, value) == math.copysign(1, result)
    if byte > 0:
        assert max(code & 7 for code in codes) in (6, 7)
        assert codes[x[0].abs().argmax()] & 7 == max(code & 7 for code in codes)


@settings(max_examples=200, deadline=None)
@given(values=blocks, power=powers)
def test_mxfp4_is_idempotent_byte_for_byte(values, power):
    packed, e8m0 = quantize_mxfp4(as_block(values, power))
    if e8m0.item() == 254:
        return
    again = quantize_mxfp4(dequantize_mxfp4(packed, e8m0))
    assert torch.equal(again[0], packed)
    assert torch.equal(again[1], e8m0)


def test_a_zero_block_keeps_its_signs_and_gets_the_least_scale():
    x = torch.zeros(1, 32)
    x[0, ::2] = -0.0
    packed, e8m0 = quantize_mxfp4(x)
    assert e8m0.item() == 0
    assert packed.unique().tolist() == [0x08]
    back = dequantize_mxfp4(packed, e8m0)
    assert back.eq(0).all() and torch.equal(back.signbit(), x.signbit())


def test_subnormal_inputs_count_at_their_value():
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([2.0**-127, 2.0**-128, -3 * 2.0**-128, 2.0**-129])
    packed, e8m0 = quantize_mxfp4(x)
    assert e8m0.item() == 0
    assert unpack_fp4(packed)[0, :4].tolist() == [2, 1, 8 + 3, 0]
    assert dequantize_mxfp4(packed, e8m0)[0, :4].tolist() == [2.0**-127, 2.0**-128, -3 * 2.0**-128, 0.0]


def test_past_the_largest_power_of_two_the_scale_is_254_as_aiters_kernel_writes_it():
    x = torch.zeros(1, 32)
    x[0, 0] = torch.finfo(torch.float32).max
    packed, e8m0 = quantize_mxfp4(x)
    assert e8m0.item() == 254
    assert unpack_fp4(packed)[0, 0].item() == 4
    assert dequantize_mxfp4(packed, e8m0)[0, 0].item() == math.inf


def test_blocks_do_not_influence_each_other():
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(3)) * torch.logspace(-3, 3, 6)[:, None]
    packed, e8m0 = quantize_mxfp4(x)
    for row in range(6):
        for block in range(2):
            alone = quantize_mxfp4(x[row, 32 * block : 32 * block + 32][None])
            assert torch.equal(alone[0][0], packed[row, 16 * block : 16 * block + 16])
            assert alone[1].item() == e8m0[row, block].item()


def test_shapes_of_the_mla_cache():
    kv = torch.randn(7, 1, 576).bfloat16()
    packed, e8m0 = quantize_mxfp4(kv)
    assert (packed.shape, e8m0.shape) == ((7, 1, 288), (7, 1, 18))
    assert packed.dtype == e8m0.dtype == torch.uint8
    back = dequantize_mxfp4(packed, e8m0.view(7, 18), dtype=torch.bfloat16)
    assert back.shape == (7, 1, 576)
    assert torch.equal(back.float(), dequantize_mxfp4(packed, e8m0))  # bf16 holds every E2M1 value
    assert 0.08 < ((back - kv).float().norm() / kv.float().norm()).item() < 0.13


def test_an_empty_cache_quantizes_to_nothing():
    packed, e8m0 = quantize_mxfp4(torch.zeros(0, 64))
    assert (packed.shape, e8m0.shape) == ((0, 32), (0, 2))
    assert dequantize_mxfp4(packed, e8m0).shape == (0, 64)


def test_a_strided_view_quantizes_like_its_copy():
    x = torch.randn(64, 8).T
    assert not x.is_contiguous()
    assert all(map(torch.equal, quantize_mxfp4(x), quantize_mxfp4(x.clone(memory_format=torch.contiguous_format))))


@pytest.mark.parametrize("quantize", [quantize_fp8, quantize_mxfp4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_chunks_change_nothing(monkeypatch, quantize, dtype):
    x = torch.randn(33, 96, generator=torch.Generator().manual_seed(4)).to(dtype)
    inverse = dequantize_fp8 if quantize is quantize_fp8 else dequantize_mxfp4
    whole = quantize(x)
    back = inverse(*whole)
    monkeypatch.setattr(reference.quantization, "CHUNK_ELEMENTS", 160)
    chunked = quantize(x)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(whole, chunked))
    assert torch.equal(inverse(*chunked), back)


@pytest.mark.parametrize("quantize", [quantize_fp8, quantize_mxfp4])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused(quantize, value):
    x = torch.zeros(2, 64)
    x[1, 40] = value
    with pytest.raises(ValueError, match="NaN or Inf"):
        quantize(x)


def test_a_last_dim_that_is_no_multiple_of_32_is_refused():
    for shape in ((2, 48), (33,), ()):
        with pytest.raises(ValueError, match="multiple of 32"):
            quantize_mxfp4(torch.zeros(shape))


def test_scales_that_do_not_belong_to_the_values_are_refused():
    packed, e8m0 = quantize_mxfp4(torch.ones(4, 64))
    with pytest.raises(ValueError, match="trim padded scales"):
        dequantize_mxfp4(packed, torch.zeros(256, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="uint8"):
        dequantize_mxfp4(packed, e8m0.float())
    with pytest.raises(ValueError, match="uint8"):
        unpack_fp4(packed.int())


def test_the_even_index_is_the_low_nibble():
    assert pack_fp4(torch.tensor([1, 2, 15, 8], dtype=torch.uint8)).tolist() == [0x21, 0x8F]
    assert unpack_fp4(torch.tensor([0x21, 0x8F], dtype=torch.uint8)).tolist() == [1, 2, 15, 8]
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1] = 6.0, -1.0
    packed, _ = quantize_mxfp4(x)
    assert packed[0, 0].item() == 0xA7  # low nibble 7 is 6.0, high nibble 0xA is -1.0


def test_every_byte_survives_unpacking_and_packing():
    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    assert torch.equal(pack_fp4(unpack_fp4(every)), every)


def test_every_byte_dequantizes_to_its_two_e2m1_values():
    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    back = dequantize_mxfp4(every, torch.full((16, 1), 128, dtype=torch.uint8)).flatten().tolist()
    for byte in range(256):
        for nibble, value in ((byte & 15, back[2 * byte]), (byte >> 4, back[2 * byte + 1])):
            assert abs(value) == 2 * MAGNITUDES[nibble & 7]
            assert (math.copysign(1, value) < 0) == (nibble >= 8)


def test_e8m0_is_a_power_of_two_and_255_is_nan():
    values = e8m0_to_float32(torch.arange(256, dtype=torch.uint8))
    assert values[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert values[255].isnan()
    assert (
        dequantize_mxfp4(torch.zeros(1, 16, dtype=torch.uint8), torch.tensor([[255]], dtype=torch.uint8)).isnan().all()
    )


def test_torchs_own_e8m0_type_reads_the_scales_the_same_way():
    every = torch.arange(255, dtype=torch.uint8)
    assert torch.equal(every.view(torch.float8_e8m0fnu).float(), e8m0_to_float32(every))


# --- fp8 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FP8)
@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.one_of(finite, moderate, quarters), min_size=1, max_size=8))
def test_fp8_follows_the_rules_in_exact_arithmetic(dtype, values):
    x = torch.tensor(values)
    quantized, scale = quantize_fp8(x, dtype)
    codes, expected_scale = naive_fp8(x.tolist(), dtype)
    assert scale.item() == expected_scale
    assert quantized.view(torch.uint8).tolist() == codes


@pytest.mark.parametrize("dtype", FP8)
def test_every_fp8_midpoint_goes_to_the_even_code(dtype):
    grid = e4m3_grid(dtype)
    midpoints = [float((a + b) / 2) for a, b in pairwise(grid)]
    x = torch.tensor([float(grid[-1]), *midpoints])  # the first makes the scale 1
    quantized, scale = quantize_fp8(x, dtype)
    assert scale.item() == 1.0
    assert quantized.view(torch.uint8)[1:].tolist() == [code + code % 2 for code in range(len(midpoints))]


@pytest.mark.parametrize("dtype", FP8)
def test_every_fp8_value_survives_the_round_trip_byte_for_byte(dtype):
    grid = torch.tensor([float(value) for value in e4m3_grid(dtype)])
    x = torch.cat([grid, -grid[1:]]) * 0.125
    quantized, scale = quantize_fp8(x, dtype)
    assert torch.equal(dequantize_fp8(quantized, scale), x)
    again, scale_again = quantize_fp8(dequantize_fp8(quantized, scale), dtype)
    assert torch.equal(again.view(torch.uint8), quantized.view(torch.uint8))
    assert torch.equal(scale_again, scale)


@pytest.mark.parametrize(("dtype", "largest", "tiny"), [(FP8[0], 448.0, 2.0**-10), (FP8[1], 240.0, 2.0**-11)])
@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.one_of(moderate, st.floats(-(2.0**-10), 2.0**-10, width=32)), min_size=1, max_size=20))
def test_fp8_round_trip_is_within_half_a_step_and_keeps_the_maximum(dtype, largest, tiny, values):
    x = torch.tensor(values)
    quantized, scale = quantize_fp8(x, dtype)
    back = dequantize_fp8(quantized, scale).double()
    bound = torch.maximum(x.double().abs() / 16, scale.double() * tiny) * (1 + 1e-6)
    assert ((back - x.double()).abs() <= bound).all()
    if x.abs().max() > 1e-12:
        assert quantized.float().abs().max().item() == largest


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("shape", [(3, 5), (0, 4), ()])
def test_fp8_zeros_come_back_as_zeros(dtype, shape):
    quantized, scale = quantize_fp8(torch.zeros(shape), dtype)
    back = dequantize_fp8(quantized, scale, dtype=torch.bfloat16)
    assert quantized.shape == back.shape == torch.Size(shape)
    assert 0 < scale.item() < 1 and scale.shape == (1,) and scale.dtype == torch.float32
    assert back.dtype == torch.bfloat16 and back.eq(0).all()


def test_fp8_arithmetic_is_float32_even_for_bf16_inputs():
    x = torch.randn(2000, generator=torch.Generator().manual_seed(5)).bfloat16()
    assert all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(quantize_fp8(x), quantize_fp8(x.float()))
    )


def test_the_two_flavours_read_each_others_bits_off_by_two():
    quantized, _ = quantize_fp8(torch.tensor([240.0, 1.0, -0.5, 448.0]))
    assert (quantized.view(torch.float8_e4m3fnuz).float() * 2 == quantized.float()).all()


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="float8_e5m2 is not one of"):
        quantize_fp8(torch.zeros(4), torch.float8_e5m2)


@pytest.mark.parametrize(
    ("hip", "device", "arch", "expected"),
    [
        ("7.1", "cuda:0", "gfx942:sramecc+:xnack-", torch.float8_e4m3fnuz),
        ("7.1", "cuda", "gfx941", torch.float8_e4m3fnuz),
        ("7.1", "cuda:0", "gfx950:sramecc+:xnack-", torch.float8_e4m3fn),
        ("7.1", "cuda:0", "gfx1100", torch.float8_e4m3fn),
        ("7.1", "cpu", "gfx942", torch.float8_e4m3fn),
        (None, "cuda:0", "gfx942", torch.float8_e4m3fn),
    ],
)
def test_the_fp8_flavour_follows_the_chip(monkeypatch, hip, device, arch, expected):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(gcnArchName=arch))
    assert fp8_dtype(device) == expected
