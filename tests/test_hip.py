"""Inline HIP: launches are checked, sources compiled once, kernels right, as far as that shows without a GPU.

The launch path runs against a driver of the test's own, whose "device" is the CPU: a module is a shared library that
g++ makes of the source, and a launch runs its threads as fibers, block after block, with barriers, shuffles and AMD's
MFMA 16x16x16 as collective operations. Shared memory starts as NaN in every block.
"""

import contextlib
import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness import hip
from harness.compile.rehearsal import Rehearsal
from harness.hip import CompilationError, Module, NoDevice, float32, int32, int64, ptr, runtime, uint32
from harness.hip.prelude import program
from harness.hip.runtime import AMD, NVIDIA, LaunchError
from harness.worker import load as worker_load

ROOT = Path(__file__).resolve().parents[1]
GXX = shutil.which("g++")
needs_gxx = pytest.mark.skipif(GXX is None, reason="needs g++")

CPU_DEVICE = r"""
#pragma once
#define PODIUM_ON_CPU
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>
#include <ucontext.h>

#define __device__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("podium_shared")))
#ifdef LIST_KERNELS
#define __global__ KERNEL
#else
#define __global__
#endif
struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;

enum State { RUNNING, AT_BLOCK, AT_WAVE, DONE };
struct Fiber { ucontext_t context; std::vector<char> stack; State state; Place place; };
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;

static void wait_for(State state) {
    const unsigned me = current;
    fibers[me].state = state;
    swapcontext(&fibers[me].context, &scheduler);
}
static void __syncthreads() { wait_for(AT_BLOCK); }
static void sync_wave() { wait_for(AT_WAVE); }

static int lane_id() { return current % WAVE_SIZE; }
static float lanes[1024];
static float shuffle_xor(float value, int mask) {
    lanes[current] = value;
    sync_wave();
    const float other = lanes[current - lane_id() + (lane_id() ^ mask)];
    sync_wave();
    return other;
}
static float exp2_fast(float x) { return exp2f(x); }
static unsigned short float16_bits(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); }
static float float16_value(unsigned short x) { return (float)__builtin_bit_cast(_Float16, x); }

#if WAVE_SIZE == 64
#define HAS_MFMA_BF16 1
static float mfma_a[16][16][16], mfma_b[16][16][16];  // wave; row, column
template <class Half, class Float> static Float mfma_16x16x16_bf16(Half a, Half b, Float c) {
    const int lane = lane_id(), wave = current / 64, line = lane % 16, four = lane / 16 * 4;
    for (int i = 0; i < 4; i++) {
        mfma_a[wave][line][four + i] = __builtin_bit_cast(float, (unsigned)a.at[i] << 16);
        mfma_b[wave][four + i][line] = __builtin_bit_cast(float, (unsigned)b.at[i] << 16);
    }
    sync_wave();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) c.at[i] += mfma_a[wave][four + i][k] * mfma_b[wave][k][line];
    sync_wave();
    return c;
}
#endif

extern char __start_podium_shared[] __attribute__((weak)), __stop_podium_shared[] __attribute__((weak));

template <class Body> static void run_block(Body& body) {
    if (__start_podium_shared) memset(__start_podium_shared, 0xff, __stop_podium_shared - __start_podium_shared);
    static void (*enter)();
    static Body* running;
    running = &body;
    enter = [] { (*running)(); fibers[current].state = DONE; swapcontext(&fibers[current].context, &scheduler); };
    for (unsigned i = 0; i < fibers.size(); i++) {
        Fiber& fiber = fibers[i];
        fiber.state = RUNNING;
        fiber.place = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        makecontext(&fiber.context, enter, 0);
    }
    for (;;) {
        unsigned done = 0, at_block = 0;
        bool ran = false;
        for (unsigned wave = 0; wave < fibers.size(); wave += WAVE_SIZE) {
            unsigned at_wave = 0, live = 0;
            const unsigned end = wave + WAVE_SIZE < fibers.size() ? wave + WAVE_SIZE : fibers.size();
            for (unsigned i = wave; i < end; i++) {
                if (fibers[i].state == RUNNING) {
                    ran = true, current = i, threadIdx = fibers[i].place;
                    swapcontext(&scheduler, &fibers[i].context);
                }
                done += fibers[i].state == DONE;
                live += fibers[i].state != DONE;
                at_wave += fibers[i].state == AT_WAVE;
                at_block += fibers[i].state == AT_BLOCK;
            }
            if (at_wave && at_wave == live)
                for (unsigned i = wave; i < end; i++)
                    if (fibers[i].state == AT_WAVE) fibers[i].state = RUNNING, ran = true;
        }
        if (done == fibers.size()) return;
        if (at_block && at_block + done == fibers.size()) {
            for (Fiber& fiber : fibers) if (fiber.state == AT_BLOCK) fiber.state = RUNNING;
        } else if (!ran) {
            fprintf(stderr, "threads wait at different barriers\n");
            abort();
        }
    }
}

template <class... A, std::size_t... I>
static void run_grid(void (*kernel)(A...), void** arguments, const unsigned* sizes, std::index_sequence<I...>) {
    gridDim = {sizes[0], sizes[1], sizes[2]}, blockDim = {sizes[3], sizes[4], sizes[5]};
    fibers.resize(sizes[3] * sizes[4] * sizes[5]);
    for (Fiber& fiber : fibers) fiber.stack.resize(1 << 15);
    auto body = [&] { kernel(*(A*)arguments[I]...); };
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x++) blockIdx = {x, y, z}, run_block(body);
}
template <class... A> static void run(void (*kernel)(A...), void** arguments, const unsigned* sizes) {
    run_grid(kernel, arguments, sizes, std::index_sequence_for<A...>{});
}
"""

