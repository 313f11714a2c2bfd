"""Ten Triton kernels as machine code in the emulator, each against torch on the CPU; and kernels with a planted fault.

    python -m tests.emulated_triton gfx942 [NAME ..]      one line of JSON per kernel: name, seconds, what went wrong

The ten are typical user kernels, and none is from a bundled file. The driver that launches them is installed for the
whole process, so tests run this as a program.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl

from harness.emulator import of_array, run
from harness.emulator.code_object import CodeObject


@triton.jit
def softmax_kernel(x, y, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
    power = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * stride + at, power / tl.sum(power, axis=0), mask=at < columns)


@triton.jit
def layer_norm_kernel(x, weight, bias, y, mean_out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    square = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
        value = tl.where(at < columns, value - mean, 0.0)
        square += value * value
    scale = tl.rsqrt(tl.sum(square, axis=0) / columns + epsilon)
    tl.store(mean_out + row, mean)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < columns
        value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + at, mask=inside)
        b = tl.load(bias + at, mask=inside)
        tl.store(y + row * columns + at, (value - mean) * scale * w + b, mask=inside)


@triton.jit
def gemm_kernel(a, b, c, m, n, depth, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(0, depth, BK):
        k = first + tl.arange(0, BK)
        left = tl.load(a + i[:, None] * depth + k[None, :], mask=(i[:, None] < m) & (k[None, :] < depth), other=0.0)
        right = tl.load(b + k[:, None] * n + j[None, :], mask=(k[:, None] < depth) & (j[None, :] < n), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + i[:, None] * n + j[None, :], total.to(tl.float16), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def _scanned(left_decay, left, right_decay, right):
    return left_decay * right_decay, left * right_decay + right


@triton.jit
def scan_kernel(x, decay, sums, decayed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value, factor = tl.load(x + at), tl.load(decay + at)
    tl.store(sums + at, tl.cumsum(value, axis=0))
    _, run = tl.associative_scan((factor, value), 0, _scanned)
    tl.store(decayed + at, run)


@triton.jit
def atomics_kernel(keys, values, counts, sums, largest, ticket, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    key = tl.load(keys + at, mask=inside, other=0)
    value = tl.load(values + at, mask=inside, other=0.0)
    tl.atomic_add(counts + key, 1, mask=inside)
    tl.atomic_add(sums + key, value, mask=inside)
    tl.atomic_max(largest + key, at, mask=inside)
    old = tl.atomic_cas(ticket, 0, 0)
    tl.atomic_xchg(ticket + 1 + tl.program_id(0), old + 7)


@triton.jit
def int8_dot_kernel(a, b, scale, c, BM: tl.constexpr, BN: tl.constexpr, DEPTH: tl.constexpr):
    i, j, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, DEPTH)
    left = tl.load(a + i[:, None] * DEPTH + k[None, :])
    right = tl.load(b + k[:, None] * BN + j[None, :])
    total = tl.dot(left, right, out_dtype=tl.int32)
    tl.store(c + i[:, None] * BN + j[None, :], total.to(tl.float32) * tl.load(scale + j)[None, :])


@triton.jit
def fp8_kernel(x, small, back, scale_out, n, BLOCK: tl.constexpr, KIND: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), axis=0), 1e-6) / 224.0
    narrow = (value / scale).to(KIND)
    tl.store(small + at, narrow, mask=at < n)
    tl.store(back + at, narrow.to(tl.float32) * scale, mask=at < n)
    tl.store(scale_out + tl.program_id(0), scale)


@triton.jit
def gather_kernel(table, index, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    chosen = tl.load(index + row)
    value = tl.load(table + chosen.to(tl.int64) * width + at, mask=(at < width) & (chosen >= 0), other=-1.0)
    turned = tl.gather(value, (at + 3) % BLOCK, axis=0)
    tl.store(out + row * BLOCK + at, turned)


@triton.jit
def while_kernel(x, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    count = tl.zeros([BLOCK], tl.int32)
    while tl.max(value, axis=0) > 1:
        running = value > 1
        count += running.to(tl.int32)
        value = tl.where(running, tl.where(value % 2 == 0, value // 2, 3 * value + 1), value)
    tl.store(steps + at, count)


@triton.jit
def grid3_kernel(x, y, nx, ny, nz, sx, sy, BLOCK: tl.constexpr):
    z, row = tl.program_id(2), tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < nx
    value = tl.load(x + z * sx + row * sy + at, mask=inside, other=0)
    programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    tl.store(y + (at * ny + row) * nz + z, value * 2 + programs, mask=inside)


@triton.jit
def scaled_dot_kernel(
    a, b, scale_a, scale_b, c, BM: tl.constexpr, BN: tl.constexpr, DEPTH: tl.constexpr,
    KIND_A: tl.constexpr, KIND_B: tl.constexpr, PACK_A: tl.constexpr, PACK_B: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, BM), tl.arange(0, BN)
    ka, kb, ks = tl.arange(0, DEPTH // PACK_A), tl.arange(0, DEPTH // PACK_B), tl.arange(0, DEPTH // 32)
    left = tl.load(a + i[:, None] * (DEPTH // PACK_A) + ka[None, :])
    right = tl.load(b + j[None, :] * (DEPTH // PACK_B) + kb[:, None])
    of_left = tl.load(scale_a + i[:, None] * (DEPTH // 32) + ks[None, :])
    of_right = tl.load(scale_b + j[:, None] * (DEPTH // 32) + ks[None, :])
    total = tl.dot_scaled(left, of_left, KIND_A, right, of_right, KIND_B)
    tl.store(c + i[:, None] * BN + j[None, :], total)


# Faults, each with a clean twin beside it.


@triton.jit
def unmasked_kernel(x, y, n, BLOCK: tl.constexpr, GUARD: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < n) | (not GUARD)
    tl.store(y + at, tl.load(x + at, mask=at < n, other=0.0) * 2, mask=inside)


@triton.jit
def counter_kernel(counter, ATOMIC: tl.constexpr):
    if ATOMIC:
        tl.atomic_add(counter, 1)
    else:
        tl.store(counter, tl.load(counter) + 1)


@triton.jit
def exchange_kernel(x, scratch, y, BLOCK: tl.constexpr, BARRIER: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(scratch + at, tl.load(x + at))
    if BARRIER:
        tl.debug_barrier()
    tl.store(y + at, tl.load(scratch + BLOCK - 1 - at))


@triton.jit
def waiting_kernel(flag, y):
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.store(y, 1)


@triton.jit
def undefined_kernel(x, y, BLOCK: tl.constexpr, WRITES: tl.constexpr):
    at = tl.arange(0, BLOCK)
    code: tl.constexpr = "v_mov_b32 $0, $1" if WRITES else "; nothing is written to $0"
    value = tl.inline_asm_elementwise(code, "=&v,v", [tl.load(x + at)], tl.float32, is_pure=True, pack=1)
    tl.store(y + at, value)


@triton.jit
def float_sum_kernel(x, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + at), axis=0))


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(seed: int, low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def softmax(target: str) -> None:
    x, y = drawn(1, 7, 781) * 4, torch.zeros(7, 781)
    softmax_kernel[(7,)](x, y, 781, x.stride(0), BLOCK=1024)
    torch.testing.assert_close(y, x.softmax(1))


def layer_norm(target: str) -> None:
    x, weight, bias = drawn(2, 5, 1000).half(), drawn(3, 1000), drawn(4, 1000)
    y, mean = torch.zeros(5, 1000), torch.zeros(5)
    layer_norm_kernel[(5,)](x, weight, bias, y, mean, 1000, 1e-5, BLOCK=512)
    torch.testing.assert_close(
        y, torch.nn.functional.layer_norm(x.float(), (1000,), weight, bias), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(mean, x.float().mean(1), atol=1e-6, rtol=1e-5)


def gemm(target: str) -> None:
    a, b = whole(5, -4, 5, 70, 90).half(), whole(6, -4, 5, 90, 50).half()
    c = torch.zeros(70, 50, dtype=torch.float16)
    gemm_kernel[(3, 2)](a, b, c, 70, 50, 90, BM=32, BN=32, BK=32)
    assert torch.equal(c, (a.float() @ b.float()).half())


def scan(target: str) -> None:
    x, decay = whole(7, -8, 9, 2, 512).float(), whole(8, 0, 2, 2, 512).float()
    sums, decayed = torch.zeros(2, 512), torch.zeros(2, 512)
    scan_kernel[(2,)](x, decay, sums, decayed, BLOCK=512)
    expected, run = torch.zeros(2, 512), torch.zeros(2)
    for at in range(512):
        run = run * decay[:, at] + x[:, at]
        expected[:, at] = run
    assert torch.equal(sums, x.cumsum(1)) and torch.equal(decayed, expected)


def atomics(target: str) -> None:
    keys, values = whole(9, 0, 10, 1000).int(), whole(10, -8, 9, 1000).float()
    counts, sums = torch.zeros(10, dtype=torch.int32), torch.zeros(10)
    largest, ticket = torch.full((10,), -1, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    atomics_kernel[(4,)](keys, values, counts, sums, largest, ticket, 1000, BLOCK=256)
    assert torch.equal(counts, torch.bincount(keys, minlength=10).int())
    assert torch.equal(sums, torch.zeros(10).index_add(0, keys, values))
    assert [int(last) for last in largest] == [int((keys == key).nonzero().max()) for key in range(10)]
    assert ticket.tolist() == [0, 7, 7, 7, 7]


def int8_dot(target: str) -> None:
    a, b, scale = (
        whole(11, -128, 128, 32, 64).to(torch.int8),
        whole(12, -128, 128, 64, 32).to(torch.int8),
        drawn(13, 32),
    )
    c = torch.zeros(32, 32)
    int8_dot_kernel[(1,)](a, b, scale, c, BM=32, BN=32, DEPTH=64)
    assert torch.equal(c, (a.int() @ b.int()).float() * scale)


def fp8_casts(target: str) -> None:
    fnuz = target == "gfx942"
    for kind, held in (
        (tl.float8e4b8 if fnuz else tl.float8e4nv, torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn),
        (tl.float8e5b16 if fnuz else tl.float8e5, torch.float8_e5m2fnuz if fnuz else torch.float8_e5m2),
    ):
        x, n = drawn(14, 500), 500
        small, back, scales = torch.zeros(500, dtype=held), torch.zeros(500), torch.zeros(2)
        fp8_kernel[(2,)](x, small, back, scales, n, BLOCK=256, KIND=kind)
        scale = torch.stack([x[:256].abs().max(), x[256:].abs().max()]) / 224.0
        torch.testing.assert_close(scales, scale)
        each = scales.repeat_interleave(256)[:500]
        torch.testing.assert_close(small.float(), (x / each).to(held).float(), atol=0, rtol=0)
        assert torch.equal(back, small.float() * each)


def gather(target: str) -> None:
    table, index = drawn(15, 20, 60), torch.tensor([3, -1, 19, 0, 7], dtype=torch.int32)
    out = torch.zeros(5, 64)
    gather_kernel[(5,)](table, index, out, 60, BLOCK=64)
    padded = torch.nn.functional.pad(table[index.clamp(min=0).long()], (0, 4), value=-1.0)
    padded[1] = -1.0
    assert torch.equal(out, padded.roll(-3, 1))


def while_loop(target: str) -> None:
    x, steps = whole(16, 1, 300, 256).int(), torch.zeros(256, dtype=torch.int32)
    while_kernel[(2,)](x, steps, BLOCK=128)

    def collatz(value: int) -> int:
        count = 0
        while value > 1:
            value, count = value // 2 if value % 2 == 0 else 3 * value + 1, count + 1
        return count

    assert steps.tolist() == [collatz(int(value)) for value in x]


def grid3(target: str) -> None:
    x, y = whole(17, -99, 99, 3, 5, 200), torch.zeros(200, 5, 3, dtype=torch.int64)
    grid3_kernel[(2, 5, 3)](x, y, 200, 5, 3, x.stride(0), x.stride(1), BLOCK=128)
    assert torch.equal(y, x.permute(2, 1, 0) * 2 + 30)


KERNELS: dict[str, Callable[[str], None]] = {
    "softmax": softmax,
    "layer norm": layer_norm,
    "GEMM with tails": gemm,
    "scan": scan,
    "atomics": atomics,
    "int8 dot": int8_dot,
    "fp8 casts": fp8_casts,
    "gather": gather,
    "while loop": while_loop,
    "3-D grid": grid3,
}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def small_floats(seed: int, rows: int, depth: int, kind: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Codes in the form that a kernel takes, their values, and the number of codes per byte."""
    if kind == "e2m1":
        codes = whole(seed, 0, 16, rows, depth)
        return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes], 2
    values = whole(seed, -8, 9, rows, depth).to(torch.float8_e4m3fn)
    return values, values.float(), 1


