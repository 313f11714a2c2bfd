"""fp8 and fp4 in interpreted kernels: every code, every half, the ties between; dots; tl.dot_scaled."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

from tests.test_interpreter_process import interpreted

# Triton's name, torch's type, largest finite value, what Inf becomes.
FORMATS = [
    ("fp8e4nv", torch.float8_e4m3fn, 448.0, 448.0),
    ("fp8e5", torch.float8_e5m2, 57344.0, 57344.0),
    ("fp8e4b8", torch.float8_e4m3fnuz, 240.0, float("nan")),
    ("fp8e5b16", torch.float8_e5m2fnuz, 57344.0, float("nan")),
]
EVERY_BYTE = torch.arange(256, dtype=torch.int32).to(torch.uint8)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@triton.jit
def cast(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n).to(out.dtype.element_ty), mask=i < n)


@triton.jit
def matmul(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(x, y))


@triton.jit
def move(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, tl.where(i % 2 == 0, a, tl.flip(a, 0)))


@triton.jit
def double(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, a + a)


@triton.jit
def total(x, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, N)), 0))


@triton.jit
def largest(x, out, N: tl.constexpr):
    tl.store(out, tl.max(tl.load(x + tl.arange(0, N)).to(tl.float32), 0))


@triton.jit
def to_other_fp8(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.float8e4b15))


@triton.jit
def scaled_matmul(
    a, a_scale, b, b_scale, out, A: tl.constexpr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    m, n = tl.arange(0, M), tl.arange(0, N)
    ka, kb = tl.arange(0, K // 2 if A == "e2m1" else K), tl.arange(0, K // 2 if B == "e2m1" else K)
    block = tl.arange(0, K // 32)
    x = tl.load(a + m[:, None] * ka.shape[0] + ka[None, :])
    y = tl.load(b + kb[:, None] * N + n[None, :])
    x_scale = tl.load(a_scale + m[:, None] * (K // 32) + block[None, :])
    if b_scale is None:
        acc = tl.dot_scaled(x, x_scale, A, y, None, B)
    else:
        acc = tl.dot_scaled(x, x_scale, A, y, tl.load(b_scale + n[:, None] * (K // 32) + block[None, :]), B)
    tl.store(out + m[:, None] * N + n[None, :], acc)


def run_cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(x.numel(), dtype=dtype)
    cast[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), 4096)
    return out


def nearest(x: torch.Tensor, dtype: torch.dtype, largest: float, inf: float) -> torch.Tensor:
    """What rounding to nearest even must give, as float64, by searching all values of `dtype` (torch decodes them)."""
    values = EVERY_BYTE.view(dtype).double()
    codes = EVERY_BYTE[values.isfinite() & ~(values.signbit())]
    values, codes = values[codes.long()], codes.long()
    values, order = values.sort()
    codes = codes[order]
    magnitude = x.double().abs()
    above = torch.searchsorted(values, magnitude.nan_to_num(0.0)).clamp(1, len(values) - 1)
    low, high = values[above - 1], values[above]
    take_high = (high - magnitude < magnitude - low) | ((high - magnitude == magnitude - low) & (codes[above] % 2 == 0))
    rounded = torch.where(take_high, high, low)
    rounded = torch.where(magnitude > largest, torch.where(x.isinf(), inf, largest), rounded)
    rounded = torch.where(x.signbit(), -rounded, rounded)
    return torch.where(x.isnan(), float("nan"), rounded)


def assert_values(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    same = (got == expected) | (got.isnan() & expected.isnan())
    wrong = (~same).nonzero().flatten()
    assert len(wrong) == 0, f"{what}: {len(wrong)} differ, first {got[wrong[0]]} not {expected[wrong[0]]}"


@pytest.mark.slow(ci=True)
@interpreted
def test_every_fp8_code_casts_exactly_to_every_wider_float() -> None:
    for name, kind, _, _ in FORMATS:
        codes = EVERY_BYTE.view(kind)
        for wide in (torch.float32, torch.float16, torch.bfloat16):
            assert_values(run_cast(codes, wide).double(), codes.double(), f"{name} to {wide}")


@pytest.mark.slow
@interpreted
def test_every_half_and_bf16_casts_to_the_nearest_fp8_and_saturates() -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    for name, kind, highest, inf in FORMATS:
        for wide in (torch.float16, torch.bfloat16):
            x = bits.view(wide)
            assert_values(run_cast(x, kind).double(), nearest(x, kind, highest, inf), f"{wide} to {name}")


@pytest.mark.slow(ci=True)
@interpreted
def test_fp32_casts_to_the_nearest_fp8_on_ties_and_beside_them() -> None:
    random = torch.randint(-(2**31), 2**31, (20000,), generator=torch.Generator().manual_seed(0)).int()
    for name, kind, highest, inf in FORMATS:
        values = EVERY_BYTE.view(kind).float()
        values = values[values.isfinite()].sort().values
        ties = (values[1:] + values[:-1]) / 2
        beside = [torch.nextafter(ties, torch.tensor(towards)) for towards in (-9e9, 9e9)]
        x = torch.cat([random.view(torch.float32), ties, *beside, values])
        assert_values(run_cast(x, kind).double(), nearest(x, kind, highest, inf), f"float32 to {name}")


@interpreted
def test_negative_zero_keeps_its_sign_where_the_format_has_one() -> None:
    x = torch.tensor([-0.0, 0.0, -1e-30])
    for name, kind, _, _ in FORMATS:
        sign = 0 if name in ("fp8e4b8", "fp8e5b16") else 0x80
        assert run_cast(x, kind).view(torch.uint8).tolist() == [sign, 0, sign]


@interpreted
def test_an_fp8_dot_is_exact_in_fp32() -> None:
    generator = torch.Generator().manual_seed(1)
    for _, kind, _, _ in FORMATS:
        a, b = (torch.randn(shape, generator=generator).to(kind) for shape in ((16, 64), (64, 32)))
        out = torch.empty(16, 32)
        matmul[(1,)](a, b, out, 16, 32, 64)
        torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@interpreted
def test_moving_fp8_keeps_its_bits() -> None:
    for _, kind, _, _ in FORMATS:
        out = torch.empty(256, dtype=kind)
        move[(1,)](EVERY_BYTE.view(kind), out, 256)
        expected = torch.where(EVERY_BYTE.int() % 2 == 0, EVERY_BYTE, EVERY_BYTE.flip(0))
        assert torch.equal(out.view(torch.uint8), expected)


@interpreted
def test_arithmetic_on_fp8_is_refused_because_triton_compiles_none() -> None:
    x = torch.ones(16).to(torch.float8_e4m3fn)
    for kernel in (double, total):
        with pytest.raises(RuntimeError, match=r"^cannot be interpreted: arithmetic on fp8e4nv"):
            kernel[(1,)](x, torch.empty(16, dtype=torch.float8_e4m3fn), 16)
    out = torch.empty(1)
    largest[(1,)](x, out, 16)
    assert out.item() == 1


@interpreted
def test_fp8_casts_that_triton_does_not_compile_are_refused() -> None:
    x = torch.ones(16)
    with pytest.raises(RuntimeError, match=r"^cannot be interpreted: a cast from fp64 to fp8e5"):
        run_cast(x.double(), torch.float8_e5m2)
    with pytest.raises(CompilationError, match=r"^to_other_fp8, line \d+: "):
        to_other_fp8[(1,)](x, torch.empty(16, dtype=torch.uint8), 16)


@interpreted
def test_dot_scaled_multiplies_blocks_by_their_scales() -> None:
    generator = torch.Generator().manual_seed(2)
    m, n, k = 16, 32, 64
    exponents_a = torch.randint(110, 140, (m, k // 32), generator=generator).to(torch.uint8)
    exponents_b = torch.randint(110, 140, (n, k // 32), generator=generator).to(torch.uint8)
    factor_a, factor_b = (2.0 ** (e.double() - 127).repeat_interleave(32, 1) for e in (exponents_a, exponents_b))
    nibbles_a, nibbles_b = (torch.randint(16, shape, generator=generator) for shape in ((m, k), (k, n)))
    fp8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    operands = {
        "e2m1": (pack(nibbles_a, 1), E2M1[nibbles_a], pack(nibbles_b, 0), E2M1[nibbles_b]),
        **{name: fp8_operands(kind, m, n, k, generator) for name, kind in fp8.items()},
    }
    for format_a, (a, value_a, _, _) in operands.items():
        for format_b, (_, _, b, value_b) in operands.items():
            out = torch.empty(m, n)
            scaled_matmul[(1,)](a, exponents_a, b, exponents_b, out, format_a, format_b, m, n, k)
            expected = (value_a.double() * factor_a) @ (value_b.double() * factor_b.T)
            torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


@interpreted
def test_dot_scaled_takes_bf16_and_an_unscaled_side() -> None:
    generator = torch.Generator().manual_seed(3)
    nibbles = torch.randint(16, (16, 64), generator=generator)
    scale = torch.full((16, 2), 128, dtype=torch.uint8)
    b = (torch.randn(64, 16, generator=generator) * 1e6).bfloat16()  # beyond float16
    out = torch.empty(16, 16)
    scaled_matmul[(1,)](pack(nibbles, 1), scale, b, None, out, "e2m1", "bf16", 16, 16, 64)
    torch.testing.assert_close(out.double(), 2 * E2M1[nibbles].double() @ b.double(), rtol=1e-5, atol=10.0)


def fp8_operands(
    kind: torch.dtype, m: int, n: int, k: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = (torch.randn(shape, generator=generator).to(kind) for shape in ((m, k), (k, n)))
    return a, a.double(), b, b.double()


def pack(nibbles: torch.Tensor, axis: int) -> torch.Tensor:
    """Two e2m1 codes a byte along `axis`, the first in the low nibble."""
    low, high = nibbles.unfold(axis, 2, 2).unbind(-1)
    return (low | (high << 4)).to(torch.uint8).contiguous()


if __name__ == "__main__":
    from harness.interpreter.installation import install
    from tests.test_interpreter_process import run_claims

    install()
    run_claims()
