"""Measures the cost of the harness itself: wall-clock seconds of its commands, each in its own process.

    python bench/harness_overhead.py [--runs 100000] [--problem mla] [--repeats 5] [--skip-eval]

1. eval PROBLEM with nothing judged: all bundled submissions to the table        (budget 90 s on 2 cores)
2. eval PROBLEM with nothing new                                                  (budget 3 s)
3. leaderboard PROBLEM, and whether it imported torch                            (budget 0.5 s)
4. leaderboard PROBLEM from the index, with --runs stored runs, each looked at     (budget 1.5 s)
   and, beside it, the time to build that index from the files

Works in a temporary root; the checkout's results are not touched. Prints a table and one line of JSON.
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
sys.path.insert(0, str(ROOT))

from harness import catalog  # noqa: E402
from harness.machine import device, environment  # noqa: E402
from harness.model import (  # noqa: E402
    NO_ISOLATION,
    ClockOwner,
    Ending,
    Estimate,
    Measurement,
    Run,
    Verdict,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="mla")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip-eval", action="store_true")
    options = parser.parse_args()
    here = device.detect(ROOT, "cpu")
    rows: list[dict[str, object]] = []

    def record(what: str, seconds: list[float], budget_s: float | None, note: str = "") -> None:
        rows.append({"what": what, "median_s": round(statistics.median(seconds), 3), "max_s": round(max(seconds), 3),
                     "repeats": len(seconds), "budget_s": budget_s, "note": note})  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("problems", "submissions", "configs", "reference"):
            (root / name).symlink_to(ROOT / name)
        if not options.skip_eval:
            first = _seconds(root, "eval", options.problem, "--device", "cpu")
            record(f"eval {options.problem}, nothing judged", [first], 90)
            again = [_seconds(root, "eval", options.problem, "--device", "cpu") for _ in range(options.repeats)]
            record(f"eval {options.problem}, nothing new", again, 3)
        board = [_seconds(root, "leaderboard", options.problem) for _ in range(options.repeats)]
        record(f"leaderboard {options.problem}", board, 0.5, f"imports torch: {_imports_torch(root, options.problem)}")
        _store_runs(root, options.problem, here, options.runs)
        build = _seconds(root, "leaderboard", options.problem)
        record(f"index of {options.runs:,} runs built from files", [build], None)
        time.sleep(2.5)  # until the directory counts as settled
        _seconds(root, "leaderboard", options.problem)
        board = [_seconds(root, "leaderboard", options.problem) for _ in range(options.repeats)]
        record(f"leaderboard with {options.runs:,} runs", board, 1.5)

    print(f"{here.name}; {time.strftime('%Y-%m-%d')}; load {os.getloadavg()[0]:.2f}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline"))
    print(json.dumps({"bench": "harness_overhead", "device": here.name, "rows": rows}))


def _seconds(root: Path, *arguments: str) -> float:
    command = [sys.executable, "-m", "harness", "--root", str(root), *arguments]
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def _imports_torch(root: Path, problem: str) -> bool:
    script = f"import sys; from harness.cli import main; main(['--root', {str(root)!r}, 'leaderboard', {problem!r}]); "
    script += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    return done.returncode != 0


def _store_runs(root: Path, name: str, here: device.Device, count: int) -> None:
    """Made-up runs of 200 submissions, in files like real ones. Nothing of them is a measurement."""
    problem = catalog.load_problem(ROOT, name)
    estimate = Estimate(latency_ns=1e6, low_ns=0.99e6, high_ns=1.01e6)
    measurements = tuple(
        Measurement(case=case, samples_ns=((1e6,) * 10,) * 3, latency=estimate) for case in problem.cpu.benchmark
    )
    surroundings = environment.describe(here, NO_ISOLATION)
    folder = root / "results" / "local" / name / here.slug
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        scale = 1 + (number * 7919 % 1000) / 1000
        run = Run(
            id=f"20260101T{number:06d}-made-up",
            problem=name,
            problem_revision=problem.revision,
            problem_sha256=problem.sha256,
            submission=f"made_up_{number % 200}",
            submission_sha256=f"{number % 200:064x}",
            submission_path="nowhere.py",
            device=here,
            environment=surroundings,
            started_at=f"2026-01-01T00:00:00.{number % 1000:03d}+00:00",
            duration_s=1.0,
            ending=Ending(verdict=Verdict.ACCEPTED, message="made up"),
            measurements=measurements,
            clock=ClockOwner.JUDGE,
            score=Estimate(latency_ns=1e6 * scale, low_ns=0.99e6 * scale, high_ns=1.01e6 * scale),
            tolerance=next(iter(problem.tolerances)),
            master_seed="00" * 16,
            config={},
        )
        (folder / f"{run.id}.json").write_text(run.model_dump_json())


if __name__ == "__main__":
    main()
