"""E1: does the timer say how long a call of known duration took?

    python bench/e1_known_durations.py [--device auto] [--out DIR] [--seconds 30]

Kernels that spin for 3, 3.03, 10, 100 and 1000 us, timed by the timer that judges submissions, in random order:

    cycles       until clock64() has advanced by a fixed count: the same work each time, whatever the clock's rate
    globaltimer  until %globaltimer has advanced by the time: a clock of its own, which ticks coarsely
    sleep        torch.cuda._sleep, a fixed count of cycles

What a spin took by %globaltimer is read inside the kernel; the line  event time = offset + slope x that  is fitted with
relative weights, so that short spins fix the offset and long ones the slope. `order` is how often 3.03 us comes out
above 3 us: interquartile means of consecutive blocks of samples, in one process. Also: the time between two events with
nothing, and with an empty kernel between them; the tick of the events and of %globaltimer; the events' rate against the
host's clock over 0.2 s. On a CPU the spins are busy loops on CLOCK_MONOTONIC_RAW, without a flush.

On ROCm, and where harness.hip cannot compile, only `sleep` is run, and its duration is what its cycles make of itself.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench.experiment import Raw, measuring, options, report, timer
from harness.stats import interquartile_mean

NAME = "e1_known_durations"
TARGETS_US = (3.0, 3.03, 10.0, 100.0, 1000.0)
BLOCKS = (1, 20, 100)
"""Samples in a block: one; the least that a process takes of a case; a common number (configs/eval.yml)."""

SLOPE_TOLERANCE, ORDER_WANTED = 0.002, 0.95

SOURCE = r"""
__device__ inline long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) :: "memory");
    return (long long)now;
}
extern "C" __global__ void nothing() {}
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


@dataclass
class Way:
    """One way to spin. `call(duration_us)` is what is timed; `took()` then says what it took: cycles, nanoseconds."""

    name: str
    call: Callable[[float], Callable[[], Any]]
    took: Callable[[], tuple[float, float]]
    latencies_ns: dict[float, list[float]] = field(default_factory=lambda: {target: [] for target in TARGETS_US})
    known_ns: dict[float, list[float]] = field(default_factory=lambda: {target: [] for target in TARGETS_US})


def main() -> None:
    given = options(__doc__, 30)
    with measuring(given.device):
        raw = Raw(given.out, NAME, ("way", "target_us", "cycles", "known_ns", "latency_ns", "labels"))
        on_device = _on_cpu if given.device.kind == "cpu" else _on_gpu
        clock = timer(given.device, 1 << 12 if given.device.kind == "cpu" else None)
        ways, facts = on_device(clock, raw)
        for way in ways:
            _sample(clock, way, given.seconds / len(ways), raw)
    rows = [_row(way) for way in ways]
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
            "way": way.name,
            "target_us": target,
            "samples": len(values),
            "known_ns": middle(way.known_ns[target], values)[0],
            "iqm_ns": interquartile_mean(values),
            "median_ns": statistics.median(values),
            "sd_ns": statistics.pstdev(values),
        }
        for way in ways
        for target, values in way.latencies_ns.items()
    ]
    report(NAME, given.device, headline, rows, facts=facts, durations=durations)


def _sample(clock: Any, way: Way, seconds: float, raw: Raw) -> None:
    """Rounds of all durations, 3 and 3.03 us five times each, in random order, until the time is up."""
    round_of = [target for target in TARGETS_US for _ in range(5 if target < 5 else 1)]
    end, warm = time.monotonic() + seconds, time.monotonic() + min(1.0, seconds / 5)
    while (now := time.monotonic()) < end:
        rows = []
        for target in random.sample(round_of, len(round_of)):
            sample = clock.sample(way.call(target))
            cycles, known_ns = way.took()
            if now > warm:
                way.latencies_ns[target].append(sample.latency_ns)
                way.known_ns[target].append(known_ns)
                rows.append((way.name, target, cycles, known_ns, sample.latency_ns, "+".join(sample.labels)))
        raw.add(*rows)


def _row(way: Way) -> dict[str, Any]:
    middles = [middle(way.known_ns[target], way.latencies_ns[target]) for target in TARGETS_US]
    known, measured = ([point[axis] for point in middles] for axis in (0, 1))
    offset_ns, slope = line(known, measured)
    worst = max(abs(offset_ns + slope * x - y) / y for x, y in zip(known, measured, strict=True))
    return {
        "way": way.name,
        "samples": sum(map(len, way.latencies_ns.values())),
        "offset us": offset_ns / 1e3,
        "slope": slope,
        "worst residual %": 100 * worst,
        **{f"{t:g} us": m / 1e3 for t, m in zip(TARGETS_US, measured, strict=True)},
        **{f"order, {size}": order(way.latencies_ns[3.0], way.latencies_ns[3.03], size) for size in BLOCKS},
    }


