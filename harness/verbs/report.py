"""The content of a report, read from the index and the run files: boards, their runs, and environments.

problem ─► Part ─► Shelf, one a device ─► Board (ranking), Sheet a submission, Line a run, Environment
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import __version__
from harness.catalog.config import load_config
from harness.errors import InfrastructureError
from harness.machine.environment import flat
from harness.model import Case, Device, Problem, Run, Unranked, Verdict
from harness.ranking.board import Board, Standing, rank
from harness.records.entry import Entry, of_present, of_run
from harness.records.index import Index
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.verbs import devices, spread


@dataclass(frozen=True)
class Environment:
    """The environment of one or more runs, as flat `facts` by name. Runs with equal facts share a `label`: E1, E2,
    ..."""

    label: str
    facts: dict[str, str]


@dataclass(frozen=True)
class Line:
    """A run in the list of all runs. `ranked`: whether its board can rank the run. `why_not`: the reasons if it
    cannot."""

    run: Run
    environment: str
    baseline: bool
    disqualified: bool
    ranked: bool
    why_not: str | None

    @property
    def load(self) -> str:
        """The machine's load average over one minute when the run began."""
        average = self.run.environment.get("load_average")
        return str(average[0]) if isinstance(average, list) and average else ""


@dataclass(frozen=True)
class Sheet:
    """A submission on a board, with the run that stands for it (None if its file cannot be read) and its source."""

    entry: Entry
    standing: Standing | None
    baseline: bool
    run: Run | None
    source: str | None
    source_note: str


@dataclass(frozen=True)
class Shelf:
    """A problem on one device."""

    device: Device | None
    name: str
    slug: str
    board: Board
    sheets: tuple[Sheet, ...]
    lines: tuple[Line, ...]
    environments: tuple[Environment, ...]

    @property
    def ranked(self) -> list[Sheet]:
        return [sheet for sheet in self.sheets if sheet.standing is not None]

    @property
    def has_baseline(self) -> bool:
        """Whether a baseline is ranked, so that the others can be compared with it."""
        return any(sheet.baseline for sheet in self.ranked)

    @property
    def in_turns(self) -> list[str]:
        """The names of the problem's own baselines that were timed in turns with the ranked submissions."""
        return list(dict.fromkeys(each.name for s in self.ranked if s.run is not None for each in s.run.baselines))

    @property
    def verified(self) -> list[Sheet]:
        """Submissions that were accepted but not ranked."""
        return [s for s in self.sheets if s.standing is None and s.entry.verdict is Verdict.ACCEPTED]

    @property
    def left_out(self) -> list[Sheet]:
        return [sheet for sheet in self.sheets if sheet.entry.verdict is not Verdict.ACCEPTED]

    @property
    def quick_tries(self) -> list[Sheet]:
        """The failed submissions whose run was a quick one."""
        return [sheet for sheet in self.left_out if sheet.entry.unranked == Unranked.QUICK]

    @property
    def reasons(self) -> list[str]:
        """The distinct reasons why runs are not ranked."""
        return sorted({reason for line in self.lines if line.why_not for reason in line.why_not.split(", ")})

    @property
    def cases(self) -> list[Case]:
        """The cases of the ranked submissions, in the order of the best submission's run."""
        found = {m.case.key: m.case for s in self.ranked if s.run is not None for m in s.run.measurements}
        return list(found.values())

    @property
    def environment_keys(self) -> list[str]:
        return list(dict.fromkeys(key for environment in self.environments for key in environment.facts))

    @property
    def confidence(self) -> float | None:
        """The confidence of the intervals, if all the runs on the board have the same."""
        levels = {sheet.run.config.get("confidence") for sheet in self.ranked if sheet.run is not None}
        (level,) = levels if len(levels) == 1 else (None,)
        return level if isinstance(level, float) else None


@dataclass(frozen=True)
class Part:
    """A problem with all devices that have runs of it."""

    problem: Problem
    shelves: tuple[Shelf, ...]


def as_json(root: Path, problems: Sequence[Problem], device: str | None = None) -> dict[str, Any]:
    """Return the report as data: boards, the runs on them with every sample, sources and environments."""
    found, faults = read(root, problems, device)
    return {
        "version": __version__,
        "problems": [
            {"problem": part.problem.model_dump(mode="json", exclude={"folder"}), "devices": part.shelves}
            for part in found
        ],
        "left_alone": dict(faults),
    }


