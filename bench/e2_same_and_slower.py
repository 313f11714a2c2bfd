"""E2: how often does a rule put a slower kernel first, and how often does its interval contain the truth?

    python bench/e2_same_and_slower.py [--device auto] [--out DIR] [--seconds 90]      less than two minutes

The call is one elementwise pass over a buffer. A and A' are the same call; B 0.3, B 0.5 and B 1.0 pass over that many
per cent more bytes. Fresh processes run one after another. Each samples every variant, in random order:

    judge    a worker of the judge, as submissions get: timed by the judge's clock, with fresh inputs in every call
    events   in a process beside it, as GPU MODE's competitions do: synchronize, write sweep, event, call, event,
             synchronize
    do_bench in the same process, triton.testing.do_bench, all its times

The rules of `bench/rules.py` are then applied to the same samples, with equal time on the device: a rule for one
process gets all 5 n samples of a process, ours gets n samples of each of five. The two sides of a comparison are from
different processes, as on a leaderboard: all ordered pairs of processes, or 1000 random draws of twice five. The draws
overlap, so the percentages are less certain than their number suggests.

The true value of a variant, for the coverage, is the rule's own centre over the processes that did not contribute to
the interval. It is itself uncertain, which costs a perfectly calibrated rule a point or two of coverage.

One judge serves all workers, and its constant is measured once. bench/constant.py shows the differences between judges.
On a CPU, `events` is perf_counter after a write sweep, and do_bench is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from bench import rules
from bench.experiment import Children, Judging, Options, Raw, judging, measuring, one_pass, options, report
from harness.judge.reply import Fault
from harness.model import Case, CaseValue, Device

NAME = "e2_same_and_slower"
EXTRA = {"A": 0.0, "A'": 0.0, "B 0.3": 0.003, "B 0.5": 0.005, "B 1.0": 0.01}
PROCESSES = 5
SAMPLES = {"cpu": 6, "cuda": 40}
"""n: samples of a variant in each of five processes. The judge takes 12 to 400 (configs/eval.yml)."""

READ_BYTES = {"cpu": 4 << 20, "cuda": 62_000_000}
"""What A reads, and writes as much: about 30 us on an H200. No multiple of 16 KiB, as the others are none: between the
judge's stamps such multiples take 0.4 us longer, whoever computes on them (`bench/sizes.py`)."""

AHEAD = {"cpu": 1, "cuda": 4}
"""Processes that import their modules while another one measures; the device they touch when it is their turn."""

ONE_PROCESS: dict[str, tuple[str, Callable[[rules.Array], rules.Estimates]]] = {
    "mean of one process": ("judge", rules.mean_of_one),
    "stop at 0.1 % standard error": ("judge", rules.stop_at_standard_error),
    "competitions' loop": ("events", rules.stop_at_standard_error),
    "do_bench, mean": ("do_bench", rules.mean_of_one),
    "do_bench, median": ("do_bench", rules.median_of_one),
}
FRESH: dict[str, tuple[str, Callable[[rules.Array], rules.Estimates]]] = {
    "mean over five processes": ("judge", rules.mean_of_fresh),
    "interquartile mean over five processes (ours)": ("judge", rules.interquartile_mean_of_fresh),
}
DRAWS = 1000

Samples = dict[tuple[str, str], list[list[float]]]
"""By way and variant: a list a process, in nanoseconds."""


def main() -> None:
    given = options(__doc__, 90)
    with measuring(given.device):
        samples, failures, remarks = _processes(given)
    processes = min((len(lists) for lists in samples.values()), default=0)
    if processes < 2:
        raise SystemExit(f"{NAME}: {processes} processes gave samples, two are needed. {failures[-1:]}")
    rows = analyse(samples, PROCESSES, np.random.default_rng(1))
    spreads = spread(samples)
    ours, loop = (next((row for row in rows if row["rule"].startswith(s)), None) for s in ("interq", "competitions"))
    headline = f"{processes} processes; "
    for name, row in (("ours", ours), ("competitions' loop", loop)):
        if row is not None:
            headline += (
                f"{name}: 0.5 % slower put first in {row['B 0.5 first %']:.1f} %, covers {row['covers %']:.0f} %; "
            )
    headline += ", ".join(f"{s['way']} varies {s['between processes %']:.2g} % between processes" for s in spreads)
    report(NAME, given.device, headline, rows, spreads=spreads, failures=failures, remarks=remarks)


