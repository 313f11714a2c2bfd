"""Export problems and stored runs in the form of FlashInfer's traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import catalog
from harness.errors import InfrastructureError, UsageError
from harness.model import ClockOwner, Problem, Run
from harness.records.index import Index
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.traces import forms, written
from harness.traces.written import TracedRun, Written
from harness.verbs import devices


def export(root: Path, names: Sequence[str], folder: Path, device: str | None = None) -> Written:
    """Write Definitions, Workloads, Solutions and Traces to the new folder `folder`. `names`: the problems, by default
    all that have a Definition. `device`: the device whose runs are exported, by default every device.

    Raises UsageError for a problem without a Definition or a folder that is not empty, and InfrastructureError.
    """
    named = list(dict.fromkeys(names)) or sorted(
        {form.problem for form in forms.FORMS} & set(catalog.problem_names(root))
    )
    problems = [catalog.load_problem(root, name) for name in named]
    for problem in problems:
        if not forms.of_problem(problem.name):
            known = ", ".join(sorted({form.problem for form in forms.FORMS}))
            raise UsageError(f"{problem.name} has no Definition in FlashInfer's form", f"these have one: {known}")
    left_out: dict[str, str] = {}
    store = Store(root)
    with store.index() as index:
        if device is not None:
            there = {folder: name for problem in named for folder, name in index.devices(problem).items()}
            device = devices.folder(device, there, named)
        found = [(problem, list(_judged(root, store, index, problem, device, left_out))) for problem in problems]
    done = written.write(folder, found)
    done.left_out.update(left_out)
    return done


def _judged(
    root: Path, store: Store, index: Index, problem: Problem, device: str | None, left_out: dict[str, str]
) -> Iterator[TracedRun]:
    runs: list[Run] = []
    for entry in {entry.id: entry for entry in index.runs()}.values():
        if entry.problem != problem.name or (device is not None and entry.device != device):
            continue
        if entry.worker_timed:
            left_out[entry.id] = "its own process timed it"
            continue
        try:
            runs.append(load_run(root / "results" / entry.path))
        except ValueError as error:
            left_out[entry.id] = str(error)
    baselines = {slug: _baseline(problem, runs, slug) for slug in {run.device.slug for run in runs}}
    for run in runs:
        baseline = baselines[run.device.slug]
        latencies = {m.case.key: m.latency.latency_ns for m in baseline.measurements} if baseline else {}
        try:
            source = store.source(run.problem, run.submission_sha256)
        except InfrastructureError as error:
            left_out[run.id] = error.message
            continue
        yield TracedRun(run, source, baseline.submission if baseline else None, latencies)


def _baseline(problem: Problem, runs: Sequence[Run], slug: str) -> Run | None:
    """Return the fastest baseline run on a device, for the latest revision of the problem that has one."""
    of = [
        run
        for run in runs
        if run.submission in problem.baselines
        and run.device.slug == slug
        and run.score is not None
        and run.clock is ClockOwner.JUDGE
    ]
    newest = max((run.problem_revision for run in of), default=0)
    return min(
        (run for run in of if run.problem_revision == newest),
        key=lambda run: run.score.latency_ns if run.score else 0.0,
        default=None,
    )