def read(root: Path, problems: Sequence[Problem], device: str | None) -> tuple[list[Part], list[tuple[str, str]]]:
    """Return the parts, those with runs first, and the files in results/ that are not runs. Raises UsageError."""
    with Store(root).index() as index:
        if device is not None:
            names = [problem.name for problem in problems]
            there = {folder: name for problem in names for folder, name in index.devices(problem).items()}
            device = devices.folder(device, there, names)
        found = sorted(parts(root, index, problems, device), key=lambda part: not part.shelves)
        return found, index.faults()


def parts(root: Path, index: Index, problems: Sequence[Problem], device: str | None = None) -> Iterator[Part]:
    """Yield the parts, one for each problem. `device`: the folder name of one device. None means every device. Those on
    which nothing is ranked come last."""
    paths = list(index.paths().values())
    for problem in problems:
        shelves = [
            _shelf(root, index, problem, slug, name, paths)
            for slug, name in index.devices(problem.name).items()
            if device in (None, slug)
        ]
        yield Part(problem, tuple(sorted(shelves, key=lambda shelf: not shelf.ranked)))


def _shelf(root: Path, index: Index, problem: Problem, slug: str, name: str, paths: Sequence[str]) -> Shelf:
    chosen = Store(root).mark_sources(index.standings(problem, slug))
    board = rank(chosen, problem.baselines, load_config(root).rank_worker_timed, spread.measured(root, slug))
    standing = {entry.id for entry in (*(s.entry for s in board.standings), *board.unranked)}
    runs = _runs(root / "results", problem, slug, paths, standing)
    environments = _environments(runs.values())
    labels = {json.dumps(e.facts): e.label for e in environments}
    entries = {run.id: of_present(of_run("", run), problem) for run in runs.values()}
    found_wrong = {e.sha256 for e in entries.values() if e.verdict.disqualifies and not e.older}
    lines = [
        Line(
            run=run,
            environment=labels[json.dumps(_facts(run))],
            baseline=run.submission in problem.baselines,
            disqualified=run.submission_sha256 in found_wrong,
            ranked=board.ranks(entries[run.id]),
            why_not=board.why_not(entries[run.id]),
        )
        for run in sorted(runs.values(), key=lambda run: (run.started_at, run.id), reverse=True)
    ]
    placed: list[tuple[Entry, Standing | None]] = [(s.entry, s) for s in board.standings]
    placed += [(entry, None) for entry in board.unranked]
    sheets = [_sheet(Store(root), problem, entry, standing, runs.get(entry.id)) for entry, standing in placed]
    latest = lines[0].run.device if lines else None
    return Shelf(latest, name, slug, board, tuple(sheets), tuple(lines), environments)


def _runs(results: Path, problem: Problem, slug: str, paths: Sequence[str], standing: Set[str]) -> dict[str, Run]:
    """Return every readable run on this device by id. The index's faults list the unreadable files.

    Only the runs in `standing` keep their measurements: the samples of thousands of runs would fill the memory.
    """
    found = {}
    for path in paths:
        if path.split("/")[1:3] != [problem.name, slug]:
            continue
        try:
            run = load_run(results / path)
        except ValueError:
            continue
        found[run.id] = run if run.id in standing else run.model_copy(update={"measurements": ()})
    return found


def _environments(runs: Iterable[Run]) -> tuple[Environment, ...]:
    """Return the distinct environments, in the order of their first run."""
    in_order = sorted(runs, key=lambda run: (run.started_at, run.id))
    distinct = {json.dumps(facts): facts for run in in_order for facts in [_facts(run)]}
    return tuple(Environment(f"E{number}", facts) for number, facts in enumerate(distinct.values(), 1))


def _facts(run: Run) -> dict[str, str]:
    """Return the environment as flat facts."""
    return flat(run.environment) | {"device arch": run.device.arch}


def _sheet(store: Store, problem: Problem, entry: Entry, standing: Standing | None, run: Run | None) -> Sheet:
    source, note = _source(store, entry)
    return Sheet(entry, standing, entry.submission in problem.baselines, run, source, note)


def _source(store: Store, entry: Entry) -> tuple[str | None, str]:
    """Return the source that `entry` was judged on, or None and the reason why it is not shown."""
    try:
        return store.source(entry.problem, entry.sha256).decode("utf-8", errors="replace"), ""
    except InfrastructureError as error:
        return None, f"{error.message[:1].upper()}{error.message[1:]}."