def _processes(given: Options) -> tuple[Samples, list[str], list[str]]:
    """Fresh processes, one measuring at a time, until the time is up: samples, how some failed, what some said."""
    raw = Raw(given.out, NAME, ("process", "way", "variant", "number", "latency_ns"))
    samples: Samples = {}
    failures: list[str] = []
    remarks: list[str] = []
    end, took_s = time.monotonic() + given.seconds, 0.0
    command = [sys.executable, __file__, "--child", given.device.model_dump_json()]
    cases = [_parameters(given.device, variant) for variant in EXTRA]
    with (
        tempfile.TemporaryDirectory() as folder,
        judging(given.device, *one_pass(Path(folder), cases)) as judge,
        Children(command, AHEAD[given.device.kind]) as children,
    ):
        for number in itertools.count():
            started = time.monotonic()
            if started + took_s > end or len(failures) > 3:
                return samples, failures, remarks
            try:
                blocks = [("judge", *block) for block in judged(judge)]
                found, log = children.next(max(end - started, 1) + 20)
            except (RuntimeError, Fault) as error:
                failures.append(f"process {number}: {error}")
                continue
            took_s = time.monotonic() - started
            for way, variant, latencies_ns in [*blocks, *found]:
                samples.setdefault((way, variant), []).append(latencies_ns)
                raw.add(*((number, way, variant, place, value) for place, value in enumerate(latencies_ns)))
            if log:
                remarks.append(f"process {number}: {log[-300:]}")
    raise AssertionError


def judged(judge: Judging) -> list[tuple[str, list[float]]]:
    """The latencies of every variant in one fresh worker, by the judge's clock."""
    elapsed_ns: dict[str, list[float]] = {}
    judge.null_ns.clear()  # on a CPU a process has a constant of its own
    with judge.entrant.session(another_follows=True) as session:
        for variant in random.sample(list(EXTRA), len(EXTRA)):
            with judge.series(Case(parameters=_parameters(judge.device, variant))) as series:
                taken = judge.take(session, series, PROCESSES * SAMPLES[judge.device.kind])
            elapsed_ns[variant] = [answer.elapsed_ns for answer, _ in taken]
        session.finish()
    return [(variant, [max(each - judge.constant_ns, 1.0) for each in found]) for variant, found in elapsed_ns.items()]


def _parameters(device: Device, variant: str) -> dict[str, CaseValue]:
    return {"variant": variant, "elements": _elements(device, variant)}


