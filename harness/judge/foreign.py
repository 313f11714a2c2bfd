"""Choose the reader for a problem in another project's form."""

from __future__ import annotations

from harness.judge.reference import Reference
from harness.model import Device, Problem


def open_foreign(problem: Problem, device: Device) -> Reference:
    """Return the reference of a problem in another project's form. Raises ProblemError if it cannot be used for
    judging."""
    assert problem.foreign is not None
    if problem.foreign.form == "kernelbench":
        from harness.judge.kernelbench import TaskReference

        return TaskReference(problem, device)
    from harness.judge.gpumode import FolderReference

    return FolderReference(problem, device)
