"""Every bundled submission with AMD code in the emulator, on each chip: verdict, instructions, seconds.

    python -m bench.emulated [--target gfx942 ..] [--out FILE] [FILE ..]

All CPU test cases of the problem, one call each, judged as `check --target` judges them; Triton's kernels as machine
code. Seconds are those of the processor, of the judge and the submission's process together, compiling with Triton
included; the budget is 60 s beside compiling. A file that imports neither Triton nor harness.hip is left out, as is one
whose kernels are for NVIDIA alone. Each row is a process of its own. Prints a table and a line of JSON. --out: a file
to which each row is added as a line of JSON once it is there, as those in bench/measured/.
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

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("gfx942", "gfx950", "gfx1100")
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
    rows = []
    for file, target in itertools.product(files, options.target or TARGETS):
        rows.append(measured(file, target))
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps({"bench": "emulated", "date": time.strftime("%Y-%m-%d"), **rows[-1]}) + "\n")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.2f}; {time.strftime('%Y-%m-%d')}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", intfmt=","))
    print(json.dumps({"bench": "emulated", "rows": rows}))


def bundled() -> list[Path]:
    return sorted(ROOT.glob("submissions/*/*.py"))


def has_kernels(path: Path) -> bool:
    text = path.read_text()
    return "harness.hip" in text or "import triton" in text


def measured(file: Path, target: str) -> dict[str, Any]:
    """One row, from a process of its own."""
    name = f"{file.parent.name}/{file.stem}"
    command = [sys.executable, "-m", "bench.emulated", "--one", "--target", target, str(file)]
    before, began = os.times(), time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"verdict": done.stderr[-300:]}
    except subprocess.TimeoutExpired:
        found = {"verdict": f"not done after {LIMIT_S} s"}
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    row = {
        "submission": name,
        "target": target,
        **found,
        "CPU s": round(spent, 1),
        "s": round(time.perf_counter() - began, 1),
    }
    print(f"{name} {target}: {found['verdict']} ({row['CPU s']} s)", file=sys.stderr, flush=True)
    return row


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
        "remarks": "; ".join(run.environment.get("emulated_remarks", [])),
    }


if __name__ == "__main__":
    main()
