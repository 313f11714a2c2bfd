"""A GEMM whose tiles Triton loads directly to shared memory, in the emulator: `python -m tests.emulated_direct gfx950`.

Prints a line of JSON: the largest error, and the loads to shared memory that LLVM chose.
"""

import json
import os
import sys

os.environ["TRITON_HIP_USE_ASYNC_COPY"] = "1"

import torch
import triton
import triton.language as tl

from harness.emulated import triton_driver
from harness.interpreter.installation import cuda_on_cpu

SIZE, DEPTH = 64, 256


@triton.jit
def gemm_kernel(a, b, c, depth, SIZE: tl.constexpr):
    lines = tl.arange(0, SIZE)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for first in range(0, depth, SIZE):
        k = first + lines
        left = tl.load(a + lines[:, None] * depth + k[None, :])
        right = tl.load(b + k[:, None] * SIZE + lines[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + lines[:, None] * SIZE + lines[None, :], total)


def main(target: str) -> None:
    emulated = triton_driver.present(target)
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator).half() for shape in ((SIZE, DEPTH), (DEPTH, SIZE)))
    c = torch.zeros(SIZE, SIZE)
    with cuda_on_cpu():
        gemm_kernel[(1,)](a, b, c, DEPTH, SIZE, num_stages=3, num_warps=4)
    error = float((c - a.float() @ b.float()).abs().max())
    (assembly,) = emulated.assemblies.values()
    loads = {line.split()[0] for line in assembly.splitlines() if line.rstrip().endswith(" lds")}
    print(json.dumps({"error": error, "loads": sorted(loads)}))


if __name__ == "__main__":
    main(sys.argv[1])
