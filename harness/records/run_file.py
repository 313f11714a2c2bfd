"""A run file: its bytes, and the run that they say. Whatever lies there is a run or a ValueError.

A run lies where it belongs, in the folder of its problem and its device, and is called by its id: a copy elsewhere is
no run. What it says of being ranked is asked of its own data again (`eligibility`)."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from pydantic import ValidationError

from harness.model import Run, eligibility

MAX_RUN_BYTES = 64 << 20
"""A run file is some hundred kilobytes; what is larger is not ours to read."""

OF_SUBMISSION = re.compile(r"\d{8}T\d{6}-j(\d{1,15})a\d+-(.*)", re.DOTALL)
"""The id of a run that a server judged: the number of its job, and what boards call the submission."""


def load_run(path: Path) -> Run:
    """The run in the file at `path`. Raises ValueError saying what is wrong with it."""
    return parse(path, read(path))


def read(path: Path) -> bytes:
    """What the file at `path` holds. Raises ValueError where that is no file, too much, or cannot be read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        if status.st_size > MAX_RUN_BYTES:
            raise ValueError("is too large to be a run")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def parse(path: Path, text: bytes) -> Run:
    """The run that `text` says, which the file at `path` holds. Raises ValueError saying what is wrong with it."""
    try:
        run = Run.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise ValueError(f"is no run: {where + ': ' if where else ''}{fault['msg']}") from None
    if run.id != path.stem:
        raise ValueError(f"holds the run {run.id}, which is not what it is called")
    folder = f"{run.problem}/{run.device.slug}"
    if path.parts[-3:-1] != (run.problem, run.device.slug):
        raise ValueError(f"holds a run of {folder}, which is not the folder that it lies in")
    return eligibility.read_again(run)
