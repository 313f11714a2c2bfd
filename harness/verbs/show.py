"""Looking at what is stored: one run, or the list of all; and whether a run's file is still what it judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import catalog
from harness.model import Run
from harness.records.entry import Entry
from harness.records.store import Store, is_of


def one(root: Path, run: str) -> Run:
    """The run that `run` names: its id, a part of it that no other has, or a submission's name for the latest run of
    its latest source. Raises UsageError."""
    return Store(root).read(run)


def every(root: Path, problem: str | None = None) -> tuple[list[Entry], list[tuple[str, str]]]:
    """All that is stored, the latest last, or of one problem; and what lies in results/ and is no run, each with what
    is wrong with it."""
    with Store(root).index() as index:
        return [run for run in index.runs() if problem in (None, run.problem)], index.faults()


def is_problem(root: Path, word: str) -> bool:
    """Whether `word` names a problem, and no submission that has a run."""
    if word not in catalog.problem_names(root):
        return False
    with Store(root).index() as index:
        return word not in index.submissions()


def spoilt(root: Path, name: str, run: Run) -> list[tuple[str, str]]:
    """The files beside `run`, which `name` stands for, that are no runs and might stand for it if they were, each with
    why: one of its id, and of a submission's name one that is called as a later run of it."""
    by_its_name = not run.id.startswith(name)
    with Store(root).index() as index:
        faults = [(path, why) for path, why in index.faults() if path.split("/")[1] == run.problem]
    later = {path for path, _ in faults if by_its_name and Path(path).stem > run.id and is_of(path, run.submission)}
    return [(path, why) for path, why in faults if path in later or Path(path).stem == run.id]


def changed(root: Path, *runs: Run) -> Iterator[str]:
    """The paths of submissions whose file is not any more what these runs judged; one that is gone is not named."""
    store = Store(root)
    judged = dict.fromkeys((run.problem, run.submission_path, run.submission_sha256) for run in runs)
    return (path for problem, path, sha256 in judged if store.has_changed(problem, path, sha256))
