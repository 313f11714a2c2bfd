"""HIP's own names in the prelude: each as ROCm's headers mean it, on waves of 64 lanes and of 32."""

import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")

from harness import hip
from harness.emulated import hip as emulated
from harness.hip import CompilationError, Module, int32, ptr
from harness.hip.prelude import PRELUDE, program
from harness.hip.vocabulary import VOCABULARY

ANY = ptr()
FLOATS, INTS, DOUBLES, LONGS = ptr(torch.float32), ptr(torch.int32), ptr(torch.float64), ptr(torch.int64)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "hip.md"

WAVES = Module(r"""
#include <hip/hip_runtime.h>
#include <stdint.h>
template <class T> __device__ void shuffled(const T* x, T* y, int amount, int width) {
    int i = threadIdx.x, n = blockDim.x;
    y[i] = __shfl(x[i], amount, width);
    y[n + i] = __shfl_up(x[i], amount, width);
    y[2 * n + i] = __shfl_down(x[i], amount, width);
    y[3 * n + i] = __shfl_xor(x[i], amount, width);
    y[4 * n + i] = __shfl_down_sync(0xffffffffffffffffull, x[i], amount, width);
}
extern "C" __global__ void shuffle4(const int* x, int* y, int amount, int width) { shuffled(x, y, amount, width); }
extern "C" __global__ void shuffle8(const double* x, double* y, int amount, int width) {
    shuffled(x, y, amount, width);
}
extern "C" __global__ void votes(const int* x, uint64_t* y) {
    int i = threadIdx.x, n = blockDim.x;
    y[i] = __ballot(x[i] > 0);
    y[n + i] = __any(x[i] > 6) + 2 * __all(x[i] >= 0) + 4 * __all(x[i] > -100) + 8 * __any(x[i] > 100);
    y[2 * n + i] = 0;
    if (x[i] & 1) y[2 * n + i] = __activemask();
    y[3 * n + i] = warpSize * 1000 + __lane_id();
    y[4 * n + i] = __all_sync(~0ull, x[i] > -100) + 2 * __all_sync(0x8000000000000001ull, x[i] > -100)
                   + 4 * (__ballot_sync(~0ull, 1) == __activemask()) + 8 * __all_sync(1ull, x[i] > 100);
}
extern "C" __global__ __launch_bounds__(256) void block_sum(const float* x, float* y) {
    __shared__ float parts[64];
    float sum = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int step = warpSize / 2; step > 0; step /= 2) sum += __shfl_down(sum, step);
    if (__lane_id() == 0) parts[threadIdx.x / warpSize] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int wave = 1; wave < blockDim.x / warpSize; wave++) sum += parts[wave];
        __threadfence(); __threadfence_block(); __threadfence_system(); __syncwarp();
        atomicAdd(y, sum);
    }
}
""")

ATOMICS = Module(r"""
template <class T> __device__ void every(const T* x, T* y) {
    T v = x[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(y, v);
    atomicSub(y + 1, v);
    atomicMin(y + 2, v);
    atomicMax(y + 3, v);
    atomicAnd(y + 4, v | 0xff);
    atomicOr(y + 5, v & 0xff);
    atomicXor(y + 6, v);
    T seen = y[7], old;
    do { old = seen; seen = atomicCAS(y + 7, old, old + 3); } while (seen != old);
    if (threadIdx.x == 0 && blockIdx.x == 0) y[9] = atomicExch(y + 8, 5);
}
extern "C" __global__ void of_int(const int* x, int* y) { every(x, y); }
extern "C" __global__ void of_unsigned(const unsigned* x, unsigned* y) { every(x, y); }
extern "C" __global__ void of_long(const unsigned long long* x, unsigned long long* y) { every(x, y); }
extern "C" __global__ void of_float(const float* x, float* y) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(&sum, v);
    atomicAdd(y, v);
    atomicMin(y + 1, v);
    atomicMax(y + 2, v);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(y + 3, sum);
}
extern "C" __global__ void tickets(unsigned* x, unsigned* y) {
    y[threadIdx.x] = atomicInc(x, 9);
    y[blockDim.x + threadIdx.x] = atomicDec(x + 1, 9);
}
extern "C" __global__ void shared_tickets(unsigned* x, unsigned* y) {
    __shared__ unsigned up, down;
    if (threadIdx.x == 0) { up = 3; down = 3; }
    __syncthreads();
    atomicInc(&up, 9);
    y[threadIdx.x] = atomicDec(&down, 9);
    __syncthreads();
    if (threadIdx.x == 0) { x[0] = up; x[1] = down; }
}
""")