def scaled_dot(target: str) -> None:
    """Sums stay exact: products of small numbers, and scales near 1."""
    for kind_a, kind_b in (("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e4m3", "e2m1")):
        a, left, pack_a = small_floats(22, 32, 256, kind_a)
        b, right, pack_b = small_floats(23, 32, 256, kind_b)
        scales = [whole(seed, 125, 130, 32, 8).to(torch.uint8) for seed in (24, 25)]
        c = torch.zeros(32, 32)
        scaled_dot_kernel[(1,)](
            a, b, *scales, c, BM=32, BN=32, DEPTH=256, KIND_A=kind_a, KIND_B=kind_b, PACK_A=pack_a, PACK_B=pack_b
        )
        left, right = (
            side * (scale.float() - 127).exp2().repeat_interleave(32, 1) for side, scale in zip((left, right), scales)
        )
        assert torch.equal(c, left @ right.T), (kind_a, kind_b)


def unmasked(guard: bool) -> None:
    x = drawn(18, 1000)
    unmasked_kernel[(4,)](x, torch.zeros(1000), 1000, BLOCK=256, GUARD=guard)


def counter(atomic: bool) -> None:
    counts = torch.zeros(1, dtype=torch.int32)
    counter_kernel[(12,)](counts, ATOMIC=atomic)
    assert counts.item() == 12