DRIVER = r"""
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
typedef void (*launcher)(void**, const unsigned*);
unsigned last_sizes[7]; size_t last_stream; int last_granted, loads, fail_with;
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuModuleLoadData(void** module, const char* path) { loads++; *module = dlopen(path, RTLD_NOW); return !*module; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    char symbol[200];
    snprintf(symbol, sizeof symbol, "launch_%s", name);
    *function = dlsym(module, symbol);
    return *function ? 0 : 500;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (attribute == 8) last_granted = value;
    return attribute != 8;  // no clusters here
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
    unsigned sizes[7] = {gx, gy, gz, bx, by, bz, shared};
    for (int i = 0; i < 7; i++) last_sizes[i] = sizes[i];
    last_stream = (size_t)stream;
    if (fail_with) return fail_with;
    ((launcher)function)(arguments, sizes);
    return 0;
}
int cuGetErrorString(int error, const char** text) {
    *text = error == 500 ? "named symbol not found" : "out of luck";
    return 0;
}
"""


def gxx(*arguments, **options):
    done = subprocess.run([GXX, *map(str, arguments)], capture_output=True, text=True, **options)
    if done.returncode:
        raise CompilationError(done.stderr)
    return done.stdout


class CpuCompiler:
    """Stands for NVRTC; what it makes is a shared library, and its code object the path of that."""

    def __init__(self, folder, wave_size):
        self._folder, self._flags, self.compiled = folder, [f"-DWAVE_SIZE={wave_size}", "-std=c++17", "-w"], 0
        self._known = {}

    def version(self):
        return f"cpu {self._flags[0]}"

    def compile(self, text, arch):
        self.compiled += 1
        if text not in self._known:  # one test's cache is not the next one's, but g++ is slow
            self._known[text] = self._library(text)
        return os.fsencode(self._known[text]) + b"\0", ""

    def _library(self, text):
        header, source = self._folder / "cpu_device.h", self._folder / f"{self._flags[0]}-{self.compiled}.cc"
        header.write_text(CPU_DEVICE)
        source.write_text(text)
        listing = gxx(*self._flags, "-include", header, "-DLIST_KERNELS", "-E", source)
        names = re.findall(r"\bKERNEL\s+void\s+(\w+)", listing)
        wrappers = [f'extern "C" void launch_{n}(void** a, const unsigned* s) {{ run({n}, a, s); }}\n' for n in names]
        source.write_text(text + "".join(wrappers))
        library = source.with_suffix(".so")
        gxx(*self._flags, "-include", header, "-O1", "-shared", "-fPIC", source, "-o", library)
        return library


class CpuGpu(runtime.Gpu):
    """A GPU whose memory is the host's."""

    def __init__(self, driver, compiler, vendor=NVIDIA):
        super().__init__(vendor, driver, compiler)

    def arch(self, device):
        return "sm_90a"

    def index_of(self, tensor):
        return 0

    def current_device(self):
        return 0

    def synchronize(self):
        pass

    def stream(self):
        return 0x5EED


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    gxx("-x", "c", folder / "driver.c", "-shared", "-fPIC", "-o", folder / "driver.so", "-ldl")
    return ctypes.CDLL(str(folder / "driver.so"))


