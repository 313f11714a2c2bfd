"""Runs all GPU measurements within a given time: the clock, E1 to E5, an evaluation of every problem.

    python bench/gpu.py [--device auto] [--out DIR] [--budget 780] [--only e1,mla,..]        make bench-gpu

Each step is its own process with a share of the time left. A step that fails or hangs loses only its own result. DIR is
updated after every step, so a kill loses only the current step:

    summary.json        a record per step: how it ended, seconds, its own JSON, and an evaluation's phases and runs
    summary.csv         a line per step: the table that is printed at the end
    constant, e1_..csv  every raw sample of the experiments, written as it comes
    evaluations.tar.gz  the run files that the evaluations stored
    log.txt             the output of every step

First one submission of every problem is evaluated, the first one in Triton. Then, as far as the time allows, mla's is
judged again, to see whether two runs of one source agree within their intervals, and all others follow. Evaluations use
their own roots: the checkout's results are not touched, and every submission is judged anew.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)

from tabulate import tabulate  # noqa: E402

from harness import catalog  # noqa: E402
from harness.machine import device  # noqa: E402

EXPERIMENTS = {
    "constant": ("constant", 30),
    "e1": ("e1_known_durations", 30),
    "e3": ("e3_cold_cache", 30),
    "e5": ("e5_profiler", 45),
    "e2": ("e2_same_and_slower", 60),
    "e4": ("e4_heater", 30),
}
"""Script and seconds of sampling, in the order of execution."""

START_S = 30
"""Seconds that an experiment may take beyond its sampling: imports, compilation, warm-up."""

SHARES = 1.5
"""An evaluation may take this many times its equal share of the time left. Evaluations differ, and most leave some
time."""

RESERVE_S = 5


@dataclass(frozen=True)
class Step:
    """A step of the bench. `limit_s` is None for an evaluation: evaluations of one `round` share the time left. `root`:
    where it stores runs."""

    name: str
    command: tuple[str, ...]
    limit_s: float | None = None
    root: Path | None = None
    round: int = 0


@dataclass
class Ended:
    """How a step ended: a word for it, its output, and each line on stderr with its time in seconds from the start."""

    how: str
    seconds: float
    stdout: str
    stderr: list[tuple[float, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--budget", type=float, default=780, help="seconds for everything")
    parser.add_argument("--only", help="what to run, with commas between: constant, e1 to e5, names of problems")
    options = parser.parse_args()
    end = time.monotonic() + options.budget - RESERVE_S
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that the current step is ended too
    here = device.detect(ROOT, options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    log = (options.out / "log.txt").open("w")
    with tempfile.TemporaryDirectory() as folder:
        steps = _steps(here.torch_device, options.out, Path(folder), options.only)
        known: set[str] = set()
        summary: dict[str, Any] = {
            "bench": "gpu",
            "device": here.model_dump(mode="json"),
            "date": time.strftime("%Y-%m-%d %H:%M:%S"),
            "budget_s": options.budget,
            "steps": [],
        }
        for number, step in enumerate(steps):
            limit_s = _limit(steps[number:], end - time.monotonic())
            print(f"{step.name}: at most {limit_s:.0f} s", file=sys.stderr, flush=True)
            ended = _run(step.command, limit_s) if limit_s > 1 else Ended("no time left", 0.0, "", [])
            summary["steps"].append(_record(step, ended, known))
            errors = "".join(f"{at:8.2f} {line}\n" for at, line in ended.stderr)
            log.write(f"==== {step.name}: {ended.how}, {ended.seconds:.1f} s\n{ended.stdout}\n{errors}\n")
            log.flush()
            _save(options.out, summary, Path(folder))
    print(f"{here.name}, {summary['date']}, {options.budget:g} s")
    print(tabulate([_line(record) for record in summary["steps"]], headers="keys", tablefmt="simple_outline",
                   maxcolwidths=[None, None, None, 100]))  # fmt: skip
    print(json.dumps(summary))


def _steps(torch_device: str, out: Path, folder: Path, only: str | None) -> list[Step]:
    """The steps to run. Raises SystemExit for an unknown step name."""
    python = sys.executable
    steps = []
    for name, (script, seconds) in EXPERIMENTS.items():
        words = ("--device", torch_device, "--out", str(out.resolve()), "--seconds", str(seconds))
        steps.append(Step(name, (python, str(ROOT / "bench" / f"{script}.py"), *words), seconds + START_S))
    problems = sorted(catalog.problem_names(ROOT), key=lambda name: name != "mla")
    for name in problems:
        first = sorted((ROOT / "submissions" / name).glob("triton*.py"))[0].name
        steps.append(_evaluation(f"{name}: {first[:-3]}", folder / name, name, torch_device, first, 1))
        if name == "mla":
            steps.append(_evaluation(f"{name}: {first[:-3]} again", folder / "again", name, torch_device, first, 2))
    for name in problems:
        steps.append(_evaluation(f"{name}: the others", folder / name, name, torch_device, None, 2))
    steps.sort(key=lambda step: step.round)
    if only is None:
        return steps
    wanted = {word.strip() for word in only.split(",")}
    if unknown := wanted - {step.name.partition(":")[0] for step in steps}:
        raise SystemExit(f"--only {only}: there are {', '.join([*EXPERIMENTS, *problems])}, not {', '.join(unknown)}")
    return [step for step in steps if step.name.partition(":")[0] in wanted]


def _evaluation(name: str, root: Path, problem: str, torch_device: str, file: str | None, round_: int) -> Step:
    root.mkdir(exist_ok=True)
    for part in ("problems", "submissions", "configs", "reference"):
        if not (root / part).exists():
            (root / part).symlink_to(ROOT / part)
    (root / "results").mkdir(exist_ok=True)
    # Isolation is used if the machine has any; a machine without it still has latencies to measure.
    words = ("eval", problem, *([str(root / "submissions" / problem / file)] if file else []), "--allow-unsandboxed")
    command = (sys.executable, "-m", "harness", "--root", str(root), *words, "--device", torch_device)
    return Step(name, command, None, root, round_)


def _limit(waiting: Sequence[Step], left_s: float) -> float:
    """The seconds for the first of the waiting steps, out of the seconds left."""
    first = waiting[0]
    if first.limit_s is not None:
        return min(first.limit_s, left_s)
    return min(SHARES * left_s / sum(step.round == first.round for step in waiting), left_s)


def _run(command: Sequence[str], limit_s: float) -> Ended:
    """Run `command`. At the limit, kill it and all processes that it started."""
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        process_group=0, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    stdout: list[str] = []
    stderr: list[tuple[float, str]] = []
    readers = [
        threading.Thread(target=lambda: stdout.extend(process.stdout), daemon=True),
        threading.Thread(
            target=lambda: stderr.extend((time.monotonic() - started, line.rstrip("\n")) for line in process.stderr),
            daemon=True,
        ),
    ]
    for reader in readers:
        reader.start()
    try:
        status = process.wait(limit_s)
        how = "done" if status == 0 else f"exit {status}"
    except subprocess.TimeoutExpired:
        how = "out of time"
    finally:
        # The process group is its own. A process left in it might still hold the device.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for reader in readers:
        reader.join(2)
    return Ended(how, time.monotonic() - started, "".join(stdout), list(stderr))


def _record(step: Step, ended: Ended, known: set[str]) -> dict[str, Any]:
    """The record of a step. `known` holds the runs of earlier steps; this step's runs are added."""
    record: dict[str, Any] = {"step": step.name, "ended": ended.how, "seconds": round(ended.seconds, 2)}
    if step.root is None:
        found = _last_json(ended.stdout)
        record["found"] = found
        record["headline"] = found.get("headline") or found.get("not_measured") or _last_words(ended)
        if "not_measured" in found:
            record["ended"] = "not measured"
        return record
    paths = sorted(step.root.glob("results/**/*.json"))
    runs = [run for path in paths if (run := json.loads(path.read_text()))["id"] not in known]
    known.update(run["id"] for run in runs)
    record["first_correct_s"], record["first_verdict_s"] = first_correct(ended.stderr), first_verdict(ended.stderr)
    record["phases"] = phases(ended.stderr, ended.seconds)
    record["runs"] = [_run_record(run) for run in runs]
    record["headline"] = _evaluation_headline(record)
    if ended.how != "done":
        record["headline"] += f"; last: {_last_words(ended)}"
    return record


