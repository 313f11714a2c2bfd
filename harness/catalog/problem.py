"""Finds problems on disk and turns them into values.

    problems/<problem>/problem.yml    ─► Problem     strict: an unknown key, a case that lacks a parameter, a duplicate
    problems/<problem>/reference.py   ─► the parameters of its generate_input, read without importing it
    reference/*.py                    ─► part of each problem's sha256, because reference.py files import them

Nothing here runs or imports a problem's code, and nothing needs torch.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from harness.catalog import imported, places, strict_yaml
from harness.errors import ProblemError, UsageError, did_you_mean
from harness.model import (
    Case,
    Cases,
    CaseValue,
    Limits,
    Problem,
    PublishedFigure,
    Run,
    SampledRows,
    SecretCases,
    Tolerance,
)


def problem_names(root: Path) -> list[str]:
    """The names of the problems under `root/problems` and of the bundled ones."""
    files = (path for place in places.places(root) for path in (place / "problems").glob("*/problem.yml"))
    return sorted({path.parent.name for path in files})


def changed_ns(root: Path, name: str) -> dict[str, int]:
    """The modification time of each file that defines the problem called `name`, which may be an imported one. Raises
    ProblemError."""
    elsewhere = imported.paths(root).get(name) if name not in problem_names(root) else None
    if elsewhere is None:
        files = places.find(root, f"problems/{name}").glob("*.*")
        return {str(path): path.stat().st_mtime_ns for path in files if path.suffix in (".py", ".yml")}
    return {str(path): path.stat().st_mtime_ns for path in imported.files(Path(elsewhere))}


def load_problem(root: Path, name: str) -> Problem:
    """The problem called `name`, also an imported one, or the problem in another project's form at that path.

    Raises UsageError if there is none, ProblemError if its files are broken.
    """
    names = problem_names(root)
    if name not in names:
        elsewhere = imported.paths(root) if os.sep not in name else {}
        called, colon, mode = name.partition(":") if os.sep not in name else (name, "", "")
        if os.sep in name or called in elsewhere or Path(called).exists():
            from harness.catalog import foreign

            path = Path(f"{elsewhere.get(called, called)}{colon}{mode}")
            found = foreign.load(root, path)
            by_name = name if called in elsewhere else None
            theirs = found.foreign and found.foreign.model_copy(update={"called": by_name})
            return found.model_copy(update={"root": root, "foreign": theirs})
        raise UsageError(f"there is no problem called {name!r}", did_you_mean(name, [*names, *elsewhere]))
    problem = _read_problem(places.find(root, f"problems/{name}/problem.yml").parent)
    return problem.model_copy(update={"root": root})


def load_problems(root: Path, name: str | None) -> list[Problem]:
    """The problem called `name`, or all that a set file at that path lists. Without a name, all under `root/problems`.
    Raises as `load_problem` does."""
    if name is not None and name.endswith((".yaml", ".yml")):
        from harness.catalog import foreign

        return [each.model_copy(update={"root": root}) for each in foreign.load_all(root, Path(name))]
    return [load_problem(root, each) for each in ([name] if name is not None else problem_names(root))]


def problem_of(root: Path, run: Run) -> Problem:
    """The problem that `run` was judged on. A problem in another project's form is loaded from the path that it had
    then. Raises as `load_problem` does."""
    return load_problem(root, str(run.environment.get(PATH_OF_PROBLEM, run.problem)))


PATH_OF_PROBLEM = "problem_path"
"""The key in a run's environment for the path of its problem, if the problem is not under problems/."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _CaseLists(_Strict):
    test: list[dict[str, CaseValue]] = Field(min_length=1)
    benchmark: list[dict[str, CaseValue]] = Field(min_length=1)
    secret: list[SecretCases] = []


class _ProblemFile(_Strict):
    """problem.yml as written. docs/problems.md explains its keys."""

    name: str
    title: str
    description: str
    revision: int = Field(default=1, ge=1, lt=2**31)
    inputs: list[str]
    outputs: list[str] = Field(min_length=1)
    in_place: list[str] = []
    axes: dict[str, list[str]]
    tolerances: dict[str, Tolerance | list[Tolerance]] = Field(min_length=1)
    cases: _CaseLists
    cpu: _CaseLists
    sampled_rows: SampledRows | None = None
    limits: Limits = Limits()
    baselines: list[str] = []
    published: list[PublishedFigure] = []


