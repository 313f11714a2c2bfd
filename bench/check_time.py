"""Measures how long `check` takes, uncached and cached: wall-clock seconds of the command in its own process.

    python bench/check_time.py [PROBLEM FILE ...] [--repeats 3]      (default: some of the bundled submissions)

uncached: results and Triton's cache are in a fresh directory each time (budget 15 s for a one-kernel file on 2 idle
cores, all four targets). cached: the same command once more. Prints a table, the load average before, and a line of
JSON. On a busy machine the numbers are larger.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

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
    options = parser.parse_args()
    asked = list(zip(options.what[::2], options.what[1::2])) or BUNDLED
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    rows = [measured(problem, file, options.repeats) for problem, file in asked]
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


def timed(problem: str, file: str, cache: str) -> tuple[float, dict[str, list[dict[str, list[object]]]]]:
    """Seconds of one check, and what it found (asked for apart, from the cache, so as to time the table)."""
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
