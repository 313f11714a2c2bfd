"""Inline HIP in the emulator: kernels written after it stood, and a missing barrier that nothing else sees."""

import functools
import re

import numpy as np
import pytest
import torch

pytest.importorskip("tinygrad")
pytest.importorskip("elftools")

from harness import hip
from harness.emulated import hip as emulated
from harness.emulated.launches import EmulatedFault, of_process
from harness.emulator import of_array, run
from harness.emulator.code_object import CodeObject
from harness.hip import Module, int32, ptr

FLOATS, INTS, HALVES = ptr(torch.float32), ptr(torch.int32), ptr(torch.float16)

TRANSPOSE = """
extern "C" __global__ void transpose(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[32][33];
    int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int step = 0; step < 32; step += 8)
        if (row + step < rows && col < cols) tile[threadIdx.y + step][threadIdx.x] = x[(row + step) * cols + col];
    __syncthreads();
    int out_col = blockIdx.y * 32 + threadIdx.x, out_row = blockIdx.x * 32 + threadIdx.y;
    for (int step = 0; step < 32; step += 8)
        if (out_row + step < cols && out_col < rows)
            y[(out_row + step) * rows + out_col] = tile[threadIdx.x][threadIdx.y + step];
}
"""

WAVE_SUMS = """
extern "C" __global__ void wave_sums(const float* x, float* y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = at < n ? x[at] : 0.0f;
    unsigned lanes = __builtin_amdgcn_wavefrontsize();
    unsigned lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    for (unsigned step = lanes / 2; step > 0; step /= 2)
        sum += __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane ^ step) * 4, __builtin_bit_cast(int, sum)));
    if (at < n) y[at] = sum;
}
"""

GEMM = """
typedef float v4 __attribute__((ext_vector_type(4)));
typedef __fp16 h4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void gemm(const __fp16* a, const __fp16* b, float* c, int m, int n, int depth) {
    int lane = threadIdx.x & 63, row = blockIdx.y * 16 + (lane & 15), col = blockIdx.x * 16 + (lane & 15);
    v4 sum = {0, 0, 0, 0};
    for (int k = 0; k < depth; k += 16) {
        h4 x, y;
        for (int e = 0; e < 4; e++) {
            x[e] = a[row * depth + k + (lane >> 4) * 4 + e];
            y[e] = b[(k + (lane >> 4) * 4 + e) * n + col];
        }
        sum = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, sum, 0, 0, 0);
    }
    for (int e = 0; e < 4; e++) c[(blockIdx.y * 16 + (lane >> 4) * 4 + e) * n + col] = sum[e];
}
"""

PREFIX = """
extern __shared__ float shared[];
extern "C" __global__ void prefix(const float* x, float* y, int n) {
    int t = threadIdx.x;
    shared[t] = x[blockIdx.x * n + t];
    __syncthreads();
    for (int step = 1; step < n; step *= 2) {
        float add = t >= step ? shared[t - step] : 0.0f;
        __syncthreads();
        shared[t] += add;
        __syncthreads();
    }
    y[blockIdx.x * n + t] = shared[t];
}
"""

HISTOGRAM = """
extern "C" __global__ void histogram(const int* x, int* counts, float* total, int n) {
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < n; at += gridDim.x * blockDim.x) {
        __hip_atomic_fetch_add(&counts[x[at]], 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
        __hip_atomic_fetch_add(total, (float)x[at], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
}
"""

STAGED = """
typedef unsigned words __attribute__((ext_vector_type(WORDS)));
typedef __attribute__((address_space(1))) void* in_global;
typedef __attribute__((address_space(3))) void* in_shared;
extern "C" __global__ __launch_bounds__(128) void staged(const words* x, words* y) {
    __shared__ words before[32];
    __shared__ words tile[256];
    if (threadIdx.x < 32) before[threadIdx.x] = x[threadIdx.x];
    words* of_wave = tile + __builtin_amdgcn_readfirstlane(threadIdx.x / 64) * 64;
    for (int round = 0; round < 2; round++)
        __builtin_amdgcn_global_load_lds((in_global)(x + round * 128 + threadIdx.x), (in_shared)(of_wave + round * 128),
                                         WORDS * 4, 0, 0);
    __builtin_amdgcn_s_waitcnt(0);
    __syncthreads();
    for (int round = 0; round < 2; round++)
        y[round * 128 + threadIdx.x] = tile[255 - round * 128 - threadIdx.x] ^ before[threadIdx.x % 32];
}
"""

