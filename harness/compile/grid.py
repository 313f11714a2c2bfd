"""The grids that a device takes."""

from __future__ import annotations

from math import inf

MAX_GRID = (2**31 - 1, 65535, 65535)
"""CUDA programming guide, "Technical specifications per compute capability". HIP's own limits are no lower."""

MAX_AMD_THREADS = 2**32 - 1
"""Of all blocks together, along an axis: HIP API, hipModuleLaunchKernel. Triton's blocks extend along the first."""


def refusal(grid: tuple[int, int, int], threads: int, vendor: str) -> str:
    """Why a device of `vendor` takes no such grid of blocks of so many threads, or ""."""
    if any(size > most for size, most in zip(grid, MAX_GRID, strict=True)):
        return f"a grid of {grid} is larger than {MAX_GRID}"
    if grid[0] * threads > (MAX_AMD_THREADS if vendor == "amd" else inf):
        return (
            f"{grid[0]:,} blocks of {threads} threads are more than the {MAX_AMD_THREADS:,} threads that HIP takes: "
            "give the kernel fewer warps or each block more work"
        )
    return ""
