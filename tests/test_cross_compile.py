"""Every launch of a submission is compiled for chips that are not here, and what cannot be is said in a sentence.

One process imports torch and Triton and forks for each (submission, target): the real thing but for the imports.
"""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from harness.catalog import load_problem
from harness.chips.code_object import amd_kernels
from harness.chips.targets import TARGETS
from harness.compile import ahead, described, fault
from harness.compile.absent_device import AbsentDriver
from harness.compile.apart import ForkedCall, apart

CHECKOUT = Path(__file__).resolve().parents[1]

FORKED = """
import argparse, json, os, sys
from pathlib import Path
import torch._dynamo, triton
from harness.compile.apart import apart
from harness import catalog
from harness.compile.cross_compile import WITHOUT_GPU, cross_compiled
from harness.compile.described import on_targets
from harness.compile import triton_compiler

def job(arguments, name):
    if name == "late":
        triton_compiler.TOTAL_CPU_S = 0.01
    if not arguments.at_once > 1:
        return cross_compiled(arguments)
    os.environ["TRITON_CACHE_DIR"] += name
    one_by_one = []
    def noted(*given, **named):
        one_by_one.append(given)
        return apart(*given, **named)
    triton_compiler.apart = noted
    return [cross_compiled(arguments), len(one_by_one)]

os.environ.update(WITHOUT_GPU)
for name, (problem, target, file) in json.load(sys.stdin).items():
    inputs = Path(file).parent / f"inputs {problem}"
    inputs.mkdir(exist_ok=True)
    if not (inputs / target).exists():
        on_targets(catalog.load_problem(Path.cwd(), problem), [target], inputs)
    arguments = argparse.Namespace(
        target=target, inputs=inputs / target, file=Path(file), emit=Path(file).parent / "emit",
        at_once=3 if name.endswith("at once") else 1,
    )
    outcome = apart(lambda: job(arguments, name), cpu_s=200, wall_s=500)
    print(json.dumps([name, outcome.returned, outcome.printed, outcome.said[-2000:]]))
"""

PREFILL = load_problem(CHECKOUT, "prefill").cases
CASES = len(PREFILL.test) + len(PREFILL.benchmark)
"""Of prefill on a GPU."""

KERNELS = '''
"""Kernels, most of them wrong."""
import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def product(x, out, M: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr):
    i = tl.arange(0, M)
    k = tl.arange(0, K)
    acc = tl.zeros([M, M], tl.float32)
    for step in range(STEPS):
        a = tl.load(x + step * M * K + i[:, None] * K + k[None, :])
        acc = tl.dot(a, tl.trans(a), acc)
    tl.store(out + i[:, None] * M + i[None, :], acc)


@triton.jit
def scaled(x, scales, out):
    i = tl.arange(0, 32)
    a = tl.load(x + i[:, None] * 32 + i[None, :])
    s = tl.load(scales + i[:, None] * 2 + tl.arange(0, 2)[None, :])
    tl.store(out + i[:, None] * 32 + i[None, :], tl.dot_scaled(a, s, "e2m1", tl.trans(a), s, "e2m1"))


@triton.jit
def nvidia_only(x, out):
    v = tl.load(x + tl.arange(0, 64))
    v = tl.inline_asm_elementwise("lop3.b32 $0, $1, $1, $1, 0x11;", "=r,r", [v], tl.int32, is_pure=True, pack=1)
    tl.store(out + tl.arange(0, 64), v)


@triton.jit
def amd_only(x, out):
    v = tl.load(x + tl.arange(0, 64))
    v = tl.inline_asm_elementwise("v_not_b32 $0, $1", "=v,v", [v], tl.int32, is_pure=True, pack=1)
    tl.store(out + tl.arange(0, 64), v)


@triton.jit
def negated(v):
    return v.no_such_method()


@triton.jit
def nested(x, out):
    tl.store(out + tl.arange(0, 64), negated(tl.load(x + tl.arange(0, 64))))


@triton.autotune([triton.Config({"BLOCK": 256}, num_warps=warps) for warps in (1, 4, 64)], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def clustered(x):
    tl.store(x + tl.arange(0, 64), 1)


def custom_kernel(data):
    q = torch.empty(1 << 16, dtype=torch.bfloat16, device=data[0].device)
    out = torch.empty_like(q)
    print("what a submission prints")
    n, small = q.numel(), torch.empty(1 << 18, device=q.device)
    copy[(triton.cdiv(n, 256),)](q, out, n, BLOCK=256, num_warps=2)
    copy[(triton.cdiv(n, 256),)](q.view(-1)[1:], out, n, BLOCK=256, num_warps=2)
    copy[(1, 70000)](q, out, n, BLOCK=64)
    product[(1,)](q, small, M=32, K=64, STEPS=4)
    product[(1,)](small, small, M=64, K=1024, STEPS=1)
    codes = torch.empty(4096, dtype=torch.uint8, device=q.device)
    scaled[(1,)](codes, codes, small)
    bits = torch.zeros(64, dtype=torch.int32, device=q.device)
    nvidia_only[(1,)](bits, bits)
    amd_only[(1,)](bits, bits)
    nested[(1,)](bits, bits)
    tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](q, out, n)
    for blocks in (16, 32) if torch.version.cuda else ():  # AMD's backend has no clusters
        clustered[(1,)](bits, num_ctas=blocks)
    return out
'''

