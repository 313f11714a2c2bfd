"""Measures how often honest work is void, unranked or accused: on a busy machine, and in stored runs.

    python bench/voids.py [--runs 20] [--seconds 540]        on this machine's CPU; 20 to 30 s a run
    python bench/voids.py --quick ...                        the same as `eval --quick` judges it, in one process: 4 s
    python bench/voids.py --forked ...                       the same, its timed processes forked from one: 8 s
    python bench/voids.py --stored [RESULTS]                 of the runs in RESULTS (default: results), at once

An honest submission to a toy problem is judged again and again on the CPU. Every second time, this program starts as
many busy processes as there are processors and stops them afterwards (`quiet`: without them). It counts the ranked
runs, the unranked runs by reason, and the accused runs, which have any verdict but accepted. None should be accused.
`at most` is the highest rate compatible with the counts at 95 % (Clopper and Pearson; for none in n about 3 / n).

--stored is the way to learn it for GPUs. It prints the same counts for each device's runs by the judge's clock and, by
manner of timing, the numbers of sittings and calls, and of void calls by reason. Those runs are of any submission,
honest or not, so their verdicts are counted and not called accusations.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from scipy.special import betaincinv
from tabulate import tabulate

from bench.experiment import ROOT, measuring, one_pass
from harness.catalog.config import load_config
from harness.errors import PodiumError
from harness.judge.evaluate import evaluate
from harness.machine import device as devices
from harness.model import ClockOwner, Run, Verdict
from harness.records.run_file import load_run

NAME = "voids"
CONFIDENCE = 0.95
CASES = [{"variant": size, "elements": elements} for size, elements in (("small", 1 << 12), ("large", 1 << 20))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=540, help="start no run after so much time")
    parser.add_argument("--quick", action="store_true", help="time one process, which is never ranked")
    parser.add_argument("--forked", action="store_true", help="do not start each timed process from nothing")
    parser.add_argument("--stored", nargs="?", type=Path, const=ROOT / "results", metavar="RESULTS")
    given = parser.parse_args()
    if given.stored is not None:
        return of_stored(given.stored)
    here, config = devices.detect(ROOT, "cpu"), load_config(ROOT)
    if given.forked:
        config = config.model_copy(update={"cpu": config.cpu.model_copy(update={"fresh": False})})
    runs: dict[str, list[Run]] = {"quiet": [], "busy": []}
    began, load_before = time.monotonic(), os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        problem, submission = one_pass(Path(folder), CASES)
        for number in range(given.runs):
            if time.monotonic() - began > given.seconds:
                break
            state = ("quiet", "busy")[number % 2]
            with measuring(here), busy_processes(os.cpu_count() or 1) if state == "busy" else contextlib.nullcontext():
                run = evaluate(problem, submission, here, config, quick=given.quick, allow_unsandboxed=True)
            runs[state].append(run)
            words = f"{run.ending.verdict.words}, {run.unranked_because or 'ranked'}, {run.duration_s:.0f} s"
            print(f"run {number + 1}, {state}: {words}", file=sys.stderr, flush=True)
    rows = [{"neighbours": state, **_counts(found)} for state, found in runs.items() if found]
    everything = [run for found in runs.values() for run in found]
    accused = [run.ending.message for run in everything if run.ending.verdict is not Verdict.ACCEPTED]
    headline = f"{len(accused)} of {len(everything)} honest runs accused: "
    headline += f"at most {at_most(len(accused), len(everything)):.1%} are, at {CONFIDENCE:.0%}"
    print(f"{NAME} on {here.name}, {time.strftime('%Y-%m-%d')}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline"))
    print(headline, *accused, sep="\n")
    found = {"bench": NAME, "device": here.name, "headline": headline, "rows": rows, "accused": accused}
    print(json.dumps({**found, "load": [load_before, os.getloadavg()]}))


def of_stored(results: Path) -> None:
    """What the runs under `results` say, for those that the judge's clock timed."""
    runs: dict[str, list[Run]] = {}
    for path in sorted(results.glob("*/*/*/*.json")):
        try:
            run = load_run(path)
        except PodiumError as error:
            print(f"{path}: {error}", file=sys.stderr)
            continue
        if run.clock is ClockOwner.JUDGE:
            runs.setdefault(run.device.name, []).append(run)
    if not runs:
        print(f"no run under {results} was timed by the judge's clock")
        print(json.dumps({"bench": NAME, "not_measured": "no run by the judge's clock is stored"}))
        return
    rows = [{"device": name, **_counts(found)} for name, found in runs.items()]
    sittings = [{"device": name, **row} for name, found in runs.items() for row in by_manner(found)]
    for table in (rows, sittings):
        print(tabulate(table, headers="keys", tablefmt="simple_outline"))
    headline = "; ".join(f"{r['device']}, {r['manner']}: {r['void']} of {r['calls']} calls void" for r in sittings)
    print(json.dumps({"bench": NAME, "headline": headline, "rows": rows, "sittings": sittings}))


def by_manner(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row a manner of timing: sittings (a case in a process), calls, and of them the void ones by reason."""
    rows: dict[str, dict[str, Any]] = {}
    reasons: dict[str, Counter[str]] = {}
    for measurement in (measurement for run in runs for measurement in run.measurements):
        manner = measurement.manner.value if measurement.manner is not None else "?"
        row = rows.setdefault(manner, {"manner": manner, "cases": 0, "sittings": 0, "calls": 0, "void": 0})
        voids = sum(measurement.voids.values())
        row["cases"] += 1
        row["sittings"] += len(measurement.samples_ns)
        row["calls"] += voids + sum(map(len, measurement.samples_ns))
        row["void"] += voids
        reasons.setdefault(manner, Counter()).update(measurement.voids)
    for manner, row in rows.items():
        row["at most"] = f"{at_most(row['void'], row['calls']):.2%}"
        row["reasons"] = _listed(reasons[manner])
    return list(rows.values())


def _counts(runs: Sequence[Run]) -> dict[str, Any]:
    accused = sum(run.ending.verdict is not Verdict.ACCEPTED for run in runs)
    accepted = [run for run in runs if run.ending.verdict is Verdict.ACCEPTED]
    unranked = Counter(run.unranked_because or "not timed" for run in accepted if not run.ranked)
    voids: Counter[str] = Counter()
    for measurement in (measurement for run in runs for measurement in run.measurements):
        voids.update(measurement.voids)
    return {
        "runs": len(runs),
        "ranked": sum(run.ranked for run in runs),
        "unranked": _listed(unranked),
        "not accepted": accused,
        "at most": f"{at_most(accused, len(runs)):.1%}",
        "void calls": _listed(voids),
    }


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} x {reason}" for reason, count in counts.most_common()) or "none"


def at_most(found: int, of: int) -> float:
    """The highest rate of which so few are found in so many with a chance of 5 % (Clopper and Pearson, one-sided)."""
    return 1.0 if found >= of else float(betaincinv(found + 1, of - found, CONFIDENCE))


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that compute and do nothing else, for as long as it lasts, and no longer than this process."""
    program = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
