"""What a call of `harness.evaluate` costs on a CPU: seconds of a verdict after the first, and evaluations an hour.

    python bench/library_cost.py [--problem mla] [--calls 12] [--pause 5]      (a minute or two)

first: the process that judges is started and imports torch. after a pause: as an agent calls, who writes a kernel in
between; the next worker is ready then. one after another: without a pause. Judged are the problem's wrong controls in
turn, by `quick`, of which a wrong kernel is never timed, and with `stop_at_first`; and by `verdict` its first baseline.
Prints the load before: on a busy machine the seconds are those of a busy machine. Processor seconds are of all
processes that a call took; what a process that judges takes from its start to its end is subtracted.
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
