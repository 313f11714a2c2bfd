"""A cache on disk of results, by a hash of everything that they depend on.

    $XDG_CACHE_HOME/podium/check/   (~/.cache if the variable is not set)
        results/<key>.json          written whole or not at all; a file that cannot be read counts as missing

Only the checking process writes here: no process that runs a submission's code can. All of it may be deleted at any
time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness.records import whole_file

_ROOT = Path(__file__).resolve().parents[2]
Document = TypeVar("Document", bound=BaseModel)


class Kept:
    """The cached results that depend on `facts` and on Podium's own code.

    If the folder cannot be written or belongs to another user, nothing is cached.
    """

    def __init__(self, facts: Mapping[str, str]) -> None:
        self._facts = dict(facts)
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._folder = base / "podium" / "check"
        try:
            (self._folder / "results").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._usable = self._folder.stat().st_uid == os.getuid() and os.access(self._folder, os.W_OK)
        except OSError:
            self._usable = False

    def read(self, what: str, kind: type[Document]) -> Document | None:
        """Return the result cached as `what`, with `cached` set, or None if there is none that can be read."""
        if not self._usable:
            return None
        try:
            document = json.loads(self._path(what).read_text())
            return kind.model_validate({**document, "cached": True})
        except (OSError, ValueError, TypeError, ValidationError):
            return None

    def write(self, what: str, document: Mapping[str, Any]) -> None:
        """Cache `document` as `what`. If the disk is full, it is not cached."""
        if not self._usable:
            return
        path = self._path(what)
        with contextlib.suppress(OSError):
            whole_file.write(path, json.dumps(document).encode())

    def _path(self, what: str) -> Path:
        facts = json.dumps({**self._facts, "what": what, "podium": own_code()}, sort_keys=True)
        return self._folder / "results" / f"{hashlib.sha256(facts.encode()).hexdigest()}.json"


@functools.cache
def own_code() -> str:
    """Return a hash of the code that produces the results."""
    digest = hashlib.sha256()
    for folder in ("harness", "reference"):
        for path in sorted(each for each in (_ROOT / folder).rglob("*") if each.suffix in (".py", ".c")):
            digest.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