def middle(known_ns: list[float], latencies_ns: list[float]) -> tuple[float, float]:
    """The means of both over the samples whose latency is in the middle half."""
    ranked = np.argsort(latencies_ns, kind="stable")
    half = ranked[len(ranked) // 4 : max(3 * len(ranked) // 4, len(ranked) // 4 + 1)]
    return float(np.asarray(known_ns)[half].mean()), float(np.asarray(latencies_ns)[half].mean())


def line(known_ns: list[float], measured_ns: list[float]) -> tuple[float, float]:
    """Offset and slope of the line through the points, each weighted by the inverse of what was measured."""
    slope, offset = np.polyfit(known_ns, measured_ns, 1, w=1 / np.asarray(measured_ns))
    return float(offset), float(slope)


def order(shorter: list[float], longer: list[float], size: int) -> float:
    """The share of consecutive blocks of `size` samples in which the shorter one's interquartile mean is less."""
    count = min(len(shorter), len(longer)) // size
    blocks = [slice(number * size, (number + 1) * size) for number in range(count)]
    return float(np.mean([interquartile_mean(shorter[b]) < interquartile_mean(longer[b]) for b in blocks] or [np.nan]))


def tick(values_ns: list[float]) -> float | None:
    """The least distance between distinct values, which are compared at a hundredth of a nanosecond."""
    distinct = np.unique(np.round(values_ns, 2))
    return float(np.diff(distinct).min()) if distinct.size > 1 else None


def _on_gpu(clock: Any, raw: Raw) -> tuple[list[Way], dict[str, float | None]]:
    import torch

    facts: dict[str, float | None] = {}
    empty = _repeat(clock, lambda: None, "no call", raw)
    facts["events_alone_us"] = interquartile_mean(empty) / 1e3
    facts["event_tick_ns"] = tick(empty)
    facts["events_over_host_clock"] = _events_over_host_clock()
    facts["timer_s_cycles_per_us"] = cycles_per_us = clock._cycles_per_us

    def sleep(target_us: float) -> Callable[[], Any]:
        slept.append(int(target_us * cycles_per_us))
        return lambda: torch.cuda._sleep(slept[-1])

    slept: list[int] = []
    ways = [Way("sleep", sleep, lambda: (slept[-1], slept[-1] / cycles_per_us * 1e3))]
    if torch.version.hip is not None:
        return ways, facts
    try:
        spins, more = _spins(torch, clock, raw)
    except Exception as error:
        print(f"the spin kernels do not run: {type(error).__name__}: {error}", file=sys.stderr)
        return ways, facts
    return spins + ways, facts | more


def _spins(torch: Any, clock: Any, raw: Raw) -> tuple[list[Way], dict[str, float | None]]:
    from harness.hip import Module, int64, ptr

    module = Module(SOURCE)
    signature = {"amount": int64, "took": ptr(torch.int64)}
    spin_cycles, spin_ns, ticks = (module.kernel(n, signature) for n in ("spin_cycles", "spin_nanoseconds", "ticks"))
    nothing = module.kernel("nothing", {})
    took = torch.zeros(2, dtype=torch.int64, device="cuda")

    seen = torch.zeros(200, dtype=torch.int64, device="cuda")
    ticks(len(seen), seen, grid=1, block=1)
    steps = seen.diff().tolist()[1:]

    rates = []
    for _ in range(20):
        spin_cycles(4_000_000, took, grid=1, block=1)
        cycles, nanoseconds = took.tolist()
        rates.append(cycles / nanoseconds * 1e3)
    cycles_per_us = statistics.median(rates)
    null = _repeat(clock, lambda: nothing(grid=1, block=1), "null kernel", raw)
    facts = {
        "null_kernel_us": interquartile_mean(null) / 1e3,
        "globaltimer_tick_ns": float(statistics.median(steps)),
        "globaltimer_least_step_ns": float(min(steps)),
        "cycles_per_us": cycles_per_us,
        "cycles_per_us_least": min(rates),
        "cycles_per_us_most": max(rates),
    }

    def by(kernel: Any, per_us: float) -> Callable[[float], Callable[[], Any]]:
        return lambda target_us: lambda: kernel(round(target_us * per_us), took, grid=1, block=1)

    def last() -> tuple[float, float]:
        cycles, nanoseconds = took.tolist()
        return cycles, nanoseconds

    return [Way("cycles", by(spin_cycles, cycles_per_us), last), Way("globaltimer", by(spin_ns, 1e3), last)], facts


def _repeat(clock: Any, call: Callable[[], Any], name: str, raw: Raw, count: int = 500) -> list[float]:
    samples = [clock.sample(call) for _ in range(count)]
    raw.add(*((name, 0, "", "", sample.latency_ns, "+".join(sample.labels)) for sample in samples))
    return [sample.latency_ns for sample in samples[20:]]


def _events_over_host_clock() -> float:
    """What a pair of events says of a sleep of 0.2 s, over what the host's clock says: the median of five."""
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


def _on_cpu(clock: Any, raw: Raw) -> tuple[list[Way], dict[str, float | None]]:
    def busy(target_us: float) -> Callable[[], Any]:
        def spin() -> None:
            start = now()
            while (took := now() - start) < target_us * 1e3:
                pass
            last[0] = took

        return spin

    def now() -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)

    last = [0]
    empty = _repeat(clock, lambda: None, "no call", raw)
    facts = {"clock_reads_alone_us": interquartile_mean(empty) / 1e3, "clock_tick_ns": tick(empty)}
    return [Way("busy loop", busy, lambda: (float("nan"), last[0]))], facts


if __name__ == "__main__":
    main()