WRONG_HOSTS = {
    "data_dependent": """
        import torch

        def custom_kernel(data):
            return torch.empty(longest(data[0]), device="cuda")

        def longest(x):
            return x.sum().int().item()
    """,
    "written_by_a_kernel": """
        import torch, triton, triton.language as tl

        @triton.jit
        def count(x, BLOCK: tl.constexpr):
            tl.store(x + tl.arange(0, BLOCK), 1)

        def custom_kernel(data):
            counter = torch.zeros(16, dtype=torch.int32, device="cuda")
            assert counter.tolist() == [0] * 16
            count[(1,)](counter, BLOCK=16)
            return counter.tolist()
    """,
    "pointer_to_the_host": """
        import torch, triton, triton.language as tl

        @triton.jit
        def fill(x, BLOCK: tl.constexpr):
            tl.store(x + tl.arange(0, BLOCK), 1)

        def custom_kernel(data):
            fill[(1,)](torch.empty(16), BLOCK=16)
    """,
    "both_devices": """
        import torch

        def custom_kernel(data):
            x = torch.empty(16, device="cuda")
            return x * torch.ones(16)
    """,
    "returned_from_the_host": """
        import torch

        def custom_kernel(data):
            return torch.empty(16, device="cuda"), torch.empty(16)
    """,
    "missing_module": """
        import no_such_module

        def custom_kernel(data): ...
    """,
    "network": """
        import urllib.request

        urllib.request.urlopen("https://example.com/kernel.py")
    """,
    "syntax": """
        def custom_kernel(data)
            ...
    """,
    "exits": """
        import sys

        def custom_kernel(data):
            sys.exit(3)
    """,
    "raises": """
        def custom_kernel(data):
            return data[0].view(3, 5)
    """,
}

HABITS = '''
"""Host code that asks for all that host code asks for."""
import torch
import triton
import triton.language as tl
from task import input_t, output_t
from triton.runtime import driver

TARGET = driver.active.get_current_target()
PROPERTIES = torch.cuda.get_device_properties(torch.cuda.current_device())
STREAM = torch.cuda.Stream()
WORKSPACE = torch.empty(1 << 24, dtype=torch.uint8, device="cuda")
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
assert (torch.version.hip is None) == (TARGET.backend == "cuda")


@triton.jit
def copy(x, out, n, MULTIPROCESSORS: tl.constexpr, WARP: tl.constexpr, ARCH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@torch.compile
def fused(a, b):
    return (a * b).relu()


def custom_kernel(data: input_t) -> output_t:
    q = torch.empty(1, 256, 16, 128, dtype=torch.bfloat16, device=data[0].device)
    out = torch.empty_like(q)
    arch = PROPERTIES.gcnArchName.split(":")[0] or str(torch.cuda.get_device_capability())
    chip = dict(MULTIPROCESSORS=PROPERTIES.multi_processor_count, WARP=PROPERTIES.warp_size, ARCH=arch)
    rows = torch.tensor([1, 2, 3], dtype=torch.int32).pin_memory().to(q.device, non_blocking=True)
    with torch.cuda.stream(STREAM), torch.cuda.device(q.device):
        STREAM.wait_stream(torch.cuda.current_stream())
        copy[(rows.max().item(),)](q, out, q.numel(), **chip, BLOCK=128)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copy[(1,)](q, out, q.numel(), **chip, BLOCK=256)
    graph.replay()
    made = copy.warmup(q, out, q.numel(), **chip, BLOCK=512, grid=(1,))
    made._init_handles()
    assert made.n_regs > 0 and made.metadata.shared == 0
    assert triton.testing.do_bench(lambda: copy[(1,)](q, out, q.numel(), **chip, BLOCK=1024)) > 0
    torch.cuda.synchronize()
    fused(q, out)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q)
'''


