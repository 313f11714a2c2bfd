"""Profile one submission on one benchmark case: run the profiler that is installed here and read its files.

profile(root, problem, submission, device) ─► Profile, and a folder with the profiler's own files
"""

from __future__ import annotations

import json
import secrets
import statistics
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.catalog.choice import case_named
from harness.errors import InfrastructureError, UsageError
from harness.machine import lock
from harness.machine.device import detect
from harness.model import Case, Device, Floor, Problem, Submission, Verdict
from harness.profiling import ncu, process, rocprof, torch_profiler
from harness.profiling import tool as tools
from harness.profiling.excerpt import Profile, ProfiledKernel, kernels
from harness.profiling.program import OUTCOME, Outcome, Settings
from harness.ranking import roofline
from harness.records import whole_file

CALLS, WARMUP = 3, 3
EXCERPT, SOURCE = "profile.json", "submission.py"
OWN_FILES = (OUTCOME, process.PRINTED, EXCERPT, SOURCE)

UNCONFINED = (
    "profile runs {} outside the sandbox, with your own rights: it can read, change and send all that you can. "
    "Profile only code that you know."
)

Narrate = Callable[[str], None]
Found = tuple[Outcome, tuple[ProfiledKernel, ...], list[str]]
"""The program's outcome, the kernels that the profiler saw, and notes on them."""


def profile(
    root: Path,
    problem: Problem,
    submission: Submission,
    device: Device,
    *,
    tool: str = "auto",
    case: str | None = None,
    calls: int = CALLS,
    out: Path | None = None,
    narrate: Narrate = lambda line: None,
) -> Profile:
    """Profile `calls` calls on `case`, a number or a label. Default: the benchmark case with the highest floor.

    The profiler's files go to `out`, which must be empty, or to a new folder in build/profiles. Raises UsageError,
    InfrastructureError if the tool is missing or fails, process.Unprofiled if the submission fails, and ProblemError.
    """
    chosen = tools.chosen(tool, device)
    program = tools.find(chosen)
    shape, number, floor, needed_bytes = _case(root, problem, device, case)
    folder = _folder(root, submission, number, out)
    settings = Settings(
        root=root.resolve(),
        problem=problem.name,
        submission=folder / SOURCE,
        device=device,
        case=shape,
        seed=secrets.randbits(62),
        warmup=WARMUP,
        calls=calls,
        looks={"ncu": "cuda", "rocprofv3": "times"}.get(chosen, "torch"),  # type: ignore[arg-type]
        folder=folder,
    )
    (folder / SOURCE).write_bytes(submission.source)
    narrate(UNCONFINED.format(submission.path))
    narrate(f"{submission.name}: {calls} calls of {shape.label} under {tools.named(chosen)}, unconfined")
    try:
        outcome, found, notes = _run_alone(chosen, program, settings, narrate)
    except process.Unprofiled as failure:
        # The submission ran from a copy. Its author knows the file's own path, and not which case the profile chose.
        failure.name(settings.submission, submission.path)
        failure.hint = f"case {failure.case or shape.label}\n{failure.hint or ''}".rstrip()
        if failure.exit_code == Verdict.INFRASTRUCTURE_ERROR.exit_code and "harness.hip" in submission.text:
            failure.hint += f"\n  {process.COUNTED}"
        raise
    result = Profile(
        problem=problem.name,
        submission=submission.name,
        submission_sha256=submission.sha256,
        device=device,
        case=shape,
        case_number=number,
        tool=tools.named(chosen),
        calls=calls,
        kernels=found,
        # An operator's time is the mean over all calls, of which it is to be a part.
        call_ns=(statistics.fmean if device.kind == "cpu" else statistics.median)(
            ended - began for began, ended in outcome.calls
        ),
        floor=floor,
        needed_bytes=needed_bytes,
        folder=folder,
        files=tuple(sorted(_files(folder))),
        notes=tuple(notes),
    )
    _write(result)
    return result


def _run_alone(chosen: str, program: str, settings: Settings, narrate: Narrate) -> Found:
    """Run the profiler while no other process measures on the device."""
    device, folder, tried = settings.device, settings.folder, False

    def try_meanwhile() -> None:
        """Make one call while another process holds the processors, so that a submission that fails is reported at
        once."""
        nonlocal tried
        if not tried:
            tried = True
            _RUNS[chosen](program, settings.model_copy(update={"warmup": 0, "calls": 1}), lambda line: None)
            for name in (*_files(folder), process.PRINTED):
                (folder / name).unlink(missing_ok=True)

    with lock.hold(device, narrate, waiting=try_meanwhile if device.kind == "cpu" else None):
        return _RUNS[chosen](program, settings, narrate)


def _write(result: Profile) -> None:
    """Write the excerpt beside the profiler's own files. Raises InfrastructureError."""
    path = result.folder / EXCERPT
    try:
        whole_file.write(path, json.dumps(result.as_json(), indent=1).encode())
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}") from None


