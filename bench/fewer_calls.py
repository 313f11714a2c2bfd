"""What the published runs would say with fewer calls in each process. Takes no time.

    python bench/fewer_calls.py [DEVICE] [--since 2026-11-28]

For each ranked run: the score from the first N counted calls of each case and process, over the score from all. And the
scatter of the processes' scores about it, over the scatter with all calls: the interval is as wide as that scatter.
The last rows have the median over the runs, and the furthest. A column that stays at 1 says that more calls tell
nothing: what differs from process to process is more than what differs from call to call.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tabulate import tabulate

from harness.model import ClockOwner, Run
from harness.ranking.stats import centre_of_cases, interquartile_mean
from harness.records.run_file import load_run

ROOT = Path(__file__).resolve().parents[1]
CALLS = (8, 6, 5, 4, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", help="its folder in results/published/PROBLEM (default: all)")
    parser.add_argument("--since", default="2026-11-28", help="the day of the first run that counts")
    given = parser.parse_args()
    runs = [load_run(path) for path in sorted((ROOT / "results" / "published").glob(f"*/{given.device or '*'}/*.json"))]
    chosen = [run for run in runs if run.ranked and run.clock is ClockOwner.JUDGE and run.started_at >= given.since]
    rows = [row(run) for run in chosen]
    if not rows:
        raise SystemExit(f"there are no ranked runs since {given.since}")
    print(tabulate([*rows, *summary(rows)], headers="keys", floatfmt=".3f"))
    print(json.dumps({"bench": "fewer_calls", "runs": len(rows), "rows": summary(rows)}))


def row(run: Run) -> dict[str, str | float]:
    whole = scores(run, None)
    found: dict[str, str | float] = {"run": f"{run.problem}/{run.submission}, {run.device.slug}"}
    found["processes"] = len(whole)
    for calls in CALLS:
        fewer = scores(run, calls)
        found[f"score {calls}"] = math.exp(statistics.fmean(fewer) - statistics.fmean(whole))
        found[f"scatter {calls}"] = statistics.stdev(fewer) / statistics.stdev(whole)
    return found


def scores(run: Run, calls: int | None) -> list[float]:
    """The logarithm of each process's score, from its first `calls` of each case, or from all."""
    return [
        math.log(
            centre_of_cases(
                [interquartile_mean(measured.samples_ns[process][:calls]) for measured in run.measurements], run.ranking
            )
        )
        for process in range(len(run.measurements[0].samples_ns))
    ]


def summary(rows: list[dict[str, str | float]]) -> list[dict[str, str | float]]:
    found: list[dict[str, str | float]] = [{"run": "median"}, {"run": "furthest from 1"}]
    for name in rows[0]:
        values = [value for each in rows if isinstance(value := each[name], float)]
        if values:
            found[0][name] = statistics.median(values)
            found[1][name] = max(values, key=lambda value: abs(math.log(value)))
    return found


if __name__ == "__main__":
    main()
