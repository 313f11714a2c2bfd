"""A request to a judging process, as values that travel as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.catalog.config import Sampling
from harness.model import Pinned, Submission, Value

Depth = Literal["verdict", "quick", "full", "profile"]
DEPTHS: tuple[Depth, ...] = ("verdict", "quick", "full", "profile")
"""How far a source is judged: "verdict" judges the test cases only, "quick" times one process, "full" times as many
processes as a rank needs, "profile" judges the test cases and then profiles inside the sandbox."""


class Request(Value):
    """One source to judge. `device`: cpu or cuda:N. `sampling`: counts other than those of configs/eval.yml.
    `confined`: the source comes from a stranger, so it is refused if there is no sandbox. `pinned`: the judge refuses
    a machine with other versions."""

    root: Path
    problem: str
    submission: Submission
    device: str
    depth: Depth
    sampling: Sampling | None = None
    store: bool = False
    stop_at_first: bool = False
    allow_unsandboxed: bool = False
    confined: bool = False
    pinned: Pinned = Pinned()
