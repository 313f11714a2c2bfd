"""Create a problem's folder: a small, complete problem that passes `verify`, to be changed piece by piece."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import sysconfig
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path

from harness.catalog import imported, places
from harness.catalog.problem import problem_names
from harness.command import page, translated, typed
from harness.errors import InfrastructureError, UsageError

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
SKELETON = "configs/new-problem"
"""The folder of the template's files. In them NAME stands for the problem's name."""


def new_problem(root: Path, name: str) -> Path:
    """Write `problems/<name>` under `root`, whole or not at all, and return its path.

    Raises UsageError for an invalid name or one that is taken, InfrastructureError if the folder cannot be written.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a problem: a small letter, then small letters, digits and _, at most 32",
            "such as sliding_window",
        )
    if taken := _taken(root, name):
        raise UsageError(f"{name} is no name for a problem: {taken}", "choose another name")
    skeleton, folder = places.find(places.default_root(), SKELETON), root / "problems" / name
    if folder.exists():
        raise UsageError(f"{folder} is already there, and is left as it is", "choose another name")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as made:
            whole = Path(made) / name
            shutil.copytree(skeleton, whole, ignore=shutil.ignore_patterns("__pycache__"))
            for path in (path for path in whole.rglob("*") if path.is_file()):
                path.write_text(translated(path.read_text(encoding="utf-8").replace("NAME", name)), encoding="utf-8")
            whole.rename(folder)
    except OSError as error:
        raise InfrastructureError(f"{folder} cannot be written: {error.strerror}") from None
    return folder


def _taken(root: Path, name: str) -> str | None:
    """Say what else has this name: a Python keyword, a module that a problem may import, or another problem. None if
    nothing has it."""
    if keyword.iskeyword(name):
        return "Python has a word like that"
    installed = [path for kind in ("purelib", "platlib") if (path := sysconfig.get_path(kind))]
    ours = any((places.default_root() / name).glob("__init__.py"))
    if name in sys.stdlib_module_names or ours or PathFinder.find_spec(name, installed) is not None:
        return "Python has a module called so"
    if (root / "problems" / name).exists():  # `new_problem` reports this, with the path
        return None
    return "there is one called so" if name in (*problem_names(root), *imported.paths(root)) else None


def next_steps(folder: Path) -> str:
    """Return the text on what to type next."""
    here, name = Path.cwd(), folder.name
    seen = folder.relative_to(here) if folder.is_relative_to(here) else folder
    explained = f"{page('adding-a-problem')} explains them"
    return (
        f"{seen}\n  A small problem that is whole. Change its files one by one:\n  {explained}.\n"
        f"{typed('verify', name)}\n  every control must get its verdict\n"
        f"{typed('new', name, 'mine')}\n  writes a first submission to it"
    )