def _last_json(stdout: str) -> dict[str, Any]:
    for line in reversed(stdout.splitlines()):
        if line.startswith("{"):
            try:
                return dict(json.loads(line))
            except ValueError:
                return {}
    return {}


def _last_words(ended: Ended) -> str:
    lines = [line for _, line in ended.stderr if line.strip()] or ended.stdout.splitlines()
    return lines[-1].strip()[:300] if lines else ""


_VERDICT = re.compile(r"^\S+: .*, \d+\.\d s$")
_PHASE = re.compile(r"^\S+: (loading|test|calibrating|pilot|timing)\b")


def first_correct(narration: Sequence[tuple[float, str]]) -> float | None:
    """The time at which the first submission's correctness was known: it was about to be timed, or it got its
    verdict."""
    begun = re.compile(r"^\S+: (calibrating|pilot)\b")
    return next((at for at, line in narration if _VERDICT.match(line) or begun.match(line)), None)


def first_verdict(narration: Sequence[tuple[float, str]]) -> float | None:
    """The time at which the first submission got its verdict."""
    return next((at for at, line in narration if _VERDICT.match(line)), None)


def phases(narration: Sequence[tuple[float, str]], seconds: float) -> dict[str, float]:
    """Seconds by phase, over all submissions. A line of narration begins a phase, which lasts until the next line.

    start: before the first submission; loading: its import; test; calibrating: the clock; pilot; timing; between: after
    a verdict.
    """
    spent: dict[str, float] = {}
    phase, since = "start", 0.0
    for at, line in narration:
        found = _PHASE.match(line)
        begins = found[1] if found else "between" if _VERDICT.match(line) else None
        if begins is not None:
            spent[phase] = spent.get(phase, 0.0) + at - since
            phase, since = begins, at
    spent[phase] = spent.get(phase, 0.0) + seconds - since
    return {name: round(value, 2) for name, value in spent.items()}


