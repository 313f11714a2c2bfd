"""What each file with a ranked run on a device reaches there: a table for docs/kernels.md. Takes no time.

    python bench/judged_share.py ["NVIDIA H100 80GB HBM3"]

Of several runs of a file the one counts that stands on the board. The share of the limit is the geometric mean over the
cases whose floor is above 20 us. The floor is that of the format which the file's name says that it reads, or of the
cheapest one.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tabulate

from bench.kernel_table import PROBLEMS, ROOT, mean_share, on_board
from harness import catalog
from harness.judge.reference import Reference
from harness.machine.device import detect
from harness.model import ClockOwner, Run
from harness.ranking.roofline import floor
from harness.records.entry import of_run, standing
from harness.records.run_file import load_run
from harness.render.figures import microseconds

H100 = "NVIDIA H100 80GB HBM3"
HEAD = ["file", "score, µs", "of the limit, on the board", "of the limit, long cases", "runs"]


def main() -> None:
    print(table(sys.argv[1] if len(sys.argv) > 1 else H100))


def table(device: str) -> str:
    rows = []
    for problem in PROBLEMS:
        runs: dict[str, dict[str, Run]] = {}
        for path in (ROOT / "results" / "published" / problem).glob("*/*.json"):
            run = load_run(path)
            if run.device.name == device and run.ranked and run.clock is ClockOwner.JUDGE:
                runs.setdefault(run.submission, {})[run.id] = run
        on_the_board = [standing([of_run("", run) for run in of.values()]) for of in runs.values()]
        for entry in sorted(on_the_board, key=lambda entry: entry.score_ns or 0.0):
            run = runs[entry.submission][entry.id]
            assert run.score is not None
            share = mean_share(latencies_and_floors(run))
            rows.append(
                [
                    f"{problem}/{entry.submission}",
                    microseconds(run.score).replace("\N{NO-BREAK SPACE}", " "),
                    on_board(run),
                    "no such case" if share is None else f"{share:.1f} %",
                    entry.runs,
                ]
            )
    return tabulate.tabulate(rows, HEAD, tablefmt="pipe", disable_numparse=True)


def latencies_and_floors(run: Run) -> dict[str, tuple[float, float]]:
    """By case, in us. The floor is that of the format that the file's name says that it reads, or of the cheapest."""
    reference = Reference(catalog.load_problem(ROOT, run.problem), detect(ROOT, "cpu"))
    found = {}
    for measurement in run.measurements:
        cost = reference.cost(measurement.case)
        own = {name: cost[name] for name in cost if f"_{name}" in run.submission}
        least = floor(own or cost, run.device)
        if least is not None:
            found[measurement.case.label] = measurement.latency.latency_ns / 1e3, least.latency_ns / 1e3
    return found


if __name__ == "__main__":
    main()