def _elements(device: Device, variant: str) -> int:
    return int(READ_BYTES[device.kind] // 4 * (1 + EXTRA[variant]))


def child(device_json: str) -> None:
    """One process: wait for a line, then print a block of latencies for each way and variant, in random order."""
    import torch

    device = Device.model_validate_json(device_json)
    with contextlib.suppress(ImportError):
        import triton.testing  # noqa: F401
    if not sys.stdin.readline():
        return
    if device.kind != "cpu":
        torch.cuda.set_device(device.torch_device)
    source = torch.ones(
        max(_elements(device, variant) for variant in EXTRA),
        dtype=torch.float32,
        device=device.torch_device,
    )
    target = torch.empty_like(source)
    ways = _ways(device, PROCESSES * SAMPLES[device.kind])
    blocks = []
    for variant in random.sample(list(EXTRA), len(EXTRA)):
        size = _elements(device, variant)
        read, written = source[:size], target[:size]
        for way in random.sample(list(ways), len(ways)):
            blocks.append((way, variant, ways[way](lambda: torch.add(read, 1, out=written))))  # noqa: B023
    print(json.dumps(blocks))


def _ways(device: Device, count: int) -> dict[str, Callable[[Callable[[], Any]], list[float]]]:
    import torch

    swept = torch.empty(device.flush_bytes // 4, dtype=torch.int32, device=device.torch_device)

    def events(call: Callable[[], Any]) -> list[float]:
        for _ in range(3):
            call()
        latencies = []
        for _ in range(count):
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            swept.fill_(42)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            latencies.append(start.elapsed_time(end) * 1e6)
        return latencies

    def perf_counter(call: Callable[[], Any]) -> list[float]:
        for _ in range(3):
            call()
        latencies = []
        for _ in range(count):
            swept.fill_(42)
            start = time.perf_counter_ns()
            call()
            latencies.append(float(time.perf_counter_ns() - start))
        return latencies

    def do_bench(call: Callable[[], Any]) -> list[float]:
        from triton.testing import do_bench as of_triton

        few = of_triton(call, warmup=1, rep=1, return_mode="all")
        per_call_ms = 1 / len(few)
        times_ms = of_triton(call, warmup=3 * per_call_ms, rep=1.2 * count * per_call_ms, return_mode="all")
        return [1e6 * value for value in times_ms[:count]]

    if device.kind == "cpu":
        return {"events": perf_counter}
    return {"events": events, "do_bench": do_bench}


def analyse(samples: Samples, processes: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A row a rule: how often B comes out first, A and A' are told apart, B is told from A, the interval covers.

    samples: what `processes` of equal count gave; the rules for fresh processes need twice `processes` of them.
    """
    rows = []
    for name, (way, rule) in ONE_PROCESS.items():
        if (way, "A") in samples:
            found = {variant: rule(_array(samples[way, variant])) for variant in EXTRA}
            count = len(found["A"].centre)
            one, other = (np.array(side) for side in zip(*itertools.permutations(range(count), 2), strict=True))
            truths = {v: _mean_of_others(f.centre, np.arange(count)[:, None]) for v, f in found.items()}
            rows.append(_row(name, count, found, one, other, truths))
    for name, (way, rule) in FRESH.items():
        count = min((len(lists) for lists in samples.values()), default=0)
        if count >= 2 * processes:
            draws = np.array([rng.permutation(count)[: 2 * processes] for _ in range(DRAWS)])
            fives = np.concatenate([draws[:, :processes], draws[:, processes:]])
            each = {variant: _array(samples[way, variant])[:, : _share(samples, way, processes)] for variant in EXTRA}
            found = {variant: rule(values[fives]) for variant, values in each.items()}
            centres = {v: np.array([rule(one[None].repeat(2, 0)).centre for one in each[v]]) for v in EXTRA}
            truths = {v: _mean_of_others(centres[v], fives) for v in EXTRA}
            numbers = np.arange(DRAWS)
            rows.append(_row(name, count, found, numbers, numbers + DRAWS, truths))
    return rows


def _share(samples: Samples, way: str, processes: int) -> int:
    """n: of a process's samples those that one of `processes` would have taken."""
    return max(min(map(len, samples[way, "A"])) // processes, 1)


def _array(lists: list[list[float]]) -> rules.Array:
    shortest = min(map(len, lists))
    return np.array([values[:shortest] for values in lists])


def _mean_of_others(centres: rules.Array, own: Any) -> rules.Array:
    """For each row of process numbers in `own`, the mean of the centres of all processes that are not in it."""
    return (centres.sum() - centres[own].sum(-1)) / (len(centres) - own.shape[-1])


def _row(
    name: str,
    count: int,
    found: dict[str, rules.Estimates],
    one: Any,
    other: Any,
    truths: dict[str, rules.Array],
) -> dict[str, Any]:
    """`one` and `other` number the trials of a comparison's two sides."""
    a = found["A"]
    row: dict[str, Any] = {"rule": name, "processes": count}
    for variant in EXTRA:
        if EXTRA[variant]:
            row[f"{variant} first %"] = 100 * float((a.centre[one] > found[variant].centre[other]).mean())
    same = found["A'"]
    apart = (a.high[one] < same.low[other]) | (same.high[other] < a.low[one])
    row["A, A' told apart %"] = 100 * float(apart.mean())
    for variant in EXTRA:
        if EXTRA[variant]:
            row[f"{variant} told slower %"] = 100 * float((a.high[one] < found[variant].low[other]).mean())
    row["covers %"] = 100 * float(np.mean([found[variant].covers(truths[variant]) for variant in EXTRA]))
    return row


def spread(samples: Samples) -> list[dict[str, Any]]:
    """For each way: A's latency, how much samples and processes vary, and how much slower each variant came out."""
    rows = []
    for way in dict.fromkeys(way for way, _ in samples):
        a = _array(samples[way, "A"])
        centres = {v: np.array([rules.stats.interquartile_mean(one) for one in samples[way, v]]) for v in EXTRA}
        rows.append(
            {
                "way": way,
                "A us": float(centres["A"].mean() / 1e3),
                "within a process %": 100 * float(np.median(a.std(-1, ddof=1) / a.mean(-1))),
                "between processes %": 100 * float(centres["A"].std(ddof=1) / centres["A"].mean()),
                **{
                    f"{v} over A %": 100 * float(centres[v].mean() / centres["A"].mean() - 1) for v in EXTRA if v != "A"
                },
            }
        )
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