FLOATS_OF_8_BITS = """
typedef float v2 __attribute__((ext_vector_type(2)));
extern "C" __global__ void widened(const int* codes, v2* values) {
    values[2 * threadIdx.x] = __builtin_amdgcn_cvt_pk_f32_fp8(codes[threadIdx.x], false);
    values[2 * threadIdx.x + 1] = __builtin_amdgcn_cvt_pk_f32_fp8(codes[threadIdx.x], true);
}
"""

REVERSE = """
extern "C" __global__ void reverse(const float* x, float* y) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    BARRIER
    y[blockIdx.x * 256 + threadIdx.x] = tile[255 - threadIdx.x];
}
"""

SUM = """
extern "C" __global__ void sum(const float* x, float* total) {
    int at = blockIdx.x * 64 + threadIdx.x;
    ADD
}
"""


CALLS = """
__device__ __attribute__((noinline)) float helper(float x) { return x * 2; }
extern "C" __global__ void calls(const float* x, float* y) {
    y[threadIdx.x] = helper(x[threadIdx.x]);
}
"""

MEETS_ALONE = """
extern "C" __global__ void meets(const float* x, float* y) {
    if (threadIdx.x < 64) __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}
"""

MEETS_ELSEWHERE = """
extern "C" __global__ void meets(const float* x, float* y) {
    if (threadIdx.x < 64) { __syncthreads(); y[0] = 1; }
    else
        __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}
"""

ADDS_OUTSIDE = """
extern "C" __global__ void adds(float* x, int at) {
    float more = 1;
    atomicAdd(x + at + threadIdx.x, more);
}
"""

COUNTS_ITSELF = """
__device__ int launches = 5;
extern "C" __global__ void counts(int* y) {
    if (threadIdx.x == 0) launches = 7;
    y[threadIdx.x] = 1;
}
"""

HALVES_BESIDE_EACH_OTHER = """
typedef _Float16 h2 __attribute__((ext_vector_type(2)));
extern "C" __global__ void beside(const h2* a, const h2* b, h2* c) {
    h2 x = a[threadIdx.x], y = b[threadIdx.x];
    _Float16 p = x[0] * y[1], q = x[0] * (_Float16)0.25;
    p = __builtin_fmaf16(x[1], y[0], p);
    q = __builtin_fmaf16(x[1], y[0], q);
    q = __builtin_fmaf16(y[1], (_Float16)0.5, q);
    c[threadIdx.x] = h2{p, q};
}
"""


@pytest.fixture(
    params=[
        "gfx942",
        pytest.param("gfx950", marks=pytest.mark.slow),
        pytest.param("gfx1100", marks=pytest.mark.slow(ci=True)),
    ]
)
def target(request, monkeypatch):
    """A chip on which launches are emulated."""
    lacking = hip.compilers.missing(request.param)
    if lacking is not None:
        pytest.skip(f"no compiler for {request.param} here: {lacking}")
    monkeypatch.setattr(hip, "emulator", functools.partial(emulated.launch, request.param))
    return request.param


def numbers(seed, *shape):
    return torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(seed)).float()


def test_a_transposition_through_shared_memory(target):
    x, y = numbers(1, 70, 45), torch.empty(45, 70)
    kernel = Module(TRANSPOSE).kernel("transpose", [FLOATS, FLOATS, int32, int32])
    kernel(x, y, 70, 45, grid=(2, 3), block=(32, 8))
    assert torch.equal(y, x.T)


