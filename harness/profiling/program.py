"""The profiled program: makes the inputs of a case, warms up, and calls the submission under the profiler.

    python3 -m harness.profiling.program SETTINGS        as JSON; see Settings

Every call gets fresh inputs, because a submission may write to its inputs. The outcome is in program.json of its
folder.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from harness import catalog
from harness.judge.reference import open_reference
from harness.model import Case, Device, Value
from harness.worker import load

OUTCOME = "program.json"


class Settings(Value):
    """The settings of the profiled program. `looks`: how the profiler recognises the calls: by CUDA's profiler start
    and stop, by torch.profiler in this process, or by the times of the calls."""

    root: Path
    problem: str
    submission: Path
    device: Device
    case: Case
    seed: int
    warmup: int
    calls: int
    looks: Literal["cuda", "torch", "times"]
    folder: Path


class Outcome(Value):
    """The outcome of the profiled program.

    `calls`: when each call began and ended, in ns of CLOCK_BOOTTIME, which rocprofv3 uses. Empty if the kernels are
      `interpreted`, which a call of the smallest test case shows. `failure`: from `load.describe_failure`.
    """

    calls: tuple[tuple[int, int], ...] = ()
    interpreted: bool = False
    failure: dict[str, str] | None = None


def run(settings: Settings) -> Outcome:
    """Call the submission under the profiler. Raises ProblemError if the problem's own code fails."""
    on_gpu = settings.device.kind != "cpu"
    if on_gpu:
        torch.cuda.set_device(torch.device(settings.device.torch_device))
    problem = catalog.load_problem(settings.root, settings.problem)
    case = settings.case
    reference = open_reference(problem, settings.device)
    spans = []
    try:
        submission = load.load(settings.submission, interpreted=not on_gpu)
        if not on_gpu:
            smallest = min(problem.cpu.test, key=reference.most_bytes)
            with submission.around_call():
                submission.kernel(reference.generate(smallest, settings.seed))
            if submission.interpreted_launches() > 0:
                return Outcome(interpreted=True)
        for number in range(-settings.warmup, settings.calls):
            data = reference.generate(case, settings.seed + settings.warmup + number)
            with _looking(settings, number, on_gpu):
                began = _now_ns()
                with submission.around_call():
                    submission.kernel(data)
                if on_gpu:
                    torch.cuda.synchronize()
                ended = _now_ns()
            if number >= 0:
                spans.append((began, ended))
            del data
    except BaseException as error:  # SystemExit comes from the submission, too
        if type(error).__module__ == "harness.errors":
            raise
        return Outcome(failure=load.describe_failure(error, settings.submission))
    return Outcome(calls=tuple(spans))


@contextlib.contextmanager
def _looking(settings: Settings, number: int, on_gpu: bool) -> Iterator[None]:
    """Profile the code in this block, unless it is a warm-up."""
    if on_gpu:
        torch.cuda.synchronize()
    if number < 0 or settings.looks == "times":
        yield
    elif settings.looks == "cuda":
        torch.cuda.profiler.start()
        try:
            yield
        finally:
            torch.cuda.profiler.stop()
    else:
        # torch.profiler.profile uses this class, but importing it imports torch's compiler, which takes seconds.
        from torch.autograd.profiler import profile

        with profile(use_device="cuda" if on_gpu else None, use_kineto=True) as profiler:
            yield
        profiler.export_chrome_trace(str(settings.folder / f"trace-{number + 1}.json"))
        path = settings.folder / "operators.json"
        earlier: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*earlier, *_operators(profiler)], indent=1))


def _operators(profiler: Any) -> list[dict[str, Any]]:
    """Return every operator's own time in one call, without the operators that it called."""
    return [
        {"name": event.key, "count": event.count, "self_cpu_us": event.self_cpu_time_total}
        for event in profiler.key_averages()
    ]


def _now_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def main() -> None:
    settings = Settings.model_validate_json(sys.argv[1])
    outcome = run(settings)
    (settings.folder / OUTCOME).write_text(outcome.model_dump_json())


if __name__ == "__main__":
    main()