def exchange(barrier: bool) -> None:
    x, y = drawn(19, 1024), torch.zeros(1024)
    exchange_kernel[(1,)](x, torch.zeros(1024), y, BLOCK=1024, BARRIER=barrier, num_warps=4)
    assert torch.equal(y, x.flip(0))


def waiting(released: bool) -> None:
    waiting_kernel[(1,)](torch.full((1,), int(released), dtype=torch.int32), torch.zeros(1, dtype=torch.int32))


def undefined(writes: bool) -> None:
    undefined_kernel[(1,)](drawn(20, 256), torch.zeros(256), BLOCK=256, WRITES=writes)


FAULTS: dict[str, Callable[[bool], None]] = {
    "out of range": unmasked,
    "lost update": counter,
    "exchange": exchange,
    "uninitialised": undefined,
    "endless": waiting,
}


def float_sum(target: str) -> None:
    total = torch.zeros(1)
    float_sum_kernel[(12,)](drawn(21, 12 * 128), total, BLOCK=128)


def random_code(image: bytes, code: bytes, generator: np.random.Generator) -> bytes:
    return image.replace(code, generator.bytes(len(code)))


def random_part(image: bytes, code: bytes, generator: np.random.Generator) -> bytes:
    """Randomize a few words of the code. The instructions after them are executed as well."""
    words = np.frombuffer(code, np.uint32).copy()
    words[generator.integers(0, words.size, 3)] = generator.integers(0, 2**32, 3, np.uint32)
    return image.replace(code, words.tobytes())


