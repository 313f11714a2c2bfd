"""Loads problems of GPU MODE's competitions: folders with a task.yml, used unchanged.

    <set>.yaml                 name, deadline and GPUs of each folder (set_file)
    <set>/<folder>/task.yml    files, tests, benchmarks, timeouts, ranking_by
    <set>/<folder>/*.py        task, utils, reference: the entries of `files` except eval.py, which is never imported
    <set>/<folder>/podium.yml  optional: facts that task.yml lacks (podium_file)

The format: github.com/gpu-mode/kernelbot, src/libkernelbot/task.py. Nothing here runs the code that it reads.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from harness.catalog import podium_file, set_file, strict_yaml
from harness.catalog.podium_file import PodiumFile
from harness.catalog.problem import problem_names, sha256_of
from harness.errors import ProblemError, did_you_mean
from harness.model import CHECKER, Case, Cases, CaseValue, Foreign, Limits, Problem, Tolerance

SUBMISSION = "@SUBMISSION@"
STAGE_S = 180.0
"""The time limit of a stage if task.yml gives none."""

REPORTED_RTOL = REPORTED_ATOL = 1e-5
"""The limits by which a mismatch report marks elements as wrong, if reference.py passes none to make_match_reference.
"""

TAKEN = {*sys.stdlib_module_names, "torch", "numpy", "triton", "harness", "submission"}
"""Modules that judge and worker import themselves. A module of the problem must not replace them."""

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


class _File(BaseModel):
    name: str
    source: str


class _TaskFile(BaseModel):
    """task.yml as written. Keys without an effect here are ignored."""

    files: list[_File]
    lang: Literal["py", "cu"] = "py"
    description: str = ""
    tests: list[dict[str, CaseValue]] = Field(min_length=1)
    benchmarks: list[dict[str, CaseValue]] = Field(min_length=1)
    test_timeout: float = Field(default=STAGE_S, gt=0, le=10_000)
    benchmark_timeout: float = Field(default=STAGE_S, gt=0, le=10_000)
    ranked_timeout: float = Field(default=STAGE_S, gt=0, le=10_000)
    ranking_by: Literal["last", "mean", "geom"] = "last"
    multi_gpu: bool = False
    templates: dict[str, str] = Field(default_factory=dict)
    gpus: list[str] = []


def load_folder(root: Path, folder: Path) -> Problem:
    """The problem in `folder`. Raises ProblemError with one sentence if it cannot be judged here."""
    yml, own = folder / "task.yml", folder / "podium.yml"
    stated, ours = strict_yaml.read(yml, _TaskFile), podium_file.read(own)
    if stated.lang != "py":
        raise ProblemError(f"{yml}: lang is {stated.lang}: only problems in Python can be judged")
    if stated.multi_gpu:
        raise ProblemError(f"{yml}: multi_gpu: a problem for several GPUs cannot be judged yet")
    modules = _modules(yml, stated.files)
    outline = _outline(modules["reference"])
    tests = _cases(yml, "tests", stated.tests, outline)
    benchmarks = _cases(yml, "benchmarks", stated.benchmarks, outline)
    if stated.ranking_by == "last":
        benchmarks = benchmarks[-1:]
    cases = Cases(test=tests, benchmark=benchmarks)
    cpu = cases
    if ours.cpu is not None:
        test, benchmark = (
            _cases(own, f"cpu.{kind}", entries, outline, seeded=False)
            for kind, entries in (("test", ours.cpu.test), ("benchmark", ours.cpu.benchmark))
        )
        cpu = Cases(test=test, benchmark=benchmark)
    podium_file.check_costs(own, ours, (*tests, *benchmarks, *cpu.test, *cpu.benchmark))
    listed = set_file.listing(folder)
    name = ours.name or (listed.name if listed is not None else folder.name)
    if not _NAME.fullmatch(name):
        raise ProblemError(f"{folder}: {name!r} cannot be a problem's name", "set another name in podium.yml")
    return Problem(
        name=f"{name}-gpumode" if name in problem_names(root) else name,
        title=name,
        description=" ".join(stated.description.split()),
        revision=ours.revision,
        inputs=(),
        outputs=(),
        axes={},
        tolerances=ours.named_tolerances or {CHECKER: (_reported(modules["reference"]),)},
        cases=cases,
        cpu=cpu,
        limits=_limits(own, stated, ours),
        ranking="mean" if stated.ranking_by == "mean" else "geom",
        foreign=Foreign(
            form="gpumode",
            path=folder,
            modules=modules,
            templates={language: folder / file for language, file in stated.templates.items()},
            seed_below=ours.seed_below,
            gpus=tuple((listed.gpus if listed is not None else []) or stated.gpus),
            deadline=listed.deadline if listed is not None else None,
            as_text=ours.compat == "text",
            strict_inputs=ours.strict == "inputs",
            checker_decides=not ours.tolerances,
            exact=ours.oracle == "float64",
            cost=ours.costs,
        ),
        folder=folder,
        hidden=(folder,),
        sha256=sha256_of([yml, *([own] if own.exists() else []), *modules.values()]),
    )


def _modules(yml: Path, files: Sequence[_File]) -> dict[str, Path]:
    """The problem's Python files, by the names under which they import each other."""
    found = {}
    for file in files:
        if file.source == SUBMISSION or not file.name.endswith(".py") or file.name == "eval.py":
            continue
        if file.name.removesuffix(".py") in TAKEN:
            raise ProblemError(f"{yml}: files: {file.name} would hide a module of Python's or Podium's of that name")
        path = (yml.parent / file.source).resolve()
        if not path.is_file():
            raise ProblemError(f"{yml}: files: {file.name}: there is no {path}")
        found[file.name.removesuffix(".py")] = path
    if "reference" not in found:
        raise ProblemError(f"{yml}: files lists no reference.py, which makes the inputs and checks the answers")
    return found


