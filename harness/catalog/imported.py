"""Names for problems of other projects. `import` writes a file with each name and its path.

    configs/imported.yml      vectoradd_v2: /home/me/reference-kernels/problems/pmpp_v2/vectoradd_py

The problems' files stay where they are.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from pydantic import RootModel

from harness.catalog import strict_yaml

FILE = "configs/imported.yml"
_HEAD = "# Problems of other projects, by the names that `import` gave them. A line may be deleted.\n"
_NO_PROBLEMS = {"solutions", "node_modules", "__pycache__"}


class _Imported(RootModel[dict[str, str]]):
    pass


def paths(root: Path) -> dict[str, str]:
    """The path of each imported problem, by name. Raises ProblemError if the file cannot be read."""
    file = root / FILE
    return dict(_read(file, file.stat().st_mtime_ns)) if file.exists() else {}


@functools.lru_cache(maxsize=8)
def _read(file: Path, changed_ns: int) -> dict[str, str]:
    """Cached, because a server asks every second and parsing 250 entries is slow."""
    return strict_yaml.read(file, _Imported).root


def files(path: Path) -> list[Path]:
    """The files that define the problem at `path`, including those that its folder shares with its neighbours."""
    if path.is_dir():
        beside = [*path.parent.glob("*.py"), *path.parent.glob("*.yaml")]
        return [*path.glob("*.yml"), *path.glob("*.py"), *beside]
    return [each for each in (path, path.with_suffix(".podium.yml")) if each.exists()]


def text(found: Mapping[str, str]) -> str:
    """The content of the file for these names."""
    return _HEAD + yaml.safe_dump(dict(found), sort_keys=True, allow_unicode=True, width=4096)


def problems_beneath(folder: Path) -> Iterator[Path]:
    """The problems beneath `folder`, in order of path: folders with a task.yml, and KernelBench tasks in `folder`
    itself and in folders called level1, level2 and so on."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NO_PROBLEMS)
        if "task.yml" in files:
            yield here
            folders.clear()
        elif here == folder or re.fullmatch(r"level\d+", here.name):
            yield from sorted((here / name for name in files if _is_task(here / name)), key=_numbered)


def _is_task(path: Path) -> bool:
    """True if the file looks like a task. Other files in the folder are skipped without an error."""
    return path.suffix == ".py" and b"def get_init_inputs" in path.read_bytes()


def _numbered(path: Path) -> tuple[int, str]:
    """A sort key that puts 2_x before 10_x."""
    number = path.stem.partition("_")[0]
    return int(number) if number.isdigit() else 0, path.stem