def lying_metadata(image: bytes, code: bytes, generator: np.random.Generator) -> bytes:
    """Damage anything except the code: registers, LDS, arguments, symbols, the line table."""
    hostile = bytearray(image)
    at = image.index(code)
    for place in generator.integers(0, len(hostile), 80):
        if not at <= place < at + len(code):
            hostile[place] = generator.integers(0, 256)
    return bytes(hostile)


def jumps(image: bytes, code: bytes, generator: np.random.Generator) -> bytes:
    """Insert s_branch somewhere. Its low half is the number of words to jump forward or back."""
    words = np.frombuffer(code, np.uint32).copy()
    branch = 0xBF820000 if image_target(image) != "gfx1100" else 0xBFA00000
    words[generator.integers(0, 8)] = branch | int(generator.integers(0, 1 << 16))
    return image.replace(code, words.tobytes())


HOSTILE = {"random code": random_code, "random words": random_part, "lying metadata": lying_metadata, "jumps": jumps}


def image_target(image: bytes) -> str:
    return CodeObject(image).target


def hostile(binary: bytes) -> list[dict[str, object]]:
    """Damage a kernel's code object in many ways, and run each on small allocations."""
    kernel = CodeObject(binary).kernel("softmax_kernel")
    assert binary.count(kernel.code) == 1
    x, y = np.zeros(1024, np.float32), np.zeros(1024, np.float32)
    memory = [of_array(x, "x"), of_array(y, "y")]
    explicit = [one for one in kernel.arguments if not one.kind.startswith("hidden_")]
    values = [x.ctypes.data, y.ctypes.data, 700, 700]
    given = [value.to_bytes(one.size, "little") for one, value in zip(explicit, values)]
    given += [bytes(one.size) for one in explicit[len(given) :]]
    rows: list[dict[str, object]] = []
    for what, damage in HOSTILE.items():
        ended, refused, wrong = 0, 0, None
        try:
            for seed in range(30):
                damaged = damage(binary, kernel.code, np.random.default_rng(seed))
                outcome = run(
                    damaged, "softmax_kernel", (1, 1, 1), (4 * kernel.wave_size, 1, 1), given, memory,
                    shared_bytes=1024, limit=3000,
                )  # fmt: skip
                ended += 1
                refused += not outcome.clean
        except BaseException as error:
            wrong = f"seed {seed}: {type(error).__name__}: {error}"
        rows.append({"name": f"hostile, {what}", "wrong": wrong, "outcomes": ended, "refused or found": refused})
    return rows


def main(target: str, *names: str) -> None:
    from harness.emulated import triton_driver
    from harness.emulated.launches import of_process

    launches = of_process(target)
    emulated = triton_driver.present(target, launches)
    launches.limit = 100_000
    tried: dict[str, Callable[[], None]] = {name: functools.partial(call, target) for name, call in KERNELS.items()}
    if target == "gfx950":  # the only chip that has the instruction
        tried["scaled dot"] = functools.partial(scaled_dot, target)
    tried["sum of floats by atomics"] = functools.partial(float_sum, target)
    tried |= {f"{name}, {'clean' if clean else 'planted'}": functools.partial(call, clean)
              for name, call in FAULTS.items() for clean in (True, False)}  # fmt: skip
    tried = {name: tried[name] for name in names or tried}
    for name, call in tried.items():
        began, wrong, said = time.process_time(), None, len(launches.remarks)
        try:
            call()
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        row = {"name": name, "seconds": round(time.process_time() - began, 2), "wrong": wrong}
        print(json.dumps({**row, "remarks": launches.remarks[said:]}), flush=True)
    if not names:
        (binary,) = [one for one in emulated.assemblies if b"softmax_kernel" in one]
        for damaged in hostile(binary):
            print(json.dumps(damaged), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
