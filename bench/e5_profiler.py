"""E5: does the judge's clock agree with the profiler's kernel durations?

    python bench/e5_profiler.py [--device auto] [--out DIR]        on a GPU; less than two minutes

Calls of a few submissions and of plain torch are first timed as the judge does, in a worker, in the manner that its
pilot chooses: by the judge's clock, and by the worker's own events in the pilot. Then they run in this process while
torch.profiler records the device's own time stamps (CUPTI, roctracer). `span` is the time from the start of a call's
first kernel to the end of its last. `busy` is the sum of its kernels. Span minus busy is the gaps between a
submission's kernels.

`over` is the judge's time minus the span. `events over` is the time of a pair of events around the profiled call minus
its span. They show what each clock adds. The same calls are timed once more by events without the profiler, to see
whether it disturbs them.

The device's timeline is cut at the sleep that starts each profiled sample. The work after the sleep in a sample with an
empty call is the flush. The rest of a sample is the call.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench import e4_heater
from bench.experiment import ROOT, Raw, judging, measuring, not_measured, options, report, toy
from harness import catalog
from harness.judge.reference import Reference
from harness.model import Case, Device, Problem, Submission
from harness.ranking.stats import interquartile_mean
from harness.worker import load
from harness.worker.timers import GpuTimer

NAME = "e5_profiler"
COUNT = 60
EMPTY = 5
SUBMISSIONS = (
    ("kv_replicate", "triton_fused", 0),
    ("kv_replicate", "torch_repeat_interleave", 2),
    ("mla", "triton_bf16", 2),
    ("mla", "triton_bf16", 5),
)
"""Problem, submission, and number of its benchmark case."""

SLEEP_KERNEL = "spin_kernel"
"""The kernel of torch.cuda._sleep (aten/src/ATen/cuda/Sleep.cu)."""

Activity = tuple[str, float, float]
"""Name, and start and end in microseconds."""


@dataclass(frozen=True)
class Task:
    """A submission and the one case that is timed."""

    problem: Problem
    submission: Submission
    path: Path

    @property
    def case(self) -> Case:
        return self.problem.cases.benchmark[0]


def main() -> None:
    given = options(__doc__, 30)
    if given.device.kind == "cpu":
        return not_measured(NAME, given.device, "it needs a GPU: python bench/e5_profiler.py --device cuda")
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with measuring(given.device), tempfile.TemporaryDirectory() as folder:
        raw = Raw(given.out, NAME, ("call", "number", "judge_us", "event_us", "span_us", "busy_us", "kernels"))
        judged: dict[str, dict[str, Any]] = {}
        tasks = _tasks(Path(folder))
        for name, task in tasks.items():  # before the profiler is attached to this process
            with _failing_alone(name, failures):
                judged[name] = _judge(task, given.device, raw, name)
        for name in judged:
            with _failing_alone(name, failures):
                rows.append(_compare(name, tasks[name], judged[name], given.device, raw))
    if not rows:
        raise SystemExit(f"{NAME}: no call could be compared: {failures}")
    overs, by_events = ([row[column] for row in rows] for column in ("over us", "events over us"))
    headline = (
        f"the judge's clock less kernel span: {min(overs):.2f} .. {max(overs):.2f} us over {len(rows)} calls; "
        f"events less span: {min(by_events):.2f} .. {max(by_events):.2f} us"
    ) + (f"; failed: {', '.join(failures)}" if failures else "")
    report(NAME, given.device, headline, rows, failures=failures)


@contextlib.contextmanager
def _failing_alone(name: str, failures: dict[str, str]) -> Iterator[None]:
    """Record a failure of one call, and go on with the others."""
    try:
        yield
    except (Exception, SystemExit) as error:
        failures[name] = f"{type(error).__name__}: {error}"[:300]
        print(f"{name}: {failures[name]}", file=sys.stderr)


def _tasks(folder: Path) -> dict[str, Task]:
    made = {}
    for number, name in enumerate(e4_heater.CALLS):
        root = folder / str(number)
        root.mkdir()
        task = toy(root, e4_heater.REFERENCE, [{"call": name}], e4_heater.SUBMISSION)
        made[f"torch: {name}"] = Task(*task, root / "submissions" / "bench" / "mine.py")
    for problem_name, submission, number in SUBMISSIONS:
        problem = catalog.load_problem(ROOT, problem_name)
        cases = problem.cases.model_copy(update={"benchmark": (problem.cases.benchmark[number],)})
        path = ROOT / "submissions" / problem_name / f"{submission}.py"
        made[f"{problem_name}/{submission} case {number}"] = Task(
            problem.model_copy(update={"cases": cases}), catalog.load_submission(problem, path), path
        )
    return made


def _judge(task: Task, device: Device, raw: Raw, name: str) -> dict[str, Any]:
    with judging(device, task.problem, task.submission) as judge, judge.entrant.session() as session:
        pace = judge.entrant.pilot(session)[task.case.key]
        *_, sitting = judge.entrant.sit(session, task.case, "bench", replace(pace, count=COUNT), None)
        session.finish()
    latencies_us = [latency_ns / 1e3 for latency_ns in sitting.latency_ns]
    raw.add(*((name, number, each, "", "", "", "") for number, each in enumerate(latencies_us)))
    return {
        "call": name,
        "manner": pace.manner.value,
        "judge us": interquartile_mean(latencies_us),
        "worker's events us": None if pace.inside_ns is None else pace.inside_ns / 1e3,
    }


def _compare(name: str, task: Task, judged: dict[str, Any], device: Device, raw: Raw) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    clock, call = GpuTimer(device.flush_bytes), _call(task, device)
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
    raw.add(
        *((name, i, "", *four) for i, four in enumerate(zip(profiled, spans, busy, map(len, kernels), strict=True)))
    )
    overs = np.subtract(profiled, spans)
    return {
        **judged,
        "kernels": statistics.mode(map(len, kernels)),
        "span us": interquartile_mean(spans),
        "busy us": interquartile_mean(busy),
        "over us": judged["judge us"] - interquartile_mean(spans),
        "events over us": float(np.median(overs)),
        "events over p5": float(np.percentile(overs, 5)),
        "events over p95": float(np.percentile(overs, 95)),
        "events us": interquartile_mean(profiled),
        "without profiler us": interquartile_mean(alone),
    }


def _call(task: Task, device: Device) -> Callable[[], Any]:
    """The submission in this process, on its own inputs."""
    data = Reference(task.problem, device).generate(task.case, 1)
    kernel = load.load(task.path, interpreted=False).kernel
    return lambda: kernel(data)


def activities(trace: dict[str, Any]) -> list[Activity]:
    """The device's activities, in order, from a trace in Chrome's format."""
    on_device = ("kernel", "gpu_memset", "gpu_memcpy")
    found = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in on_device]
    return sorted(((e["name"], e["ts"], e["ts"] + e["dur"]) for e in found), key=lambda activity: activity[1])


def of_the_call(timeline: Sequence[Activity], empty: int, count: int) -> list[list[Activity]]:
    """The call's own kernels in each of `count` samples, which follow `empty` samples with an empty call.

    Raises ValueError if the timeline does not have that shape.
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
