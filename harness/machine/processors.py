"""A judge's share of the processors. Each GPU of a machine may have a judge at work, and so has its part of them.

Whoever starts processes or threads by their number asks here. By the number of all processors eight judges would each
start as many as one alone may.
"""

from __future__ import annotations

import os
from pathlib import Path

EACH = 4
"""Processors for a process that compiles. Compilers take one or two."""

_DEVICES, _AMD_NODES = Path("/dev"), Path("/sys/class/kfd/kfd/topology/nodes")


def share() -> int:
    """How many processors this process may count on: those that it may run on, and no more than a GPU's part of the
    machine's. A container or a Slurm job that has one of several GPUs often has its part of the processors only."""
    return max(min(_usable(), _all() // max(_gpus(), 1)), 1)


def _usable() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _all()


def _all() -> int:
    return os.cpu_count() or 1


def _gpus() -> int:
    """The GPUs that are seen here, whatever CUDA_VISIBLE_DEVICES leaves of them. No driver is asked: that takes time
    from whoever is timed."""
    nvidia = sum(1 for node in _DEVICES.glob("nvidia[0-9]*") if node.name.removeprefix("nvidia").isdigit())
    return max(nvidia, sum(1 for node in _AMD_NODES.glob("*/gpu_id") if _text(node) not in ("", "0")))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
