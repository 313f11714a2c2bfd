"""The grids that a device takes."""

from __future__ import annotations

from harness.hip import MAX_GRID
from harness.hip.runtime import AMD, NVIDIA

VENDORS = {"amd": AMD, "nvidia": NVIDIA}


def refusal(grid: tuple[int, int, int], threads: int, vendor: str) -> str:
    """Why a device of `vendor` takes no such grid of blocks of so many threads along the first axis, or ""."""
    if any(size > most for size, most in zip(grid, MAX_GRID, strict=True)):
        return f"a grid of {grid} is larger than {MAX_GRID}"
    if grid[0] * threads > (most := VENDORS[vendor].max_threads_x):
        return (
            f"{grid[0]:,} blocks of {threads} threads are more than the {most:,} threads that a launch may have: "
            "give the kernel fewer warps or each block more work"
        )
    return ""