def _read_problem(folder: Path) -> Problem:
    yml, reference = folder / "problem.yml", folder / "reference.py"
    stated = strict_yaml.read(yml, _ProblemFile)
    if stated.name != folder.name:
        raise ProblemError(f"{yml}: name is {stated.name!r} but its folder is called {folder.name!r}")
    reference_text = strict_yaml.read_text(reference)
    outline = _outline(reference, reference_text)
    problem = Problem(
        **stated.model_dump(exclude={"tolerances", "cases", "cpu", "in_place"}),
        in_place=tuple(stated.in_place),
        tolerances={
            name: tuple(value) if isinstance(value, list) else (value,) for name, value in stated.tolerances.items()
        },
        cases=_cases(yml, "cases", stated.cases, outline),
        cpu=_cases(yml, "cpu", stated.cpu, outline),
        folder=folder,
        hidden=tuple(folder.parents[1:2]),  # the root, with all problems, submissions and results
        sha256=sha256_of([yml, reference, *sorted((places.mathematics(folder) / "reference").glob("*.py"))]),
    )
    _check_names(yml, problem)
    _check_parts(yml, problem, outline)
    _check_sampled_rows(yml, problem, outline)
    _check_baselines(yml, problem)
    _check_tolerances(yml, problem)
    return problem


