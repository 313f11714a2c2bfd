"""Inline HIP is compiled for chips that are not here, and what is read from the result is what is in it."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from harness import hip
from harness.chips import code_object
from harness.hip import CompilationError, compilers, program
from harness.hip.compilers import TARGETS

ROOT = Path(__file__).resolve().parents[1]
SUBMISSIONS = ("kv_replicate/hip_seed", "kv_replicate/hip_vectorised", "fmha/hip_one_head")
AMD_TARGETS = [name for name, target in TARGETS.items() if target.vendor == "amd"]

SUM = r"""
extern "C" __global__ __launch_bounds__(64) void sum(const float* x, float* y) {
    __shared__ float shared[64];
    shared[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    float sum = shared[threadIdx.x ^ 1];
    for (int mask = WAVE_SIZE / 2; mask; mask /= 2) sum += shuffle_xor(sum, mask);
    if (lane_id() == 0) y[blockIdx.x + gridDim.x * blockIdx.y] = sum;
}
"""

HUNGRY = r"""
extern "C" __global__ __launch_bounds__(1024) void hungry(float* x) {
    float kept[400];
    for (int i = 0; i < 400; i++) kept[i] = x[i * 1024 + threadIdx.x];
    for (int i = 0; i < 400; i++) x[i * 1024 + threadIdx.x] = kept[(i * 7 + (int)x[i]) % 400];
}
"""

MFMA = r"""
extern "C" __global__ __launch_bounds__(64) void tile(vec<unsigned short, 4>* a, vec<float, 4>* c) {
#ifdef HAS_MFMA_BF16
    c[threadIdx.x] = mfma_16x16x16_bf16(a[threadIdx.x], a[threadIdx.x + 64], c[threadIdx.x]);
#endif
}
"""


OLDER = ("gfx90a", "gfx908")
EACH_TARGET = [pytest.param(name, marks=pytest.mark.slow if name in OLDER else []) for name in TARGETS]


@pytest.fixture(params=EACH_TARGET)
def target(request):
    return needing(request.param)


def needing(target):
    lacking = compilers.missing(target)
    if lacking is not None:
        pytest.skip(f"no compiler for {target} here: {lacking}")
    return target


def only(report):
    (kernel,) = report.kernels
    return kernel


def test_a_kernel_s_resources_are_reported(target):
    report = compilers.compile(SUM, target)
    kernel = only(report)
    assert report.target == target and report.compiler
    assert kernel.name == "sum" and 0 < kernel.registers <= 64
    assert (kernel.spills, kernel.scratch_bytes, kernel.lds_bytes) == (0, 0, 256)
    assert kernel.matrix_instructions == {} and kernel.over_limit is None
    assert (kernel.sgprs > 0) == (TARGETS[target].vendor == "amd")


def test_the_bytes_of_each_parameter_are_reported(target):
    source = r"""
    struct Three { float x[3]; };
    extern "C" __global__ void f(const char* __restrict__ a, int b, double c, Three d, unsigned char e, short g) {}
    extern "C" __global__ void none() {}
    """
    report = compilers.compile(source, target)
    assert {kernel.name: kernel.parameters for kernel in report.kernels} == {"f": (8, 4, 8, 12, 1, 2), "none": ()}


def test_a_report_is_json(target):
    fields = json.loads(json.dumps(compilers.compile(SUM, target).as_json()))
    assert fields["target"] == target and fields["kernels"][0]["lds_bytes"] == 256


def test_private_memory_is_reported(target):
    assert only(compilers.compile(HUNGRY, target)).scratch_bytes >= 1600


@pytest.mark.parametrize("name", AMD_TARGETS)
def test_matrix_instructions_are_counted_by_name_where_the_chip_has_them(name):
    found = only(compilers.compile(MFMA, needing(name))).matrix_instructions
    mfma = {"gfx90a": "v_mfma_f32_16x16x16bf16_1k", "gfx1100": None, "gfx908": None}.get(
        name, "v_mfma_f32_16x16x16_bf16"
    )
    assert found == ({mfma: 1} if mfma else {})


SEPARATE = """\
.set tile.num_vgpr, 52
.set tile.num_agpr, 16
.amdgpu_metadata
---
amdhsa.kernels:
  - .name: tile
    .vgpr_count: 52
    .agpr_count: 16
    .sgpr_count: 11
    .private_segment_fixed_size: 0
    .group_segment_fixed_size: 0
...
"""


def test_registers_for_accumulation_are_a_part_of_one_file_or_have_their_own():
    (separate,) = code_object.amd_kernels(SEPARATE, "gfx908")
    (shared,) = code_object.amd_kernels(SEPARATE, "gfx90a")
    assert (separate.registers, separate.vgprs, separate.agprs) == (52, 52, 16)
    assert (shared.registers, shared.vgprs, shared.agprs) == (52, 36, 16)
    assert separate.occupancy.waves_per_simd == 4 and shared.occupancy.waves_per_simd == 8  # as LLVM says of such code


def test_shared_memory_over_the_limit_is_an_error_of_that_target_only():
    source = SUM.replace("shared[64]", "shared[40000]")  # 160 000 bytes
    try:
        report = compilers.compile(source, needing("gfx942"))
    except CompilationError as error:
        assert "local memory" in str(error)
    else:
        assert "160000 bytes of shared memory, over the 65536" in only(report).over_limit
    assert only(compilers.compile(source, needing("gfx950"))).over_limit is None


def test_a_compile_error_has_the_compiler_s_log_with_the_source_s_own_lines(target):
    with pytest.raises(CompilationError, match=r"source(:2:|\(2\))"):
        compilers.compile('extern "C" __global__ void f(float* x) {\n    *x = unheard_of;\n}\n', target, {"A": 1})


def test_defines_reach_the_source(target):
    source = 'extern "C" __global__ void f(int* x) { __shared__ int y[COUNT]; y[*x] = *x; *x = y[0]; }'
    assert only(compilers.compile(source, target, {"COUNT": 12})).lds_bytes == 48


def test_an_unknown_target_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown target 'gfx90'; there are gfx942, gfx950, gfx1100, sm_90"):
        compilers.compile(SUM, "gfx90")


@pytest.mark.parametrize("name", TARGETS)
def test_without_a_compiler_the_command_that_brings_one_is_named(monkeypatch, name):
    monkeypatch.setattr(compilers, "clang_for", lambda target: None)
    monkeypatch.setattr(compilers, "nvrtc", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda command: None)
    assert " install " in (compilers.missing(name) or "")
    with pytest.raises(LookupError, match=f"no compiler for {name} here: .* install "):
        compilers.compile(SUM, name)


def test_a_clang_that_does_not_know_the_target_is_passed_over(monkeypatch, tmp_path):
    old = tmp_path / "clang-old"
    old.write_text("#!/bin/sh\necho 'invalid target ID' >&2\nexit 1\n")
    new = tmp_path / "clang-new"
    new.write_text("#!/bin/sh\nexit 0\n")
    for path in (old, new):
        path.chmod(0o755)
    monkeypatch.setattr(compilers, "_clangs", lambda: [(str(tmp_path / "gone"),), (str(old),), (str(new),)])
    compilers.clang_for.cache_clear()
    try:
        assert compilers.clang_for("gfx950") == (str(new),)
    finally:
        compilers.clang_for.cache_clear()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_serves_where_nvrtc_is_missing(monkeypatch):
    monkeypatch.setattr(compilers, "nvrtc", lambda: None)
    report = compilers.compile(SUM, "sm_90")
    assert report.compiler.startswith("nvcc ") and only(report).name == "sum" and only(report).lds_bytes == 256
    with pytest.raises(CompilationError, match=r"source\(1\)"):
        compilers.compile("int x = ;", "sm_90")


def test_ptxas_is_read_kernel_by_kernel():
    log = """\
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Function properties for b
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem, 380 bytes cmem[0]
ptxas info    : Compiling entry function 'a' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
"""
    ptx = """\
.visible .entry b(
{
// begin inline asm
{
\tcvt.rn.f16x2.e4m3x2 %r1, %rs1;
}
// end inline asm
\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1}, %rd1, %rd2;
wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1}, %rd1, %rd2;
}
.visible .entry a(
{
\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f1};
}
"""
    a, b = code_object.nvidia_kernels(log, ptx, "sm_90")
    assert (a.name, a.registers, a.spills) == ("a", 10, 0)
    assert (b.registers, b.spills, b.scratch_bytes, b.lds_bytes) == (255, 20, 16, 1024)
    assert a.matrix_instructions == {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": 1}
    assert b.matrix_instructions == {"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16": 2}


# The bundled submissions


@pytest.fixture(scope="module", params=SUBMISSIONS)
def submission(request):
    """The modules that a bundled submission makes when it is imported."""
    before = len(hip.modules)
    path = ROOT / "submissions" / f"{request.param}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return request.param, hip.modules[before:]


@pytest.mark.slow(ci=True)
def test_the_bundled_submissions_compile_without_spills_or_private_memory(submission, target):
    _, modules = submission
    assert modules
    for module in modules:
        for kernel in compilers.compile(module.source, target, module.defines).kernels:
            assert (kernel.spills, kernel.scratch_bytes, kernel.over_limit) == (0, 0, None), kernel


@pytest.mark.parametrize("name", AMD_TARGETS)
def test_memory_is_read_and_written_16_bytes_at_a_time_on_amd(submission, name):
    path, modules = submission
    if path.endswith("seed"):
        pytest.skip("the seed's kernels move one element a thread")
    command = compilers.clang_for(needing(name))
    flags = [*compilers._AMD_FLAGS, f"--offload-arch={name}", "-", "-o", "-"]
    assembly = compilers._run([*command, *flags], program(modules[0].source, modules[0].defines))
    wide = ("global_load_dwordx4", "global_load_b128"), ("global_store_dwordx4", "global_store_b128")
    kernels = {"fmha/hip_one_head": ["copy_values"]}.get(path, ["replicate_words_16", "replicate_runs_2"])
    for kernel in kernels:
        body = code_object.body(assembly, rf"^{kernel}:", r"^\.Lfunc_end")
        assert all(any(instruction in body for instruction in either) for either in wide), kernel


@pytest.mark.parametrize("name", ["gfx942", "gfx950"])
def test_fmha_computes_scores_and_output_by_mfma(name):
    path = ROOT / "submissions" / "fmha" / "hip_one_head.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    submission = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(submission)
    for head_dim, module in submission.MODULES.items():
        kernels = compilers.compile(module.source, needing(name), module.defines).kernels
        attend = next(kernel for kernel in kernels if kernel.name == "attend_one_head")
        assert attend.matrix_instructions == {"v_mfma_f32_16x16x16_bf16": 2 * head_dim // 64}
