"""Measures the cost of a call of `harness.evaluate` on a CPU: seconds per verdict after the first, and evaluations per
hour.

    python bench/library_cost.py [--problem mla] [--calls 12] [--pause 5]      (a minute or two)

first: the judging process is started and imports torch. after a pause: like an agent that writes a kernel between
calls; the next worker is ready by then. one after another: without a pause.

The problem's wrong controls are judged in turn, by `quick`, which never times a wrong kernel, and with `stop_at_first`.
Its first baseline is judged by `verdict`. Prints the load before: on a busy machine the seconds are larger. Processor
seconds are those of all processes of a call. The start-to-end cost of a judging process is subtracted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from harness import catalog, evaluate  # noqa: E402
from harness.library import close  # noqa: E402
from harness.model import Run, Verdict  # noqa: E402

Judged = Callable[[], Run]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="mla")
    parser.add_argument("--calls", type=int, default=12, help="in each row")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between calls")
    options = parser.parse_args()
    name, count = options.problem, options.calls
    problem = catalog.load_problem(ROOT, name)
    wrong = [ROOT / c.path for c, verdict in catalog.controls(problem) if verdict is Verdict.WRONG_ANSWER]
    right = ROOT / "submissions" / name / f"{problem.baselines[0]}.py"
    turns = itertools.cycle(wrong)

    def of_wrong(**more: bool) -> Judged:
        return lambda: evaluate(name, next(turns), "cpu", "quick", root=ROOT, **more)

    load = os.getloadavg()[0]
    (first,) = seconds(of_wrong(), 1)
    close()
    first_processor = processor_s()
    rows = []
    for what, judged, pause_s in (
        ("wrong, after a pause", of_wrong(), options.pause),
        ("wrong, one after another", of_wrong(), 0.0),
        ("wrong, stop_at_first", of_wrong(stop_at_first=True), 0.0),
        (f"{right.stem}, verdict", lambda: evaluate(name, right, "cpu", "verdict", root=ROOT), 0.0),
    ):
        before = processor_s()
        of_wrong()()
        took = list(seconds(judged, count, pause_s))
        close()
        rows.append(row(what, took, (processor_s() - before - first_processor) / count))
    cores = len(os.sched_getaffinity(0))
    print(f"{name}: {cores} cores, load {load:.2f} before; {time.strftime('%Y-%m-%d')}; first call {first:.1f} s")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline"))
    found = {"bench": "library_cost", "problem": name, "cores": cores, "load_before": round(load, 2)}
    firsts = {"first_s": round(first, 2), "first_processor_s": round(first_processor, 2)}
    print(json.dumps({**found, **firsts, "rows": rows}))


def seconds(judged: Judged, count: int, pause_s: float = 0.0) -> Iterator[float]:
    """Of each of `count` calls."""
    for _ in range(count):
        time.sleep(pause_s)
        began = time.monotonic()
        judged()
        yield time.monotonic() - began


def processor_s() -> float:
    """Of all processes that were started here and have ended, and of theirs, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(what: str, took: list[float], processor: float) -> dict[str, object]:
    return {
        "what": what,
        "median s": round(statistics.median(took), 2),
        "worst s": round(max(took), 2),
        "processor s": round(processor, 2),
        "an hour": round(3600 / statistics.fmean(took)),
    }


if __name__ == "__main__":
    main()