def _run_record(run: dict[str, Any]) -> dict[str, Any]:
    score = run.get("score") or {}
    return {
        "submission": run["submission"],
        "verdict": run["ending"]["verdict"],
        "message": run["ending"]["message"][:300],
        "unranked_because": run.get("unranked_because"),
        "duration_s": run["duration_s"],
        "isolation": run["environment"].get("isolation"),
        "score_ns": score.get("latency_ns"),
        "low_ns": score.get("low_ns"),
        "high_ns": score.get("high_ns"),
        "clock": run.get("clock"),
        "constants": run.get("constants"),
        "null_kernel_ns": run["environment"].get("null_kernel_ns"),
        "cases": [
            {
                "case": measurement["case"],
                "latency": measurement["latency"],
                "floor": measurement.get("floor"),
                "labels": measurement.get("labels"),
                **{name: measurement.get(name) for name in ("manner", "bound_ns", "inside_ns", "voids")},
                "samples": [len(process) for process in measurement["samples_ns"]],
            }
            for measurement in run.get("measurements") or []
        ],
    }


def _evaluation_headline(record: dict[str, Any]) -> str:
    parts = []
    for run in record["runs"]:
        words = run["verdict"]
        if run["score_ns"]:
            words = f"{run['score_ns'] / 1e3:.2f} us"
            if run["low_ns"]:
                words += f" ± {100 * (run['high_ns'] / run['low_ns'] - 1) / 2:.2f} %"
        parts.append(f"{run['submission']}: {words} ({run['duration_s']:.0f} s)")
        voids = sum(sum(case["voids"].values()) for case in run["cases"] if case["voids"])
        if voids:
            parts.append(f"{voids} calls void")
    for words, key in (("known whether right", "first_correct_s"), ("first verdict", "first_verdict_s")):
        if record[key] is not None:
            parts.append(f"{words} after {record[key]:.1f} s")
    return "; ".join([*parts, ", ".join(f"{name} {seconds:.0f} s" for name, seconds in record["phases"].items())])


def _save(out: Path, summary: dict[str, Any], folder: Path) -> None:
    temporary = out / "summary.tmp"
    temporary.write_text(json.dumps(summary, indent=1))
    temporary.replace(out / "summary.json")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("step", "ended", "seconds", "found"))
        writer.writeheader()
        writer.writerows(_line(record) for record in summary["steps"])
    temporary.replace(out / "summary.csv")
    with tarfile.open(temporary, "w:gz") as archive:
        for path in sorted(folder.glob("*/results/**/*.json")):
            archive.add(path, str(path.relative_to(folder)))
    temporary.replace(out / "evaluations.tar.gz")


def _line(record: dict[str, Any]) -> dict[str, Any]:
    return {**{name: record[name] for name in ("step", "ended", "seconds")}, "found": record["headline"]}


if __name__ == "__main__":
    main()
