"""On a GPU of NVIDIA's: compute-sanitizer finds nothing in the bundled kernels, and what is not finite is right."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.small_calls import names
from bench.tune import load
from reference.attention import ragged_decode_attention

ON_NVIDIA = torch.cuda.is_available() and not torch.version.hip
CHECKOUT = Path(__file__).resolve().parents[1]
SANITIZER = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
FOUND = 9
HUGE = 1e30
"""Of a query and of a key: their product is beyond float32."""

gpu = pytest.mark.gpu
needs_nvidia = pytest.mark.skipif(not ON_NVIDIA, reason="needs a GPU of NVIDIA's")


def test_every_bundled_kernel_is_looked_at():
    found = names()
    assert {name.partition("/")[0] for name in found} == {"fmha", "kv_decode", "kv_replicate", "mla", "prefill"}
    assert "kv_decode/cuda_cluster" in found and not {"mla/torch_bf16", "mla/hip_mfma"} & set(found)


def sanitized(tool, *command):
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "application-only"]
    if tool == "racecheck":  # below an error is what a warp does within itself
        options += ["--racecheck-report", "hazard", "--racecheck-detect-level", "error", "--show-backtrace", "no"]
    words = [SANITIZER, *options, "--print-limit", "0" if tool == "racecheck" else "12", sys.executable, *command]
    done = subprocess.run(
        words, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout


@gpu
@needs_nvidia
@pytest.mark.slow
@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer (CUDA toolkit)")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("name", names())
def test_a_memory_checker_finds_nothing_in_a_bundled_kernel(name, tool):
    status, said = sanitized(tool, "bench/small_calls.py", name)
    if "NoDevice:" in said:
        pytest.skip(f"{name} is not for this GPU")
    source = (CHECKOUT / "submissions" / f"{name}.py").read_text()
    if tool == "racecheck" and "warp_specialize" in source:
        said = "\n".join(found for found in hazards(said) if not is_of_warp_specialize(found, source))
        status = len(said)
    assert status == 0, said[-6000:]


def hazards(said):
    """Each hazard with the lines that say who writes and who reads."""
    return ["Error:" + part.partition("Current Value")[0] for part in said.split("========= Error:")[1:]]


def is_of_warp_specialize(hazard, source):
    """Whether a hazard is Triton's own: one warp tells the others in a few bytes of shared memory which partition to
    run, or that all is done.

    It writes them, then all wait at barrier 1, and then the others read, at the entry and after each partition. SASS of
    Triton 3.6 has STS.64 and BAR.SYNC 1 in the writer, BAR.SYNC 1 and LDS.U8 in the readers. racecheck does not order
    what is done before and behind a barrier that warps come to at different instructions. Triton gives these reads the
    line of the kernel's `def`, where no kernel of `source` reads anything itself.
    """
    at = re.findall(r"(Write|Read) Thread \((\d+),0,0\) at \w+\+0x[0-9a-f]+ in \S+:(\d+)", hazard)
    lines = source.splitlines()
    of_triton = any(
        what == "Read" and any(own.startswith("def ") for own in lines[int(line) - 1 : int(line)])
        for what, _, line in at
    )
    written_by_the_first = any(what == "Write" and int(thread) < 128 for what, thread, _ in at)
    read_by_another = any(what == "Read" and int(thread) >= 128 for what, thread, _ in at)
    return "RAW" in hazard and of_triton and written_by_the_first and read_by_another


def test_only_the_hazard_of_warp_specialize_is_let_pass():
    source = "@gluon.jit\ndef attend(q):\n    gl.store(q)\n    gl.load(q)\n"
    of_triton = """========= Error: Potential RAW hazard detected at __shared__ 0x25200 in block (16,0,0) :
=========     Write Thread (63,0,0) at attend+0xa520 in kernel.py:3
=========     Read Thread (256,0,0) at attend+0x3ce0 in kernel.py:2
=========     Current Value : 4
"""
    ours = of_triton.replace("kernel.py:2", "kernel.py:4")
    first, second = hazards(of_triton + ours)
    assert is_of_warp_specialize(first, source) and not is_of_warp_specialize(second, source)
    assert not is_of_warp_specialize(first.replace("(63,", "(160,"), source)
    assert not is_of_warp_specialize(first.replace("(256,", "(64,"), source)
    assert not is_of_warp_specialize(first.replace("RAW", "WAR"), source)


@gpu
@needs_nvidia
@pytest.mark.slow
@pytest.mark.skipif(SANITIZER is None, reason="needs compute-sanitizer (CUDA toolkit)")
def test_a_memory_checker_finds_what_lies_past_the_end(tmp_path):
    """So that the test above can fail."""
    program = tmp_path / "past_the_end.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(CHECKOUT)!r})\nimport torch\nfrom harness.hip import Module, int32, ptr\n"
        'scale = Module(r\'extern "C" __global__ void scale(float* x, int n)'
        " { int i = threadIdx.x; if (i <= n) x[i] *= 2; }')\n"
        'kernel = scale.kernel("scale", {"x": ptr(torch.float32), "n": int32})\n'
        "x = torch.empty(128, device='cuda')\nkernel(x, 128, grid=1, block=192)\ntorch.cuda.synchronize()\n"
    )
    status, said = sanitized("memcheck", str(program))
    assert status == FOUND and "Invalid __global__" in said, said[-3000:]


@gpu
@needs_nvidia
@pytest.mark.parametrize("hidden", [64, 128, 700], ids=["a program's keys", "a tile and more", "all keys"])
@pytest.mark.parametrize("options", [{}, {"short": False}], ids=["short", "long"])
def test_scores_of_minus_infinity_have_no_weight(options, hidden):
    """Where all have none, the answer is zeros: what the reference gives."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("gluon_bf16 is for Hopper")
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 16, 576, generator=generator).bfloat16()
    kv = torch.randn(700, 1, 576, generator=generator).bfloat16()
    q[..., -1], kv[..., -1] = HUGE, 0
    kv[:hidden, :, -1] = -HUGE  # a rope dim, which is no value
    starts = torch.tensor([0, 1]), torch.tensor([0, 700])
    expected = ragged_decode_attention(q, kv[:, 0], *starts, sm_scale=1 / 24, v_dim=512, dtype=torch.float32)
    assert expected.isfinite().all() and (expected == 0).all() == (hidden == 700)
    q, kv, *starts = (x.cuda() for x in (q, kv, *(x.int() for x in starts)))
    launch = load(CHECKOUT / "submissions" / "mla" / "gluon_bf16.py").launch
    got = launch((q, {"bf16": kv}, *starts, {"kv_seq_len": 700, "sm_scale": 1 / 24}), **options).cpu().float()
    assert torch.allclose(got, expected, rtol=2e-2, atol=1e-2)
