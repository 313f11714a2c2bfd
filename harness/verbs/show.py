"""Look at stored runs: one run or the list of all, and whether a submission's file has changed since it was judged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import catalog
from harness.errors import PodiumError, UsageError, nearest
from harness.model import Run
from harness.records.entry import Entry, of_present
from harness.records.store import Store, is_of


def one(root: Path, run: str) -> Run:
    """Return the run that `run` names: its id, a unique part of the id, or a submission's name for the latest run of
    its latest source. Raises UsageError."""
    try:
        return Store(root).read(run)
    except UsageError as error:
        meant = (
            None if error.hint and error.hint.startswith("did you mean") else nearest(run, catalog.problem_names(root))
        )
        if meant is None:
            raise
        raise UsageError(error.message, f"did you mean {meant}?") from None


def every(root: Path, problem: str | None = None) -> tuple[list[Entry], list[tuple[str, str]]]:
    """Return all stored runs, or those of one problem, the latest last, each marked if its file holds another source
    now, or if the problem has changed since. Also return the files in results/ that are not runs, each with the
    reason."""
    store = Store(root)
    with store.index() as index:
        found = store.mark_sources([run for run in index.runs() if problem in (None, run.problem)])
        present = {}
        for name in {run.problem for run in found}:
            with contextlib.suppress(PodiumError):  # a problem that is not here any more
                present[name] = catalog.load_problem(root, name)
        found = [of_present(run, present[run.problem]) if run.problem in present else run for run in found]
        return found, index.faults()


def without_file(root: Path, entries: Sequence[Entry]) -> set[str]:
    """Return the paths of those submissions whose file is gone: it holds neither the judged source nor another."""
    store = Store(root)
    return {path for path in {entry.submission_path for entry in entries} if not store.has_file(path)}


def is_problem(root: Path, word: str) -> bool:
    """Whether `word` names a problem, and no submission that has a run."""
    if word not in catalog.problem_names(root):
        return False
    with Store(root).index() as index:
        return word not in index.submissions()


def spoilt(root: Path, name: str, run: Run) -> list[tuple[str, str]]:
    """Return the unreadable files that `name` might stand for if they were readable runs, each with the reason. `run`
    is the run that `name` stands for now. Such a file has the id of `run`, or if `name` is a submission's, the file
    name of a later run of it."""
    by_its_name = not run.id.startswith(name)
    with Store(root).index() as index:
        faults = [(path, why) for path, why in index.faults() if path.split("/")[1] == run.problem]
    later = {path for path, _ in faults if by_its_name and Path(path).stem > run.id and is_of(path, run.submission)}
    return [(path, why) for path, why in faults if path in later or Path(path).stem == run.id]


def changed(root: Path, *runs: Run) -> Iterator[str]:
    """Return the paths of submissions whose file has changed since these runs judged it. Deleted files are not
    named."""
    store = Store(root)
    judged = dict.fromkeys((run.problem, run.submission_path, run.submission_sha256) for run in runs)
    return (path for problem, path, sha256 in judged if store.has_changed(problem, path, sha256))
