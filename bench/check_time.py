"""Measures how long `check` takes, uncached and cached: wall-clock seconds of the command in its own process.

    python bench/check_time.py [PROBLEM FILE ...] [--repeats 3]      (default: some of the bundled submissions)
    python bench/check_time.py [PROBLEM FILE ...] --cases            what the test cases cost a Triton file

uncached: results and Triton's cache are in a fresh directory each time (budget 15 s for a one-kernel file on 2 idle
cores, all four targets). cached: the same command once more. Prints a table, the load average before, and a line of
JSON. On a busy machine the numbers are larger.

--cases: processor seconds that compiling takes for the benchmark cases alone and for all cases, and the ratio. Both are
of the same minute, of all four targets together, with the imports of each process, in an empty Triton cache. `waited`
is the ratio by the clock on the wall: all cases, as many kernels of a target at once as `check` compiles on these
processors, to the benchmark cases one after the other. Here the targets follow one another.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tabulate import tabulate

from harness.chips.targets import DEFAULT_TARGETS
from harness.compile.processes import room

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = [
    ("kv_replicate", "submissions/kv_replicate/triton_fused.py"),
    ("fmha", "submissions/fmha/triton_rows.py"),
    ("mla", "submissions/mla/triton_bf16.py"),
    ("prefill", "submissions/prefill/triton_flash.py"),
    ("kv_decode", "submissions/kv_decode/triton_split_kv.py"),
    ("fmha", "submissions/fmha/hip_one_head.py"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="PROBLEM FILE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", action="store_true")
    options = parser.parse_args()
    asked = list(zip(options.what[::2], options.what[1::2])) or BUNDLED
    measure = of_cases if options.cases else measured
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    rows = [measure(problem, file, options.repeats) for problem, file in asked]
    print(f"{cores} cores, load {load:.2f} before; {time.strftime('%Y-%m-%d')}; median of {options.repeats}, and worst")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline"))
    print(json.dumps({"bench": "check_time", "cores": cores, "load_before": round(load, 2), "rows": rows}))


def measured(problem: str, file: str, repeats: int) -> dict[str, object]:
    uncached, cached, kernels = [], [], 0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="podium-bench-") as cache:
            seconds, document = timed(problem, file, cache)
            uncached.append(seconds)
            cached.append(timed(problem, file, cache)[0])
        kernels = sum(len(target["kernels"]) for target in document["targets"])
    return {
        "file": file.removeprefix("submissions/"),
        "exit": document["exit_code"],
        "compiled": kernels,
        "uncached s": round(statistics.median(uncached), 1),
        "worst": round(max(uncached), 1),
        "cached s": round(statistics.median(cached), 2),
    }


def of_cases(problem: str, file: str, repeats: int) -> dict[str, object]:
    """Seconds and compiled kernels of the benchmark cases and of all cases: medians of the repeats."""
    at_once = {"benchmark": 1, "all": max(1, room() // len(DEFAULT_TARGETS))}
    seconds: dict[str, list[float]] = {"benchmark": [], "all": []}
    walls: dict[str, list[float]] = {"benchmark": [], "all": []}
    kernels = {}
    with tempfile.TemporaryDirectory(prefix="podium-bench-") as folder:
        for name in seconds:
            only = ["--cases", name] if name == "benchmark" else []
            command = [sys.executable, "-m", "harness.compile.described", problem, f"{folder}/{name}", *only]
            subprocess.run(command, cwd=ROOT, check=True)
        for _ in range(repeats):
            for name, taken in seconds.items():
                began = time.perf_counter()
                compiled = [
                    compiling(target, f"{folder}/{name}/{target}", file, at_once[name]) for target in DEFAULT_TARGETS
                ]
                walls[name].append(time.perf_counter() - began)
                taken.append(sum(took for took, _ in compiled))
                kernels[name] = sum(count for _, count in compiled)
    waited = [every / some for every, some in zip(walls["all"], walls["benchmark"], strict=True)]
    ratios = [every / some for every, some in zip(seconds["all"], seconds["benchmark"], strict=True)]
    return {
        "file": file.removeprefix("submissions/"),
        **{f"{name}: compiled": count for name, count in kernels.items()},
        **{f"{name} s": round(statistics.median(taken), 1) for name, taken in seconds.items()},
        "ratio": round(statistics.median(ratios), 2),
        "from": round(min(ratios), 2),
        "to": round(max(ratios), 2),
        "at once": at_once["all"],
        "waited": round(statistics.median(waited), 2),
    }


def compiling(target: str, inputs: str, file: str, at_once: int) -> tuple[float, int]:
    """Processor seconds of a compiling process and all that it started, and how many kernels it compiled."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "harness.compile.cross_compile"]
    command += ["--target", target, "--inputs", inputs, "--file", file, "--at-once", str(at_once)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}
    environment["OMP_NUM_THREADS"] = "1"  # as in `check`
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, len(json.loads(done.stdout)["kernels"])


def timed(problem: str, file: str, cache: str) -> tuple[float, dict[str, list[dict[str, list[object]]]]]:
    """Seconds of one check, and its findings. The findings come from a second, cached call, so that the first is timed
    with its table."""
    command = [sys.executable, "-m", "harness", "check", problem, file]
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return seconds, json.loads(done.stdout)


if __name__ == "__main__":
    main()
