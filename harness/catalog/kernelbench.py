"""Loads KernelBench's tasks: one Python file with a class Model, get_inputs() and get_init_inputs(), used unchanged.

    level1/1_Square.py           class Model(nn.Module), get_inputs, get_init_inputs; sizes are constants of the module
    level1/1_Square.podium.yml   optional (podium_file): `shapes` has other numbers for these constants on a CPU

A task has one case: its constants. The format: github.com/ScalingIntelligence/KernelBench. Nothing here runs the code
that it reads.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path
from typing import Any

from harness.catalog import podium_file, strict_yaml
from harness.catalog.problem import problem_names, sha256_of
from harness.errors import ProblemError, did_you_mean
from harness.model import CHECKER, Case, Cases, CaseValue, Foreign, Limits, Precision, Problem, Submission, Tolerance

TOLERANCE = 1e-4
"""KernelBench's rtol and atol for float32. For less exact dtypes the judge allows HALF_TOLERANCE."""

HALF_TOLERANCE = 1e-2

CALL_S = 180.0
"""The time limit of a call. The first call of a compiled model compiles, which takes more than a minute on two busy
processors."""

_NEEDED = {"Model": ast.ClassDef, "get_inputs": ast.FunctionDef, "get_init_inputs": ast.FunctionDef}
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


def load_task(root: Path, path: Path, precision: Precision | None = None) -> Problem:
    """The task in the file at `path`. With `precision`, its weights and inputs are cast to it, and the task is a
    problem of its own. Raises ProblemError with one sentence if the file is not a task."""
    own = path.with_suffix(".podium.yml")
    ours = podium_file.read(own)
    for key in ("seed_below", "compat", "strict", "oracle", "tolerances", "cpu"):
        if getattr(ours, key):
            raise ProblemError(f"{own}: {key} has no meaning for a task of KernelBench's form")
    constants = constants_of(path, strict_yaml.read_text(path))
    for name in ours.shapes:
        if name not in constants:
            raise ProblemError(f"{own}: shapes: {path.name} has no constant {name}", did_you_mean(name, constants))
    cases, cpu = (
        Cases(test=(case,), benchmark=(case,))
        for case in (Case(parameters=constants), Case(parameters=constants | ours.shapes))
    )
    podium_file.check_costs(own, ours, (*cases.test, *cpu.test))
    level = path.parent.name if re.fullmatch(r"level\d", path.parent.name) else ""
    name = "_".join(filter(None, (ours.name or "_".join(filter(None, (level, path.stem))), precision)))
    if not _NAME.fullmatch(name):
        raise ProblemError(f"{path}: {name!r} cannot be a problem's name", f"set another name in {own.name}")
    return Problem(
        name=f"{name}-kernelbench" if name in problem_names(root) else name,
        title=name,
        description=f"KernelBench's {path.name}{f', in {precision}' if precision else ''}.",
        revision=ours.revision,
        inputs=(),
        outputs=(),
        axes={},
        tolerances={CHECKER: (Tolerance(rtol=TOLERANCE, atol=TOLERANCE, max_mismatch=0),)},
        cases=cases,
        cpu=cpu,
        limits=_limits(own, ours.limits),
        foreign=Foreign(form="kernelbench", path=path, modules={}, precision=precision, cost=ours.costs),
        folder=path.parent,
        hidden=(path.parent,),
        sha256=sha256_of([path, *([own] if own.exists() else [])]),
    )


def baselines(problem: Problem) -> list[Submission]:
    """The task's own Model as two submissions: unchanged, and through torch.compile."""
    assert problem.foreign is not None
    text = strict_yaml.read_text(problem.foreign.path)
    return [
        Submission(
            name=name,
            problem=problem.name,
            sha256=hashlib.sha256(source).hexdigest(),
            source=source,
            path=f"{name} of {problem.foreign.path.name}",
        )
        for name, body in _BASELINES.items()
        for source in [f"{text}\n\nclass ModelNew(Model):\n{body}".encode()]
    ]


_BASELINES = {
    "eager": "    pass\n",
    "compiled": "    def __init__(self, *arguments):\n        super().__init__(*arguments)\n        self.compile()\n",
}


def constants_of(path: Path, text: str) -> dict[str, CaseValue]:
    """The module's constants that are numbers, or lists or tuples of whole numbers, by name. Raises ProblemError if the
    file is not a task."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ProblemError(f"{path}, line {error.lineno}: {error.msg}") from None
    there = {node.name: type(node) for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    for name, kind in _NEEDED.items():
        if there.get(name) is not kind:
            what = "class" if kind is ast.ClassDef else "function"
            raise ProblemError(f"{path} is not a task of KernelBench's form: it has no {what} {name}")
    found: dict[str, CaseValue] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _constant(node.value)
            if value is not None:
                found[node.targets[0].id] = value
    return found or {"task": path.stem}


def with_constants(text: str, constants: dict[str, Any]) -> ast.Module:
    """The module with these values for its constants of the same names. Values computed from the constants follow."""
    module = ast.parse(text)
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            old, name = _constant(node.value), node.targets[0].id
            if old is not None and name in constants:
                new = constants[name]
                literal = tuple(new) if isinstance(node.value, ast.Tuple) else new
                node.value = ast.copy_location(ast.parse(repr(literal), mode="eval").body, node.value)
                ast.fix_missing_locations(node)
    return module


def _constant(node: ast.expr) -> CaseValue | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, bool | int | float):
        return value
    numbers = isinstance(value, tuple | list) and bool(value) and all(type(each) is int for each in value)
    return list(value) if numbers else None


def _limits(path: Path, stated: dict[str, Any]) -> Limits:
    for key in stated:
        if key not in Limits.model_fields:
            raise ProblemError(f"{path}: unknown key limits.{key}", did_you_mean(key, Limits.model_fields))
    try:
        return Limits(**({"call_s": CALL_S} | stated))
    except ValueError as error:
        raise ProblemError(f"{path}: limits: {str(error).splitlines()[-2].strip()}") from None
