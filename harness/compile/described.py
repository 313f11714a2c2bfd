"""Describe the inputs of a problem for compiling processes. This runs apart from the submission; `inputs` defines the
format.

    python3 -m harness.compile.described PROBLEM FOLDER [--target gfx942 ...] [--cases benchmark] [--root ROOT]

It writes FOLDER/cpu/ with the CPU test cases, drawn from a public seed, and FOLDER/<target>/ with the benchmark and
test cases on the target's card, without storage. A problem may choose other types on the simulated card. So each
target's inputs are made in a forked process, which keeps the simulation out of this one.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from harness import catalog
from harness.catalog import places
from harness.chips.targets import DEFAULT_TARGETS, TARGETS
from harness.compile.apart import apart
from harness.compile.inputs import Described
from harness.errors import ProblemError
from harness.judge.reference import Reference
from harness.model import Case, Device, Problem

SECONDS = 120
"""The time limit to describe all cases of a target. It takes a tenth of a second."""


def on_cpu(problem: Problem, folder: Path) -> None:
    """Write the CPU test cases with their values to `folder`. Raises ProblemError."""
    cpu = Device(kind="cpu", name="cpu", slug="cpu", arch="", torch_device="cpu", memory_bytes=0, flush_bytes=0)
    reference = Reference(problem, cpu)
    described = Described(problem.inputs, problem.in_place)
    for case in problem.cpu.test:
        _add(problem, described, case, reference.generate(case, seed=0))
    folder.mkdir()
    described.write(folder)


def on_targets(problem: Problem, targets: Sequence[str], folder: Path, cases: Iterable[Case] | None = None) -> None:
    """Write the cases of each target as phantoms to its own directory in `folder`. Default `cases`: the benchmark
    cases, then the test cases, each once.

    Raises ProblemError. Without Triton, whose driver is part of the simulated card, nothing is written.
    """
    every = (*problem.cases.benchmark, *problem.cases.test) if cases is None else cases
    chosen = tuple({case.label: case for case in every}.values())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*use of fork.*", DeprecationWarning)  # torch's threads are idle
        outcome = apart(lambda: _all(problem, targets, chosen, folder), cpu_s=SECONDS, wall_s=4 * SECONDS)
    if outcome.status != 0 or outcome.returned is not None:
        last = (outcome.said.strip().splitlines() or [f"status {outcome.status}"])[-1]
        raise ProblemError(f"{problem.folder / 'reference.py'}: its inputs cannot be described: "
                           f"{outcome.returned or last}")  # fmt: skip


def _all(problem: Problem, targets: Sequence[str], cases: Sequence[Case], folder: Path) -> str | None:
    """Return the error, or None. Triton is imported once, here."""
    torch.set_num_threads(1)  # a forked process has no other threads
    try:
        import harness.compile.absent_device  # noqa: F401
    except ImportError:
        return None
    for target in targets:
        outcome = apart(functools.partial(_one, problem, target, cases, folder), cpu_s=SECONDS, wall_s=SECONDS)
        if outcome.status != 0 or outcome.returned is not None:
            said = (outcome.said.strip().splitlines() or [f"status {outcome.status}"])[-1]
            return f"for {target}: {outcome.returned or said}"
    return None


def _one(problem: Problem, target: str, cases: Sequence[Case], folder: Path) -> str | None:
    from harness.compile import absent_device
    from harness.compile.phantom import Phantoms
    from harness.compile.triton_compiler import NoCompiler

    try:
        phantoms = Phantoms()
        absent_device.present(target, NoCompiler(target, problem.folder / "reference.py"), phantoms)
        described = Described(problem.inputs, problem.in_place)
        make = input_maker(problem)
        for case in cases:
            with phantoms:
                data = make(**case.parameters, device="cuda")
            _add(problem, described, case, data, phantoms)
        (folder / target).mkdir()
        described.write(folder / target)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _add(problem: Problem, described: Described, case: Case, data: Any, phantoms: Any = None) -> None:
    try:
        described.add(case.label, data, phantoms)
    except (TypeError, ValueError) as error:
        raise ProblemError(f"{problem.folder / 'reference.py'}: the inputs of {case.label}: {error}") from error


def input_maker(problem: Problem) -> Callable[..., Any]:
    """Return the problem's empty_input, or its generate_input with a seed. Raises ProblemError if reference.py cannot
    be imported."""
    path = problem.folder / "reference.py"
    sys.path.insert(0, str(places.mathematics(problem.folder)))  # for `import reference`
    spec = importlib.util.spec_from_file_location(f"podium_problem_{problem.name}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProblemError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return getattr(module, "empty_input", None) or functools.partial(module.generate_input, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m harness.compile.described")
    parser.add_argument("problem")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--cases", choices=("benchmark", "test"), help="(default: both)")
    parser.add_argument("--root", type=Path, default=places.default_root())
    options = parser.parse_args()
    problem = catalog.load_problem(options.root, options.problem)
    options.folder.mkdir(parents=True, exist_ok=True)
    on_cpu(problem, options.folder / "cpu")
    chosen = {"benchmark": problem.cases.benchmark, "test": problem.cases.test}.get(options.cases)
    on_targets(problem, options.target or DEFAULT_TARGETS, options.folder, chosen)


if __name__ == "__main__":
    main()