@pytest.fixture(scope="session")
def gpus(driver, tmp_path_factory):
    """By wave size: 64 has MFMA, 32 has not."""
    return {wave: CpuGpu(driver, CpuCompiler(tmp_path_factory.mktemp("device"), wave)) for wave in (32, 64)}


@pytest.fixture
def gpu(gpus, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hip, "visible_gpu", lambda: gpus[32])
    return gpus[32]


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(hip, "visible_gpu", lambda: None)


SCALE = r"""
extern "C" __global__ __launch_bounds__(64) void scale(float* x, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
"""
SIGNATURE = {"x": ptr(torch.float32), "n": int32, "factor": float32}


def scale_kernel(**changed):
    return Module(SCALE).kernel("scale", {**SIGNATURE, **changed})


def launch_once(module):
    module.kernel("scale", SIGNATURE)(torch.ones(4), 4, 1.0, grid=1, block=64)


# Launching


@needs_gxx
def test_a_launch_runs_the_kernel_on_torch_s_stream_with_the_grid_it_was_given(gpu, driver):
    x = torch.arange(100.0)
    scale_kernel()(x, 100, 2, grid=2, block=(64,), shared_bytes=16)
    assert torch.equal(x, 2 * torch.arange(100.0))
    assert list((ctypes.c_uint * 7).in_dll(driver, "last_sizes")) == [2, 1, 1, 64, 1, 1, 16]
    assert ctypes.c_size_t.in_dll(driver, "last_stream").value == gpu.stream()


@needs_gxx
def test_a_source_that_names_its_targets_runs_on_those_gpus_alone(gpu):
    launch_once(Module(SCALE, targets=("gfx942", "sm_90")))
    with pytest.raises(NoDevice, match=r"its source is for gfx942 and gfx950, and this is sm_90$"):
        launch_once(Module(SCALE, targets=("gfx942", "gfx950")))


@needs_gxx
def test_a_source_is_compiled_once_and_another_process_finds_it_on_disk(gpu, tmp_path):
    before = gpu.compiler.compiled
    kernel, x = scale_kernel(), torch.ones(1)
    for _ in range(3):
        kernel(x, 1, 2.0, grid=1, block=64)
    scale_kernel()(x, 1, 2.0, grid=1, block=64)  # a new module, as in a new process
    assert x.item() == 16 and gpu.compiler.compiled == before + 1
    Module(SCALE, {"OTHER": 1}).kernel("scale", SIGNATURE)(x, 1, 1.0, grid=1, block=64)
    assert gpu.compiler.compiled == before + 2
    entries = list((tmp_path / "cache").rglob("*"))
    assert sum(entry.is_file() for entry in entries) == 2 and not any(entry.name.startswith("tmp") for entry in entries)