ONCE = '''
"""Host code that launches a kernel in its first call only."""
import torch, triton, triton.language as tl

called = []

@triton.jit
def one(x, SIZE: tl.constexpr):
    tl.store(x + tl.arange(0, SIZE), 1)

def custom_kernel(data):
    x = torch.empty(64, device="cuda")
    one[(1,)](x, SIZE=64 if called else 32)
    called.append(data)
    return x
'''

TUPLES = '''
"""A kernel that is given its tensors and sizes in tuples."""
import torch, triton, triton.language as tl

@triton.jit
def copy(ends, n, sizes, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for row in range(sizes[1]):
        tl.store(ends[1] + row * sizes[0] + i, tl.load(ends[0] + i, mask=i < n), mask=i < n)

def custom_kernel(data):
    x = torch.empty(64, device="cuda")
    copy[(1,)]((x, x[1:]), 60, (64, 1), BLOCK=64)
    return x
'''

DESCRIBED_IN_THE_KERNEL = '''
"""A kernel that makes a descriptor, for which Triton needs memory on NVIDIA's chips."""
import torch, triton, triton.language as tl

@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    described = tl.make_tensor_descriptor(x, shape=[n], strides=[1], block_shape=[BLOCK])
    tl.store(y + tl.arange(0, BLOCK), described.load([0]))

def custom_kernel(data):
    x = torch.empty(256, device="cuda")
    copy[(1,)](x, torch.empty_like(x), 256, BLOCK=256)
    return x
'''

ALLOCATORS = {
    "no allocator": "",
    "allocator": "triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device='cuda'))",
    "allocator on the host": "triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))",
}

OPERATORS = '''
"""A kernel that an operator of torch launches."""
import torch, triton, triton.language as tl

@triton.jit
def one(x, SIZE: tl.constexpr):
    tl.store(x + tl.arange(0, SIZE), 1)

@triton.jit
def two(x, SIZE: tl.constexpr):
    tl.store(x + tl.arange(0, SIZE), 2)

@torch.library.custom_op("mine::ones", mutates_args={"x"})
def ones(x: torch.Tensor) -> None:
    one[(1,)](x, SIZE=64)

ones.register_fake(lambda x: None)

@torch.library.triton_op("mine::twos", mutates_args={"x"})
def twos(x: torch.Tensor) -> None:
    torch.library.wrap_triton(two)[(1,)](x, SIZE=64)

def custom_kernel(data):
    x = torch.empty(64, device="cuda")
    torch.ops.mine.ones(x)
    torch.ops.mine.twos(x)
    torch.library.wrap_triton(two)[(1,)](x, SIZE=64)
    x.record_stream(torch.cuda.current_stream())
    return x
'''

