"""Create a submission from its problem's template: correct as it stands, with the contract in its docstring."""

from __future__ import annotations

import re
from pathlib import Path

from harness.command import typed
from harness.errors import InfrastructureError, ProblemError, UsageError
from harness.model import Problem
from harness.records import whole_file

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,63}")
"""A submission is named after its file. A leading underscore would keep it off the board."""


def new(root: Path, problem: Problem, name: str) -> Path:
    """Write `submissions/<problem>/<name>.py` under `root` and return its path.

    Raises UsageError for an invalid name or one that is taken (nothing is overwritten), ProblemError if the problem has
    no template, InfrastructureError if the file cannot be written.
    """
    if not NAME.fullmatch(name):
        stem = name.removesuffix(".py")
        hint = f"try {stem}" if NAME.fullmatch(stem) else "such as mine or split_kv_2"
        raise UsageError(f"{name!r} is not a name for a submission: letters, digits and _, at most 64", hint)
    template = _template(problem)
    path = root / "submissions" / problem.name / f"{name}.py"
    try:
        source = template.read_bytes()
    except OSError as error:
        raise ProblemError(f"{template} cannot be read: {error.strerror}") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("xb").close()  # mode x never overwrites a file
    except FileExistsError:
        raise UsageError(f"{path} already exists and is not overwritten", "choose another name") from None
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}") from None
    try:
        whole_file.write(path, source)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _template(problem: Problem) -> Path:
    """Return the file that a submission to `problem` starts from. A foreign problem may have a template in Python or
    Triton."""
    if problem.foreign is None:
        return problem.folder / "template.py"
    files = {language.lower(): path for language, path in problem.foreign.templates.items()}
    for language in ("python", "triton"):
        if language in files:
            return files[language]
    wanted = (
        "class ModelNew, of Model's constructor and forward"
        if problem.foreign.form == "kernelbench"
        else "custom_kernel"
    )
    raise ProblemError(f"{problem.argument} has no template in Python or Triton", f"write a file with {wanted}")


def next_steps(problem: Problem, called: str, path: Path) -> str:
    """Describe the new file and the commands to type next. `called`: the problem as the user named it."""
    here = Path.cwd()
    seen = path.relative_to(here) if path.is_relative_to(here) else path
    check, judge = (typed(verb, called, str(seen)) for verb in ("check", "eval"))
    what, checked = "Correct as it stands, and slow. Its docstring is the contract.", ", does it compile for each chip"
    if problem.foreign is not None:
        what, checked = f"A copy of {_template(problem).name}, which need not be correct.", ""
    return (
        f"{seen}\n  {what}\n"
        f"{check}\n  takes seconds to minutes: is it right on small cases{checked}?\n"
        f"{judge}\n  judges it, times it and ranks it"
    )
