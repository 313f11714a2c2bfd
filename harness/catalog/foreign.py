"""Problems in other projects' forms, by their path.

    a folder with task.yml     ─► gpumode        a problem of GPU MODE's competitions
    a .yaml that lists some    ─► gpumode        names them
    a .py file                 ─► kernelbench    a task of KernelBench

Nothing here runs or imports their code.
"""

from __future__ import annotations

from pathlib import Path

from harness.errors import UsageError
from harness.model import Problem

TASK = "task.yml"


def load(root: Path, path: Path) -> Problem:
    """The problem at `path`. Raises UsageError if there is none, ProblemError if its files cannot be judged by."""
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
    if path.suffix == ".py" and path.exists():
        from harness.catalog import kernelbench

        return kernelbench.load_task(root, path)
    what = f"{path} has no {TASK}" if path.is_dir() else f"there is no {path}"
    raise UsageError(
        f"there is no problem at {path}: {what}",
        f"a problem of another project is a folder with {TASK} (GPU MODE) or a .py file (KernelBench)",
    )


def load_all(root: Path, path: Path) -> list[Problem]:
    """The problem at `path`, or all that a set file lists. Raises as `load`."""
    return [load(root, place) for place in places(path.absolute())]


def places(path: Path) -> list[Path]:
    """Where the problem at `path` lies, or each that a set file lists. Raises ProblemError for a set file that lists
    none, or a folder that is not there."""
    if path.suffix in (".yaml", ".yml") and path.exists() and path.name != TASK:
        from harness.catalog import set_file

        return [folder for _, folder in set_file.folders(path)]
    return [path]