VECTORS = Module(r"""
static_assert(sizeof(float4) == 16 && alignof(float4) == 16 && sizeof(float3) == 12 && alignof(float3) == 4);
static_assert(sizeof(uchar4) == 4 && alignof(uchar4) == 4 && sizeof(double2) == 16 && alignof(short2) == 4);
extern "C" __global__ void vectors(const float4* x, float4* y, const int2* a, int2* b) {
    __shared__ float4 tile[64];
    int i = threadIdx.x;
    tile[i] = x[i];
    float4 v = tile[i], w = make_float4(1, 2, 3, 4);
    w += v * 2.0f - make_float4(v.w, v.z, v.y, v.x) / 4.0f;
    w *= float4{1, -1, 1, -1};
    y[i] = -w;
    int2 p = a[i];
    b[i] = p == make_int2(3, 3) ? make_int2(7, 8) : p * p + 1;
}
""")

INTEGERS = Module(r"""
extern "C" __global__ void integers(const unsigned* x, int* y) {
    int i = threadIdx.x, n = blockDim.x;
    unsigned a = x[i], b = x[(i + 1) % n];
    unsigned long long both = (unsigned long long)a << 32 | b;
    int found[] = {__popc(a), __popcll(both), __clz(a), __clzll(both), __ffs(a), __ffsll(both), (int)__brev(a),
                   (int)(__brevll(both) >> 32), __mul24(a, b), (int)__umul24(a, b), __mulhi(a, b), (int)__umulhi(a, b),
                   min((int)a, (int)b), (int)max(a, b), abs((int)a >> 1), __float_as_int(__int_as_float(a >> 2)),
                   __float2int_rn((float)(a >> 20) + 0.5f), __float2int_rd(-0.5f), (int)min(2, 3u), (int)max(1.0f, 2)};
#pragma unroll
    for (int k = 0; k < 20; k++) y[k * n + i] = found[k];
}
""")

OF_ONE = [
    *("sqrtf", "rsqrtf", "expf", "exp2f", "exp10f", "logf", "log2f", "log10f", "sinf", "cosf", "tanhf", "erff"),
    *("fabsf", "floorf", "ceilf", "truncf", "roundf", "rintf", "__expf", "__logf", "__log2f", "__log10f"),
    *("__sinf", "__cosf", "__frcp_rn", "__fsqrt_rn", "__saturatef", "exp", "log", "rsqrt"),
]
MATHEMATICS = Module(
    'extern "C" __global__ void of_one(const float* x, float* y) {\n'
    "    int i = threadIdx.x, n = blockDim.x; float v = x[i];\n"
    + "".join(f"    y[{row} * n + i] = {name}(v);\n" for row, name in enumerate(OF_ONE))
    + "}\n"
    'extern "C" __global__ void of_two(const float* x, const float* e, float* y) {\n'
    "    int i = threadIdx.x, n = blockDim.x; float v = x[i], w = e[i];\n"
    "    y[i] = powf(v, w); y[n + i] = __powf(v, w); y[2 * n + i] = fmaxf(v, w); y[3 * n + i] = fminf(v, w);\n"
    "    y[4 * n + i] = copysignf(v, w); y[5 * n + i] = fmaf(v, w, v); y[6 * n + i] = __fdividef(v, w);\n"
    "    y[7 * n + i] = isnan(v) + 2 * isinf(v) + 4 * isfinite(w);\n"
    "}\n"
)


