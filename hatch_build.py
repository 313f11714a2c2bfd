"""What a wheel of Podium holds: hatchling asks this hook, whose name and place are hatchling's.

    a checkout            the files that git tracks: a competitor's own submissions and notes beside them stay out
    an unpacked archive   every file of the folders below but caches: there is no git to ask

The wheel installs `harness` alone; harness/bundled holds there what a checkout has beside it
(harness/catalog/places.py).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {
    "harness": "harness",
    "configs": "harness/bundled/configs",
    "docs": "harness/bundled/docs",
    "problems": "harness/bundled/problems",
    "reference": "harness/bundled/reference",
    "submissions": "harness/bundled/submissions",
}
"""Folders of a checkout, and where the wheel has them."""

PICTURE = ".png"
"""Of docs/, what `docs` does not print, and what takes most of its bytes: no wheel has it."""

CACHES = {"__pycache__", ".pytest_cache", ".triton"}


class BundledFiles(BuildHookInterface):
    """Adds each file by its name. Everything else is excluded in pyproject.toml."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fill `build_data["force_include"]`: absolute path here -> path in the archive. An editable install needs
        none, as it imports the checkout."""
        if version == "editable":
            return
        root, source = Path(self.root), self.target_name == "sdist"
        files = self._tracked(root)
        if files is None:
            files = list(_walked(root, root if source else None))
        for name in files:
            folder, _, rest = name.partition("/")
            packed = source or (folder in PLACES and not name.endswith(PICTURE))
            if packed and (root / name).is_file():
                place = name if source else f"{PLACES[folder]}/{rest}"
                build_data["force_include"][str(root / name)] = place

    def _tracked(self, root: Path) -> list[str] | None:
        """What git tracks here; None where this is no checkout or git does not answer."""
        if not (root / ".git").exists():
            return None
        try:
            words = ["git", "-C", str(root), "ls-files", "-z"]
            listed = subprocess.run(words, capture_output=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"git does not list the files here ({error}): all are packed")
            return None
        return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _walked(root: Path, whole: Path | None) -> Iterator[str]:
    """Paths relative to `root` of all files in it if it is `whole`, else in PLACES; caches left out."""
    for top in [whole] if whole else [root / name for name in PLACES]:
        for where, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if name not in CACHES and not name.startswith("."))
            for name in sorted(names):
                if not name.endswith((".pyc", ".so")):
                    yield os.path.relpath(os.path.join(where, name), root)
