"""Loads problems in other projects' forms, by path.

    a folder with task.yml           ─► gpumode        a problem of GPU MODE's competitions
    a .yaml that lists such folders  ─► set_file       names of the folders
    a .py file                       ─► kernelbench    a task of KernelBench; TASK.py:float16 is it in that precision

Nothing here runs or imports their code.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

from harness.errors import UsageError, did_you_mean
from harness.model import Precision, Problem, Submission

TASK = "task.yml"


def load(root: Path, path: Path) -> Problem:
    """The problem at `path`. Raises UsageError if there is none, ProblemError if its files cannot be used."""
    path = path.absolute()
    if path.name == TASK:
        path = path.parent
    if path.is_dir() and (path / TASK).exists():
        from harness.catalog import gpumode

        return gpumode.load_folder(root, path)
    if path.suffix in (".yaml", ".yml") and path.exists():
        from harness.catalog import set_file

        folders = set_file.folders(path)
        listed = "".join(f"\n    {each.name}: {folder}" for each, folder in folders)
        raise UsageError(f"{path} lists {len(folders)} problems: name the folder of one", f"there are:{listed}")
    file, precision = _with_precision(path)
    if file.suffix == ".py" and file.exists():
        from harness.catalog import kernelbench

        return kernelbench.load_task(root, file, precision)
    raise UsageError(
        f"there is no problem at {path}: {_what_is_there(path)}",
        f"a problem of another project is a folder with {TASK} (GPU MODE) or a .py file (KernelBench)",
    )


def _what_is_there(path: Path) -> str:
    if path.is_dir():
        return f"the folder has no {TASK}"
    if path.exists():
        return "it is not a Python file"
    if ":/" in str(path):
        return "addresses are not fetched: name a checkout on this machine"
    if ":" in path.name and path.with_name(path.name.rpartition(":")[0] or path.name).exists():
        return "only a task's file can have a precision after a colon"
    return "nothing is there"


def baselines(problem: Problem) -> list[Submission]:
    """The baselines that come with a problem, to be timed in turns with a submission."""
    if problem.foreign is None or problem.foreign.form != "kernelbench":
        return []
    from harness.catalog import kernelbench

    return kernelbench.baselines(problem)


def _with_precision(path: Path) -> tuple[Path, Precision | None]:
    """A task's file and the precision after the colon, if there is one. Raises UsageError for an unknown precision."""
    name, colon, said = path.name.rpartition(":")
    if not colon or not name.endswith(".py") or path.exists():
        return path, None
    known = get_args(Precision)
    if said not in known:
        raise UsageError(f"{said!r} is not a precision of a task", did_you_mean(said, known))
    return path.with_name(name), cast(Precision, said)


def load_all(root: Path, path: Path) -> list[Problem]:
    """The problem at `path`, or all problems that a set file lists. Raises as `load` does."""
    return [load(root, place) for place in places(path.absolute())]


def places(path: Path) -> list[Path]:
    """The path of the problem, or the paths of all problems that a set file lists. Raises ProblemError if a set file
    lists none or a listed folder is missing."""
    if path.suffix in (".yaml", ".yml") and path.exists() and path.name != TASK:
        from harness.catalog import set_file

        return [folder for _, folder in set_file.folders(path)]
    return [path]