@needs_gxx
def test_a_cache_that_cannot_be_written_costs_no_launch(gpu, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    x = torch.ones(1)
    scale_kernel()(x, 1, 3.0, grid=1, block=64)
    assert x.item() == 3


@needs_gxx
def test_shared_memory_is_asked_for_once_and_below_48_kib_too_for_a_kernel_s_own_arrays_may_take_the_rest(gpu, driver):
    granted = ctypes.c_int.in_dll(driver, "last_granted")
    granted.value = 0
    kernel, x = scale_kernel(), torch.ones(1)
    kernel(x, 1, 1.0, grid=1, block=64)
    assert granted.value == 0
    kernel(x, 1, 1.0, grid=1, block=64, shared_bytes=20 << 10)
    assert granted.value == 20 << 10
    kernel(x, 1, 1.0, grid=1, block=64, shared_bytes=100 << 10)
    assert granted.value == 100 << 10
    granted.value = 0
    kernel(x, 1, 1.0, grid=1, block=64, shared_bytes=64 << 10)
    assert granted.value == 0


AMD_NAMES = {
    "cuInit": "hipInit",
    "cuDeviceGetCount": "hipGetDeviceCount",
    "cuModuleLoadData": "hipModuleLoadData",
    "cuModuleGetFunction": "hipModuleGetFunction",
    "cuFuncSetAttribute": "unused",
    "cuLaunchKernel": "hipModuleLaunchKernel",
    "cuGetErrorString": "hipDrvGetErrorString",
}


@needs_gxx
def test_amd_s_driver_is_spoken_to_in_its_own_words(gpu, monkeypatch, tmp_path):
    names = [f"-D{nvidia}={amd}" for nvidia, amd in AMD_NAMES.items()]
    (tmp_path / "driver.c").write_text(DRIVER)
    gxx("-x", "c", *names, tmp_path / "driver.c", "-shared", "-fPIC", "-o", tmp_path / "driver.so", "-ldl")
    amd = CpuGpu(ctypes.CDLL(str(tmp_path / "driver.so")), gpu.compiler, AMD)
    monkeypatch.setattr(hip, "visible_gpu", lambda: amd)
    kernel, x = scale_kernel(), torch.ones(1)
    kernel(x, 1, 3.0, grid=1, block=64, shared_bytes=64 << 10)
    assert x.item() == 3
    with pytest.raises(ValueError, match="4294967295 threads"):
        kernel(x, 1, 3.0, grid=2**26, block=64)
    with pytest.raises(LaunchError, match="named symbol not found"):
        Module(SCALE).kernel("scael", SIGNATURE)(x, 1, 3.0, grid=1, block=64)


@pytest.mark.parametrize(("target", "taken"), [("gfx942", True), ("sm_90", False)])
def test_a_block_deeper_than_64_is_for_amd_alone(monkeypatch, target, taken):
    rehearsal = Rehearsal(target)
    monkeypatch.setattr(hip, "visible_gpu", lambda: rehearsal)
    monkeypatch.setattr(hip.Module, "loaded", lambda module, gpu, device: module)
    kernel = scale_kernel()
    kernel(torch.ones(1), 1, 3.0, grid=1, block=(2, 1, 64))
    refusal = pytest.raises(ValueError, match=r"scale: block \(2, 1, 128\) has over 64 threads in z")
    with contextlib.nullcontext() if taken else refusal:
        kernel(torch.ones(1), 1, 3.0, grid=1, block=(2, 1, 128))


@needs_gxx
def test_a_kernel_that_the_source_does_not_define_is_named(gpu):
    kernel = Module(SCALE).kernel("scael", SIGNATURE)
    with pytest.raises(LaunchError, match=r"scael.*named symbol not found"):
        kernel(torch.ones(1), 1, 1.0, grid=1, block=64)


@needs_gxx
def test_a_launch_that_the_driver_refuses_raises_with_the_driver_s_words(gpu, driver):
    refusal = ctypes.c_int.in_dll(driver, "fail_with")
    refusal.value = 701
    try:
        with pytest.raises(LaunchError, match=r"launch failed: out of luck \(701\)"):
            scale_kernel()(torch.ones(1), 1, 1.0, grid=1, block=64)
    finally:
        refusal.value = 0


@needs_gxx
def test_a_compile_error_has_the_line_numbers_of_the_source(gpu):
    broken = Module('\nextern "C" __global__ void f() {\n  int x = ;\n}\n').kernel("f", [])
    with pytest.raises(CompilationError, match=r"source:3:"):
        broken(grid=1, block=64)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((torch.ones(4), 4), TypeError, "scale takes 3 arguments, not 2"),
        (([1.0], 4, 1.0), TypeError, r"argument 1 \(x\) must be a tensor, not list"),
        ((torch.ones(4).bfloat16(), 4, 1.0), TypeError, r"argument 1 \(x\) must be float32, not bfloat16"),
        ((torch.ones(4, 4).T, 4, 1.0), ValueError, r"\(x\) must be contiguous; its strides are \(1, 4\)"),
        ((torch.ones(4), 2**31, 1.0), ValueError, r"argument 2 \(n\) is 2147483648, which does not fit into int32"),
        ((torch.ones(4), -(2**31) - 1, 1.0), ValueError, r"\(n\) is -2147483649"),
        ((torch.ones(4), 4.0, 1.0), TypeError, r"\(n\) must be int32, not float"),
        ((torch.ones(4), True, 1.0), TypeError, r"\(n\) must be int32, not bool"),
        ((torch.ones(4), 4, "2"), TypeError, r"argument 3 \(factor\) must be float32, not str"),
    ],
)
def test_a_wrong_argument_is_named(no_gpu, arguments, error, says):
    with pytest.raises(error, match=says):
        scale_kernel()(*arguments, grid=1, block=64)