def test_sums_over_a_wave_by_permuted_lanes(target):
    x, y, lanes = numbers(2, 256), torch.empty(256), 32 if target == "gfx1100" else 64
    Module(WAVE_SUMS).kernel("wave_sums", [FLOATS, FLOATS, int32])(x, y, 256, grid=1, block=256)
    assert torch.equal(y.view(-1, lanes), x.view(-1, lanes).sum(1, keepdim=True).expand(-1, lanes))


def test_a_product_by_matrix_instructions(target):
    if target == "gfx1100":
        pytest.skip("gfx1100 has no MFMA")
    a, b, c = numbers(3, 32, 64).half(), numbers(4, 64, 48).half(), torch.empty(32, 48)
    kernel = Module(GEMM).kernel("gemm", [HALVES, HALVES, FLOATS, int32, int32, int32])
    kernel(a, b, c, 32, 48, 64, grid=(3, 2), block=64)
    assert torch.equal(c, a.float() @ b.float())


def test_a_source_that_the_compiler_warns_of_is_run(target):
    x, y = numbers(8, 1, 256), torch.empty(1, 256)
    warned = "#warning mind the order\n" + REVERSE.replace("BARRIER", "__syncthreads();")
    Module(warned).kernel("reverse", [FLOATS, FLOATS])(x, y, grid=1, block=256)
    assert torch.equal(y, x.flip(1))


def test_all_four_8_bit_floats_of_a_word_are_widened_two_at_a_time(target):
    if target == "gfx1100":
        pytest.skip("gfx1100 has no 8-bit floats")
    codes, values = torch.arange(256).to(torch.uint8), torch.empty(256)
    Module(FLOATS_OF_8_BITS).kernel("widened", [INTS, FLOATS])(codes.view(torch.int32), values, grid=1, block=64)
    flavour = torch.float8_e4m3fnuz if target == "gfx942" else torch.float8_e4m3fn
    assert torch.equal(values.nan_to_num(500), codes.view(flavour).float().nan_to_num(500))


@pytest.mark.parametrize("words", [1, pytest.param(4, id="16 bytes")])
def test_what_llvm_lowers_a_load_to_shared_memory_to_puts_each_lane_where_the_builtin_says(target, words):
    if target == "gfx1100" or (words == 4 and target == "gfx942"):
        pytest.skip(f"{target} has no such load")
    x = torch.randint(2**31, (256, words), generator=torch.Generator().manual_seed(9), dtype=torch.int32)
    y, module = torch.empty_like(x), Module(STAGED, {"WORDS": words})
    module.kernel("staged", [INTS, INTS])(x, y, grid=1, block=128)
    assert torch.equal(y, x.flip(0) ^ x[:32].repeat(8, 1))
    assembly = hip.compilers.code_object(STAGED, target, module.defines)[1]
    assert assembly.count({1: "global_load_lds_dword ", 4: "global_load_lds_dwordx4 "}[words]) == 2


def test_prefix_sums_in_shared_memory_whose_size_the_launch_gives(target):
    x, y = numbers(5, 3, 128), torch.empty(3, 128)
    Module(PREFIX).kernel("prefix", [FLOATS, FLOATS, int32])(x, y, 128, grid=3, block=128, shared_bytes=512)
    assert torch.equal(y, x.cumsum(1))


def test_atomics_in_a_loop_over_the_grid(target):
    x = numbers(6, 1000).abs().int()
    counts, total = torch.zeros(16, dtype=torch.int32), torch.zeros(1)
    Module(HISTOGRAM).kernel("histogram", [INTS, INTS, FLOATS, int32])(x, counts, total, 1000, grid=2, block=128)
    assert torch.equal(counts, torch.bincount(x, minlength=16).int()) and float(total) == float(x.sum())


