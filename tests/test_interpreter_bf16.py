"""bf16 in interpreted kernels, against torch's bf16 or float64, over random bit patterns and the awkward values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_interpreter_process import interpreted

EVERY_BF16 = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
# tl.cumsum of bf16 gives float32 until triton 3.8, bf16 since.
PROMOTES_SCANS = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)
HAS_BLOCK_POINTERS = PROMOTES_SCANS  # removed at the same time
AWKWARD = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    2.0**-133,
    -(2.0**-133),
    3.3895e38,
    2.0**-126,
]


@triton.jit
def binary(x, y, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + i, mask=i < n)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "lt":
        r = a < b
    elif OP == "ge":
        r = a >= b
    elif OP == "eq":
        r = a == b
    elif OP == "ne":
        r = a != b
    elif OP == "where":
        r = tl.where(a < b, a, b)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "maximum_nan":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "clamp":
        r = tl.clamp(a, -1.0, 2.0)
    elif OP == "clamp_nan":
        r = tl.clamp(a, -1.0, 2.0, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "abs":
        r = tl.abs(a)
    elif OP == "neg":
        r = -a
    elif OP == "scalars":
        r = 2 * a + 0.3
    tl.store(out + i, r, mask=i < n)


@triton.jit
def cast(x, out, n, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    tl.store(out + i, a.to(out.dtype.element_ty, fp_downcast_rounding=ROUNDING), mask=i < n)


@triton.jit
def reduce_rows(x, out, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + i)
    if OP == "sum":
        r = tl.sum(a, 1)
    elif OP == "max":
        r = tl.max(a, 1)
    elif OP == "min":
        r = tl.min(a, 1)
    elif OP == "argmax":
        r = tl.argmax(a, 1)
    elif OP == "argmin":
        r = tl.argmin(a, 1)
    elif OP == "product":
        r = tl.reduce(a, 1, multiply)
    tl.store(out + tl.arange(0, M), r)


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def scan_rows(x, out, OP: tl.constexpr, REVERSE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + i)
    if OP == "cumsum":
        r = tl.cumsum(a, 1, reverse=REVERSE)
    elif OP == "cumprod":
        r = tl.cumprod(a, 1, reverse=REVERSE)
    elif OP == "bf16":
        r = tl.cumsum(a, 1, reverse=REVERSE, dtype=tl.bfloat16)
    elif OP == "own":
        r = tl.associative_scan(a, 1, add, reverse=REVERSE)
    tl.store(out + i, r)


@triton.jit
def matmul(a, b, c, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    acc = tl.load(c + m[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(x, y, acc))


@triton.jit
def order(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, tl.sort(a))
    tl.store(out + N + i, tl.flip(a, 0))
    tl.store(out + 2 * N + i, tl.gather(a, N - 1 - i, 0))


@triton.jit
def constants(out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.full([N], 0.1, tl.bfloat16))
    tl.store(out + N + i, tl.zeros([N], tl.bfloat16))
    tl.store(out + 2 * N + i, tl.full([N], 1 + 3 * 2**-8, tl.bfloat16) + 1)
    tl.store(out + 3 * N + i, tl.load(out + i, mask=i < 0, other=2.71828))


@triton.jit
def scaled(x, out, scale, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * scale)


@triton.jit
def accumulate(x, total, before, N: tl.constexpr):
    i = tl.arange(0, N)
    old = tl.atomic_add(total + i % 2, tl.load(x + i), mask=i < N - 1)
    tl.store(before + i, old)


@triton.jit
def padded(x, out, N: tl.constexpr):
    block = tl.make_tensor_descriptor(x, shape=[N - 8], strides=[1], block_shape=[N], padding_option="nan")
    tl.store(out + tl.arange(0, N), block.load([0]))


@triton.jit
def padded_by_block_pointer(x, out, N: tl.constexpr):
    block = tl.make_block_ptr(x, shape=[N - 8], strides=[1], offsets=[0], block_shape=[N], order=[0])
    tl.store(out + tl.arange(0, N), tl.load(block, boundary_check=[0], padding_option="nan"))


@triton.jit
def attention(q, k, v, out, scale, n_ctx, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + d[None, :])
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    denominator = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for start in range(0, n_ctx, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        there = columns[:, None] < n_ctx
        key = tl.load(k + columns[:, None] * D + d[None, :], mask=there, other=0.0)
        value = tl.load(v + columns[:, None] * D + d[None, :], mask=there, other=0.0)
        scores = tl.dot(query, tl.trans(key)) * (scale * 1.44269504)
        scores = tl.where((columns[None, :] < n_ctx) and (columns[None, :] <= rows[:, None]), scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp2(scores - m_new[:, None])
        alpha = tl.exp2(m - m_new)
        denominator = denominator * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), value, acc * alpha[:, None])
        m = m_new
    tl.store(out + rows[:, None] * D + d[None, :], acc / denominator[:, None])


def random_bits(n: int, seed: int = 0) -> torch.Tensor:
    """bf16 of every exponent, NaN, Inf and subnormals among them."""
    return EVERY_BF16[torch.randint(2**16, (n,), generator=torch.Generator().manual_seed(seed))]


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Random bit patterns, numbers of like size (where rounding shows), and every pair of awkward values."""
    awkward = torch.tensor(AWKWARD).bfloat16()
    near = torch.randn(4000, generator=torch.Generator().manual_seed(1)).bfloat16()
    a = torch.cat([random_bits(4000), near, awkward.repeat(len(awkward))])
    b = torch.cat([random_bits(4000, 2), near.flip(0), awkward.repeat_interleave(len(awkward))])
    return a, b


