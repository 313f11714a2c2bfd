"""torch.profiler: on a CPU the operators' own times, on a GPU the kernels by the device's time stamps.

It needs no special rights and no tool besides torch. On a GPU it reads no counters, so there is no throughput. The
occupancy is an estimate from registers, shared memory and the launch.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from harness.profiling.excerpt import Launch, ProfiledKernel


def launches(folder: Path) -> list[Launch]:
    """Return the kernels of all calls, from their traces. Raises ValueError if there is none."""
    try:
        traces = [json.loads(path.read_text()) for path in sorted(folder.glob("trace-*.json"))]
        return [_launch(event) for trace in traces for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"torch.profiler left no trace that can be read: {error}") from None


def operators(folder: Path, calls: int) -> tuple[ProfiledKernel, ...]:
    """Return the operators of all calls, the most time-consuming first. Raises ValueError if there are none."""
    count: Counter[str] = Counter()
    self_us: Counter[str] = Counter()
    try:
        for operator in json.loads((folder / "operators.json").read_text()):
            count[operator["name"]] += operator["count"]
            self_us[operator["name"]] += operator["self_cpu_us"]
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"torch.profiler left no operators that can be read: {error}") from None
    return tuple(
        ProfiledKernel(count[name] / calls, 1e3 * took / calls, Launch(name=name, time_ns=1e3 * took / count[name]))
        for name, took in self_us.most_common()
        if count[name]
    )


def _launch(event: dict[str, Any]) -> Launch:
    """Read an event. The keys are kineto's (libkineto/src/output_json.cpp); ROCm lacks some of them."""
    told = event.get("args", {})
    return Launch(
        name=event["name"],
        time_ns=1e3 * event["dur"],
        occupancy_percent=told.get("est. achieved occupancy %"),
        registers=told.get("registers per thread"),
        shared_bytes=told.get("shared memory"),
        grid="×".join(map(str, told["grid"])) if "grid" in told else None,
        block="×".join(map(str, told["block"])) if "block" in told else None,
    )
