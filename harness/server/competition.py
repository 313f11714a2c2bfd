"""Competitions: one YAML file each under configs/competitions/, validated as strictly as problem.yml.

    title: Replicate KV heads
    description: Copy each KV head once for every query head that shares it.
    problem: kv_replicate
    gpus: [H200]                      # the server's names of its cards; default: all that it has
    opens: 2026-12-01T00:00:00Z       # both dates are optional
    closes: 2026-12-24T18:00:00Z
    entry: invite                     # open (the default): everybody with an account
    sources: deadline                 # own (the default), deadline, always: who sees others' sources
    pins: {torch: 2.11.0+cu128}       # also triton, driver: judged with these versions only (default: any)
    card: GPU-4a0f5b7c-...            # with --cluster: judged on this card only
    profile: true                     # false (the default): the mode profile is refused
    limits: {per_hour: 20, waiting: 1, bytes: 1000000}

A competition is named after its file. This module does not use the database.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StrictBool, model_validator

from harness import catalog
from harness.catalog import imported, places, strict_yaml
from harness.errors import PodiumError, ProblemError, did_you_mean
from harness.model import Pinned

FOLDER = "configs/competitions"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
MOST_BYTES = 1_000_000
"""The largest submission, in bytes. Users of popcorn-cli know this limit."""


class EntryLimits(BaseModel):
    """The limits for one person: submissions an hour, submissions that wait or run at once, and bytes of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    per_hour: int = Field(default=20, ge=1, le=100_000)
    waiting: int = Field(default=1, ge=1, le=100_000)
    bytes: int = Field(default=MOST_BYTES, ge=1, le=MOST_BYTES)


class _CompetitionFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = Field(min_length=1, max_length=200)
    description: str = Field(default="", max_length=4000)
    problem: str
    gpus: tuple[str, ...] = ()
    opens: AwareDatetime | None = None
    closes: AwareDatetime | None = None
    entry: Literal["open", "invite"] = "open"
    sources: Literal["own", "deadline", "always"] = "own"
    profile: StrictBool = False
    limits: EntryLimits = EntryLimits()
    pins: Pinned = Pinned()
    card: str | None = None

    @model_validator(mode="after")
    def _in_order(self) -> _CompetitionFile:
        if self.opens is not None and self.closes is not None and self.opens >= self.closes:
            raise ValueError("closes must be later than opens")
        return self


class Competition(_CompetitionFile):
    """The content of a competition's file. `name`: the file's name, in lower case."""

    name: str

    def begun(self, at: datetime | None = None) -> bool:
        """Whether the competition has opened."""
        return self.opens is None or (at or datetime.now(UTC)) >= self.opens

    def over(self, at: datetime | None = None) -> bool:
        """Whether the deadline has passed. Then nothing is accepted or taken back. Submissions accepted before still
        get their verdict and count."""
        return self.closes is not None and (at or datetime.now(UTC)) >= self.closes

    def shows_source(self, author_id: int, viewer_id: int | None, at: datetime | None = None) -> bool:
        """Whether the source of an account's submission is shown to `viewer_id`. None means a viewer who is not signed
        in."""
        if viewer_id is not None and viewer_id == author_id:
            return True
        return self.sources == "always" or (self.sources == "deadline" and self.over(at))


def load(root: Path, name: str) -> Competition:
    """Return the competition `name`. Raises ProblemError with the file and the fault."""
    path = places.find(root, f"{FOLDER}/{name}.yml")
    if not NAME.fullmatch(name):
        raise ProblemError(f"{path}: a competition's name has a-z, 0-9, _ and - only, at most 64", "rename the file")
    stated = strict_yaml.read(path, _CompetitionFile)
    own, theirs = catalog.problem_names(root), imported.paths(root)
    if stated.problem not in (*own, *theirs):
        if os.sep in stated.problem or Path(stated.problem).exists():
            how = "give it a name, `python3 -m harness import PATH`, and write that"
            raise ProblemError(f"{path}: problem: {stated.problem} is a path, and a board needs a name", how)
        raise ProblemError(
            f"{path}: problem: there is no {stated.problem}", did_you_mean(stated.problem, [*own, *theirs])
        )
    if stated.problem not in own:
        _check_imported(root, path, stated.problem)
    return Competition(name=name, **stated.model_dump())


def _check_imported(root: Path, path: Path, name: str) -> None:
    """Raise ProblemError if the imported problem `name` cannot be read or has another name now."""
    try:
        called = catalog.load_problem(root, name).name
    except PodiumError as error:
        raise ProblemError(f"{path}: problem: {error.message}", error.hint) from None
    if called != name:
        raise ProblemError(f"{path}: problem: {name} is called {called} now", "import it again")


def load_all(root: Path) -> dict[str, Competition]:
    """Return every competition by name. Raises ProblemError."""
    names = {path.stem for place in places.places(root) for path in (place / FOLDER).glob("*.yml")}
    return {name: load(root, name) for name in sorted(names)}
