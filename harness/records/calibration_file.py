"""Calibrations, each in a JSON file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.errors import InfrastructureError
from harness.model import Value
from harness.records import whole_file

Kept = TypeVar("Kept", bound=Value)


def read(path: Path, form: type[Kept], what: str, again: str) -> Kept | None:
    """The value in the file at `path`, or None if there is no file. Raises InfrastructureError if the file is not a
    valid `what`. The message names `again`, the command that makes one."""
    try:
        return form.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        raise InfrastructureError(f"{path} is no {what}: {why}", f"delete it and run {again}") from None


def write(path: Path, value: Value) -> Path:
    """Store `value` at `path`. Raises InfrastructureError."""
    try:
        whole_file.write(path, value.model_dump_json(indent=1).encode())
    except OSError as error:
        raise InfrastructureError(f"the calibration could not be stored in {path.parent}: {error.strerror}") from None
    return path
