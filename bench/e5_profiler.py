"""E5: do the events agree with the profiler's kernel durations?

    python bench/e5_profiler.py [--device auto] [--out DIR] [--seconds 30]

Calls of a few submissions and of plain torch, each timed by the timer that judges submissions while torch.profiler
records the device's own time stamps (CUPTI, roctracer). For each call: the time between the events; from the start of
its first kernel to the end of its last (span); and the sum of its kernels (busy). Span less busy are the gaps between
a submission's kernels. `over` is event time less span: what an event pair adds. The same calls are timed once more
without the profiler, which shows whether it disturbs them.

The device's timeline is cut at the sleep that starts each sample; what a sample with an empty call shows after it is
the flush, and the rest of a sample is the call.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench.experiment import ROOT, Raw, measuring, not_measured, options, report, timer
from harness.model import Device
from harness.stats import interquartile_mean

NAME = "e5_profiler"
COUNT = 60
EMPTY = 5
SUBMISSIONS = (
    ("kv_replicate", "triton_fused", 0),
    ("kv_replicate", "torch_repeat_interleave", 2),
    ("mla", "triton_bf16", 2),
    ("mla", "triton_bf16", 5),
)
"""Problem, submission, number of its benchmark case."""

SLEEP_KERNEL = "spin_kernel"
"""torch.cuda._sleep's kernel (aten/src/ATen/cuda/Sleep.cu)."""

Activity = tuple[str, float, float]
"""Name, start and end in microseconds."""


def main() -> None:
    given = options(__doc__, 30)
    if given.device.kind == "cpu":
        return not_measured(NAME, given.device, "it needs a GPU: python bench/e5_profiler.py --device cuda")
    rows, failures = [], {}
    with measuring(given.device):
        raw = Raw(given.out, NAME, ("call", "number", "event_us", "span_us", "busy_us", "kernels"))
        clock = timer(given.device)
        for name, make in _calls(given.device).items():
            try:
                rows.append(_compare(name, make(), clock, raw))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"[:300]
                print(f"{name}: {failures[name]}", file=sys.stderr)
    if not rows:
        raise SystemExit(f"{NAME}: no call could be compared: {failures}")
    overs = [row["over us"] for row in rows]
    headline = f"event time less kernel span: {min(overs):.2f} .. {max(overs):.2f} us over {len(rows)} calls" + (
        f"; failed: {', '.join(failures)}" if failures else ""
    )
    report(NAME, given.device, headline, rows, failures=failures)


def _calls(device: Device) -> dict[str, Callable[[], Callable[[], Any]]]:
    """By name, what makes a call: its inputs take memory, so one at a time."""
    import torch

    def elementwise() -> Callable[[], Any]:
        source = torch.ones(16 << 20, dtype=torch.int32, device="cuda")
        target = torch.empty_like(source)
        return lambda: torch.add(source, 1, out=target)

    def product() -> Callable[[], Any]:
        matrix = torch.randn(2048, 2048, device="cuda").to(torch.bfloat16)
        result = torch.empty_like(matrix)
        return lambda: torch.mm(matrix, matrix, out=result)

    def submission(problem: str, name: str, number: int) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            from harness import catalog
            from harness.judge.reference import Reference
            from harness.worker import load

            task = catalog.load_problem(ROOT, problem)
            data = Reference(task, device).generate(task.cases_for(device.kind).benchmark[number], 1)
            kernel = load.load(ROOT / "submissions" / problem / f"{name}.py", interpreted=False).kernel
            return lambda: kernel(data)

        return make

    calls = {f"{p}/{s} case {n}": submission(p, s, n) for p, s, n in SUBMISSIONS}
    return {"torch.add 64 MiB": elementwise, "torch.mm 2048": product, **calls}


def _compare(name: str, call: Callable[[], Any], clock: Any, raw: Raw) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(10):
        clock.sample(call)
    alone = [clock.sample(call).latency_ns / 1e3 for _ in range(COUNT)]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(EMPTY):
            clock.sample(lambda: None)
        samples = [clock.sample(call) for _ in range(COUNT)]
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        timeline = activities(json.loads(Path(folder, "trace.json").read_text()))
    kernels = of_the_call(timeline, EMPTY, COUNT)
    profiled = [sample.latency_ns / 1e3 for sample in samples]
    spans = [group[-1][2] - group[0][1] for group in kernels]
    busy = [sum(end - start for _, start, end in group) for group in kernels]
    raw.add(*((name, i, *four) for i, four in enumerate(zip(profiled, spans, busy, map(len, kernels), strict=True))))
    overs = np.subtract(profiled, spans)
    return {
        "call": name,
        "kernels": statistics.mode(map(len, kernels)),
        "events us": interquartile_mean(profiled),
        "span us": interquartile_mean(spans),
        "busy us": interquartile_mean(busy),
        "over us": float(np.median(overs)),
        "over p5": float(np.percentile(overs, 5)),
        "over p95": float(np.percentile(overs, 95)),
        "without profiler us": interquartile_mean(alone),
        "host-bound": sum("host-bound" in sample.labels for sample in samples),
    }


def activities(trace: dict[str, Any]) -> list[Activity]:
    """What the device did, in order, from a trace in Chrome's format."""
    on_device = ("kernel", "gpu_memset", "gpu_memcpy")
    found = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in on_device]
    return sorted(((e["name"], e["ts"], e["ts"] + e["dur"]) for e in found), key=lambda activity: activity[1])


def of_the_call(timeline: Sequence[Activity], empty: int, count: int) -> list[list[Activity]]:
    """The call's own kernels in each of `count` samples that follow `empty` ones with an empty call.

    Raises ValueError where the timeline does not have that shape.
    """
    samples: list[list[Activity]] = []
    for activity in timeline:
        if SLEEP_KERNEL in activity[0]:
            samples.append([])
        elif samples:
            samples[-1].append(activity)
    if len(samples) != empty + count:
        raise ValueError(f"the profiler saw {len(samples)} sleeps of {empty + count}")
    flush = [name for name, _, _ in samples[0]]
    if any([name for name, _, _ in sample] != flush for sample in samples[:empty]):
        raise ValueError("the flush is not the same in every sample")
    for sample in samples[empty:]:
        if [name for name, _, _ in sample[: len(flush)]] != flush or len(sample) == len(flush):
            raise ValueError("a sample does not begin with the flush, or has no kernel of the call")
    return [sample[len(flush) :] for sample in samples[empty:]]


if __name__ == "__main__":
    main()
