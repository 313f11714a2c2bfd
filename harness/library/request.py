"""What a judge is asked: values that travel as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.catalog.config import Sampling
from harness.model import Submission, Value

Depth = Literal["verdict", "quick", "full", "profile"]
DEPTHS: tuple[Depth, ...] = ("verdict", "quick", "full", "profile")
"""How far a source is judged: test cases alone; timed in one process; timed in as many as a rank takes; test cases, and
then profiled within the sandbox."""


class Request(Value):
    """One source to be judged. `device` is cpu or cuda:N; `sampling` other counts than those of configs/eval.yml.
    `confined`: a stranger's, which is not judged at all where nothing can confine it."""

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