def test_an_argument_without_a_name_is_numbered(no_gpu):
    kernel = Module(SCALE).kernel("scale", [ptr(torch.float32), uint32, float32])
    with pytest.raises(ValueError, match="scale: argument 2 is -1, which does not fit into uint32"):
        kernel(torch.ones(1), -1, 1.0, grid=1, block=1)


def test_a_tensor_that_starts_between_words_is_refused_where_words_are_loaded(no_gpu):
    kernel = scale_kernel(x=ptr(torch.float32, torch.bfloat16, alignment=16))
    with pytest.raises(ValueError, match=r"argument 1 \(x\) must lie at a multiple of 16 bytes"):
        kernel(torch.ones(64)[1:], 63, 1.0, grid=1, block=64)


@needs_gxx
def test_a_strided_tensor_is_taken_where_the_signature_says_so(gpu):
    x = torch.ones(4, 4)
    scale_kernel(x=ptr(torch.float32, contiguous=False))(x.T[:2], 4, 5.0, grid=1, block=64)
    assert x.flatten().tolist() == [5.0] * 4 + [1.0] * 12


@needs_gxx
def test_a_tensor_on_another_device_than_the_gpu_is_named(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "index_of", torch.Tensor.get_device)
    with pytest.raises(ValueError, match=r"argument 1 \(x\) is on cpu; it must be on the GPU"):
        scale_kernel()(torch.ones(4), 4, 1.0, grid=1, block=64)


@needs_gxx
def test_tensors_on_two_gpus_are_refused(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "index_of", lambda tensor: int(tensor[0]))
    kernel = Module(SCALE).kernel("scale", {"x": ptr(), "y": ptr()})
    with pytest.raises(ValueError, match=r"argument 2 \(y\) is on device 1; those before it are on 0"):
        kernel(torch.zeros(4), torch.ones(4), grid=1, block=64)


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [
        ((1, 65536), 64, r"grid \(1, 65536, 1\) is larger"),
        ((1, 1, 65536), 64, r"grid \(1, 1, 65536\) is larger"),
        (2**31, 64, "is larger"),
        (0, 64, "grid is 0; it must be one to three counts"),
        (1, (1, 1, 1, 1), "block is"),
        (1.5, 64, "grid is 1.5"),
    ],
)
def test_a_grid_that_no_gpu_takes_is_refused(no_gpu, grid, block, says):
    with pytest.raises(ValueError, match=says):
        scale_kernel()(torch.ones(4), 4, 1.0, grid=grid, block=block)


def test_a_type_that_is_none_is_refused_when_the_kernel_is_declared():
    with pytest.raises(TypeError, match=r"scale: argument 2 \(n\).*use ptr"):
        scale_kernel(n=int)


def test_wide_integers_reach_their_limits(no_gpu):
    assert int64.pack(2**63 - 1, "n").value == 2**63 - 1 and uint32.pack(2**32 - 1, "n").value == 2**32 - 1
    with pytest.raises(ValueError, match="int64"):
        int64.pack(2**63, "n")


# Without a GPU


@pytest.fixture
def offline(no_gpu, monkeypatch):
    """Compilers for two targets; `refusing` are the targets that do not take the source. Lists what was compiled."""
    compiled, refusing = [], set()

    def compile(source, target, defines):
        if target in refusing:
            raise CompilationError(f"no good for {target}")
        compiled.append(target)
        return SimpleNamespace(kernels=[SimpleNamespace(name="scale")])

    here = ("gfx942", "sm_90")
    monkeypatch.setattr("harness.hip.compilers.missing", lambda target: None if target in here else "install it")
    monkeypatch.setattr("harness.hip.compilers.compile", compile)
    return SimpleNamespace(compiled=compiled, refusing=refusing)


def test_without_a_gpu_a_module_can_be_made_and_only_the_launch_says_no(offline):
    kernel = scale_kernel()
    assert offline.compiled == []
    for _ in range(2):
        with pytest.raises(NoDevice, match=r"^scale needs a GPU: compiled for gfx942, sm_90, not run$"):
            kernel(torch.ones(4), 4, 1.0, grid=1, block=64)
    assert offline.compiled == ["gfx942", "sm_90"]


