"""A set file of GPU MODE: a YAML file that lists a competition's folders, each with its name, its deadline and its
GPUs.

    name: pmpp v2
    deadline: "2025-12-30"         for all folders; a folder's own deadline wins, and an empty one counts as none
    problems:
      - {directory: pmpp_v2/vectoradd_py, name: vectoradd_v2, deadline: "2025-06-30 23:59", gpus: [H100, MI300]}

Directories are relative to the file. Times are UTC.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from harness.catalog import strict_yaml
from harness.errors import ProblemError


def _time(stated: Any) -> Any:
    """A deadline as written: a day and a time, or a day alone, which means its beginning."""
    if stated in (None, ""):
        return None
    if isinstance(stated, datetime):  # YAML's own form, with seconds and without quotes
        return stated if stated.tzinfo is not None else stated.replace(tzinfo=UTC)
    text = str(stated) if isinstance(stated, date | str) else ""
    for form in ("%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise ValueError(f"{stated!r} is not a time: write 2025-06-30 23:59 or 2025-06-30")


Time = Annotated[datetime | None, BeforeValidator(_time)]


class Listed(BaseModel):
    """A folder in a set file."""

    directory: str
    name: str
    deadline: Time = None
    gpus: list[str] = []


class _SetFile(BaseModel):
    deadline: Time = None
    problems: list[Listed] = Field(min_length=1)


def folders(path: Path) -> list[tuple[Listed, Path]]:
    """The folders that the set file at `path` lists, with their paths. Raises ProblemError if it lists none, or if a
    folder is missing."""
    found = [(each, path.parent / each.directory) for each in _read(path)]
    for each, folder in found:
        if not (folder / "task.yml").exists():
            raise ProblemError(f"{path}: the folder of {each.name}, {folder}, has no task.yml")
    return found


def listing(folder: Path) -> Listed | None:
    """The entry for `folder` in a set file in one of the two folders above it. None if there is no entry."""
    for above in folder.parents[:2]:
        for path in sorted(above.glob("*.yaml")):
            try:
                listed = _read(path)
            except ProblemError:
                continue  # another kind of YAML file
            for each in listed:
                if (above / each.directory).resolve() == folder.resolve():
                    return each
    return None


def _read(path: Path) -> list[Listed]:
    whole = strict_yaml.read(path, _SetFile)
    return [each.model_copy(update={"deadline": each.deadline or whole.deadline}) for each in whole.problems]