def test_a_missing_barrier_is_found_and_nothing_in_its_clean_twin(target):
    x, y = numbers(7, 2, 256), torch.empty(2, 256)
    Module(REVERSE.replace("BARRIER", "__syncthreads();")).kernel("reverse", [FLOATS, FLOATS])(x, y, grid=2, block=256)
    assert torch.equal(y, x.flip(1))
    with pytest.raises(EmulatedFault, match=r"race in shared memory: reverse: it reads byte ") as caught:
        Module(REVERSE.replace("BARRIER", "")).kernel("reverse", [FLOATS, FLOATS])(x, y, grid=2, block=256)
    other, mine = re.search(
        r"which wave (\d), lane \d+ wrote \(ds_\w+, line 4 of the source string\) with no barrier, flag or atomic "
        rf"between \(ds_\w+, line 6 of the source string, workgroup .*, wave (\d), lane \d+, {target}\)",
        str(caught.value),
    ).groups()
    assert other != mine


def test_of_two_waves_that_write_one_byte_both_are_named(target):
    both = """extern "C" __global__ void both(float* y) {
        __shared__ float tile[4];
        if (threadIdx.x % 64 == 3) tile[threadIdx.x / 64 / 2] = threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) y[0] = tile[0];
    }"""
    with pytest.raises(EmulatedFault, match=r"it writes byte 0 of .* which wave \d, lane 3 wrote \(ds_\w+, line 3 "):
        Module(both).kernel("both", [FLOATS])(torch.zeros(4), grid=1, block=128)


@pytest.mark.parametrize(
    "block, shared_bytes, why",
    [
        (512, 0, r"k was compiled for blocks of up to 256 threads, not 512"),
        ((16, 2048), 0, r"k: a grid of \(1, 1, 1\) and blocks of \(16, 2048, 1\): from 1 block"),
        (64, 200_000, r"k asks for 200,000 bytes of shared memory; a block of gfx\d+ has"),
    ],
)
def test_a_launch_that_a_gpu_would_refuse_fails(target, block, shared_bytes, why):
    source = 'extern "C" __global__ __launch_bounds__(256) void k(float* y) { y[0] = 1; }'
    with pytest.raises(hip.LaunchError, match="^launch failed: " + why):
        Module(source).kernel("k", [FLOATS])(torch.zeros(4), grid=1, block=block, shared_bytes=shared_bytes)


