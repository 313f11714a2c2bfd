"""The boards of a problem, one for each device that has runs. They are read from the index and ranked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import catalog
from harness.catalog.config import load_config
from harness.errors import PodiumError
from harness.model import Problem, Run
from harness.ranking import board as ranking
from harness.ranking.board import Bearings, Board
from harness.records.entry import of_present
from harness.records.index import Index
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.verbs import devices, spread


@dataclass(frozen=True)
class Boards:
    """The boards, each with its device's name. `faults`: path and reason for each file in results/ that is not a
    run."""

    boards: list[tuple[str, Board]]
    faults: list[tuple[str, str]]


def boards(root: Path, problem: Problem, device: str | None) -> Boards:
    """Return the boards of `problem`, for one device or for all. Raises UsageError for a device without runs."""
    with Store(root).index() as index:
        return Boards(_boards(root, index, problem, device), index.faults())


def bearings(root: Path, problem: Problem, runs: Sequence[Run]) -> list[Bearings | None]:
    """Return where each of the stored `runs` stands on its board, or None for a run without a score."""
    with Store(root).index() as index:
        found: list[Bearings | None] = []
        for run in runs:
            entry = index.entry(run.id)
            board = _board(root, index, problem, run.device.slug)
            if entry is None:
                found.append(None)
            else:
                best = index.best_before(entry)
                found.append(ranking.bearings(entry, board, problem.baselines, best))
        return found


def why_not_ranked(root: Path, run: Run) -> str | None:
    """Return the reasons, separated by commas, why an accepted stored run has no rank on its board. Return None for a
    run that could be ranked. If the problem is not here, return the reason that the run itself holds."""
    with contextlib.suppress(PodiumError), Store(root).index() as index:
        problem, entry = catalog.problem_of(root, run), index.entry(run.id)
        if entry is not None:
            board = _board(root, index, problem, run.device.slug)
            return board.why_not(of_present(entry, problem))
    return run.unranked_because


def ranked_runs(root: Path, board: Board) -> Iterator[tuple[str, Run]]:
    """Yield each ranked run with its submission's name. Skip runs whose files cannot be read now."""
    for entry in (standing.entry for standing in board.standings):
        with contextlib.suppress(ValueError):
            yield entry.submission, load_run(root / "results" / entry.path)


def as_json(root: Path, problem: Problem, device: str | None, cases: bool = False) -> dict[str, Any]:
    """Return the boards as data, one object for each device, and the files that are not runs. `cases`: include each
    case of the ranked runs."""
    read = boards(root, problem, device)
    shown = [
        {
            "problem": problem.name,
            "revision": problem.revision,
            "problem_sha256": problem.sha256,
            "device": name,
            "clock": board.clock,
            "cards": board.cards,
            **({"between_cards": asdict(board.between_cards)} if board.between_cards else {}),
            "ranked": [
                {**asdict(standing.entry), **{k: v for k, v in asdict(standing).items() if k != "entry"}}
                for standing in board.standings
            ],
            "unranked": [asdict(entry) for entry in board.unranked],
            "published": [figure.model_dump() for figure in problem.published],
            "secret_cases": {
                kind: [family.model_dump(exclude_none=True) for family in cases.secret]
                for kind, cases in (("gpu", problem.cases), ("cpu", problem.cpu))
            },
            **({"cases": _cases(root, board)} if cases else {}),
        }
        for name, board in read.boards
    ]
    return {"boards": shown, "left_alone": dict(read.faults)}


def _cases(root: Path, board: Board) -> dict[str, list[dict[str, Any]]]:
    """Return all stored facts of the cases but the samples, by submission."""
    return {
        name: [measured.model_dump(mode="json", exclude={"samples_ns"}) for measured in run.measurements]
        for name, run in ranked_runs(root, board)
    }


def _boards(root: Path, index: Index, problem: Problem, device: str | None) -> list[tuple[str, Board]]:
    """By the name of the device; those on which nothing is ranked come last."""
    there = index.devices(problem.name)
    only = devices.folder(device, there, [problem.name]) if device is not None and there else None
    found = [(name, _board(root, index, problem, folder)) for folder, name in there.items() if only in (None, folder)]
    return sorted(found, key=lambda each: not each[1].standings)


def _board(root: Path, index: Index, problem: Problem, folder: str) -> Board:
    worker_timed = load_config(root).rank_worker_timed
    entries = Store(root).mark_sources(index.standings(problem, folder))
    return ranking.rank(entries, problem.baselines, worker_timed, spread.measured(root, folder))
