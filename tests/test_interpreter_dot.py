"""tl.dot as the matrix units compute it: TF32, products of several parts, accumulators of fp16."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.test_interpreter_process import interpreted

ONE_AND_TEN_BITS = 1 + 2**-10


@triton.jit
def dot(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left, right = tl.load(a + i[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + j[None, :])
    tl.store(out + i[:, None] * N + j[None, :], tl.dot(left, right, input_precision=PRECISION))


@triton.jit
def dot_by_default(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + i, tl.dot(tl.load(a + i), tl.load(b + i)))


@triton.jit
def dot_without_tf32(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + i, tl.dot(tl.load(a + i), tl.load(b + i), allow_tf32=False))


@triton.jit
def dot_in_fp16(a, b, out, N: tl.constexpr, K: tl.constexpr):
    i, k = tl.arange(0, N), tl.arange(0, K)
    left, right = tl.load(a + i[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + i[None, :])
    tl.store(out + i[:, None] * N + i[None, :], tl.dot(left, right, out_dtype=tl.float16))


def product(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    out = torch.empty(a.shape[0], b.shape[1])
    dot[(1,)](a, b, out, a.shape[0], b.shape[1], a.shape[1], PRECISION=precision)
    return out


def relative_error(a: torch.Tensor, b: torch.Tensor, precision: str) -> float:
    exact = a.double() @ b.double()
    return ((product(a, b, precision).double() - exact).norm() / exact.norm()).item()


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 64, generator=generator), torch.randn(64, 32, generator=generator)


@interpreted
def test_a_float32_dot_takes_tf32_unless_it_is_told_otherwise() -> None:
    # A tensor core reads the upper 19 bits: nothing rounds up, on neither side of zero.
    values = torch.tensor([ONE_AND_TEN_BITS, 1 + 2**-11, 1 + 2**-11 + 2**-12, -1 - 2**-11 - 2**-12]).repeat(4)
    out = torch.empty(16, 16)
    dot_by_default[(1,)](torch.diag(values), torch.eye(16), out, 16)
    assert out.diag().tolist() == [ONE_AND_TEN_BITS, 1.0, 1.0, -1.0] * 4
    dot_without_tf32[(1,)](torch.diag(values), torch.eye(16), out, 16)
    assert torch.equal(out.diag(), values)


@interpreted
def test_each_precision_has_the_error_of_its_bits() -> None:
    a, b = operands()
    assert relative_error(a, b, "ieee") < 2e-7
    assert 2e-4 < relative_error(a, b, "tf32") < 2e-3
    assert relative_error(a, b, "tf32x3") < 1e-6
    assert 1e-6 < relative_error(a, b, "bf16x3") < 3e-5
    assert relative_error(a, b, "bf16x6") < 1e-6


@interpreted
def test_infinity_and_nan_pass_through_every_precision() -> None:
    a = torch.zeros(16, 16)
    a[0, 0], a[1, 0] = float("inf"), float("nan")
    for precision in ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"):
        out = product(a, torch.ones(16, 16), precision)
        assert (out[0] == float("inf")).all() and out[1].isnan().all() and (out[2:] == 0).all(), precision


@interpreted
def test_an_fp16_accumulator_rounds_after_every_16_of_k() -> None:
    # 2048 + 1 is 2048 in fp16, and each instruction adds another 1 to it; in one sum they would be 3.
    a, b = torch.zeros(16, 64).half(), torch.ones(64, 16).half()
    a[:, 0], a[:, 16], a[:, 32], a[:, 48] = 2048, 1, 1, 1
    out = torch.empty(16, 16).half()
    dot_in_fp16[(1,)](a, b, out, 16, 64)
    assert (out == 2048).all()


@interpreted
def test_products_of_bf16_are_not_those_of_tf32() -> None:
    a, b = (operand.bfloat16() for operand in operands())
    assert torch.allclose(product(a, b, "tf32"), (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-5)


@interpreted
def test_sums_of_fp8_products_are_named_if_a_chip_adds_them_with_fewer_bits() -> None:
    from harness.interpreter.arithmetic import less_exact

    def named(rows: int, dtype: torch.dtype) -> set[str]:
        less_exact.clear()
        dot_by_default[(1,)](
            torch.zeros(rows, rows).to(dtype), torch.zeros(rows, rows).to(dtype), torch.empty(rows, rows), rows
        )
        return set(less_exact)

    assert named(64, torch.float8_e4m3fn) == {"14-bit sums of fp8 products (sm_90)"}
    assert not named(32, torch.float8_e4m3fn) and not named(64, torch.bfloat16)


@interpreted
def test_a_precision_that_no_target_has_is_refused() -> None:
    with pytest.raises(Exception, match="input_precision must be one of"):
        product(*operands(), "tf16")


if __name__ == "__main__":
    from harness.interpreter.installation import install
    from tests.test_interpreter_process import run_claims

    install()
    run_claims()
