"""Measures whether a run's interval covers the results of repeated runs of the same file.

    python bench/repeats.py [--device auto] [--problem kv_decode] [--file PATH] [--runs 20] [--seconds 1500]

The same file is judged again and again. For each run it reports whether its interval contains the geometric mean of all
other runs' scores. That should hold in at least 90 %. For all pairs it reports how often one run's interval contains
the other's score. No interval promises that; it shows how well runs can be told apart. Nothing is stored.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import permutations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import catalog
from harness.catalog import config
from harness.judge.evaluate import evaluate
from harness.machine import device as devices
from harness.machine.lock import hold
from harness.model import Estimate
from harness.ranking import stats

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--problem", default="kv_decode", help="one whose cases a CPU makes and checks quickly")
    parser.add_argument("--file", type=Path, help="the problem's first baseline unless given")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1500, help="start no run after so much time")
    given = parser.parse_args()
    here, settings = devices.detect(ROOT, given.device), config.load_config(ROOT)
    problem = catalog.load_problem(ROOT, given.problem)
    path = given.file or ROOT / "submissions" / problem.name / f"{problem.baselines[0]}.py"
    submission = catalog.load_submission(problem, path)
    scores: list[Estimate] = []
    unranked: list[str] = []
    began, load_before = time.monotonic(), os.getloadavg()
    with hold(here, lambda line: print(line, file=sys.stderr)):
        for number in range(given.runs):
            if time.monotonic() - began > given.seconds:
                break
            run = evaluate(problem, submission, here, settings)
            if run.score is None or run.unranked_because is not None:
                unranked.append(run.unranked_because or run.ending.message)
                continue
            scores.append(run.score)
            low, high = (f"{(bound or 0.0) / 1e3:,.1f}" for bound in (run.score.low_ns, run.score.high_ns))
            print(f"run {number + 1}: {run.score.latency_ns / 1e3:,.1f} us ({low} to {high})", flush=True)
    if len(scores) < 2:
        raise SystemExit(f"too few ranked runs to compare: {unranked}")
    means = [stats.geometric_mean([other.latency_ns for other in scores if other is not one]) for one in scores]
    covered = sum(_holds(one, mean) for one, mean in zip(scores, means, strict=True))
    pairs = [_holds(one, other.latency_ns) for one, other in permutations(scores, 2)]
    centres = [one.latency_ns for one in scores]
    found = {
        "bench": "repeats",
        "device": here.name,
        "submission": f"{problem.name}/{submission.name}",
        "runs": len(scores),
        "unranked": unranked,
        "covers_mean_of_others": covered,
        "covers_another_run_percent": round(100 * sum(pairs) / len(pairs), 1),
        "spread_percent": round(100 * (max(centres) / min(centres) - 1), 2),
        "seconds": round(time.monotonic() - began),
        "load": [load_before, os.getloadavg()],
    }
    print(f"{covered} of {len(scores)} intervals hold the mean of the other runs; {len(unranked)} runs were not ranked")
    print(json.dumps(found))


def _holds(one: Estimate, latency_ns: float) -> bool:
    return one.low_ns is not None and one.high_ns is not None and one.low_ns <= latency_ns <= one.high_ns


if __name__ == "__main__":
    main()