class _Outline(BaseModel):
    """The parameters of generate_input, each with whether it is required. None if the text does not tell them, or if it
    takes any."""

    parameters: dict[str, bool] | None


def _outline(path: Path) -> _Outline:
    try:
        module = ast.parse(strict_yaml.read_text(path))
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise ProblemError(f"{path}{line}: {error.msg}") from None
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    if "generate_input" not in functions:
        return _Outline(parameters=None)  # it may be imported from another file
    arguments = functions["generate_input"].args
    if arguments.kwarg is not None:
        return _Outline(parameters=None)
    named = [*arguments.posonlyargs, *arguments.args]
    required = {each.arg: index < len(named) - len(arguments.defaults) for index, each in enumerate(named)}
    required |= {each.arg: default is None for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults)}
    if "seed" not in required:
        raise ProblemError(f"{path}: generate_input takes no seed: its inputs cannot be drawn in secret")
    return _Outline(parameters={name: needed for name, needed in required.items() if name != "seed"})


def _cases(
    path: Path, section: str, entries: Sequence[Mapping[str, CaseValue]], outline: _Outline, seeded: bool = True
) -> tuple[Case, ...]:
    """The cases of a list. Their seeds are dropped, because they are public. Cases that are then equal are merged."""
    found: dict[str, Case] = {}
    for index, entry in enumerate(entries):
        where = f"{path}: {section}[{index}]"
        if seeded and "seed" not in entry:
            raise ProblemError(f"{where} has no seed: its inputs cannot be drawn in secret")
        case = Case(parameters={key: value for key, value in entry.items() if key != "seed"})
        if outline.parameters is not None:
            for key in case.parameters:
                if key not in outline.parameters:
                    hint = did_you_mean(key, outline.parameters)
                    raise ProblemError(f"{where}: generate_input has no parameter {key}", hint)
            for key, needed in outline.parameters.items():
                if needed and key not in case.parameters:
                    raise ProblemError(f"{where} lacks the parameter {key} of generate_input")
        found.setdefault(case.key, case)
    return tuple(found.values())


def _limits(path: Path, stated: _TaskFile, ours: PodiumFile) -> Limits:
    stages = {"test_s": stated.test_timeout, "benchmark_s": stated.benchmark_timeout, "ranked_s": stated.ranked_timeout}
    longest = max(stages.values())
    limits: dict[str, Any] = {"load_s": longest, "call_s": longest, "evaluation_s": max(1800.0, 5 * longest), **stages}
    unknown = [key for key in ours.limits if key not in limits]
    if unknown:
        raise ProblemError(f"{path}: unknown key limits.{unknown[0]}", did_you_mean(unknown[0], limits))
    try:
        return Limits(**(limits | ours.limits))
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(["limits", *map(str, fault["loc"])])
        raise ProblemError(f"{path}: {where}: {fault['msg'].removeprefix('Value error, ')}") from None


def _reported(reference: Path) -> Tolerance:
    """The tolerance of a mismatch report: the one that reference.py passes to make_match_reference, if it does."""
    given: dict[str, Any] = {"rtol": REPORTED_RTOL, "atol": REPORTED_ATOL}
    for node in ast.walk(ast.parse(strict_yaml.read_text(reference))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == _MATCHER:
            for keyword in node.keywords:
                number = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg in given and isinstance(number, int | float) and 0 <= number < 1e9:
                    given[keyword.arg] = float(number)
    return Tolerance(max_mismatch=0, **given)


_MATCHER = "make_match_reference"
