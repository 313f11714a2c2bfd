"""E1: does the judge's clock measure calls of known duration correctly?

    python bench/e1_known_durations.py [--device auto] [--out DIR] [--seconds 45]        about a minute

A submission spins for 3, 3.03, 10, 100 and 1000 us, in a worker as submissions are judged. The judge's clock times it,
in runs of five calls of one duration, the durations in random order:

    cycles       until clock64() has advanced by a fixed count: the same work each time, whatever the clock's rate
    globaltimer  until %globaltimer has advanced by the time: a separate clock, which ticks coarsely
    sleep        torch.cuda._sleep, a fixed count of cycles
    busy loop    on a CPU: until CLOCK_MONOTONIC has advanced by the time

The duration of a spin by %globaltimer is read inside the kernel and returned by the call. The line  latency = offset +
slope x duration  is fitted with relative weights, so that short spins determine the offset and long ones the slope.
`order` is how often 3.03 us comes out above 3 us: interquartile means of consecutive blocks of samples, in one process.

The rows `events` are further calls of the same kinds, timed by a pair of events in the worker. Also printed: the
constant that is subtracted and the spread of its calls; the time of an empty kernel between two events; the tick of the
judge's stamps and of %globaltimer; the events' rate against the host's clock over 0.2 s.

On a CPU caches are left as they are. The offset is the time of allocating, describing and copying an output, which null
calls do not do. Latencies scatter by tens of microseconds, so 3 and 3.03 us cannot be told apart. Where harness.hip
cannot compile, only `sleep` is run, and its duration is computed from its cycles.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench.experiment import Judging, Raw, Untouched, judging, measuring, options, outputs, report, toy
from harness.judge.clock import Answer
from harness.judge.session import Session
from harness.model import Case
from harness.ranking.stats import interquartile_mean

NAME = "e1_known_durations"
TARGETS_US = (3.0, 3.03, 10.0, 100.0, 1000.0)
BLOCKS = (1, 20, 100)
"""Samples per block: one; about the fewest that a process takes of a case; a common number (configs/eval.yml)."""

RUN, EVENTS_RUN = 5, 2
"""Calls of one duration in a row: without, and then with the worker's own events."""

SLOPE_TOLERANCE, ORDER_WANTED = 0.002, 0.95
SHARES = {"cycles": 0.5, "globaltimer": 0.25, "sleep": 0.25, "busy loop": 1.0}
"""Shares of the sampling time."""

SOURCE = r"""
__device__ inline long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) :: "memory");
    return (long long)now;
}
// took: what the spin lasted, in cycles and in nanoseconds.
extern "C" __global__ void spin_cycles(long long cycles, long long* took) {
    long long from_ns = nanoseconds(), from = clock64(), now;
    do now = clock64(); while (now - from < cycles);
    took[0] = now - from;
    took[1] = nanoseconds() - from_ns;
}
extern "C" __global__ void spin_nanoseconds(long long duration_ns, long long* took) {
    long long from = clock64(), from_ns = nanoseconds(), now;
    do now = nanoseconds(); while (now - from_ns < duration_ns);
    took[0] = clock64() - from;
    took[1] = now - from_ns;
}
// The first `count` values that the timer is seen to have.
extern "C" __global__ void ticks(long long count, long long* seen) {
    for (long long i = 0, last = 0; i < count; ++i) {
        long long now;
        do now = nanoseconds(); while (now == last);
        seen[i] = last = now;
    }
}
"""

REFERENCE = """
import torch

def generate_input(way, target_ns, amount, seed, device):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(8, generator=generator, device=device), {"way": way, "amount": amount}

def ref_kernel(data):
    return torch.zeros(2, dtype=torch.int64, device=data[0].device)

def cost(way, target_ns, amount):
    return {"float32": {"bytes": 1, "flops": {}}}
"""

ON_CPU = """
import time
import torch

def custom_kernel(data):
    now = start = time.monotonic_ns()
    end = start + data[1]["amount"]
    while now < end:
        now = time.monotonic_ns()
    return torch.tensor([0, now - start])
"""

SLEEPS = """
import torch

def spin(way, amount, took):
    torch.cuda._sleep(amount)

def custom_kernel(data):
    took = torch.empty(2, dtype=torch.int64, device="cuda")
    spin(data[1]["way"], data[1]["amount"], took)
    return took
"""

SPINS = f"""
from harness.hip import Module, int64, ptr

module = Module({SOURCE!r})
signature = {{"amount": int64, "took": ptr(torch.int64)}}
kernels = {{"cycles": module.kernel("spin_cycles", signature),
           "globaltimer": module.kernel("spin_nanoseconds", signature)}}

def spin(way, amount, took):
    if way == "sleep":
        torch.cuda._sleep(amount)
    else:
        kernels[way](amount, took, grid=1, block=1)
"""


