"""Runs every bundled submission with AMD code in the emulator, on each chip: verdict, instructions, seconds.

    python -m bench.emulated [--target gfx942 ..] [--out FILE] [FILE ..]

All CPU test cases of the problem are judged as `check --target` judges them, Triton's kernels as machine code. Seconds
are processor seconds of the judge and the submission's process together. The part for compiling is shown beside them.
The budget is 60 s without compiling. A file that imports neither Triton nor harness.hip is left out. A file whose
kernels are for other chips says so.

Each row is measured in its own process. Prints a table and a line of JSON. --out: a file to which each finished row is
appended as a line of JSON, like those in bench/measured/. A restart skips rows of the same source and problem that the
file has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harness.chips.targets import EMULATED_TARGETS as TARGETS

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 1800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="of the bundled submissions (default: all)")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--out", type=Path, help="a file of lines of JSON to add the rows to")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(judged(Path(options.files[0]), options.target[0])))
        return
    files = [Path(file).resolve() for file in options.files] or [path for path in bundled() if has_kernels(path)]
    kept = {identity(row): row for row in read(options.out)} if options.out else {}
    rows = []
    for file, target in itertools.product(files, options.target or TARGETS):
        wanted = facts(file, target)
        if identity(wanted) in kept:
            rows.append(kept[identity(wanted)])
            continue
        rows.append({**wanted, **measured(file, target)})
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.2f}; {time.strftime('%Y-%m-%d')}")
    shown = ("submission", "revision", "target", "verdict", "cases", "instructions", "remarks", "CPU s", "compiling s")
    table = [{name: row.get(name) for name in shown} for row in rows]
    print(tabulate(table, headers="keys", tablefmt="simple_outline", intfmt=","))
    print(json.dumps({"bench": "emulated", "rows": rows}))


def bundled() -> list[Path]:
    return sorted(ROOT.glob("submissions/*/*.py"))


def has_kernels(path: Path) -> bool:
    text = path.read_text()
    return "harness.hip" in text or "import triton" in text


def facts(file: Path, target: str) -> dict[str, Any]:
    """What a row is of."""
    from harness import catalog

    problem = catalog.load_problem(ROOT, file.parent.name)
    return {
        "bench": "emulated",
        "date": time.strftime("%Y-%m-%d"),
        "submission": f"{file.parent.name}/{file.stem}",
        "target": target,
        "revision": problem.revision,
        "problem_sha256": problem.sha256,
        "submission_sha256": catalog.load_submission(problem, file).sha256,
    }


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    """By which two rows are of the same."""
    return tuple(row.get(name) for name in ("submission", "target", "problem_sha256", "submission_sha256"))


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of them; none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(file: Path, target: str) -> dict[str, Any]:
    """What became of a file on a target, from a process of its own."""
    command = [sys.executable, "-m", "bench.emulated", "--one", "--target", target, str(file)]
    before, began = os.times(), time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"verdict": done.stderr[-300:]}
    except subprocess.TimeoutExpired:
        found = {"verdict": f"not done after {LIMIT_S} s"}
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    said = f"{file.parent.name}/{file.stem} {target}: {found['verdict']} ({spent:.1f} s)"
    print(said, file=sys.stderr, flush=True)
    return {**found, "CPU s": round(spent, 1), "s": round(time.perf_counter() - began, 1)}


def judged(file: Path, target: str) -> dict[str, Any]:
    """The judge's verdict, and the instructions that the submission's process says that it executed."""
    from harness import catalog
    from harness.catalog.config import load_config
    from harness.judge.emulation import Emulation
    from harness.judge.evaluate import evaluate
    from harness.machine.device import detect

    problem = catalog.load_problem(ROOT, file.parent.name)
    submission = catalog.load_submission(problem, file)
    triton = "import triton" in submission.text
    run = evaluate(
        problem, submission, detect(ROOT, "cpu"), load_config(ROOT), timed=False, emulation=Emulation(target, triton)
    )
    accepted = run.ending.verdict.words == "accepted"
    return {
        "verdict": run.ending.verdict.words if accepted else f"{run.ending.verdict.words}: {run.ending.message}"[:160],
        "cases": sum(check.verdict.words == "accepted" for check in run.checks),
        "instructions": run.environment.get("emulated_instructions", 0),
        "compiling s": run.environment.get("emulated_compiling_s"),
        "remarks": "; ".join(run.environment.get("emulated_remarks", [])),
    }


if __name__ == "__main__":
    main()
