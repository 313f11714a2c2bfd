"""A call under torch's profiler. The result is for the submission's author; no verdict depends on it.

call ─► torch.autograd.profiler ─► operators (CPU) or kernels (GPU), each with its count and time
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

OTHERS = "(all others)"


def profiled(call: Callable[[], Any], on_gpu: bool, most_parts: int, longest_name: int) -> dict[str, Any]:
    """Profile one call. Returns its `call_ns`, and its `parts`: name (at most `longest_name` characters), count and own
    time in ns, the longest first. Parts beyond `most_parts` are added up. Raises what the call raises."""
    # Used by torch.profiler.profile, which would import torch's compiler: that takes seconds.
    from torch.autograd.profiler import profile

    with profile(use_device="cuda" if on_gpu else None, use_kineto=True) as profiler:
        began_ns = time.perf_counter_ns()
        call()
        if on_gpu:
            torch.cuda.synchronize()
        call_ns = time.perf_counter_ns() - began_ns
    parts = _kernels(profiler) if on_gpu else _operators(profiler)
    in_order = sorted(parts.items(), key=lambda part: -part[1][1])
    told, rest = in_order[:most_parts], [part for _, part in in_order[most_parts:]]
    if rest:
        told.append((OTHERS, (sum(count for count, _ in rest), sum(own_ns for _, own_ns in rest))))
    named = [{"name": name[:longest_name], "count": count, "self_ns": own_ns} for name, (count, own_ns) in told]
    return {"call_ns": call_ns, "parts": named}


def _operators(profiler: Any) -> dict[str, tuple[int, float]]:
    """Each operator's own time, without the operators that it called."""
    return {event.key: (event.count, 1e3 * event.self_cpu_time_total) for event in profiler.key_averages()}


def _kernels(profiler: Any) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for event in profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:  # also on ROCm
            count, own_ns = found.get(event.name(), (0, 0.0))
            found[event.name()] = (count + 1, own_ns + event.duration_ns())
    return found
