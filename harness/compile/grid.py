"""The grids that a device takes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.hip import MAX_GRID
from harness.hip.runtime import AMD, NVIDIA

VENDORS = {"amd": AMD, "nvidia": NVIDIA}

MAX_CLUSTER = 16
"""The most blocks of a cluster on sm_90. More than 8 are not portable; Triton's launcher asks for those 16."""


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


def refusal_of_cluster(cluster: tuple[int, ...], grids: Iterable[tuple[int, ...]]) -> str | None:
    """Why a device takes no such cluster, or none of these grids with it, or None."""
    if math.prod(cluster) > MAX_CLUSTER:
        return f"has {math.prod(cluster)} blocks a cluster; there may be {MAX_CLUSTER}"
    for grid in sorted(grids):
        if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
            return f"is launched with a grid of {grid}, which is no multiple of its cluster of {cluster}"
    return None
