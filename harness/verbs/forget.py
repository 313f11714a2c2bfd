"""Remove the user's own stored runs. Published runs belong to the checkout and stay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.errors import UsageError, did_you_mean, listed
from harness.records.entry import Entry
from harness.records.run_file import OF_SUBMISSION
from harness.records.store import Store, is_of, is_path_of

_AGE = re.compile(r"(\d{1,5})([hdw])")
LEAST_OF_AN_ID = 4
"""The fewest characters that count as the beginning of an id. A shorter word is hardly meant as an id."""

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def forget(root: Path, names: Sequence[str], older_than: timedelta | None, dry_run: bool = False) -> list[str]:
    """Remove the local runs that `names` stand for, or all without names. With `older_than`, only those that began
    longer ago. Return the paths of the removed files relative to results/; with `dry_run` only list them.

    A name is one of three: a run's id, a unique beginning of an id, or a submission. A submission (its name or the path
    of its file) stands for all its runs. A file that is not a readable run is named by its full name or by the
    submission's name in it. Runs that a server judged belong to its database: without names they stay. Raises
    UsageError for a name that stands for nothing here or for such a run.
    """
    store = Store(root)
    with store.index() as index:
        runs, faults = index.runs(), [path for path, _ in index.faults()]
    if older_than is None and not names:
        raise UsageError("forget what?", "name a run or a submission, or say --older-than")
    local = {path: entry for path, entry in _by_path(runs, faults).items() if path.startswith("local/")}
    chosen = {path for name in names for path in _named(root, name, local, runs)} if names else set(local)
    of_server = {path for path in chosen if OF_SUBMISSION.fullmatch(Path(path).stem)}
    if names and of_server:
        what = f"{Path(min(of_server)).stem} is a run of a submission to a server, whose database knows it"
        raise UsageError(what, "`user remove NUMBER --reason TEXT` takes a submission off its board")
    chosen -= of_server
    if older_than is not None:
        before = datetime.now(UTC) - older_than
        chosen = {path for path in chosen if _is_older(local[path], before)}
    if not dry_run:
        store.remove([(path, local[path]) for path in sorted(chosen)])
    return sorted(chosen)


def age(text: str) -> timedelta:
    """Parse an age such as `30d`, `12h` or `2w`. Raises UsageError."""
    found = _AGE.fullmatch(text)
    if found is None:
        if _AGE.fullmatch(f"{text}d"):
            raise UsageError(f"{text} of what?", f"{text}d are days, {text}h hours, {text}w weeks")
        raise UsageError(f"{text!r} is no age", "such as 30d, 12h or 2w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _by_path(runs: Sequence[Entry], faults: Sequence[str]) -> dict[str, Entry | None]:
    """Return what results/ holds, by path. The value is None for a file that is not a run."""
    return {**{path: None for path in faults if path.endswith(".json")}, **{run.path: run for run in runs}}


def _named(root: Path, name: str, local: dict[str, Entry | None], runs: Sequence[Entry]) -> list[str]:
    """Return the local files that `name` stands for."""
    of_file = [path for path, run in local.items() if run and is_path_of(name, root / run.submission_path)]
    if of_file:
        return of_file
    exact = [path for path, run in local.items() if Path(path).stem == name or (run and run.submission == name)]
    spoilt = [path for path, run in local.items() if run is None and is_of(path, name)]
    if exact:
        return list(dict.fromkeys([*exact, *spoilt]))
    whole = [run.id for run in runs if run.id == name]
    begun = whole or sorted({run.id for run in runs if name and run.id.startswith(name)}, reverse=True)
    of_submission = any(run.submission == name for run in runs)
    if begun and len(name) < LEAST_OF_AN_ID and not of_submission:
        raise UsageError(f"{name} is too short to name a run", f"type at least {LEAST_OF_AN_ID} characters of its id")
    if len(begun) > 1:  # an id begins with the time when the run began
        raise UsageError(f"{name} could be any of {len(begun)} runs", listed("name one by its id:", begun))
    found = [path for path, run in local.items() if run and run.id in begun]
    if found:
        return found
    if spoilt:
        return spoilt
    if begun or of_submission:
        raise UsageError(f"{name} came with the checkout, in results/published", "only runs of your own are forgotten")
    newest_first = sorted(local, key=lambda path: Path(path).stem, reverse=True)
    named = (word for path in newest_first for word in (_submission(local[path]), Path(path).stem) if word)
    raise UsageError(f"there is no run {name}", did_you_mean(name, dict.fromkeys(named), newest_first=True))


def _submission(run: Entry | None) -> str:
    return run.submission if run else ""


def _is_older(run: Entry | None, before: datetime) -> bool:
    """Whether a run began before `before`. False for a file that is not a run: its time is unknown."""
    try:
        began = datetime.fromisoformat(run.started_at) if run else None
    except ValueError:
        return False
    return began is not None and began.tzinfo is not None and began < before
