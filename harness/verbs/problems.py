"""The list of problems."""

from __future__ import annotations

from pathlib import Path

from harness import catalog
from harness.catalog import imported
from harness.errors import PodiumError, ProblemError
from harness.model import Problem


def problems(root: Path) -> list[Problem]:
    """Return every problem by name, then the imported ones that can still be loaded. Raises ProblemError for the first
    of Podium's own problems whose files are broken."""
    return [*(catalog.load_problem(root, name) for name in catalog.problem_names(root)), *_imported(root)[0]]


def sound_and_broken(root: Path) -> tuple[list[Problem], list[ProblemError]]:
    """Return the problems that can be loaded, in the order of `problems`, and what is wrong with Podium's others."""
    found, faults = [], []
    for name in catalog.problem_names(root):
        try:
            found.append(catalog.load_problem(root, name))
        except ProblemError as error:
            faults.append(error)
    return [*found, *_imported(root)[0]], faults


def lost(root: Path) -> dict[str, str]:
    """Return the imported problems that can no longer be loaded: the reason by name."""
    return _imported(root)[1]


def _imported(root: Path) -> tuple[list[Problem], dict[str, str]]:
    found, faults = [], {}
    for name in imported.paths(root):
        try:
            found.append(catalog.load_problem(root, name))
        except PodiumError as error:
            faults[name] = error.message
    return found, faults