def run_binary(op: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    a, b = pairs()
    out = torch.empty(len(a), dtype=dtype)
    binary[(triton.cdiv(len(a), 1024),)](a, b, out, len(a), op, 1024)
    return out


def run_cast(x: torch.Tensor, dtype: torch.dtype, rounding: str | None = None) -> torch.Tensor:
    out = torch.empty(x.numel(), dtype=dtype)
    cast[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), rounding, 4096)
    return out


def run_rows(x: torch.Tensor, op: str, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(x.shape[0], dtype=dtype)
    reduce_rows[(1,)](x, out, op, *x.shape)
    return out


def assert_same(got: torch.Tensor, expected: torch.Tensor, zeros_differ: bool = True) -> None:
    """Bit for bit, but that one NaN is as good as another."""
    assert got.dtype == expected.dtype
    same = (got == expected) | (got.isnan() & expected.isnan())
    if zeros_differ and got.is_floating_point():
        same &= got.isnan() | (got.signbit() == expected.signbit())
    wrong = (~same).nonzero().flatten()
    assert len(wrong) == 0, f"{len(wrong)} differ, first at {wrong[0]}: {got[wrong[0]]} not {expected[wrong[0]]}"


@pytest.mark.slow(ci=True)
@interpreted
def test_bf16_add_sub_and_mul_round_once_to_nearest_even() -> None:
    a, b = pairs()
    assert_same(run_binary("add"), a + b)
    assert_same(run_binary("sub"), a - b)
    assert_same(run_binary("mul"), a * b)


@pytest.mark.slow(ci=True)
@interpreted
def test_bf16_division_is_done_in_fp32() -> None:
    a, b = pairs()
    assert_same(run_binary("div", torch.float32), a.float() / b.float())


@interpreted
def test_bf16_comparisons_order_values_and_not_bits() -> None:
    a, b = pairs()
    for op, expected in (("lt", a < b), ("ge", a >= b), ("eq", a == b), ("ne", a != b)):
        assert_same(run_binary(op, torch.int32), expected.int())


@interpreted
def test_a_bf16_comparison_casts_to_one_and_zero() -> None:
    a, b = pairs()
    assert_same(run_binary("lt", torch.bfloat16), (a < b).bfloat16())


@interpreted
def test_bf16_where_moves_bits() -> None:
    a, b = pairs()
    assert_same(run_binary("where"), torch.where(a < b, a, b))


@interpreted
def test_bf16_fma_rounds_the_fp32_result() -> None:
    a, b = pairs()
    assert_same(run_binary("fma"), (a.double() * b.double() + a.double()).float().bfloat16())


@interpreted
def test_bf16_min_and_max_pass_over_nan_unless_told_to_propagate() -> None:
    a, b = pairs()
    # Not torch.fmax: glibc's gives NaN for a signalling NaN, a GPU's max does not.
    other = torch.where(a.isnan(), b, a)
    either_nan = a.isnan() | b.isnan()
    assert_same(run_binary("maximum"), torch.where(either_nan, other, torch.maximum(a, b)), zeros_differ=False)
    assert_same(run_binary("minimum"), torch.where(either_nan, other, torch.minimum(a, b)), zeros_differ=False)
    assert_same(run_binary("maximum_nan"), torch.maximum(a, b), zeros_differ=False)


@interpreted
def test_bf16_clamp_of_nan_is_the_lower_bound_unless_told_to_propagate() -> None:
    a, _ = pairs()
    assert_same(run_binary("clamp_nan"), a.clamp(-1, 2), zeros_differ=False)
    assert_same(run_binary("clamp"), a.nan_to_num(-1.0, float("inf"), float("-inf")).clamp(-1, 2), zeros_differ=False)


@interpreted
def test_bf16_abs_and_negation() -> None:
    a, _ = pairs()
    assert_same(run_binary("abs"), a.abs())
    assert_same(run_binary("neg"), -a, zeros_differ=False)  # before triton 3.9 the compiler too computes 0 - a


@interpreted
def test_literals_take_the_type_of_the_bf16_block_they_meet() -> None:
    a, _ = pairs()
    assert_same(run_binary("scalars"), 2 * a + torch.tensor(0.3).bfloat16())


@interpreted
def test_a_float_argument_is_fp32_and_widens_bf16() -> None:
    x, out = random_bits(256), torch.empty(256)
    scaled[(1,)](x, out, 0.3, 256)
    assert_same(out, x.float() * 0.3)


@interpreted
def test_every_bf16_casts_exactly_to_fp32_and_fp64() -> None:
    assert_same(run_cast(EVERY_BF16, torch.float32), EVERY_BF16.float())
    assert_same(run_cast(EVERY_BF16, torch.float64), EVERY_BF16.double())


@interpreted
def test_every_bf16_casts_to_fp16_as_torch_does() -> None:
    assert_same(run_cast(EVERY_BF16, torch.float16), EVERY_BF16.half())


@interpreted
def test_fp32_casts_to_bf16_to_nearest_even_over_random_bits_and_ties() -> None:
    bits = torch.randint(-(2**31), 2**31, (60000,), generator=torch.Generator().manual_seed(3)).int()
    ties = (bits & ~0xFFFF) | 0x8000
    x = torch.cat([bits, ties, ties + 1, ties - 1]).view(torch.float32)
    assert_same(run_cast(x, torch.bfloat16), x.bfloat16())


@interpreted
def test_every_fp16_casts_to_bf16_as_torch_does() -> None:
    x = EVERY_BF16.view(torch.float16)
    assert_same(run_cast(x, torch.bfloat16), x.bfloat16())


@interpreted
def test_fp64_casts_to_bf16_with_one_rounding() -> None:
    above_a_tie = 1 + 2.0**-8 + 2.0**-40  # float32 would round it to the tie, and that to 1
    x = torch.tensor([above_a_tie, -above_a_tie], dtype=torch.float64)
    assert run_cast(x, torch.bfloat16).tolist() == [1 + 2.0**-7, -1 - 2.0**-7]


@interpreted
def test_a_cast_told_to_round_toward_zero_truncates() -> None:
    x = torch.tensor([1 + 2.0**-7 + 2.0**-8, -1 - 2.0**-8, 3.4e38, float("inf"), float("nan")])
    assert_same(run_cast(x, torch.bfloat16, "rtz"), (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16))
    assert run_cast(torch.tensor([65535.0, -1e9]), torch.float16, "rtz").tolist() == [65504.0, -65504.0]


@interpreted
def test_integers_cast_to_bf16_as_torch_does() -> None:
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        low, high = max(torch.iinfo(dtype).min, -(2**40)), min(torch.iinfo(dtype).max, 2**40)
        x = torch.randint(low, high, (4096,), generator=torch.Generator().manual_seed(4)).to(dtype)
        assert_same(run_cast(x, torch.bfloat16), x.float().bfloat16())


@interpreted
def test_bf16_in_range_truncates_to_integers_as_torch_does() -> None:
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        x = EVERY_BF16[(EVERY_BF16.double() > limits.min) & (EVERY_BF16.double() < limits.max)]
        assert_same(run_cast(x, dtype), x.to(dtype))


@interpreted
def test_bf16_out_of_range_saturates_to_integers_and_nan_is_zero() -> None:
    x = torch.tensor([1e30, -1e30, float("inf"), float("-inf"), float("nan")]).bfloat16()
    for dtype in (torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        assert run_cast(x, dtype).tolist() == [limits.max, limits.min, limits.max, limits.min, 0]
    assert run_cast(x, torch.uint32).tolist() == [2**32 - 1, 0, 2**32 - 1, 0, 0]


@interpreted
def test_bf16_sum_rounds_after_every_addition() -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    tree = x
    while tree.shape[1] > 1:
        tree = tree[:, 0::2] + tree[:, 1::2]
    assert_same(run_rows(x, "sum", torch.bfloat16), tree[:, 0])
    ones_below_half_an_ulp = torch.ones(1, 512).bfloat16()
    assert run_rows(ones_below_half_an_ulp, "sum", torch.bfloat16).item() == 512


@interpreted
def test_bf16_max_and_min_compare_values() -> None:
    x = random_bits(64 * 32).view(64, 32)
    x[0] = float("nan")
    numbers = x.float()
    highest = numbers.nan_to_num(float("-inf"), float("inf"), float("-inf")).amax(1)
    lowest = numbers.nan_to_num(float("inf"), float("inf"), float("-inf")).amin(1)
    highest[0] = lowest[0] = float("nan")
    assert_same(run_rows(x, "max", torch.float32), highest, zeros_differ=False)
    assert_same(run_rows(x, "min", torch.float32), lowest, zeros_differ=False)


@interpreted
def test_bf16_argmax_and_argmin_take_the_first_of_equals() -> None:
    x = torch.randint(-3, 3, (64, 32), generator=torch.Generator().manual_seed(6)).bfloat16()
    first = torch.arange(32, 0, -1)
    assert_same(run_rows(x, "argmax", torch.int32), ((x == x.amax(1, True)) * first).argmax(1).int())
    assert_same(run_rows(x, "argmin", torch.int32), ((x == x.amin(1, True)) * first).argmax(1).int())


@interpreted
def test_sorting_and_rearranging_bf16_keeps_its_values() -> None:
    x, out = torch.randn(64, generator=torch.Generator().manual_seed(11)).bfloat16(), torch.empty(192).bfloat16()
    order[(1,)](x, out, 64)
    assert_same(out, torch.cat([x.sort().values, x.flip(0), x.flip(0)]))


@interpreted
def test_a_kernels_own_reduction_rounds_every_step() -> None:
    x = (1 + torch.rand(4, 8, generator=torch.Generator().manual_seed(7))).bfloat16()
    product = x[:, 0]
    for column in range(1, 8):
        product = product * x[:, column]
    assert_same(run_rows(x, "product", torch.bfloat16), product)


@interpreted
def test_bf16_scans() -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(8)).bfloat16()
    for reverse in (False, True):
        ordered = x.flip(1) if reverse else x
        running = [ordered[:, 0]]
        for column in range(1, 16):
            running.append(running[-1] + ordered[:, column])
        rounded = torch.stack(running, 1)
        expectations = {"bf16": rounded, "own": rounded}
        if PROMOTES_SCANS:
            expectations |= {"cumsum": ordered.float().cumsum(1), "cumprod": ordered.float().cumprod(1)}
        for op, expected in expectations.items():
            out = torch.empty(4, 16, dtype=expected.dtype)
            scan_rows[(1,)](x, out, op, reverse, 4, 16)
            expected = expected.flip(1) if reverse else expected
            assert torch.allclose(out, expected, rtol=1e-6, atol=1e-6 if expected.dtype == torch.float32 else 0), op


@interpreted
def test_bf16_dot_accumulates_in_fp32() -> None:
    generator = torch.Generator().manual_seed(9)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((32, 64), (64, 16)))
    c, out = torch.randn(32, 16, generator=generator), torch.empty(32, 16)
    matmul[(1,)](a, b, c, out, 32, 16, 64)
    torch.testing.assert_close(out.double(), a.double() @ b.double() + c.double(), rtol=1e-5, atol=1e-5)
    assert not torch.equal(out, out.bfloat16().float())


