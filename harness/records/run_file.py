"""A run file: its bytes, and the run in it. Any other content raises ValueError.

A run must lie in the folder of its problem and device, and its file is named after its id. A copy elsewhere is not a
run. Whether a run is ranked is checked again from its own data (`eligibility`).
`model.run` has the schema's version.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from pydantic import ValidationError

from harness.model import Run, eligibility

MAX_RUN_BYTES = 64 << 20
"""The largest run file that is read. A real one has some hundred kilobytes."""

OF_SUBMISSION = re.compile(r"\d{8}T\d{6}-j(\d{1,15})a\d+-(.*)", re.DOTALL)
"""The id of a run that a server judged. The groups are the job's number and the submission's name on boards."""


def load_run(path: Path) -> Run:
    """The run in the file at `path`. Raises ValueError with the reason if it is not valid."""
    return parse(path, read(path))


def read(path: Path) -> bytes:
    """The content of the file at `path`. Raises ValueError if it is not a regular file, too large, or unreadable."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a regular file")
        if status.st_size > MAX_RUN_BYTES:
            raise ValueError("is too large to be a run")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def parse(path: Path, text: bytes) -> Run:
    """The run in `text`, the content of the file at `path`. Raises ValueError with the reason if it is not valid."""
    try:
        run = Run.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise ValueError(f"is not a run: {where + ': ' if where else ''}{fault['msg']}") from None
    if run.id != path.stem:
        raise ValueError(f"holds the run {run.id}, but its name is another")
    folder = f"{run.problem}/{run.device.slug}"
    if path.parts[-3:-1] != (run.problem, run.device.slug):
        raise ValueError(f"holds a run of {folder}, but lies in another folder")
    return eligibility.read_again(run)