AT_ONCE = {"kernels gfx942": 0, "habits sm_90": 1, "once": 0, "operators": 0}
"""Files that are compiled three kernels at a time as well, and how many kernels are then compiled by themselves: those
that host code asks for after it has looked at a compiled one, or in a call that is not its first."""


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("submissions")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "habits.py").write_text(HABITS)
    (folder / "hip.py").write_text((CHECKOUT / "submissions/kv_replicate/hip_seed.py").read_text())
    jobs = {f"kernels {target}": ("prefill", target, str(folder / "kernels.py")) for target in ("gfx942", "sm_90")}
    jobs |= {f"habits {target}": ("prefill", target, str(folder / "habits.py")) for target in ("gfx1100", "sm_90")}
    (folder / "once.py").write_text(ONCE)
    jobs |= {"once": ("prefill", "gfx942", str(folder / "once.py"))}
    (folder / "tuples.py").write_text(TUPLES)
    (folder / "operators.py").write_text(OPERATORS)
    jobs |= {"operators": ("prefill", "sm_90", str(folder / "operators.py"))}
    jobs |= {"tuples": ("prefill", "sm_90", str(folder / "tuples.py"))}
    jobs |= {f"{name}, at once": jobs[name] for name in AT_ONCE}
    jobs |= {"hip": ("kv_replicate", "gfx942", str(folder / "hip.py"))}
    jobs |= {"late": ("prefill", "gfx942", str(folder / "habits.py"))}
    for name, text in WRONG_HOSTS.items():
        (folder / f"{name}.py").write_text(re.sub(r"^ {8}", "", text.strip("\n"), flags=re.MULTILINE))
        jobs[name] = ("prefill", "gfx942", str(folder / f"{name}.py"))
    for name, text in ALLOCATORS.items():
        (folder / f"{name}.py").write_text(DESCRIBED_IN_THE_KERNEL + text)
        jobs |= {f"{name} {target}": ("prefill", target, str(folder / f"{name}.py")) for target in ("gfx942", "sm_90")}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(CHECKOUT)}
    ran = subprocess.run(
        [sys.executable, "-c", FORKED],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=environment,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr
    found = {}
    for line in ran.stdout.splitlines():
        name, document, _, said = json.loads(line)
        assert document is not None, f"{name}: {said}"
        found[name] = document
    return found | {"folder": folder}


def kernels_of(document, name):
    return [kernel for kernel in document["kernels"] if kernel["kernel"] == name]


def line_of(text, part):
    return next(number for number, line in enumerate(text.splitlines(), start=1) if part in line)


def fault_of(document, name):
    (kernel,) = kernels_of(document, name)
    return kernel["fault"]


@pytest.mark.slow(ci=True)
def test_each_specialisation_is_compiled_once_and_names_its_cases(documents):
    document = documents["kernels gfx942"]
    aligned, unaligned, _ = kernels_of(document, "copy")
    assert aligned["configuration"] == {"BLOCK": 256, "num_warps": 2, "num_stages": 2}
    assert aligned["arguments"] == {
        "x": "*bf16, 16-aligned, under 2 GiB",
        "out": aligned["arguments"]["x"],
        "n": "i32, 16-aligned",
    }
    assert unaligned["arguments"]["x"] == "*bf16, under 2 GiB"
    assert aligned["line"] == line_of(KERNELS, "def copy") and len(aligned["cases"]) == CASES
    assert len(set(aligned["cases"])) == CASES


@pytest.mark.slow(ci=True)
def test_a_tuple_is_an_argument_whose_members_have_types_of_their_own(documents):
    document = documents["tuples"]
    assert document["fault"] is None
    (kernel,) = document["kernels"]
    assert kernel["fault"] is None and len(set(kernel["cases"])) == CASES
    assert kernel["arguments"] == {"ends": "(*fp32, 16-aligned; *fp32)", "n": "i32", "sizes": "(i32, 16-aligned; 1)"}


def test_what_an_operator_of_torch_launches_is_compiled(documents):
    assert documents["operators"]["fault"] is None
    for name in ("one", "two"):  # two by an operator, and by itself
        (kernel,) = kernels_of(documents["operators"], name)
        assert kernel["fault"] is None and len(kernel["cases"]) == CASES
    assert documents["operators"]["launches"] == 3 * CASES


def test_resources_are_read_from_the_code(documents):
    small, _ = kernels_of(documents["kernels gfx942"], "product")
    assert small["fault"] is None and small["lds_limit"] == 65536
    assert small["vgprs"] > 0 and small["sgprs"] > 0 and small["spills"] == small["scratch_bytes"] == 0
    assert small["threads"] == 256 and small["lds_bytes"] > 0
    assert any(name.startswith("v_mfma_f32") for name in small["matrix_instructions"])
    assert 0 < small["occupancy"]["waves_per_simd"] <= small["occupancy"]["of"] == 8
    hopper, _ = kernels_of(documents["kernels sm_90"], "product")
    assert hopper["registers"] > 0 and "vgprs" not in hopper and hopper["threads"] == 128
    assert any("mma" in name for name in hopper["matrix_instructions"]) and hopper["occupancy"]["of"] == 64


@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
def test_registers_allow_the_waves_that_llvm_says(documents, target):
    assemblies = [path.read_text() for path in (documents["folder"] / "emit" / target).glob("*.amdgcn")]
    stated = [int(re.search(r"; Occupancy: (\d+)", text)[1]) for text in assemblies]
    found = [amd_kernels(text, target)[0].occupancy.waves_per_simd for text in assemblies]  # without dynamic LDS
    assert found == stated and len(found) >= 4
    assert min(stated) == (1 if target == "gfx942" else 16)


def test_stages_are_emitted_by_kernel_and_configuration(documents):
    names = {path.name for path in (documents["folder"] / "emit" / "sm_90").iterdir()}
    for stage in ("ttir", "ttgir", "llir", "ptx"):
        assert any(re.fullmatch(rf"copy-BLOCK=256,num_warps=2,.*\.{stage}", name) for name in names)
    assert any(path.suffix == ".amdgcn" for path in (documents["folder"] / "emit" / "gfx942").iterdir())


@pytest.mark.parametrize(("target", "limit"), [("gfx942", "65,536"), ("sm_90", "232,448")])
def test_too_much_shared_memory_is_an_error_with_the_amount_and_the_limit(documents, target, limit):
    _, large = kernels_of(documents[f"kernels {target}"], "product")
    if target == "gfx942":
        assert re.fullmatch(
            rf"product \(M=64, K=1024, .*\) needs [\d,]+ bytes of LDS; a block of gfx942 has {limit}",
            large["fault"]["message"],
        )
        assert large["fault"]["line"] == line_of(KERNELS, "def product") and large["lds_bytes"] > large["lds_limit"]
    else:
        assert large["lds_bytes"] > 65536


@pytest.mark.parametrize(
    ("target", "warps", "most"), [("sm_90", 4, 132 * 16), ("sm_90", 1, 132 * 32), ("gfx942", 4, 304 * 8)]
)
def test_a_cooperative_grid_is_no_larger_than_the_device_holds_at_once(target, warps, most):
    nothing = SimpleNamespace(launched=lambda *_: None, launched_with=lambda *_: None)
    driver = AbsentDriver(TARGETS[target], nothing, nothing)
    for cooperative in (False, True):
        metadata = SimpleNamespace(hash="", num_warps=warps, launch_cooperative_grid=cooperative)
        launch = driver.launcher_cls(None, metadata)
        launch(most, 1, 1)
        with pytest.raises(RuntimeError, match=f"at most {most:,} at once") if cooperative else nullcontext():
            launch(most + 1, 1, 1)


def test_a_grid_that_no_driver_takes_is_an_error(documents):
    grid = kernels_of(documents["kernels sm_90"], "copy")[2]
    assert "a grid of (1, 70000, 1) is larger than" in grid["fault"]["message"]


def test_a_cluster_of_more_blocks_than_a_chip_takes_is_an_error(documents):
    allowed, large = kernels_of(documents["kernels sm_90"], "clustered")
    assert allowed["fault"] is None
    assert large["fault"]["message"].endswith("has 32 blocks a cluster; there may be 16")
    assert large["fault"]["line"] == line_of(KERNELS, "def clustered")


def test_an_instruction_of_the_other_vendor_is_an_error_with_its_line(documents):
    found = fault_of(documents["kernels gfx942"], "nvidia_only")
    assert found["message"].startswith("invalid instruction: lop3.b32")
    assert found["line"] == line_of(KERNELS, "lop3.b32")
    assert fault_of(documents["kernels sm_90"], "nvidia_only") is None
    assert fault_of(documents["kernels gfx942"], "amd_only") is None


def test_an_operand_that_a_chip_lacks_is_an_error_of_that_kernel_alone(documents):
    found = fault_of(documents["kernels sm_90"], "amd_only")  # LLVM says so, then gives up (3.7) or goes on (3.9)
    assert "allocate output register for constraint 'v'" in found["message"]
    assert found["line"] in (line_of(KERNELS, "def amd_only"), line_of(KERNELS, "v_not_b32"))


@pytest.mark.parametrize(("ended", "unfinished"), [("SIGKILL", True), ("SIGTERM", True), ("SIGSEGV", False)])
def test_a_compiler_that_was_ended_from_outside_leaves_it_open(ended, unfinished):
    number = signal.Signals[ended].value
    fork = fault.of_outcome(ForkedCall(None, -number, "", ""), "copy (BLOCK=64)", Path(__file__), 12, "1 s")
    assert fork == fault.CompileFault(f"the compiler crashed ({ended}) on copy (BLOCK=64)", 12, unfinished)
    error = RuntimeError(f"PTXAS error: `ptxas` failed with error code -{number}\n`ptxas` stderr:\n")
    assert fault.of_exception(error, Path(__file__)) == fault.CompileFault(
        f"ptxas was ended by {ended}", None, unfinished
    )


def test_a_crash_of_the_compiler_names_the_kernel_and_its_last_words():
    file = Path(__file__)
    outcome = ForkedCall(
        None, -signal.SIGABRT, "", "LLVM ERROR: Cannot select: intrinsic %llvm.x\nPLEASE submit a bug\n"
    )
    crashed = fault.of_outcome(outcome, "copy (BLOCK=64)", file, 12, "1 s")
    expected = "the compiler crashed (SIGABRT) on copy (BLOCK=64): Cannot select: intrinsic %llvm.x"
    assert crashed == fault.CompileFault(expected, 12)
    said = f"{file}:7:3: error: 'tt.dot' op expected other types\n"
    assert fault.of_outcome(ForkedCall(None, 1, "", said), "copy", file, 12, "1 s").line == 7
    late = fault.of_outcome(ForkedCall(None, None, "", ""), "copy (BLOCK=64)", file, 12, "1 s")
    words = "the compiler ran out of time on copy (BLOCK=64): the limit is 1 s"
    assert late == fault.CompileFault(words, 12, unfinished=True)
    assert fault.of_outcome(ForkedCall(None, 0, "", "a warning\n"), "copy", file, 12, "1 s") is None


def test_once_the_processor_time_of_all_kernels_is_up_the_others_are_not_compiled(documents):
    first, *others = documents["late"]["kernels"]
    assert first["fault"] is None and others
    for kernel in others:
        assert kernel["fault"]["message"].startswith("the compiler ran out of time on "), kernel


def test_an_error_in_a_function_that_a_kernel_calls_has_that_function_s_line(documents):
    for target in ("gfx942", "sm_90"):
        found = fault_of(documents[f"kernels {target}"], "nested")
        assert "no_such_method" in found["message"] and found["line"] == line_of(KERNELS, "return v.no_such")


def test_a_format_that_a_chip_lacks_is_an_error_or_decomposed(documents):
    (there,) = kernels_of(documents["kernels sm_90"], "scaled")
    assert there["fault"] is None and there["matrix_instructions"]
    (here,) = kernels_of(documents["kernels gfx942"], "scaled")  # Triton 3.9 decomposes it
    assert here["matrix_instructions"] if here["fault"] is None else here["fault"]["line"]
    assert not any("scale" in name for name in here.get("matrix_instructions", {}))


def test_every_configuration_of_an_autotuner_is_compiled(documents):
    one, four, many = kernels_of(documents["kernels gfx942"], "tuned")[:3]
    assert [kernel["configuration"]["num_warps"] for kernel in (one, four, many)] == [1, 4, 64]
    assert all(kernel["autotuned"] and "EVEN" in kernel["configuration"] for kernel in (one, four, many))
    assert not kernels_of(documents["kernels gfx942"], "copy")[0]["autotuned"]
    assert one["fault"] is None and many["fault"] is not None


def test_faults_of_kernels_are_not_faults_of_host_code(documents):
    for target, launches in (("gfx942", 10), ("sm_90", 12)):  # NVIDIA's has two clusters
        assert documents[f"kernels {target}"]["fault"] is None
        assert documents[f"kernels {target}"]["launches"] == CASES * launches


@pytest.mark.parametrize(
    ("name", "message", "line"),
    [
        ("data_dependent", r"item\(\) of a tensor \(int32, shape \(\)\) depends on the data: .* without running", 7),
        ("written_by_a_kernel", r"tolist\(\) of a tensor \(int32, shape \(16,\)\) depends on the data", 11),
        ("pointer_to_the_host", r"ValueError: .*float32, shape \(16,\).* cannot be accessed from Triton", 8),
        ("both_devices", r"RuntimeError: Expected all tensors to be on the same device.* \(in mul\)", 5),
        ("returned_from_the_host", "custom_kernel returns a tensor that is on the host", None),
        ("missing_module", "there is no module called 'no_such_module' here", 1),
        ("network", r"it needs the network \(example.com\), which a submission does not get", 3),
        ("syntax", "SyntaxError", 1),
        ("exits", r"the submission calls sys.exit\(3\)", 4),
        ("raises", "RuntimeError: shape .* is invalid for input of size", 2),
    ],
)
def test_host_code_that_cannot_be_followed_is_said_so_in_a_line(documents, name, message, line):
    found = documents[name]["fault"]
    assert re.match(message, found["message"]) and "\n" not in found["message"]
    assert found["line"] == line


@pytest.mark.parametrize(
    ("name", "on_nvidia"),
    [
        ("allocator", None),
        ("no allocator", "RuntimeError: Kernel requires a runtime memory allocation, but no allocator was set"),
        ("allocator on the host", "ValueError: Pointer argument (int8, shape (128,)) cannot be accessed from Triton"),
    ],
)
def test_a_kernel_that_makes_descriptors_gets_its_memory_from_triton_s_allocator(documents, name, on_nvidia):
    assert documents[f"{name} gfx942"]["fault"] is None
    found = documents[f"{name} sm_90"]["fault"]
    assert found is None if on_nvidia is None else found["message"].startswith(on_nvidia)


def test_kernels_before_a_fault_of_host_code_are_still_there(documents):
    (kernel,) = kernels_of(documents["written_by_a_kernel"], "count")
    assert kernel["fault"] is None and len(kernel["cases"]) == CASES


@pytest.mark.parametrize(
    ("target", "chip"),
    [("gfx1100", (48, 32, "gfx1100")), ("sm_90", (132, 32, "(9, 0)"))],
)
def test_host_code_sees_the_target_s_card(documents, target, chip):
    document = documents[f"habits {target}"]
    assert document["fault"] is None
    assert [kernel["configuration"]["BLOCK"] for kernel in document["kernels"]] == [128, 256, 512, 1024]
    seen = document["kernels"][0]["configuration"]
    assert (seen["MULTIPROCESSORS"], seen["WARP"], seen["ARCH"]) == chip


@pytest.mark.parametrize(("name", "by_themselves"), AT_ONCE.items())
def test_several_kernels_at_a_time_come_to_the_same_and_host_code_does_not_notice(documents, name, by_themselves):
    assert documents[f"{name}, at once"] == [documents[name], by_themselves]


def test_inline_hip_is_left_to_others(documents):
    document = documents["hip"]
    assert document["hip"] and document["kernels"] == [] and document["fault"] is None
    assert not documents["kernels gfx942"]["hip"]


@pytest.mark.slow(ci=True)
def test_the_document_alone_is_on_stdout(tmp_path):
    file = tmp_path / "loud.py"
    file.write_text(
        "import os\nprint('loud')\nos.write(1, b'louder')\ndef custom_kernel(data):\n    print('loudest')\n"
    )
    described.on_targets(load_problem(CHECKOUT, "prefill"), ["gfx950"], tmp_path)
    inputs = tmp_path / "gfx950"
    words = f"-m harness.compile.cross_compile --target gfx950 --inputs {inputs} --file {file}".split()
    ran = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["target"] == "gfx950" and document["kernels"] == [] and document["launches"] == 0
    assert "loudest" in ran.stderr


def test_a_call_apart_survives_what_happens_to_it():
    assert apart(lambda: {"answer": 42}, cpu_s=5, wall_s=20).returned == {"answer": 42}
    killed = apart(lambda: os.kill(os.getpid(), signal.SIGKILL), cpu_s=5, wall_s=20)
    assert (killed.returned, killed.status) == (None, -signal.SIGKILL)

    def words():
        os.write(1, b"printed")
        os.write(2, b"said")

    assert apart(words, cpu_s=5, wall_s=20).printed == "printed" and apart(words, cpu_s=5, wall_s=20).said == "said"


def test_a_call_apart_ends_when_its_time_is_up():
    def spin():
        while True:
            pass

    assert apart(spin, cpu_s=1, wall_s=60).status is None
    assert apart(lambda: signal.pause(), cpu_s=5, wall_s=0.1).status is None


class CompilerOfThree:
    """Compiles one kernel, crashes at another, and does not get to the end of a third."""

    def left_s(self):
        return 2.0

    def get_ready(self, request):
        pass

    def compile_to_cache(self, request):
        if request == "crashes":
            os.kill(os.getpid(), signal.SIGKILL)
        while request == "has no end":
            pass


def test_of_kernels_at_a_time_one_that_crashes_is_told_and_one_without_an_end_is_left_out(capfd):
    asked = {word: word for word in ("has no end", "crashes", "is compiled")}
    came = dict(ahead.side_by_side(CompilerOfThree(), asked, at_once=2))
    assert {word: outcome.status for word, outcome in came.items()} == {"crashes": -signal.SIGKILL, "is compiled": 0}
    assert "0 of 3 kernels left" in capfd.readouterr().err