HALF_OPERATIONS = {
    "v + w": np.add, "v - w": np.subtract, "v * w": np.multiply, "v / w": np.divide,
    "__hadd(v, w)": np.add, "__hsub(v, w)": np.subtract, "__hmul(v, w)": np.multiply, "__hdiv(v, w)": np.divide,
    "-v": lambda v, w: -v, "__hneg(v)": lambda v, w: -v, "__habs(v)": lambda v, w: np.abs(v),
    "__hfma(v, w, w)": lambda v, w: v * w + w, "__hmax(v, w)": np.fmax, "__hmin(v, w)": np.fmin,
    "__half(v == w)": np.equal, "__half(__hne(v, w))": np.not_equal, "__half(__hlt(v, w))": np.less,
    "__half(__hle(v, w))": np.less_equal, "__half(__hgt(v, w))": np.greater, "__half(v >= w)": np.greater_equal,
    "__half(__hisnan(v) + 2 * __hisinf(v))": lambda v, w: np.isnan(v) + 2 * np.isinf(v),
    "__ushort_as_half(__half_as_ushort(v))": lambda v, w: v, "__short_as_half(__half_as_short(w))": lambda v, w: w,
    "__int2half_rn(__half2int_rz(__hmin(__hmax(v, -999), 999)))":
        lambda v, w: np.trunc(np.fmin(np.fmax(v, -999), 999)),
    "__float2half(__half2float(v) * 3.0f)": lambda v, w: v * 3,
}  # fmt: skip
"""What an expression of two `__half` is, in double precision; rounded to float16 once."""

HALF_FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "rcp", "ceil", "floor", "trunc", "rint")

HALF_PAIRS = {
    "__hfma2(p, q, __half2half2(p.x))": "x * z + x, y * w + x", "__h2div(p, q)": "x / z, y / w",
    "p * q - p": "x * z - x, y * w - y", "__hadd2(p, __hmul2(q, q))": "x + z * z, y + w * w",
    "__hsub2(p, __hneg2(q))": "x + z, y + w", "__habs2(p)": "abs(x), abs(y)", "__lowhigh2highlow(p)": "y, x",
    "__halves2half2(__high2half(p), __low2half(q))": "y, z", "__lows2half2(p, q)": "x, z",
    "__highs2half2(p, q)": "y, w", "__low2half2(p)": "x, x", "__high2half2(p)": "y, y",
    "__floats2half2_rn(__high2float(p), __low2float(q))": "y, z", "__float22half2_rn(__half22float2(q))": "z, w",
    "make_half2(1, 2.5f)": "1, 2.5", "__float2half2_rn(0.1f)": "0.0999755859375, 0.0999755859375",
}  # fmt: skip

HALVES = Module(
    "#include <hip/hip_runtime.h>\n#include <hip/hip_fp16.h>\n"
    "static_assert(sizeof(__half) == 2 && sizeof(half2) == 4 && alignof(__half2) == 4);\n"
    'extern "C" __global__ void of_two(const __half* x, const half* e, __half* y) {\n'
    "    __shared__ __half tile[1024];\n"
    "    int i = threadIdx.x, n = blockDim.x; tile[i] = x[i]; __half v = tile[i], w = e[i];\n"
    + "".join(f"    y[{row} * n + i] = {expression};\n" for row, expression in enumerate(HALF_OPERATIONS))
    + "}\n"
    'extern "C" __global__ void of_one(const __half* x, __half* y) {\n'
    "    int i = threadIdx.x, n = blockDim.x;\n"
    + "".join(f"    y[{row} * n + i] = h{name}(x[i]);\n" for row, name in enumerate(HALF_FUNCTIONS))
    + "}\n"
    'extern "C" __global__ void of_pairs(const __half2* x, const __half2* e, __half2* y) {\n'
    "    int i = threadIdx.x, n = blockDim.x; __half2 p = x[i], q = e[i];\n"
    + "".join(f"    y[{row} * n + i] = {expression};\n" for row, expression in enumerate(HALF_PAIRS))
    + "}\n"
)


@pytest.fixture(params=["gfx942", pytest.param("gfx950", marks=pytest.mark.slow), "gfx1100"])
def target(request, monkeypatch):
    """A chip on which launches are emulated."""
    lacking = hip.compilers.missing(request.param)
    if lacking is not None:
        pytest.skip(f"no compiler for {request.param} here: {lacking}")
    monkeypatch.setattr(hip, "emulator", functools.partial(emulated.launch, request.param))
    monkeypatch.setattr(emulated.of_process(request.param), "again", False)
    return request.param


def lanes(target):
    return 32 if target == "gfx1100" else 64