@interpreted
def test_bf16_dot_carries_inf_and_nan() -> None:
    a, b = torch.eye(16).bfloat16(), torch.eye(16).bfloat16()
    a[0, 0], a[1, 1] = float("inf"), float("nan")
    out = torch.empty(16, 16)
    matmul[(1,)](a, b + 1, torch.zeros(16, 16), out, 16, 16, 16)
    assert out[0].isinf().all() and out[1].isnan().all() and out[2:].isfinite().all()


@interpreted
def test_bf16_constants_and_load_defaults_round() -> None:
    out = torch.full((64,), 7.0).bfloat16()
    constants[(1,)](out, 16)
    expected = torch.tensor([0.1, 0.0, 2 + 2.0**-6, 2.71828]).bfloat16()
    assert_same(out, expected.repeat_interleave(16))


@interpreted
def test_bf16_atomic_add_rounds_every_addition_and_returns_what_was_there() -> None:
    x = torch.tensor([1.0, 2**-8, 3 * 2**-8, 2**-9, 1.5, 1.0, 0.25, 1e9]).bfloat16()
    total, before = torch.tensor([1.0, 256.0]).bfloat16(), torch.empty(8, dtype=torch.bfloat16)
    accumulate[(1,)](x, total, before, 8)
    expected, seen = torch.tensor([1.0, 256.0]).bfloat16(), []
    for i in range(7):
        seen.append(expected[i % 2].item())
        expected[i % 2] += x[i]
    assert_same(total, expected)
    assert before[:7].tolist() == seen


