"""Count the instructions of a submission's kernels on an emulated chip, by kernel and by source line, without times.

    counted(root, problem, submission, case) ─► Counts        one call, in a process of its own, unconfined
    python3 -m harness.profiling.counting SETTINGS            that process

The process works as the one of `program`, with the emulator in place of a GPU.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness import catalog
from harness.catalog.choice import case_named
from harness.chips.targets import EMULATED_TARGET
from harness.errors import InfrastructureError, UsageError
from harness.machine.device import detect
from harness.model import Case, Problem, Submission, Value, Verdict
from harness.profiling.process import Unprofiled
from harness.temporary import temporary_folder

LIMIT_S = 1800.0
FOUND = "counts.json"


class KernelCounts(Value):
    """The counts of one kernel.

    `instructions`: executed by waves, by class. `lines`: the same for all classes, by source line. `lds`: by line, the
      passes of LDS banks, and the passes without bank conflicts. `cached`: by line, the cache lines of global memory
      that were touched, and the fewest that would suffice.
    """

    kernel: str
    launches: int
    instructions: dict[str, int]
    lines: dict[str, int]
    lds: dict[str, tuple[int, int]]
    cached: dict[str, tuple[int, int]]


class Counts(Value):
    """The counts of one call."""

    problem: str
    submission: str
    target: str
    case: Case
    kernels: tuple[KernelCounts, ...] = ()
    failure: dict[str, str] | None = None


class Counting(Value):
    """The settings of the counting process."""

    root: Path
    problem: str
    name: str
    submission: Path
    path: str
    case: Case
    seed: int
    target: str


def counted(
    root: Path,
    problem: Problem,
    submission: Submission,
    case: str | None = None,
    target: str = EMULATED_TARGET,
    narrate: Callable[[str], None] = lambda line: None,
) -> Counts:
    """Count one call of `submission`. `case`: as in `profile`; default: the smallest CPU test case.

    Raises UsageError, InfrastructureError if the emulator is missing, Unprofiled if the submission fails.
    """
    from harness.emulator import available
    from harness.judge.reference import open_reference

    lacking = available()
    if lacking is not None:
        raise InfrastructureError(lacking)
    if problem.foreign is not None:
        raise UsageError(f"{problem.argument} cannot be profiled: it is in another project's form")
    reference = open_reference(problem, detect(root, "cpu"))
    chosen = case_named(problem, "cpu", case) if case else min(problem.cpu.test, key=reference.most_bytes)
    narrate(f"{submission.name}: one call of {chosen.label} emulated for {target}, unconfined, with your own rights")
    with temporary_folder() as folder:
        path = folder / "submission.py"
        path.write_bytes(submission.source)
        told = Counting(
            root=root.resolve(), problem=problem.name, name=submission.name, submission=path,
            path=submission.path, case=chosen, seed=secrets.randbits(62), target=target,
        )  # fmt: skip
        checkout = str(Path(__file__).resolve().parents[2])
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment |= {"PODIUM_EMULATE": target, "PODIUM_EMULATE_TRITON": "1", "TMPDIR": str(folder)}
        environment |= {"PYTHONPATH": os.pathsep.join([checkout, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
        command = [sys.executable, "-m", "harness.profiling.counting", told.model_dump_json()]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=LIMIT_S, check=False,
            )  # fmt: skip
            counts = Counts.model_validate_json((folder / FOUND).read_bytes())
        except subprocess.TimeoutExpired:
            raise Unprofiled(Verdict.TIMEOUT, f"it took longer than {LIMIT_S:g} s", None) from None
        except (OSError, ValidationError):
            raise InfrastructureError("the emulated program counted nothing", done.stderr[-600:]) from None
    if counts.failure is not None:
        kind = counts.failure["kind"]
        verdict = Verdict.INFRASTRUCTURE_ERROR if kind == "cannot_judge" else Verdict(kind)
        failed = Unprofiled(verdict, counts.failure["message"], counts.failure["detail"].rstrip())
        failed.name(path, submission.path)
        raise failed
    return counts


def _run(told: Counting) -> Counts:
    from harness.emulated.launches import of_process
    from harness.judge.reference import open_reference
    from harness.worker import load

    launches = of_process(told.target)
    launches.again, launches.outcomes = False, []
    shown: dict[str, Any] = {
        "problem": told.problem, "submission": told.name, "target": told.target, "case": told.case,
    }  # fmt: skip
    reference = open_reference(catalog.load_problem(told.root, told.problem), detect(told.root, "cpu"))
    try:
        submission = load.load(told.submission, interpreted=True)
        with submission.around_call():
            submission.kernel(reference.generate(told.case, told.seed))
    except BaseException as error:  # SystemExit comes from the submission, too
        if type(error).__module__ == "harness.errors":
            raise
        return Counts(**shown, failure=load.describe_failure(error, told.submission))
    kernels: dict[str, dict[str, Any]] = {}
    for name, outcome in launches.outcomes:
        sums = kernels.setdefault(name, {"launches": 0, "instructions": {}, "lines": {}, "lds": {}, "cached": {}})
        sums["launches"] += 1
        for kind, count in outcome.instructions.items():
            sums["instructions"][kind] = sums["instructions"].get(kind, 0) + count
        for (file, line), count in outcome.by_line.items():
            where = _place(told, file, line)
            sums["lines"][where] = sums["lines"].get(where, 0) + count
        for what, of_lines in (("lds", outcome.lds), ("cached", outcome.cached)):
            for (file, line), (taken, least) in of_lines.items():
                where = _place(told, file, line)
                before = sums[what].get(where, (0, 0))
                sums[what][where] = before[0] + taken, before[1] + least
    return Counts(**shown, kernels=tuple(KernelCounts(kernel=name, **sums) for name, sums in kernels.items()))


def _place(told: Counting, file: str, line: int) -> str:
    """Return a line as it is shown. The author knows the file's own name, and not that of the copy that was run."""
    path = Path(file)
    return f"{Path(told.path).name if path.name == told.submission.name else path.name}:{line}"


if __name__ == "__main__":
    Path(FOUND).write_text(_run(Counting.model_validate_json(sys.argv[1])).model_dump_json())