@dataclass
class Way:
    """One way to spin, for `amounts[target]` of its units. Holds, by clock and target, the latencies and the durations
    that the calls themselves report."""

    name: str
    amounts: Mapping[float, int]
    elapsed_ns: dict[float, list[float]] = field(default_factory=lambda: {target: [] for target in TARGETS_US})
    known_ns: dict[float, list[float]] = field(default_factory=lambda: {target: [] for target in TARGETS_US})
    events_ns: dict[float, list[float]] = field(default_factory=lambda: {target: [] for target in TARGETS_US})
    events_known_ns: dict[float, list[float]] = field(default_factory=lambda: {target: [] for target in TARGETS_US})

    def case(self, target_us: float) -> Case:
        target_ns = round(target_us * 1e3)
        return Case(parameters={"way": self.name, "target_ns": target_ns, "amount": self.amounts[target_us]})


def main() -> None:
    given = options(__doc__, 45)
    with measuring(given.device), tempfile.TemporaryDirectory() as folder:
        raw = Raw(given.out, NAME, ("way", "target_us", "cycles", "known_ns", "elapsed_ns", "events_ns"))
        ways, source, facts = _on_cpu() if given.device.kind == "cpu" else _on_gpu()
        cases = [way.case(target).parameters for way in ways for target in TARGETS_US]
        with judging(given.device, *toy(Path(folder), REFERENCE, cases, source)) as judge:
            with judge.entrant.session() as session:
                for way in ways:
                    sample(judge, session, way, given.seconds * SHARES[way.name], raw)
                session.finish()
            facts |= _constants(judge, ways)
            constant_ns = judge.constant_ns
    clocks = [(way, f"{way.name}", latencies(way.elapsed_ns, constant_ns), way.known_ns) for way in ways]
    clocks += [(way, f"{way.name}, events", way.events_ns, way.events_known_ns) for way in ways if way.events_ns[3.0]]
    rows = [_row(name, found, known) for _, name, found, known in clocks]
    first = rows[0]
    straight = abs(first["slope"] - 1) <= SLOPE_TOLERANCE
    ordered = first[f"order, {BLOCKS[1]}"] >= ORDER_WANTED
    headline = (
        f"{first['way']}: offset {first['offset us']:.3f} us, slope {first['slope']:.5f} "
        f"({'within' if straight else 'NOT within'} 1 ± {SLOPE_TOLERANCE:.1%}), 3 us before 3.03 us in "
        f"{first[f'order, {BLOCKS[1]}']:.1%} of blocks of {BLOCKS[1]} ({'' if ordered else 'NOT '}{ORDER_WANTED:.0%}); "
        + ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.items() if value is not None)
    )
    durations = [
        {
            "way": name,
            "target_us": target,
            "samples": len(values),
            "known_ns": middle(known[target], values)[0],
            "iqm_ns": interquartile_mean(values),
            "median_ns": statistics.median(values),
            "iqr_ns": float(np.subtract(*np.quantile(values, (0.75, 0.25)))),
            "sd_ns": statistics.pstdev(values),
        }
        for _, name, found, known in clocks
        for target, values in found.items()
    ]
    report(NAME, given.device, headline, rows, facts=facts, durations=durations, voids=judge.voids)


def sample(judge: Judging, session: Session, way: Way, seconds: float, raw: Raw) -> None:
    """Take rounds of all durations, in random order, until the time is up; at least one round."""
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        caches = Untouched() if judge.device.kind == "cpu" else None
        opened = {target: stack.enter_context(judge.series(way.case(target), caches)) for target in TARGETS_US}
        while True:
            for target in random.sample(TARGETS_US, len(TARGETS_US)):
                for with_events in (False, True) if judge.device.kind != "cpu" else (False,):
                    count = EVENTS_RUN if with_events else RUN
                    rows = []
                    for answer, took in judge.take(session, opened[target], count, with_events, took_of):
                        cycles, known_ns = took
                        if way.name == "sleep":
                            cycles, known_ns = way.amounts[target], target * 1e3
                        if with_events:
                            way.events_ns[target].append(answer.inside_ns or 0.0)
                            way.events_known_ns[target].append(known_ns)
                        else:
                            way.elapsed_ns[target].append(answer.elapsed_ns)
                            way.known_ns[target].append(known_ns)
                        rows.append((way.name, target, cycles, known_ns, answer.elapsed_ns, answer.inside_ns))
                    raw.add(*rows)
            if time.monotonic() > end:
                return


def took_of(answer: Answer) -> list[int]:
    """The duration that the call reports, in cycles and in nanoseconds."""
    return list(outputs(answer)[0].tolist())


def latencies(elapsed_ns: dict[float, list[float]], constant_ns: float) -> dict[float, list[float]]:
    return {target: [max(each - constant_ns, 1.0) for each in values] for target, values in elapsed_ns.items()}


def _row(name: str, found: dict[float, list[float]], known_ns: dict[float, list[float]]) -> dict[str, Any]:
    middles = [middle(known_ns[target], found[target]) for target in TARGETS_US]
    known, measured = ([point[axis] for point in middles] for axis in (0, 1))
    offset_ns, slope = line(known, measured)
    worst = max(abs(offset_ns + slope * x - y) / y for x, y in zip(known, measured, strict=True))
    return {
        "way": name,
        "samples": sum(map(len, found.values())),
        "offset us": offset_ns / 1e3,
        "slope": slope,
        "worst residual %": 100 * worst,
        **{f"{t:g} us": m / 1e3 for t, m in zip(TARGETS_US, measured, strict=True)},
        **{f"order, {size}": order(found[3.0], found[3.03], size) for size in BLOCKS},
    }