def numbers(seed, *shape, low=-8, high=8):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def inside(width, thread, other):
    """`other` where it is in the thread's group, else the thread."""
    return other if thread // width == other // width else thread


@pytest.mark.parametrize("width, amount", [(0, 3), (16, 5), (8, 1)])
def test_shuffles_stay_in_groups_of_their_width(target, width, amount):
    wave = lanes(target)
    width = width or wave
    for name, dtype, kind in (("shuffle4", torch.int32, INTS), ("shuffle8", torch.float64, DOUBLES)):
        x, y = numbers(1, 128, low=-(2**30), high=2**30).to(dtype), torch.zeros(5, 128, dtype=dtype)
        WAVES.kernel(name, [kind, kind, int32, int32])(x, y, amount, width, grid=1, block=128)
        first = [thread - thread % width for thread in range(128)]
        sources = [
            [first[thread] + amount % width for thread in range(128)],
            [inside(width, thread, thread - amount) for thread in range(128)],
            [inside(width, thread, thread + amount) for thread in range(128)],
            [inside(width, thread, thread ^ amount) for thread in range(128)],
        ]
        assert torch.equal(y, torch.stack([x[index] for index in [*sources, sources[2]]]))


def test_votes_have_a_bit_for_each_lane_of_the_wave(target):
    wave, x, y = lanes(target), numbers(2, 128).int(), torch.zeros(5, 128, dtype=torch.int64)
    x[:wave] = x[:wave].abs()
    WAVES.kernel("votes", [INTS, ANY])(x, y, grid=1, block=128)

    def mask(chosen):
        words = [sum(1 << lane for lane in range(wave) if chosen[at + lane]) for at in range(0, 128, wave)]
        return np.array([words[thread // wave] for thread in range(128)], np.uint64)

    found, x = y.numpy().view(np.uint64), x.numpy()
    assert (found[0] == mask(x > 0)).all()
    whole = x.reshape(-1, wave)
    assert (found[1] == np.repeat((whole > 6).any(1) + 2 * (whole >= 0).all(1) + 4, wave)).all()
    assert (found[2] == np.where(x & 1, mask(x & 1), 0)).all()
    assert (found[3] == wave * 1000 + np.arange(128) % wave).all()
    assert (found[4] == 7).all()


def test_a_reduction_as_hip_s_tutorials_write_it(target):
    x, y = numbers(3, 512).float(), torch.zeros(1)
    WAVES.kernel("block_sum", [FLOATS, FLOATS])(x, y, grid=2, block=256)
    assert float(y) == float(x.sum())


@pytest.mark.parametrize("name, dtype", [("of_int", np.int32), ("of_unsigned", np.uint32), ("of_long", np.uint64)])
def test_atomics_on_integers(target, name, dtype):
    top = np.iinfo(dtype).max
    x = np.random.default_rng(4).integers(np.iinfo(dtype).min, top, 128, dtype=dtype, endpoint=True)
    y = np.array([1, 2, top, np.iinfo(dtype).min, top, 0, 9, 100, 77, 0], dtype)
    signed = np.int64 if dtype is np.uint64 else np.int32
    held = torch.from_numpy(y.view(signed).copy())
    ATOMICS.kernel(name, [ANY, ANY])(torch.from_numpy(x.view(signed)), held, grid=2, block=64)
    with np.errstate(over="ignore"):
        total = x.sum(dtype=dtype)
        low, high = np.bitwise_and.reduce(x | dtype(255)), np.bitwise_or.reduce(x & dtype(255))
        expected = [dtype(1) + total, dtype(2) - total, x.min(), x.max(), low & dtype(top), high]
        expected += [dtype(9) ^ np.bitwise_xor.reduce(x), dtype(100 + 3 * 128), dtype(5), dtype(77)]
    assert held.numpy().view(dtype).tolist() == [int(value) for value in expected]


def test_atomics_on_floats_in_global_and_in_shared_memory(target):
    x, y = numbers(5, 128).float(), torch.tensor([10.0, 0.0, 0.0, 0.0])
    ATOMICS.kernel("of_float", [FLOATS, FLOATS])(x, y, grid=2, block=64)
    assert y.tolist() == [10 + float(x.sum()), float(x.min()), float(x.max()), float(x.sum())]


def test_counters_that_wrap_around(target):
    x, y = torch.tensor([3, 3], dtype=torch.int32), torch.zeros(2, 32, dtype=torch.int32)
    ATOMICS.kernel("tickets", [INTS, INTS])(x, y, grid=1, block=32)
    up, down = [(3 + step) % 10 for step in range(33)], [(3 - step) % 10 for step in range(33)]
    assert [sorted(row) for row in y.tolist()] == [sorted(up[:32]), sorted(down[:32])]
    assert x.tolist() == [up[32], down[32]]


def test_counters_in_shared_memory_that_many_waves_use_do_not_race(target):
    x, y = torch.zeros(2, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    ATOMICS.kernel("shared_tickets", [INTS, INTS])(x, y, grid=1, block=256)
    assert x.tolist() == [(3 + 256) % 10, (3 - 256) % 10]
    assert sorted(y.tolist()) == sorted((3 - step) % 10 for step in range(256))


def test_places_are_values_and_constants_have_their_names(target):
    source = """
    extern "C" __global__ void k(float* y, double* z) {
        dim3 here = blockIdx, one, of(2, 3);
        uint3 thread = threadIdx;
        size_t i = thread.x + here.x * (size_t)blockDim.x;
        float2 zeros = -make_float2(y[i], 0.0f);
        y[i] = i == 0 ? -INFINITY : i == 1 ? NAN : i == 2 ? of.x * 100 + of.y * 10 + of.z + one.y : zeros.x;
        if (i == 4) y[i] = tanhf(zeros.x);
        if (i == 5) y[i] = sizeof(size_t);
    }
    """
    y = torch.zeros(64)
    Module(source).kernel("k", [FLOATS, ANY])(y, torch.zeros(1), grid=2, block=32)
    assert y[0] == -math.inf and math.isnan(y[1]) and y[2] == 232 and y[5] == 8
    assert all(value == 0 and math.copysign(1, value) == -1 for value in [*y[3:5].tolist(), *y[6:].tolist()])


def test_vectors_are_aligned_and_add_value_by_value(target):
    x, a = numbers(6, 64, 4).float(), numbers(7, 64, 2).int()
    a[5] = 3
    y, b = torch.zeros_like(x), torch.zeros_like(a)
    VECTORS.kernel("vectors", [FLOATS, FLOATS, INTS, INTS])(x, y, a, b, grid=1, block=64)
    w = torch.tensor([1.0, 2, 3, 4]) + x * 2 - x.flip(1) / 4
    assert torch.equal(y, -w * torch.tensor([1.0, -1, 1, -1]))
    expected = a * a + 1
    expected[(a == 3).all(1)] = torch.tensor([7, 8], dtype=torch.int32)
    assert torch.equal(b, expected)


def test_what_is_done_with_the_bits_of_integers(target):
    x = np.random.default_rng(8).integers(0, 2**32, 64, dtype=np.uint64)
    x[:4] = 0, 0, 1, 2**32 - 1
    y = torch.zeros(20, 64, dtype=torch.int32)
    INTEGERS.kernel("integers", [ANY, INTS])(torch.from_numpy(x.astype(np.uint32).view(np.int32)), y, grid=1, block=64)

    def signed(value, bits=32):
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> bits - 1 else value

    for thread in range(64):
        a, b = int(x[thread]), int(x[(thread + 1) % 64])
        both = a << 32 | b
        expected = [
            a.bit_count(), both.bit_count(), 32 - a.bit_length(), 64 - both.bit_length(), (a & -a).bit_length(),
            (both & -both).bit_length(), int(f"{a:032b}"[::-1], 2), int(f"{both:064b}"[::-1], 2) >> 32,
            signed(a, 24) * signed(b, 24), (a & 0xFFFFFF) * (b & 0xFFFFFF), signed(a) * signed(b) >> 32, a * b >> 32,
            min(signed(a), signed(b)), max(a, b), abs(signed(a) >> 1), a >> 2,
            round((a >> 20) + 0.5), -1, 2, 2,
        ]  # fmt: skip
        assert y[:, thread].tolist() == [signed(value) for value in expected], (a, b)


def ulps(found, expected):
    """How far float32 values are from float64 ones, in units in the last place of float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.abs(expected).astype(np.float32)
        apart = np.abs(found.astype(np.float64) - expected) / np.spacing(np.maximum(near, np.float32(2.0**-126)))
    same = (found == expected.astype(np.float32)) | (np.isnan(found) & np.isnan(expected))
    return np.where(same, 0, apart)


def exact(name, x):
    """What a function is, in double precision."""
    stem = name.strip("_").removesuffix("f") if name != "erff" else "erf"
    own = {
        "erf": np.vectorize(math.erf), "rsqrt": lambda v: 1 / np.sqrt(v), "exp10": lambda v: 10**v,
        "round": lambda v: np.copysign(np.floor(np.abs(v) + 0.5), v), "frcp_rn": lambda v: 1 / v, "fsqrt_rn": np.sqrt,
        "saturate": lambda v: np.where(v > 0, np.minimum(v, 1), 0),
    }  # fmt: skip
    return own[stem](x) if stem in own else getattr(np, stem)(x)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_one_float(target):
    generator = np.random.default_rng(9)
    x = np.concatenate([
        generator.normal(0, 1, 300), generator.normal(0, 30, 300), 10.0 ** generator.uniform(-37, 37, 400),
        [0.0, 0.5, 1.0, -1.0, 2.5, 1e-6, 0.62, 0.63, 0.92, 0.93, 90, -104, np.inf, 1e-40, 3.0, 4.0],
    ]).astype(np.float32)  # fmt: skip
    x = np.resize(x, 1024)
    y = torch.zeros(len(OF_ONE), 1024)
    MATHEMATICS.kernel("of_one", [FLOATS, FLOATS])(torch.from_numpy(x), y, grid=1, block=1024)
    wide = x.astype(np.float64)
    for name, found in zip(OF_ONE, y.numpy()):
        looked_at = np.abs(wide) < 2.0**40 if name in ("sinf", "cosf") else np.full(1024, True)
        expected = exact(name, wide)
        if name in ("__sinf", "__cosf"):
            looked_at = np.abs(wide) < 30
            assert np.abs(found - expected)[looked_at].max() < 1e-5, name
        elif name in ("__expf", "__logf", "__log2f", "__log10f"):
            looked_at = (np.abs(wide) < 80) & (np.abs(wide) > 1e-30)
            off = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-2)
            assert off[looked_at & np.isfinite(expected)].max() < 2e-5, name
        else:
            off = ulps(found, expected)[looked_at]
            assert off.max() <= 2.0, (name, float(off.max()), float(x[looked_at][off.argmax()]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_two_floats(target):
    generator = np.random.default_rng(10)
    special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5, np.inf, -np.inf, np.nan, 1e-40, -7.0]
    pairs = [(v, w) for v in special for w in special]
    pairs += [(10000.0, -2 * at / 128) for at in range(64)]
    more = zip(np.abs(generator.normal(0, 10, 600)), generator.normal(0, 8, 600))
    v, w = (np.resize(np.array(side, np.float32), 832) for side in zip(*pairs, *more))
    y = torch.zeros(8, 832)
    kernel = MATHEMATICS.kernel("of_two", [FLOATS, FLOATS, FLOATS])
    kernel(torch.from_numpy(v), torch.from_numpy(w), y, grid=1, block=832)
    found, x, e = y.numpy(), v.astype(np.float64), w.astype(np.float64)
    off = ulps(found[0], np.power(x, e))
    assert off.max() <= 1.0, (v[off.argmax()], w[off.argmax()], found[0][off.argmax()])
    tame = (x > 1e-3) & (x < 1e3) & (np.abs(e) < 8)
    assert (np.abs(found[1] / np.power(x, e) - 1)[tame] < 1e-5).all() and tame.sum() > 300
    assert np.array_equal(found[2], np.fmax(v, w), equal_nan=True)
    assert np.array_equal(found[3], np.fmin(v, w), equal_nan=True)
    assert np.array_equal(found[4], np.copysign(v, w), equal_nan=True)
    assert ulps(found[5], x * e + x).max() <= 1.0
    tame = np.isfinite(x / e) & (np.abs(e) > 1e-30) & (np.abs(x) > 1e-30)
    assert ulps(found[6], x / e)[tame].max() <= 2.5
    assert np.array_equal(found[7], np.isnan(v) + 2 * np.isinf(v) + 4 * np.isfinite(w))


def as_halves(*values):
    return torch.from_numpy(np.array(values, np.float16).squeeze())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operations_on_a_half_round_once(target):
    special = [0.0, -0.0, 1.0, -1.0, 65504, -65504, np.inf, -np.inf, np.nan, 6e-8, 6.1e-5, -3.0]
    generator = np.random.default_rng(11)
    pairs = np.array([(v, w) for v in special for w in special] + list(generator.normal(0, 30, (368, 2)))).T
    v, w = as_halves(pairs[0]), as_halves(pairs[1])
    y = torch.zeros(len(HALF_OPERATIONS), 512, dtype=torch.float16)
    HALVES.kernel("of_two", [ANY, ANY, ANY])(v, w, y, grid=1, block=512)
    wide = [side.numpy().astype(np.float64) for side in (v, w)]
    for (expression, exact_value), found in zip(HALF_OPERATIONS.items(), y.numpy()):
        expected = np.asarray(exact_value(*wide)).astype(np.float16)
        assert np.array_equal(found, expected, equal_nan=True), expression


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_a_half_are_within_a_unit_in_the_last_place(target):
    every = torch.arange(-(2**15), 2**15, 64, dtype=torch.int16).view(torch.float16)
    y = torch.zeros(len(HALF_FUNCTIONS), 1024, dtype=torch.float16)
    HALVES.kernel("of_one", [ANY, ANY])(every, y, grid=1, block=1024)
    own = {"rsqrt": lambda v: 1 / np.sqrt(v), "rcp": lambda v: 1 / v}
    for name, found in zip(HALF_FUNCTIONS, y.numpy()):
        expected = own.get(name, getattr(np, name, None))(every.numpy().astype(np.float64)).astype(np.float16)
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        apart = np.abs(found.view(np.int16).astype(int) - expected.view(np.int16).astype(int))
        assert (same | (apart <= 1)).all(), name


def test_two_halves_are_one_word(target):
    x, e = numbers(12, 64, 2).half(), numbers(13, 64, 2, low=1).half()
    y = torch.zeros(len(HALF_PAIRS), 64, 2, dtype=torch.float16)
    HALVES.kernel("of_pairs", [ANY, ANY, ANY])(x, e, y, grid=1, block=64)
    for thread in range(64):
        places = dict(zip("xyzw", [*x[thread].tolist(), *e[thread].tolist()]))
        for row, (expression, pair) in enumerate(HALF_PAIRS.items()):
            expected = as_halves(*eval(pair, {"abs": abs}, places))
            assert torch.equal(y[row, thread], expected), expression


@pytest.mark.parametrize("mixed", ["y[0] = y[1] * 2.0f;", "y[0] = 1.0f + y[1];", "y[0] = y[1] > 0.5f;"])
def test_a_half_beside_a_float_is_ambiguous_as_it_is_with_rocm(mixed):
    if hip.compilers.missing("gfx942"):
        pytest.skip("no compiler for gfx942")
    with pytest.raises(CompilationError, match="ambiguous"):
        hip.compilers.compile(f'extern "C" __global__ void k(__half* y) {{ {mixed} }}', "gfx942")


def test_a_source_may_bring_functions_of_these_names():
    own = """
    __device__ inline float atomicAdd(float* at, float value) { return 7.0f; }
    __device__ inline float rsqrtf(float x) { return 8.0f; }
    __device__ inline float __shfl_xor(float x, int mask) { return 9.0f; }
    __device__ inline int min(int a, int b) { return 10; }
    extern "C" __global__ void k(float* y) {
        y[0] = atomicAdd(y, 1.0f) + rsqrtf(y[1]) + __shfl_xor(y[1], 1) + min(1, 2);
    }
    """
    if hip.compilers.missing("gfx942"):
        pytest.skip("no compiler for gfx942")
    assert "0x42080000" in hip.compilers.code_object(own, "gfx942")[1]  # 7 + 8 + 9 + 10


@pytest.mark.parametrize("target", ["gfx942", "gfx1100", "gfx908"])
def test_the_compiler_warns_of_nothing_in_the_prelude(target):
    command = hip.compilers.clang_for(target)
    if command is None:
        pytest.skip(f"no compiler for {target}")
    flags = (*hip.compilers._AMD_FLAGS, f"--offload-arch={target}", "-Wall", "-Werror")
    hip.compilers._run([*command, *flags, "-", "-o", "-"], program("", {}))


def test_macros_of_a_module_do_not_reach_into_the_prelude():
    if hip.compilers.missing("gfx942"):
        pytest.skip("no compiler for gfx942")
    source = 'extern "C" __global__ void k(float* y) { y[0] = T + N + A; }'
    assert hip.compilers.compile(source, "gfx942", {"T": 1, "N": 2, "A": 3, "x": "x", "a": 5}).kernels


@pytest.mark.parametrize(
    "statement, name",
    [
        ("y[0] = __syncthreads_or(1);", "__syncthreads_or"),
        ("__hip_bfloat16 h;", "__hip_bfloat16"),
        ("y[0] = cbrtf(2.0f);", "cbrtf"),
        ("y[0] = clock64();", "clock64"),
        ("uint32_t n;", "uint32_t"),
        ("y[0] = FLT_MAX;", "FLT_MAX"),
        ("float* p = NULL;", "NULL"),
    ],
)
def test_a_name_of_hip_s_that_is_not_there_is_answered_by_the_list_of_those_that_are(statement, name):
    if hip.compilers.missing("gfx942"):
        pytest.skip("no compiler for gfx942")
    with pytest.raises(CompilationError, match=rf"\n{name} is not there without ROCm's headers: docs/hip.md, \"Names"):
        hip.compilers.compile(f'extern "C" __global__ void k(float* y) {{ {statement} }}', "gfx942")
    with pytest.raises(CompilationError) as typo:
        hip.compilers.compile('extern "C" __global__ void k(float* y) { buf[0] = 1; }', "gfx942")
    assert "ROCm's headers" not in str(typo.value)
    with pytest.raises(CompilationError, match=r"hip/hip_bf16.h is not there"):
        hip.compilers.compile("#include <hip/hip_bf16.h>\n", "gfx942")


def test_the_page_lists_every_name_and_no_other():
    if hip.compilers.missing("gfx942"):
        pytest.skip("no compiler for gfx942")
    page = PAGE.read_text().split("## Names of HIP")[1].split("\nA source may")[0].split("|---|---|")[1]
    listed = {name for span in re.findall(r"`([^`]+)`", page) for name in re.findall(r"^\w+$", span)}
    defined = set(re.findall(r"PODIUM_OWN [\w ]+?[ *]+(\w+)\(", VOCABULARY))
    defined |= set(re.findall(r"^PODIUM_(?:ATOMIC|OF_FLOAT|MASKED|PLAIN)[( ](\w+)", VOCABULARY, re.MULTILINE))
    defined |= set(re.findall(r"inline (?:auto|T|bool) (\w+)\(", VOCABULARY))
    own = {name for name in defined if not name.startswith("podium") and name != "name"}
    assert own > {"atomicAdd", "atomicCAS", "__shfl_xor", "min", "powf", "__ballot_sync", "floor"}
    assert own - listed == set()
    macros = {"__constant__", "__launch_bounds__", "__align__", "HIP_DYNAMIC_SHARED"}
    for name in sorted(listed - own - macros):
        if name in ("threadIdx", "blockIdx", "blockDim", "gridDim"):
            assert f"#define {name} " in PRELUDE
        elif name.startswith("__") and name.endswith("__"):
            assert f"#define {name} " in PRELUDE, name
    types = {"char", "short", "int", "unsigned", "long", "float", "double"}
    short = {"uchar", "ushort", "uint", "ulong", "longlong", "ulonglong"}
    places = {"threadIdx", "blockIdx", "blockDim", "gridDim"}
    others = listed - types - short - places - macros - {name for name in listed if re.fullmatch(r"__\w+__", name)}
    source = "".join(f"typedef {name}4 of_{name};\n" for name in sorted((types | short) - {"unsigned"}))
    source += "namespace listed {\n" + "".join(f"using ::{name};\n" for name in sorted(others)) + "}\n"
    assert hip.compilers.compile(source, "gfx942").kernels == ()
