"""Writes Podium's problems and runs as Definitions, Workloads, Solutions and Traces: files in one folder.

    definitions/OP/NAME.json      workloads/OP/NAME.jsonl      blob/workloads/NAME/UUID.safetensors
    solutions/OP/NAME.json        traces/OP/NAME.jsonl

A trace is a run's latency for one benchmark case. Nothing is measured for it. Values that the form asks for and Podium
has not measured are NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.command import pip_install
from harness.errors import InfrastructureError, UsageError
from harness.model import Case, Measurement, Problem, Run, Verdict
from harness.traces.forms import Form, of_problem
from harness.traces.solution import language_of

NOT_MEASURED = "NaN"
"""NaN as this form writes it: JSON has no such number."""

MOST_LOG = 4000
"""The most characters in a trace's log."""


@dataclass(frozen=True)
class TracedRun:
    """A run and the source that it judged. `baseline`: the fastest baseline on its board. `baseline_ns`: its latency by
    case."""

    run: Run
    source: bytes
    baseline: str | None = None
    baseline_ns: dict[str, float] = field(default_factory=dict)


@dataclass
class Written:
    """How many documents were written, and the runs without a trace, each with the reason."""

    definitions: int = 0
    workloads: int = 0
    solutions: int = 0
    traces: int = 0
    left_out: dict[str, str] = field(default_factory=dict)


def write(folder: Path, problems: Iterable[tuple[Problem, Sequence[TracedRun]]]) -> Written:
    """Write everything to `folder`, which must be new or empty. Raises UsageError and InfrastructureError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "not empty" if folder.is_dir() else "no folder"
        raise UsageError(f"{folder} is {what}: nothing is overwritten", "name another: --to")
    written = Written()
    try:
        for problem, judged in problems:
            for form in of_problem(problem.name):
                _write_form(folder, form, problem, judged, written)
    except OSError as error:
        raise InfrastructureError(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    return written


def _write_form(folder: Path, form: Form, problem: Problem, judged: Sequence[TracedRun], written: Written) -> None:
    accepted = [each for each in judged if each.run.ending.verdict is Verdict.ACCEPTED]
    timed = {each.run.id: [m for m in each.run.measurements if form.fits(m.case)] for each in accepted}
    stated = [*problem.cases.benchmark, *problem.cpu.benchmark, *(m.case for each in timed.values() for m in each)]
    cases = {case.key: case for case in stated if form.fits(case)}
    if not cases:
        return
    _put(folder / "definitions" / form.op_type / f"{form.name}.json", [form.definition()], indent=1)
    written.definitions += 1
    workloads = [
        {"definition": form.name, "workload": form.workload(case), "solution": None, "evaluation": None}
        for case in cases.values()
    ]
    _put(folder / "workloads" / form.op_type / f"{form.name}.jsonl", workloads)
    written.workloads += len(workloads)
    for case in cases.values():
        _put_lengths(folder, form, case)
    traces, named = [], set()
    for each in judged:
        measured = timed.get(each.run.id, [])
        if not measured:
            if each.run.ending.verdict is not Verdict.ACCEPTED:
                written.left_out[each.run.id] = f"{each.run.ending.verdict.words}: nothing was timed"
            elif not each.run.measurements:
                written.left_out[each.run.id] = "it was verified and not timed"
            continue
        name = solution_name(form, each.run)
        if name not in named:
            named.add(name)
            _put(folder / "solutions" / form.op_type / f"{name}.json", [_solution(form, name, each)], indent=1)
        traces += [_trace(form, name, each, measurement) for measurement in measured]
    if traces:
        _put(folder / "traces" / form.op_type / f"{form.name}.jsonl", traces)
    written.solutions += len(named)
    written.traces += len(traces)


def solution_name(form: Form, run: Run) -> str:
    """A name for the solution that is unique in its folder."""
    return f"{form.name}_{run.submission.replace('/', '_')}_{run.submission_sha256[:8]}"


def _solution(form: Form, name: str, judged: TracedRun) -> dict[str, Any]:
    run, source = judged.run, judged.source.decode(errors="replace").rstrip("\n")
    appended = "# What follows is Podium's: it calls the above as the Definition says."
    return {
        "name": name,
        "definition": form.name,
        "author": run.submission.partition(".")[0] if "." in run.submission else "unknown",
        "spec": {
            "language": language_of(judged.source),
            "target_hardware": [run.device.name],
            "entry_point": "main.py::podium_run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": f"{source}\n\n\n{appended}\n{form.inwards}"}],
        "description": f"{run.submission} of {run.problem}, sha256 {run.submission_sha256}",
    }


def _trace(form: Form, name: str, judged: TracedRun, measurement: Measurement) -> dict[str, Any]:
    run, latency = judged.run, measurement.latency
    reference_ns = judged.baseline_ns.get(measurement.case.key)
    packages = {str(key): str(value) for key, value in run.environment.get("packages", {}).items()}
    said = [f"run {run.id}, {run.problem} revision {run.problem_revision}, timed by the {run.clock.value}"]
    if latency.low_ns is not None and latency.high_ns is not None:
        said.append(f"latency {latency.low_ns / 1e6:.6g} to {latency.high_ns / 1e6:.6g} ms")
    if run.unranked_because is not None:
        said.append(f"not ranked: {run.unranked_because}")
    if reference_ns is None:
        said.append("no reference latency was measured: it is given as 0")
    else:
        said.append(f"reference_latency_ms is that of the baseline {judged.baseline}")
    extra = {"rel_l2": _number(run.error), "tolerance": run.tolerance}
    return {
        "definition": form.name,
        "workload": form.workload(measurement.case),
        "solution": name,
        "evaluation": {
            "status": "PASSED",
            "environment": {"hardware": run.device.name, "libs": packages},
            "timestamp": run.started_at,
            "log": "; ".join(said)[:MOST_LOG],
            "correctness": {
                "max_relative_error": NOT_MEASURED,
                "max_absolute_error": NOT_MEASURED,
                "extra": extra,
            },
            "performance": {
                "latency_ms": latency.latency_ns / 1e6,
                "reference_latency_ms": (reference_ns or 0.0) / 1e6,
                "speedup_factor": (reference_ns or 0.0) / latency.latency_ns,
            },
        },
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def _put(path: Path, documents: Sequence[dict[str, Any]], indent: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False) for document in documents)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="replace")


def _put_lengths(folder: Path, form: Form, case: Case) -> None:
    lengths = form.lengths_of(case)
    if lengths is None or form.lengths is None:
        return
    try:
        from safetensors.numpy import save_file
    except ModuleNotFoundError:
        raise UsageError("writing tensors needs safetensors", pip_install("safetensors")) from None
    path = folder / form.tensors_path(case)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({form.lengths[0]: np.array(lengths, dtype=np.int32)}, path)