def test_a_barrier_that_some_lanes_of_a_wave_skip_is_remarked_and_its_twin_is_not(target):
    launches = of_process(target)
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
        __shared__ float tile[256];
        if (threadIdx.x LANES) {
            tile[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            y[threadIdx.x] = tile[threadIdx.x ^ 64];
        }
    }"""
    x, y = numbers(14, 256), torch.zeros(256)

    def remarks(lanes):
        launches.remarks.clear()
        kernel = Module(source.replace("LANES", lanes)).kernel("k", [FLOATS, FLOATS, int32])
        kernel(x, y, 256, grid=1, block=256)
        return launches.remarks

    assert not remarks("< 256") and torch.equal(y.view(2, 2, 64), x.view(2, 2, 64).flip(1))
    (remark,) = remarks("% 2 == 0")
    assert re.match(r"barrier that some lanes of a wave skip: k: (16 of 32|32 of 64) lanes do not reach it", remark)
    assert "(s_barrier, line 5 of the source string" in remark


def test_a_kernel_that_calls_a_function_is_not_accused(target):
    launches = of_process(target)
    x, y, accused = numbers(10, 64), torch.empty(64), list(launches.findings)
    with pytest.raises(
        hip.NoDevice,
        match=r"calls of functions are not emulated: calls calls \S*helper\S* \(s_swappc_b64, line 4 of the",
    ):
        Module(CALLS).kernel("calls", [FLOATS, FLOATS])(x, y, grid=1, block=64)
    assert launches.findings == accused


def test_a_kernel_that_writes_a_variable_of_its_source_is_not_accused(target):
    launches, y = of_process(target), torch.empty(64, dtype=torch.int32)
    accused = list(launches.findings)
    with pytest.raises(hip.NoDevice, match=r"counts could not be emulated: a store to a variable .* is not emulated"):
        Module(COUNTS_ITSELF).kernel("counts", [INTS])(y, grid=1, block=64)
    assert launches.findings == accused


def test_sums_in_both_halves_of_a_register(target):
    a, b, c = numbers(12, 64, 2).half(), numbers(13, 64, 2).half(), torch.empty(64, 2, dtype=torch.float16)
    Module(HALVES_BESIDE_EACH_OTHER).kernel("beside", [HALVES, HALVES, HALVES])(a, b, c, grid=1, block=64)
    second = a[:, 1] * b[:, 0]
    expected = torch.stack([a[:, 0] * b[:, 1] + second, a[:, 0] * 0.25 + second + b[:, 1] * 0.5], 1)
    assert torch.equal(c, expected)  # small numbers and their quarters: every order of rounding is exact


def test_what_the_prelude_does_is_said_of_the_line_that_calls_it(target):
    x, y = numbers(11, 256), torch.empty(256)
    with pytest.raises(EmulatedFault, match=r"barrier not reached by all waves: .* \(s_barrier, line 3 of ") as caught:
        Module(MEETS_ALONE).kernel("meets", [FLOATS, FLOATS])(x, y, grid=1, block=256)
    assert "prelude" not in str(caught.value)
    with pytest.raises(EmulatedFault, match=r"waves wait at another barrier .*line 3 of the source.*, line 5 of "):
        Module(MEETS_ELSEWHERE).kernel("meets", [FLOATS, FLOATS])(x, y, grid=1, block=256)
    with pytest.raises(EmulatedFault, match=r"out-of-range access: adds: .* \(.*atomic.*, line 4 of "):
        Module(ADDS_OUTSIDE).kernel("adds", [FLOATS, int32])(x, 256, grid=1, block=64)


def test_what_depends_on_the_order_of_workgroups_is_found_and_atomics_are_only_remarked(target):
    launches = of_process(target)
    launches.instructions.clear()  # what ran before in this process would have spent the second runs
    launches.remarks.clear()
    x = torch.randn(12 * 64, generator=torch.Generator().manual_seed(8))

    def summed(add):
        total = torch.zeros(1)
        Module(SUM.replace("ADD", add)).kernel("sum", [FLOATS, FLOATS])(x, total, grid=12, block=64)
        return float(total)

    with pytest.raises(
        EmulatedFault, match=r"depends on the order of workgroups: sum: byte . of .* waves write it"
    ) as caught:
        summed("if (threadIdx.x == 0) *total += x[at];")
    assert "line 4" in str(caught.value) and "workgroup" in str(caught.value)
    assert not launches.remarks
    atomic = "__hip_atomic_fetch_add(total, x[at], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);"
    assert summed(atomic) == pytest.approx(float(x.sum()), abs=1e-3)
    (remark,) = launches.remarks
    assert "depends on the order by nature" in remark and "atomic" in remark
    launches.remarks.clear()
    summed("if (at == 0) *total = x[at];")
    assert not launches.remarks


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_code_object_of_hip_ends_as_an_outcome(seed):
    try:
        image, _ = hip.compilers.code_object(REVERSE.replace("BARRIER", "__syncthreads();"), "gfx942", ())
    except LookupError as lacking:
        pytest.skip(str(lacking))
    generator = np.random.default_rng(seed)
    hostile = bytearray(image)
    code = CodeObject(image).kernel("reverse").code
    at = image.index(code)
    if seed % 2:
        hostile[at : at + len(code)] = generator.bytes(len(code))
    else:
        for place in generator.integers(0, len(hostile), 100):
            hostile[place] = generator.integers(0, 256)
    x, y = np.zeros(256, np.float32), np.zeros(256, np.float32)
    pointers = [array.ctypes.data.to_bytes(8, "little") for array in (x, y)]
    memory = [of_array(x, "x"), of_array(y, "y")]
    outcome = run(bytes(hostile), "reverse", (1, 1, 1), (256, 1, 1), pointers, memory, limit=2000)
    assert outcome.clean or outcome.findings or outcome.not_emulated
