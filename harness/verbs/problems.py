"""The problems that there are."""

from __future__ import annotations

from pathlib import Path

from harness import catalog
from harness.model import Problem


def problems(root: Path) -> list[Problem]:
    """Every problem, by name. Raises ProblemError for the first whose files are broken."""
    return [catalog.load_problem(root, name) for name in catalog.problem_names(root)]
