"""The boards, held in memory and updated when a run file is added, changed or removed.

    results/**.json ─► records.Index, each file parsed once ─► Results: a LiveBoard a problem and device ─► pages

A look at the folders costs some stat calls. Files are examined only if a folder has changed: then those that were
added, removed or replaced (`file_names`), and now and then all. Only boards whose runs have changed are ranked again.
Pages read the present boards and wait for nothing.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import __version__, catalog
from harness.catalog import imported
from harness.catalog.config import load_config
from harness.errors import PodiumError
from harness.model import Problem, Run
from harness.ranking.board import Board, rank
from harness.ranking.fleet import Component
from harness.records.entry import CaseFigures, Entry
from harness.records.index import Index
from harness.records.run_file import load_run
from harness.records.scan import SETTLED_NS, TIERS
from harness.records.store import Store
from harness.records.tables import cases_of
from harness.render.legible import without_paths
from harness.server.board.file_names import FileNames
from harness.server.board.ledger import Ledger, Origin
from harness.server.board.same_source import authors_to_merge, merged
from harness.server.store import DatabaseGone
from harness.verbs import spread

LOOK_S = 2.0
"""The seconds between two looks at the folders."""

TRIALS = "trials"
"""A folder beside the TIERS of results/. Its runs are on no board; their authors see them."""

Key = tuple[str, str]
"""A problem's name and a device's folder."""


@dataclass(frozen=True)
class LiveBoard:
    """A problem on one device.

    `records`: the runs that were the best when they were made. `texts`: by the id of a ranked run, the text that
      `figures` reads. `best`: without a known floor, the least latency on each case, by the case's key. `origins`: by
      run id, the submission behind it, if the server judged it. `of_competition`: by a competition's name, the run that
      stands for each of its submissions, from runs in that competition only. `revision`: a text that changes whenever
      anything here changes.
    `confidence`: of the intervals. `worker_timed_too`: a board without other ranked runs may rank runs that the
      submissions' own processes timed. `between_cards`: what a card of this model adds, if that was measured.
    """

    problem: Problem
    device: str
    device_name: str
    board: Board
    records: tuple[Entry, ...]
    texts: Mapping[str, str]
    best: Mapping[str, float]
    origins: Mapping[str, Origin]
    of_competition: Mapping[str, tuple[Entry, ...]]
    runs: int
    revision: str
    confidence: float
    worker_timed_too: bool
    between_cards: Component | None

    def without(self, removed: Set[int]) -> LiveBoard:
        """Return the board without these submissions, whose files may still exist."""
        if not removed:
            return self
        gone = {run for number in removed & self._runs_of.keys() for run in self._runs_of[number]}
        if not gone:
            return self

        def left(entries: Iterable[Entry]) -> tuple[Entry, ...]:
            return tuple(entry for entry in entries if entry.id not in gone)

        entries = [*(standing.entry for standing in self.board.standings), *self.board.unranked]
        return replace(
            self,
            board=rank(left(entries), self.problem.baselines, self.worker_timed_too, self.between_cards),
            records=left(self.records),
            of_competition={name: left(each) for name, each in self.of_competition.items()},
            revision=digest(self.revision, *sorted(gone)),
        )

    @functools.cached_property
    def _runs_of(self) -> dict[int, list[str]]:
        """The runs of each submission."""
        found: dict[int, list[str]] = {}
        for run, origin in self.origins.items():
            found.setdefault(origin.submission, []).append(run)
        return found

    def figures(self, run: str) -> tuple[CaseFigures, ...]:
        """Return the measurements of a ranked run, case by case."""
        return cases_of(self.texts[run]) if run in self.texts else ()

    def author(self, run: str) -> str:
        """Return the author of the submission that this run judged, or "" if the server did not judge it."""
        origin = self.origins.get(run)
        return origin.user if origin else ""


@dataclass
class _Look:
    """The findings of the last look."""

    folders: dict[str, int] = field(default_factory=dict)
    problems: dict[str, int] | None = None
    revisions: dict[Key, str] = field(default_factory=dict)
    settled: bool = False
    whole: bool = False
    taken_off: tuple[Any, ...] = ()


class Results:
    """The boards of the problems of `root`, over the runs under `root/results`. `ledger` knows whose runs they are."""

    def __init__(self, root: Path, ledger: Ledger | None = None) -> None:
        self.root = root
        self._problems: dict[str, Problem] = {}
        self._faults: list[str] = []
        self._ledger = ledger or Ledger(None)
        self._boards: dict[Key, LiveBoard] = {}
        self._look = _Look()
        self._files = FileNames(root / "results")
        self._prepared: dict[str, int] | None = None
        self._refreshing = threading.Lock()
        self._awake, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.fault: str | None = None

    @property
    def boards(self) -> Mapping[Key, LiveBoard]:
        """The boards as of the last look. A later look replaces the mapping and does not change this one."""
        return self._boards

    def start(self) -> None:
        """Look now, and then every LOOK_S in a thread, until `stop`."""
        self._thread = threading.Thread(target=self._keep_looking, name="results", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread that `start` began."""
        self._ended.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()

    def prepare(self) -> None:
        """Read the problems' files now. This takes longer than most answers and would delay the first ones."""
        self._prepared = self._files_of_problems()
        self._load_problems()

    def _as_prepared(self, problems: dict[str, int]) -> bool:
        """Whether the files are those that `prepare` read."""
        prepared, self._prepared = self._prepared, None
        return prepared == problems

    def wake(self) -> None:
        """Look at once, because a run was stored or a submission removed. Callable from any thread."""
        self._awake.set()

    def _keep_looking(self) -> None:
        while not self._ended.is_set():
            self._awake.clear()
            try:
                self.refresh()
                self.fault = without_paths("; ".join(self._faults)) or None
            except DatabaseGone as error:  # it may come back
                self.fault = error.told
            except PodiumError as error:  # a disk may come back, too
                self.fault = without_paths(error.message)
            except Exception as error:  # pages show the last known boards, and the front page shows the fault
                self.fault = f"the results could not be read: {type(error).__name__}"
            self._awake.wait(LOOK_S)

    def refresh(self) -> bool:
        """Bring the boards up to date. Return whether any has changed. Raises InfrastructureError."""
        with self._refreshing:
            folders, problems, taken_off = self._files.folders(), self._files_of_problems(), self._ledger.taken_off()
            look = self._look
            same = (folders, problems, taken_off) == (look.folders, look.problems, look.taken_off)
            whole = self._files.whole_is_due
            if same and look.settled and (look.whole or not whole):
                return False
            changed_files = self._files.changed(folders)
            if problems != self._look.problems and not self._as_prepared(problems):
                self._load_problems()
            settled_ns = time.time_ns() - SETTLED_NS
            began_s = time.monotonic()
            with Store(self.root).index(None if whole else changed_files) as index:
                if whole:
                    self._files.looked_at_all(time.monotonic() - began_s)
                revisions = index.revisions()
                anew = problems != self._look.problems
                changed = {key for key, text in revisions.items() if anew or text != look.revisions.get(key)}
                if taken_off != look.taken_off:
                    changed |= {key for key in revisions if key in self._boards and self._boards[key].origins}
                boards = {key: board for key, board in self._boards.items() if key in revisions}
                for name, device in sorted(changed):
                    if name in self._problems:
                        boards |= self._board(index, self._problems[name], device, revisions[name, device])
                boards = {key: board for key, board in boards.items() if key[0] in self._problems}
            self._boards = {key: boards[key] for key in sorted(boards) if boards[key].runs}
            settled = all(touched < settled_ns for touched in folders.values())
            self._look = _Look(folders, problems, revisions, settled, whole, taken_off)
            self._files.taken_in()
            return bool(changed)

    def _load_problems(self) -> None:
        """Load the problems. A problem that cannot be read stays as it was."""
        loaded, faults = {}, []
        for name in self._names():
            try:
                loaded[name] = catalog.load_problem(self.root, name)
            except PodiumError as error:
                faults.append(error.message)
                if name in self._problems:
                    loaded[name] = self._problems[name]
        self._problems, self._faults = loaded, faults

    def _files_of_problems(self) -> dict[str, int]:
        """Return when each file that defines a problem last changed."""
        return {path: ns for name in self._names() for path, ns in catalog.changed_ns(self.root, name).items()}

    def _names(self) -> list[str]:
        """Return the names of the problems, and of imported ones those that have runs."""
        results = self.root / "results"
        theirs = [name for name in imported.paths(self.root) if any((results / tier / name).is_dir() for tier in TIERS)]
        return [*catalog.problem_names(self.root), *theirs]

    def _board(self, index: Index, problem: Problem, device: str, revision: str) -> dict[Key, LiveBoard]:
        store, config = Store(self.root), load_config(self.root)
        judged = index.judged_runs(problem.name, device)
        origins = self._ledger.origins(run for run, _, _ in judged)
        authors = authors_to_merge(judged, origins)
        again = index.entries([run for run, origin in origins.items() if origin.user_id in authors])

        def marked(entries: Sequence[Entry], competition: str | None = None) -> tuple[Entry, ...]:
            of_authors = [run for run in again if competition in (None, origins[run.id].competition)]
            return tuple(store.mark_sources(merged(entries, of_authors, origins, problem)))

        entries = marked(index.standings(problem, device))
        between_cards = spread.measured(self.root, device)
        board = rank(entries, problem.baselines, config.rank_worker_timed, between_cards)
        ranked = [standing.entry for standing in board.standings]
        parts = {run: origin.competition for run, origin in origins.items()}
        theirs = {name: marked(each, name) for name, each in index.standings_of(problem, device, parts).items()}
        timed = [*ranked, *(entry for each in theirs.values() for entry in each if entry.ranked)]
        measured = index.cases({entry.path for entry in timed})
        texts = {entry.id: measured[entry.path] for entry in timed if entry.path in measured}
        known = [texts[entry.id] for entry in ranked if entry.id in texts]
        best = {} if any(entry.floor_ns for entry in ranked) else _best(known)
        records = tuple(index.records(problem, device, board.clock))
        name = index.devices(problem.name).get(device, device)
        runs = index.count(problem.name, device)
        said = digest(revision, problem.sha256, repr((board, theirs, config.confidence)), __version__)
        made = LiveBoard(
            problem=problem,
            device=device,
            device_name=name,
            board=board,
            records=records,
            texts=texts,
            best=best,
            origins=origins,
            of_competition=theirs,
            runs=runs if entries else 0,
            revision=said,
            confidence=config.confidence,
            worker_timed_too=config.rank_worker_timed,
            between_cards=between_cards,
        )
        return {(problem.name, device): made}

    def board(self, problem: str, device: str) -> LiveBoard | None:
        """Return a board as of now, without submissions that an administrator has just removed. Raises DatabaseGone."""
        found = self._boards.get((problem, device))
        return found.without(self._ledger.removed()) if found is not None else None

    def run(self, run_id: str) -> tuple[str, Run] | None:
        """Return the path under results/ and the run of this id, or None if there is none that can be read.

        A run's file is named after its id, so no list of runs is needed.
        """
        if not run_id or any(mark in run_id for mark in "/\\\0") or len(run_id) > 200:
            return None
        results = self.root / "results"
        for tier in (*TIERS, TRIALS):
            for folder in (results / tier).glob("*/*"):
                path = folder / f"{run_id}.json"
                try:
                    if path.is_file():
                        return str(path.relative_to(results)), load_run(path)
                except (OSError, ValueError):  # the name is too long for a file, or the file is not a run
                    continue
        return None


def _best(texts: Iterable[str]) -> dict[str, float]:
    """Return the least latency of any of these runs on each case, by the case's key."""
    found: dict[str, float] = {}
    for text in texts:
        for figure in cases_of(text):
            key = figure.case.key
            found[key] = min(found.get(key, figure.latency_ns), figure.latency_ns)
    return found


def digest(*parts: str) -> str:
    """Return a short text that changes if any of `parts` changes."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]