def test_without_a_gpu_a_source_for_one_vendor_is_no_compile_error(offline):
    offline.refusing.add("sm_90")
    with pytest.raises(NoDevice, match="compiled for gfx942, not for sm_90, not run"):
        scale_kernel()(torch.ones(4), 4, 1.0, grid=1, block=64)


def test_without_a_gpu_a_source_is_compiled_only_for_the_targets_that_it_names(offline):
    offline.refusing.add("sm_90")
    with pytest.raises(NoDevice, match="compiled for gfx942, not run"):
        launch_once(Module(SCALE, targets=("gfx942", "gfx950")))
    with pytest.raises(NoDevice, match="no compiler here, not run"):
        launch_once(Module(SCALE, targets=("gfx950",)))
    assert offline.compiled == ["gfx942"]


def test_targets_are_names_and_not_one_name():
    with pytest.raises(TypeError, match=r'targets=\("gfx942",\)'):
        Module(SCALE, targets="gfx942")


def test_without_a_gpu_a_source_that_nothing_compiles_is_a_compile_error(offline):
    offline.refusing.update(("gfx942", "sm_90"))
    with pytest.raises(CompilationError, match="no good for gfx942"):
        scale_kernel()(torch.ones(4), 4, 1.0, grid=1, block=64)


def test_without_a_gpu_a_kernel_that_the_source_lacks_is_a_compile_error(offline):
    with pytest.raises(CompilationError, match=r"defines no .* scael"):
        Module(SCALE).kernel("scael", SIGNATURE)(torch.ones(4), 4, 1.0, grid=1, block=64)


def test_without_a_gpu_and_without_a_compiler_nothing_is_claimed(no_gpu, monkeypatch):
    monkeypatch.setattr("harness.hip.compilers.missing", lambda target: "install it")
    with pytest.raises(NoDevice, match="no compiler here, not run"):
        scale_kernel()(torch.ones(4), 4, 1.0, grid=1, block=64)


def test_the_worker_knows_a_compile_error_by_its_name():
    assert CompilationError.__name__ in worker_load._COMPILE_ERROR_TYPES


def test_modules_are_listed_in_the_order_of_their_making():
    made = [Module(SCALE), Module(SCALE, {"A": 1})]
    assert hip.modules[-2:] == made


# The runtime compilers

RTC = r"""
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#define PASTE(a, b) a##b
#define JOIN(a, b) PASTE(a, b)
char seen[1000]; int alive;
int JOIN(P, Version)(int* major, int* minor) { *major = 12; *minor = 9; return 0; }
int JOIN(P, CreateProgram)(void** p, const char* text, const char* n, int k, const char** h, const char** i) {
    *p = (void*)text; alive++; strcpy(seen, ""); return 0;
}
int JOIN(P, CompileProgram)(void* p, int count, const char** options) {
    for (int i = 0; i < count; i++) { strcat(seen, options[i]); strcat(seen, " "); }
    return strstr(p, "broken") ? 6 : 0;
}
int JOIN(P, GetProgramLogSize)(void* p, size_t* n) { *n = 19; return 0; }
int JOIN(P, GetProgramLog)(void* p, char* log) { memcpy(log, "source(1): no such", 19); return 0; }
int JOIN(P, JOIN(C, Size))(void* p, size_t* n) { *n = 5; return 0; }
int JOIN(P, C)(void* p, char* code) { memcpy(code, "a\0b\0c", 5); return 0; }
int JOIN(P, DestroyProgram)(void** p) { alive--; return 0; }
const char* JOIN(P, GetErrorString)(int error) { return "?"; }
"""


@needs_gxx
@pytest.mark.parametrize(
    ("vendor", "arch", "flag"),
    [
        (NVIDIA, "sm_90a", "--gpu-architecture=sm_90a"),
        (AMD, "gfx942:xnack-", "--offload-arch=gfx942:xnack-"),
    ],
)
def test_each_vendor_s_compiler_is_spoken_to_in_its_own_words(tmp_path, vendor, arch, flag):
    (tmp_path / "rtc.c").write_text(RTC)
    macros = (f"-DP={vendor.rtc}", f"-DC=Get{vendor.code}")
    gxx("-x", "c", *macros, tmp_path / "rtc.c", "-shared", "-fPIC", "-o", tmp_path / "rtc.so")
    library = ctypes.CDLL(str(tmp_path / "rtc.so"))
    compiler = runtime.RuntimeCompiler(library, vendor)
    assert compiler.version() == f"{vendor.rtc} 12.9"
    assert compiler.compile("fine", arch) == (b"a\0b\0c", "source(1): no such")
    assert ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "seen"))).decode().split()[0] == flag
    with pytest.raises(CompilationError, match=r"12.9 for .*: source\(1\): no such"):
        compiler.compile("broken", arch)
    assert ctypes.c_int.in_dll(library, "alive").value == 0