def middle(known_ns: list[float], latencies_ns: list[float]) -> tuple[float, float]:
    """The means of both lists over the samples whose latency is in the middle half."""
    ranked = np.argsort(latencies_ns, kind="stable")
    half = ranked[len(ranked) // 4 : max(3 * len(ranked) // 4, len(ranked) // 4 + 1)]
    return float(np.asarray(known_ns)[half].mean()), float(np.asarray(latencies_ns)[half].mean())


def line(known_ns: list[float], measured_ns: list[float]) -> tuple[float, float]:
    """Offset and slope of the line through the points, each weighted by the inverse of its measured value."""
    slope, offset = np.polyfit(known_ns, measured_ns, 1, w=1 / np.asarray(measured_ns))
    return float(offset), float(slope)


def order(shorter: list[float], longer: list[float], size: int) -> float:
    """The share of consecutive blocks of `size` samples in which the shorter spin has the smaller interquartile
    mean."""
    count = min(len(shorter), len(longer)) // size
    blocks = [slice(number * size, (number + 1) * size) for number in range(count)]
    return float(np.mean([interquartile_mean(shorter[b]) < interquartile_mean(longer[b]) for b in blocks] or [np.nan]))


def tick(values_ns: list[float]) -> float | None:
    """The least distance between distinct values. Values are compared at a hundredth of a nanosecond."""
    distinct = np.unique(np.round(values_ns, 2))
    return float(np.diff(distinct).min()) if distinct.size > 1 else None


def _constants(judge: Judging, ways: list[Way]) -> dict[str, float | None]:
    found = judge.entrant.caller.constants
    own = found.by_manner.get(judge.manner)
    spread_ns = own.spread_ns if own else float(np.subtract(*np.quantile(judge.null_ns, (0.75, 0.25))))
    everything = [each for way in ways for values in way.elapsed_ns.values() for each in values]
    return {
        "constant_us": judge.constant_ns / 1e3,
        "constant_iqr_us": spread_ns / 1e3,
        "null_kernel_by_events_us": None if found.launch_ns is None else found.launch_ns / 1e3,
        "stamp_tick_ns": tick(everything),
    }


def _on_cpu() -> tuple[list[Way], str, dict[str, float | None]]:
    return [Way("busy loop", {target: round(target * 1e3) for target in TARGETS_US})], ON_CPU, {}


def _on_gpu() -> tuple[list[Way], str, dict[str, float | None]]:
    import torch

    facts: dict[str, float | None] = {"events_over_host_clock": _events_over_host_clock()}
    try:
        facts |= _of_the_spins(torch)
        cycles_per_us, source = facts["cycles_per_us"] or 0.0, SLEEPS + SPINS
    except Exception as error:
        print(f"the spin kernels do not run: {type(error).__name__}: {error}", file=sys.stderr)
        cycles_per_us, source = _sleep_s_cycles_per_us(torch), SLEEPS
    cycles = {target: round(target * cycles_per_us) for target in TARGETS_US}
    ways = [Way("cycles", cycles), Way("globaltimer", {target: round(target * 1e3) for target in TARGETS_US})]
    return [*(ways if source != SLEEPS else []), Way("sleep", cycles)], source, facts


def _sleep_s_cycles_per_us(torch: Any) -> float:
    cycles, start, end = 10_000_000, *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / (start.elapsed_time(end) * 1e3)


def _of_the_spins(torch: Any) -> dict[str, float | None]:
    """The rates of the clocks that the spins use, in this process."""
    from harness.hip import Module, int64, ptr

    module = Module(SOURCE)
    signature = {"amount": int64, "took": ptr(torch.int64)}
    spin_cycles, ticks = (module.kernel(name, signature) for name in ("spin_cycles", "ticks"))
    took = torch.zeros(2, dtype=torch.int64, device="cuda")
    seen = torch.zeros(200, dtype=torch.int64, device="cuda")
    ticks(len(seen), seen, grid=1, block=1)
    steps = seen.diff().tolist()[1:]
    rates = []
    for _ in range(20):
        spin_cycles(4_000_000, took, grid=1, block=1)
        cycles, nanoseconds = took.tolist()
        rates.append(cycles / nanoseconds * 1e3)
    return {
        "globaltimer_tick_ns": float(statistics.median(steps)),
        "globaltimer_least_step_ns": float(min(steps)),
        "cycles_per_us": statistics.median(rates),
        "cycles_per_us_least": min(rates),
        "cycles_per_us_most": max(rates),
    }


def _events_over_host_clock() -> float:
    """A pair of events' time for a sleep of 0.2 s, over the host clock's time: the median of five."""
    import torch

    ratios = []
    cycles = 300_000_000
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        host = time.perf_counter_ns()
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        ratios.append(start.elapsed_time(end) * 1e6 / (time.perf_counter_ns() - host))
    return statistics.median(ratios)


if __name__ == "__main__":
    main()
