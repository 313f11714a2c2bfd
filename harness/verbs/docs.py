"""The pages of docs/: from the checkout, or bundled with an installed Podium."""

from __future__ import annotations

from pathlib import Path

from harness.catalog.places import BUNDLED
from harness.command import ROOT, installed
from harness.errors import UsageError, did_you_mean


def pages() -> dict[str, str]:
    """The title of each page by its name. The name of docs/debugging.md is `debugging`."""
    return {name: _title(path) for name, path in _paths().items()}


def page(name: str) -> str:
    """Return the Markdown text of a page. `name` may include its folder and suffix. Raises UsageError if there is
    none."""
    paths = _paths()
    known = name if name in paths else Path(name).stem
    if known not in paths:
        raise UsageError(f"there is no page {name!r}", did_you_mean(name, paths))
    return paths[known].read_text(encoding="utf-8")


def _paths() -> dict[str, Path]:
    """Find the pages: the index first, then the others in the index's order."""
    folder = (BUNDLED if installed() else ROOT) / "docs"
    index = (folder / "README.md").read_text(encoding="utf-8")
    found = [path for path in sorted(folder.glob("*")) if path.suffix in (".md", ".yml")]
    return {path.stem: path for path in sorted(found, key=lambda path: index.rfind(f"({path.name})"))}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()