def _case(
    root: Path, problem: Problem, device: Device, wanted: str | None
) -> tuple[Case, int | None, Floor | None, float | None]:
    """Return the case, its number if it is a benchmark case, its floor, and the bytes that the floor counts."""
    from harness.judge.reference import open_reference

    if problem.foreign is not None:
        raise UsageError(f"{problem.argument} cannot be profiled: it is in another project's form")
    benchmarks = problem.cases_for(device.kind).benchmark
    cases = benchmarks if wanted is None else (case_named(problem, device.kind, wanted),)
    reference = open_reference(problem, detect(root, "cpu"))
    costs = [reference.cost(case) for case in cases]
    floors = [roofline.floor(cost, device) for cost in costs]

    def weight(index: int) -> float:
        floor = floors[index]
        return floor.latency_ns if floor else max(float(entry["bytes"]) for entry in costs[index].values())

    index = max(range(len(cases)), key=weight)
    chosen, floor = cases[index], floors[index]
    number = benchmarks.index(chosen) + 1 if chosen in benchmarks else None
    return chosen, number, floor, float(costs[index][floor.format]["bytes"]) if floor else None


def _folder(root: Path, submission: Submission, number: int | None, out: Path | None) -> Path:
    """Return an empty folder. Raises UsageError and InfrastructureError."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S-%f")
    folder = out or root / "build" / "profiles" / submission.problem / f"{submission.name}-{number or 'case'}-{moment}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", "name another folder with --out")
    except OSError as error:
        raise InfrastructureError(f"{folder} cannot be made: {error.strerror}", "name another with --out") from None
    return folder.resolve()


def _files(folder: Path) -> list[str]:
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return [name for name in found if name not in OWN_FILES]


def _run_ncu(program: str, settings: Settings, narrate: Narrate) -> Found:
    outcome = process.run(ncu.command(program, settings.folder, process.words(settings)), settings, "ncu", ncu.REMEDIES)
    if not (settings.folder / ncu.REPORT).exists():
        raise process.failed(settings, "ncu left no report", ncu.REMEDIES)
    asked = ncu.page_command(program, settings.folder)
    done = subprocess.run(asked, capture_output=True, text=True, errors="replace", timeout=process.LIMIT_S, check=False)
    (settings.folder / ncu.PAGE).write_text(done.stdout)
    launches = _read(lambda: ncu.read(done.stdout), settings)
    return outcome, kernels(launches, settings.calls), ["Clocks were not locked; caches were emptied at each launch."]


def _run_rocprof(program: str, settings: Settings, narrate: Narrate) -> Found:
    words, folder = process.words(settings), settings.folder
    outcome = process.run(rocprof.command(program, folder, words), settings, "rocprofv3", {})
    launches, others = _read(lambda: rocprof.read(folder, outcome.calls), settings)
    if not launches and others:
        raise InfrastructureError(
            "rocprofv3 saw kernels, but none at the times of the calls", f"its trace is in {folder}"
        )
    counters: dict[str, dict[str, float]] = {}
    for counter in rocprof.COUNTERS:
        narrate(f"counting {counter}")
        try:
            again = process.run(rocprof.counter_command(program, counter, folder, words), settings, "rocprofv3", {})
            counters[counter] = rocprof.counted(folder, counter, again.calls)
        except (InfrastructureError, KeyError, ValueError):
            counters[counter] = {}
    missing = [counter for counter, values in counters.items() if not values]
    notes = [f"Not counted here: {', '.join(missing)}; see {process.PRINTED}."] if missing else []
    if counters[rocprof.MATRIX]:
        notes.append(f"Compute is {rocprof.MATRIX}: how busy the matrix cores were.")
    found = rocprof.with_counters(launches, counters, settings.device.bandwidth_bytes_per_s)
    return outcome, kernels(found, settings.calls), notes


def _run_torch(program: str, settings: Settings, narrate: Narrate) -> Found:
    outcome = process.run(process.words(settings), settings, "torch.profiler", {})
    if settings.device.kind == "cpu":
        found = _read(lambda: torch_profiler.operators(settings.folder, settings.calls), settings)
        return outcome, found, ["The profiler itself takes some microseconds for every operator."]
    launches = _read(lambda: torch_profiler.launches(settings.folder), settings)
    return outcome, kernels(launches, settings.calls), ["No counters were read; the occupancy is an estimate."]


_RUNS = {"ncu": _run_ncu, "rocprofv3": _run_rocprof, "torch": _run_torch}


def _read(reading: Callable[[], Any], settings: Settings) -> Any:
    """Read the profiler's files. Raises InfrastructureError if they cannot be read."""
    try:
        return reading()
    except (ValueError, KeyError) as error:
        raise InfrastructureError(f"the profile cannot be read: {error}", f"it is in {settings.folder}") from None
