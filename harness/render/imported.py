"""The result of `import`: the named problems and those that were left out."""

from __future__ import annotations

from typing import Any

from harness.model import Problem
from harness.render.document import Part, Prose, Table
from harness.verbs.import_ import Imported


def parts(done: Imported) -> list[Part]:
    rows = [[each["name"], each["for"], each["until"], each["path"]] for each in map(_of, done.problems)]
    found: list[Part] = [Table(["problem", "for", "until (UTC)", "from"], rows)]
    if done.left_out:
        found.append("Left out:")
        found += [Prose(f"{path}: {why}") for path, why in done.left_out.items()]
    return found


def as_json(done: Imported) -> dict[str, Any]:
    return {"problems": [_of(problem) for problem in done.problems], "left_out": done.left_out}


def _of(problem: Problem) -> dict[str, str]:
    assert problem.foreign is not None
    deadline = problem.foreign.deadline
    return {
        "name": problem.name,
        "form": problem.foreign.form,
        "for": ", ".join(problem.foreign.gpus) or "any device",
        "until": f"{deadline:%Y-%m-%d %H:%M}" if deadline else "open",
        "path": str(problem.foreign.path),
    }
