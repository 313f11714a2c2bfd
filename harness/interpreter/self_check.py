"""Small kernels with known results, run through the interpreter as a submission's kernels are.

Each check has a claim, a kernel and the values it must give. first_failure() names the first claim that does not hold.
The values are written out or come from torch, never from the code under test.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

from harness.interpreter import launch

FNUZ, E4M3, E5M2 = torch.float8_e4m3fnuz, torch.float8_e4m3fn, torch.float8_e5m2
NAN, INF = float("nan"), float("inf")
# 1 + 2**-8 is a tie between 1 and 1 + 2**-7 in bf16; its even neighbour is 1.
TIE_TO_EVEN = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, -(1 + 3 * 2**-8)]
TIE_ROUNDED = [1.0, 1 + 2**-6, 1 + 2**-7, -(1 + 2**-6)]


@triton.jit
def cast_kernel(x, y, n):
    i = tl.arange(0, 8)
    tl.store(y + i, tl.load(x + i, mask=i < n).to(y.dtype.element_ty), mask=i < n)


@triton.jit
def arithmetic_kernel(x, y, scale, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(y + i, a + a * a)
    tl.store(y + N + i, a * scale)
    tl.store(y + 2 * N + i, tl.fma(a, a, a))
    tl.store(y + 3 * N + i, tl.where((a > 1.0) and (i > 0), a, 0.0))
    tl.store(y + 4 * N + i, tl.sum(a, 0))
    tl.store(y + 5 * N + i, -a)


@triton.jit
def extremes_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(y + i, tl.maximum(a, 1.0))
    tl.store(y + N + i, tl.clamp(a, 0.0, 2.0))
    tl.store(y + 2 * N + i, min(a, max(a, 1.0)))
    tl.store(y + 3 * N + i, tl.argmax(a, 0))


@triton.jit
def dot_kernel(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i)))


@triton.jit
def loop_kernel(y, n):
    total = tl.zeros([1], tl.float32)
    for i in range(0, n):
        total += i / 2
    tl.store(y + tl.arange(0, 1), total)


@triton.jit
def changing_kernel(y, n):
    total = tl.zeros([1], tl.float32)
    for _ in range(0, n):
        total = total.to(tl.bfloat16)
    tl.store(y + tl.arange(0, 1), total)


@triton.jit
def integer_kernel(y):
    i = tl.arange(0, 4)
    tl.store(y + i, tl.umulhi(i - 2, i - 2))
    tl.store(y + 4 + i, tl.histogram(i + 1, 4))
    tl.store(y + 8 + i, ((i > 0) + (i > 1)).to(tl.int32))
    tl.store(y + 12 + i, (~i.to(tl.uint8)).to(tl.int32))


@triton.jit
def scan_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.cumsum(tl.load(x + i), 0, dtype=tl.bfloat16))


@triton.jit
def dot_scaled_kernel(a, b, scale, y):
    i, k, block = tl.arange(0, 16), tl.arange(0, 64), tl.arange(0, 2)
    scales = tl.load(scale + i[:, None] * 2 + block[None, :])
    left = tl.load(a + i[:, None] * 32 + tl.arange(0, 32)[None, :])
    right = tl.load(b + k[:, None] * 16 + i[None, :])
    tl.store(y + i[:, None] * 16 + i[None, :], tl.dot_scaled(left, scales, "e2m1", right, scales, "e4m3"))


@triton.jit
def padding_kernel(x, y):
    block = tl.make_tensor_descriptor(x, shape=[4], strides=[1], block_shape=[8], padding_option="nan")
    tl.store(y + tl.arange(0, 8), block.load([0]))


@triton.jit
def order_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(y + tl.arange(0, 2 * N), tl.cat(a, a, can_reorder=True))
    tl.store(y + 2 * N + tl.arange(0, 2 * N), tl.reshape(tl.join(a, a), (2 * N,), can_reorder=True))


@triton.jit
def atomic_kernel(y):
    tl.atomic_add(y + tl.arange(0, 4) * 0, tl.full([4], 1.5, y.dtype.element_ty))


@triton.autotune([triton.Config({"N": 3}), triton.Config({"N": 4}), triton.Config({"N": 8})], key=[])
@triton.jit
def autotuned_kernel(y, N: tl.constexpr):
    tl.static_assert(N % 2 == 0)
    tl.store(y, N)


def first_failure() -> str | None:
    """The first claim that does not hold, in one line. None if all hold."""
    for claim, check in CHECKS.items():
        try:
            holds = check()
        except Exception as error:
            return f"{claim}: {type(error).__name__}: {error}"
        if not holds:
            return claim
    return None


def casts(values: list[float], expected: list[float], source: torch.dtype, target: torch.dtype) -> bool:
    x, y = torch.tensor(values, dtype=source), torch.empty(len(values), dtype=target)
    cast_kernel[(1,)](x, y, len(values))
    return same(y, expected)


def same(got: torch.Tensor, expected: list[float]) -> bool:
    return torch.equal(got.float().nan_to_num(nan=77.0), torch.tensor(expected).nan_to_num(nan=77.0))


def arithmetic_rounds() -> bool:
    x, y = torch.tensor([1.0, 1 + 2**-7, 1.5, 255.0]).bfloat16(), torch.empty(24)
    arithmetic_kernel[(1,)](x, y, 1 / 3, 4)
    wide = x.float()
    expected = [
        x + x * x,
        wide * torch.tensor(1 / 3),
        (wide.double() * wide + wide).bfloat16(),
        torch.where((x > 1) & (torch.arange(4) > 0), x, 0.0),
        ((x[0] + x[1]) + (x[2] + x[3])).expand(4),
        -x,
    ]
    return same(y, torch.cat([row.float() for row in expected]).tolist())


def extremes_ignore_nan() -> bool:
    x, y = torch.tensor([NAN, 3.0, -1.0, 0.5]), torch.empty(16)
    extremes_kernel[(1,)](x, y, 4)
    return same(y, [1.0, 3.0, 1.0, 1.0, 0.0, 2.0, 0.0, 0.5, 1.0, 3.0, -1.0, 0.5, 1.0, 1.0, 1.0, 1.0])


def dots(kind: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(16, 16, generator=generator).to(kind) for _ in range(2))
    c = torch.empty(16, 16)
    dot_kernel[(1,)](a, b, c, 16)
    return torch.allclose(c, (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-5)


def float32_dots() -> bool:
    a, b, c = torch.eye(16) * (1 + 2**-10 + 2**-11), torch.eye(16), torch.empty(16, 16)
    dot_kernel[(1,)](a, b, c, 16)
    return torch.equal(c, torch.eye(16) * (1 + 2**-10))


def loops() -> bool:
    y = torch.empty(1)
    loop_kernel[(1,)](y, 4)
    return y.item() == 3.0


def compiles_first() -> bool:
    y = torch.empty(1)
    launch.front_end_first = True
    try:
        loop_kernel[(1,)](y, 4)
        changing_kernel[(1,)](y, 4)
    except CompilationError:
        return y.item() == 3.0
    finally:
        launch.front_end_first = False
    return False


def integers() -> bool:
    y = torch.empty(16, dtype=torch.int32)
    integer_kernel[(1,)](y)
    return y.tolist() == [-4, -2, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 255, 254, 253, 252]


def scans() -> bool:
    x = torch.tensor([1.0, 2**-8, 2**-8, 2**-7]).bfloat16()  # each tie is rounded away before the next addend
    y = torch.empty(4)
    scan_kernel[(1,)](x, y, 4)
    return same(y, [1.0, 1.0, 1.0, 1 + 2**-7])


def scaled_dots() -> bool:
    a = torch.full((16, 32), 0x2F, dtype=torch.uint8)  # -6 in the low nibble, 1 in the high one
    b = torch.ones(64, 16).to(E4M3)
    scale = torch.tensor([128, 125], dtype=torch.uint8).repeat(16, 1)  # 2 and 1/4
    y = torch.empty(16, 16)
    dot_scaled_kernel[(1,)](a, b, scale, y)
    return bool((y == 16 * (1 - 6) * (2 * 2 + 1 / 4 / 4)).all())


def paddings() -> bool:
    x, y = torch.ones(8).bfloat16(), torch.empty(8)
    padding_kernel[(1,)](x, y)
    return same(y, [1.0] * 4 + [NAN] * 4)


def orders() -> bool:
    x, y = torch.tensor([1.0, 2.0]), torch.empty(8)
    order_kernel[(1,)](x, y, 2)
    return same(y, [2.0, 1.0, 2.0, 1.0, 2.0, 2.0, 1.0, 1.0])


def atomics() -> bool:
    y = torch.ones(1, dtype=torch.bfloat16)
    atomic_kernel[(1,)](y)
    return y.item() == 7.0


def autotunes() -> bool:
    y = torch.empty(1, dtype=torch.int32)
    autotuned_kernel.cache.clear()
    vars(autotuned_kernel).pop("invalid_configs", None)
    autotuned_kernel[(1,)](y)
    return y.item() == 4


EIGHT_BIT = [1.0625, 1.1875, 1e9, -1e9, 2**-10, NAN]

SMALL = torch.tensor(1e-40).bfloat16().item()  # subnormal in bf16

# claim: (values, expected results of the cast, source type, target type)
CASTS: dict[str, tuple[list[float], list[float], torch.dtype, torch.dtype]] = {
    "float32 to bf16 rounds to nearest even": (TIE_TO_EVEN, TIE_ROUNDED, torch.float32, torch.bfloat16),
    "bf16 to float32 is exact": ([1.5, NAN, -INF, SMALL], [1.5, NAN, -INF, SMALL], torch.bfloat16, torch.float32),
    "int32 to bf16 rounds": ([257, 259, -3], [256.0, 260.0, -3.0], torch.int32, torch.bfloat16),
    "bf16 to int32 truncates": ([2.5, -2.5, 1e30], [2.0, -2.0, 2.0**31], torch.bfloat16, torch.int32),
    "fp8e4nv saturates": (EIGHT_BIT, [1.0, 1.25, 448.0, -448.0, 0.0, NAN], torch.float32, E4M3),
    "fp8e5 saturates": (EIGHT_BIT, [1.0, 1.25, 57344.0, -57344.0, 2**-10, NAN], torch.float32, E5M2),
    "fp8e4b8 saturates": (EIGHT_BIT, [1.0, 1.25, 240.0, -240.0, 2**-10, NAN], torch.float32, FNUZ),
    "fp8e4nv to bf16 is exact": ([1.125, 448.0, 2**-9], [1.125, 448.0, 2**-9], E4M3, torch.bfloat16),
}

CHECKS: dict[str, Callable[[], bool]] = {
    **{claim: partial(casts, *arguments) for claim, arguments in CASTS.items()},
    "bf16 arithmetic rounds once an operation": arithmetic_rounds,
    "minimum, maximum, clamp and argmax pass over NaN": extremes_ignore_nan,
    "a bf16 dot accumulates in float32": partial(dots, torch.bfloat16),
    "an fp8 dot accumulates in float32": partial(dots, E4M3),
    "a float32 dot takes TF32": float32_dots,
    "a loop bound known at run time": loops,
    "what Triton's front end refuses is not interpreted": compiles_first,
    "umulhi, histogram, one-bit and inverted integers": integers,
    "a bf16 scan rounds every step": scans,
    "dot_scaled": scaled_dots,
    "loads padded with NaN": paddings,
    "bf16 atomic_add": atomics,
    "elements that may be reordered are": orders,
    "autotune takes the first valid configuration": autotunes,
}