@pytest.mark.parametrize(("vendor", "arch"), [(NVIDIA, "sm_90a"), (AMD, "gfx90a")], ids=["nvrtc", "hiprtc"])
def test_the_real_compilers_take_the_prelude_and_count_the_source_s_lines(vendor, arch):
    library = runtime.find_library(vendor.compiler)
    if library is None:
        pytest.skip(f"no {vendor.compiler[-1]} here")
    compiler = runtime.RuntimeCompiler(library, vendor)
    image, _ = compiler.compile(program(SCALE, {}), arch)
    assert b"scale" in image
    with pytest.raises(CompilationError, match=r"source(:2:|\(2\))"):
        compiler.compile(program("\nint x = ;", {}), arch)


# The bundled submissions


def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def aligned(tensor):
    """A copy at a multiple of 256 bytes, as a GPU's allocator gives."""
    block = torch.empty(tensor.numel() * tensor.itemsize + 256, dtype=torch.uint8)
    start = -block.data_ptr() % 256
    return block[start : start + tensor.numel() * tensor.itemsize].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def generated(problem, case):
    reference = imported(ROOT / "problems" / problem / "reference.py")
    data = reference.generate_input(**case, seed=11, device="cpu")
    data = tuple(aligned(part) if isinstance(part, torch.Tensor) else part for part in data)
    copy = tuple(part.clone() if isinstance(part, torch.Tensor) else part for part in data)
    return data, reference.ref_kernel(copy)


def same_bits(left, right):
    integer = {2: torch.int16, 4: torch.int32}[left.itemsize]
    return torch.equal(left.view(integer), right.view(integer))


def kv_case(batch_size, seq_len, num_kv_heads, group, head_dim, dtype):
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "num_kv_heads": num_kv_heads}
    return {**sizes, "num_q_heads": num_kv_heads * group, "head_dim": head_dim, "dtype": dtype}


KV_CASES = [
    kv_case(2, 16, 2, 4, 64, "float32"),
    kv_case(1, 1, 1, 1, 1, "bfloat16"),
    kv_case(2, 5, 2, 3, 127, "bfloat16"),  # 20 rows: a whole block of 16, and one that ends inside a word
    kv_case(1, 7, 1, 3, 127, "float32"),
    kv_case(1, 9, 3, 7, 80, "float16"),
    kv_case(3, 13, 3, 3, 1, "float16"),  # a word spans many rows
    kv_case(1, 3, 1, 2, 2, "float32"),
    kv_case(2, 3, 1, 2, 301, "bfloat16"),  # too long to stage
    kv_case(1, 2, 1, 2, 1029, "float32"),
]