def sha256_of(files: Sequence[Path]) -> str:
    """A hash of the names and contents of `files`, in this order. Each content is hashed on its own, so text cannot
    move from one file to the next without changing the result."""
    listed = [f"{file.name} {hashlib.sha256(_content(file)).hexdigest()}\n" for file in files]
    return hashlib.sha256("".join(listed).encode()).hexdigest()


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ProblemError(f"{file} cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class _Outline:
    """The definitions in reference.py that problem.yml must agree with. `parameters`: those of a case, each with
    whether it is required."""

    parameters: dict[str, bool]
    functions: frozenset[str]


def _outline(path: Path, text: str) -> _Outline:
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ProblemError(f"{path}, line {error.lineno}: {error.msg}") from None
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    for name in ("generate_input", "ref_kernel", "cost"):
        if name not in functions:
            raise ProblemError(f"{path} does not define {name}")
    arguments = functions["generate_input"].args
    positional = arguments.posonlyargs + arguments.args
    required = {
        argument.arg: index < len(positional) - len(arguments.defaults) for index, argument in enumerate(positional)
    }
    required |= {
        argument.arg: default is None
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }
    for name in ("seed", "device"):
        if name not in required:
            raise ProblemError(f"{path}: generate_input must take {name}")
    parameters = {name: needed for name, needed in required.items() if name not in ("seed", "device")}
    return _Outline(parameters, frozenset(functions))


def _cases(path: Path, section: str, lists: _CaseLists, outline: _Outline) -> Cases:
    parameters = outline.parameters

    def read(kind: str, entries: list[dict[str, CaseValue]]) -> tuple[Case, ...]:
        seen: dict[str, int] = {}
        for index, entry in enumerate(entries):
            where = f"{path}: {section}.{kind}[{index}]"
            _check_parameters(where, list(entry), parameters)
            _check_steps(where, entry.get("steps", 1), outline)
            case = Case(parameters=entry)
            if case.key in seen:
                raise ProblemError(f"{where} is the same case as {section}.{kind}[{seen[case.key]}]: {case.label}")
            seen[case.key] = index
        return tuple(Case(parameters=entry) for entry in entries)

    for index, family in enumerate(lists.secret):
        where = f"{path}: {section}.secret[{index}]"
        _check_parameters(where, list(family.parameters), parameters)
        for steps in family.values("steps"):
            _check_steps(where, steps, outline)
    test, benchmark = read("test", lists.test), read("benchmark", lists.benchmark)
    return Cases(test=test, benchmark=benchmark, secret=tuple(lists.secret), probed=_probed(test, benchmark))


def _probed(test: Sequence[Case], benchmark: Sequence[Case]) -> dict[str, tuple[CaseValue, ...]]:
    """The parameters that test cases state and some benchmark case omits, with their values: other inputs of the same
    shape. `steps` is excluded, because it means more calls."""
    found: dict[str, list[CaseValue]] = {}
    for case in test:
        for name, value in case.parameters.items():
            left_out = any(name not in each.parameters for each in benchmark)
            if left_out and name != "steps" and value not in found.setdefault(name, []):
                found[name].append(value)
    return {name: tuple(values) for name, values in found.items()}


def _check_parameters(where: str, given: Sequence[str], parameters: Mapping[str, bool]) -> None:
    for key in given:
        if key not in parameters:
            raise ProblemError(f"{where}: unknown parameter {key}", did_you_mean(key, parameters))
    for key, needed in parameters.items():
        if needed and key not in given:
            raise ProblemError(f"{where} lacks the parameter {key}")


def _check_steps(where: str, steps: CaseValue, outline: _Outline) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ProblemError(f"{where}: steps is {steps!r}; it must be a whole number, at least 1")
    if steps > 1 and "next_input" not in outline.functions:
        raise ProblemError(f"{where} has {steps} steps, but reference.py does not define next_input")


def _check_parts(path: Path, problem: Problem, outline: _Outline) -> None:
    limited = any(each.parts for options in problem.tolerances.values() for each in options)
    if limited and "parts" not in outline.functions:
        raise ProblemError(f"{path}: a tolerance limits parts, but reference.py does not define parts")


def _check_sampled_rows(path: Path, problem: Problem, outline: _Outline) -> None:
    sampled = problem.sampled_rows
    if sampled is None:
        return
    name = sampled.parameter
    if name not in outline.parameters:
        message = f"{path}: sampled_rows.parameter: {name} is not a parameter of generate_input"
        raise ProblemError(message, did_you_mean(name, outline.parameters))
    for case in problem.every_case:
        if not isinstance(case.parameters.get(name), int):
            raise ProblemError(f"{path}: sampled_rows: the case {case.label} gives no whole number {name}")
    for family in (*problem.cases.secret, *problem.cpu.secret):
        if not all(isinstance(value, int) for value in family.values(name) or [""]):
            raise ProblemError(f"{path}: sampled_rows: the secret cases {family.label} give no whole number {name}")


def _check_baselines(path: Path, problem: Problem) -> None:
    root = path.parents[2]
    folder = root / "submissions" / problem.name
    folders = [place / "submissions" / problem.name for place in places.places(root)]
    present = [submission.stem for folder in folders for submission in folder.glob("*.py")]
    for name in problem.baselines:
        if name not in present:
            raise ProblemError(f"{path}: baselines names {name}, which is not in {folder}", did_you_mean(name, present))


def _check_names(path: Path, problem: Problem) -> None:
    for key, names in (("inputs", problem.inputs), ("outputs", problem.outputs), ("in_place", problem.in_place)):
        if twice := [name for name in names if names.count(name) > 1]:
            raise ProblemError(f"{path}: {key} names {twice[0]} twice")
    for name in problem.in_place:
        if name not in problem.inputs:
            raise ProblemError(
                f"{path}: in_place names {name}, which is not an input", did_you_mean(name, problem.inputs)
            )
    described = {*problem.outputs, *problem.in_place}
    for name in described - problem.axes.keys():
        raise ProblemError(f"{path}: axes does not name the axes of {name}")
    for name in problem.axes:
        if name not in described and name.partition(".")[0] not in problem.inputs:
            known = [*problem.outputs, *problem.inputs]
            raise ProblemError(
                f"{path}: axes names {name}, which is neither an output nor an input", did_you_mean(name, known)
            )


def _check_tolerances(path: Path, problem: Problem) -> None:
    every = problem.every_case
    for name, options in problem.tolerances.items():
        for key in {key for option in options for key in option.when}:
            if not any(key in case.parameters for case in every):
                known = {parameter for case in every for parameter in case.parameters}
                raise ProblemError(f"{path}: tolerances.{name}: no case has {key}", did_you_mean(key, known))
        for case in every:
            if not any(option.applies_to(case) for option in options):
                raise ProblemError(f"{path}: no entry of the tolerance {name} applies to the case {case.label}")
        for family in (*problem.cases.secret, *problem.cpu.secret):
            for case in family.corners({key for option in options for key in option.when}):
                if not any(option.applies_to(case) for option in options):
                    raise ProblemError(
                        f"{path}: no entry of the tolerance {name} applies to secret cases of {case.label}"
                    )