@interpreted
def test_bf16_loads_out_of_a_descriptors_bounds_can_give_nan() -> None:
    for kernel in (padded, padded_by_block_pointer) if HAS_BLOCK_POINTERS else (padded,):
        x, out = torch.arange(16).bfloat16(), torch.empty(16, dtype=torch.bfloat16)
        kernel[(1,)](x, out, 16)
        assert out[:8].tolist() == list(range(8)) and out[8:].isnan().all()


@interpreted
def test_bf16_flash_attention_agrees_with_fp64() -> None:
    n_ctx, d = 150, 64
    generator = torch.Generator().manual_seed(10)
    q, k, v = (torch.randn(n_ctx, d, generator=generator).bfloat16() for _ in range(3))
    rows = torch.zeros(192, d).bfloat16()
    rows[:n_ctx] = q
    out = torch.empty(192, d, dtype=torch.bfloat16)
    attention[(6,)](rows, k, v, out, d**-0.5, n_ctx, d, 32, 32)
    causal = torch.ones(n_ctx, n_ctx).tril().bool()
    scores = (q.double() @ k.double().T * d**-0.5).masked_fill(~causal, float("-inf"))
    expected = scores.softmax(-1) @ v.double()
    assert (out[:n_ctx].double() - expected).abs().max() < 2**-7


@interpreted
def test_encoding_any_float_as_bf16_finds_the_nearest() -> None:
    from harness.interpreter.number_formats import decode_bf16, encode_bf16

    @settings(max_examples=300, database=None, deadline=None)
    @given(st.floats(width=64, allow_nan=False))
    def nearest(value: float) -> None:
        x = np.array([value])
        code = encode_bf16(x)
        neighbours: Any = np.array([code[0] - 1, code[0], code[0] + 1]).astype(np.uint16)
        values = decode_bf16(neighbours).astype(np.float64)
        finite = np.isfinite(values)
        if np.isfinite(value) and finite[1]:
            assert abs(values[1] - value) == np.abs(values[finite] - value).min()

    nearest()


if __name__ == "__main__":
    from harness.interpreter.installation import install
    from tests.test_interpreter_process import run_claims

    install()
    run_claims()