@needs_gxx
@pytest.mark.parametrize("case", KV_CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("name", ["hip_seed", "hip_vectorised"])
def test_kv_replicate_copies_every_bit_to_its_place_and_writes_nothing_else(kv_submissions, name, case):
    data, expected = generated("kv_replicate", case)
    before = tuple(part.clone() for part in data[:2])
    output = kv_submissions[name].custom_kernel(data)
    for mine, right, supplied in zip(output, expected, data[2:4]):
        assert same_bits(mine, right) and mine.data_ptr() == supplied.data_ptr()
    assert all(map(same_bits, data[:2], before))


@needs_gxx
def test_the_seed_s_kernels_for_one_tensor_copy_that_one(kv_submissions):
    case = kv_case(2, 3, 2, 3, 5, "bfloat16")
    (k, v, k_out, v_out, config), expected = generated("kv_replicate", case)
    seed = kv_submissions["hip_seed"]
    for key in ((2, 32), (2, 64)):
        for kernel, source, target, right in (
            (seed.REPLICATE_K[key], k, k_out, expected[0]),
            (seed.REPLICATE_V[key], v, v_out, expected[1]),
        ):
            target.zero_()
            kernel(source, target, *(config[name] for name in seed.SIZES), grid=2, block=256)
            assert same_bits(target, right)


@needs_gxx
def test_the_seed_s_index_is_64_bits_wide_from_2_to_the_31_elements(kv_submissions, monkeypatch):
    seed, chosen = kv_submissions["hip_seed"], []
    for key in seed.REPLICATE_FUSED:
        monkeypatch.setitem(seed.REPLICATE_FUSED, key, lambda *a, key=key, **sizes: chosen.append((key, sizes["grid"])))
    config = dict.fromkeys(seed.SIZES, 1)
    small, large = (torch.empty(1, device="meta", dtype=torch.bfloat16).expand(n) for n in (2**31 - 1, 2**31))
    for out in (small, large):
        seed.custom_kernel((small, small, out, out, config))
    assert chosen == [((2, 32), 2**23), ((2, 64), 2**23)]


@pytest.fixture(scope="module")
def kv_submissions(gpus, tmp_path_factory):
    yield from submissions("kv_replicate", ("hip_seed", "hip_vectorised"), gpus[32], tmp_path_factory)


@pytest.fixture(scope="module", params=[32, 64], ids=["portable", "mfma"])
def attend(request, gpus, tmp_path_factory):
    """The fmha submission, on a GPU without and with matrix instructions."""
    for found in submissions("fmha", ("hip_one_head",), gpus[request.param], tmp_path_factory):
        yield found["hip_one_head"]


def submissions(problem, names, gpu, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(hip, "visible_gpu", lambda: gpu)
        yield {name: imported(ROOT / "submissions" / problem / f"{name}.py") for name in names}


def fmha_case(batch_size, num_q_heads, num_kv_heads, head_dim, kv_seq_len, scores="mixed"):
    sizes = {"batch_size": batch_size, "num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads}
    return {**sizes, "head_dim": head_dim, "kv_seq_len": kv_seq_len, "scores": scores}


FMHA_CASES = [
    *(fmha_case(2, 2, 2, 128, keys) for keys in (1, 2, 3, 4, 7, 8, 9, 13, 15, 16)),
    *(fmha_case(1, 2, 2, 256, keys) for keys in (1, 5, 16)),
    fmha_case(2, 4, 2, 128, 3),
    fmha_case(1, 8, 2, 256, 5),
    fmha_case(1, 8, 1, 128, 7),
    fmha_case(3, 4, 2, 256, 1),
    fmha_case(1, 2, 1, 256, 8, "equal"),
    fmha_case(1, 4, 4, 128, 16, "equal"),
]


@needs_gxx
@pytest.mark.parametrize("case", FMHA_CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_fmha_is_right_to_float32_for_every_length_and_grouping(attend, case):
    data, expected = generated("fmha", case)
    output = attend.custom_kernel(data)
    assert output.dtype is torch.float16 and output.shape == expected.shape
    error = (output.double() - expected.double()).norm() / expected.double().norm()
    assert error < 1.5e-4, f"relative L2 error {error:.1e}"
    assert torch.allclose(output.float(), expected.float(), rtol=2e-3, atol=1e-3)


@needs_gxx
def test_fmha_covers_batches_beyond_the_grid_s_limit(attend, monkeypatch):
    monkeypatch.setattr(attend, "MAX_GRID_Z", 2)
    data, expected = generated("fmha", fmha_case(5, 2, 2, 128, 6))
    assert torch.allclose(attend.custom_kernel(data).float(), expected.float(), rtol=2e-3, atol=1e-3)


@needs_gxx
def test_the_cpu_s_device_sees_a_barrier_that_is_not_there(attend):
    """The emulation can fail: without the barrier before the scores they are made of what K's place held before."""
    source = attend.SOURCE.replace("__syncthreads();", "", 1)
    kernel = Module(source, {"HEAD_DIM": 128}).kernel("attend_one_head", attend.ATTEND[128]._types)
    (q, k, v, config), expected = generated("fmha", fmha_case(1, 2, 2, 128, 16))
    out = torch.empty_like(q, dtype=torch.float16)
    kernel(q, k, v, out, 1, 2, 2, 16, config["sm_scale"] * attend.LOG2_E, grid=(1, 2, 1), block=256)
    assert not torch.allclose(out.float(), expected.float(), rtol=2e-3, atol=1e-3)
