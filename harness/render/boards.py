"""A problem's boards, read from the index and ranked: as parts of a document, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import ranking
from harness.errors import UsageError, did_you_mean
from harness.index import Index
from harness.model import Problem, Run
from harness.ranking import Bearings, Board
from harness.render import terminal
from harness.render.document import Part
from harness.store import Store


def parts(root: Path, problem: Problem, device: str | None, published: bool = True) -> list[Part]:
    """The boards of `problem`, of one device's folder or of all; below them figures that others published."""
    found: list[Part] = []
    with Store(root).index() as index:
        for folder, name in _devices(index, problem, device).items():
            board = _board(index, problem, folder)
            notes = [*_notes(index, problem, folder), *_duels(board)]
            found += terminal.board(problem, name, board, notes)
        faults = [f"Left alone in results/: {path}: {fault}" for path, fault in index.faults()]
    if not found:
        found.append(f"No runs of {problem.name} yet: python3 -m harness eval {problem.name}")
    if published and problem.published:
        found += terminal.published(problem)
    return [*found, *faults]


def bearings(root: Path, problem: Problem, runs: Sequence[Run]) -> list[Bearings | None]:
    """Where each of `runs` stands, which are stored; None for one without a score."""
    with Store(root).index() as index:
        found: list[Bearings | None] = []
        for run in runs:
            entry = index.entry(run.id)
            board = _board(index, problem, run.device.slug)
            if entry is None:
                found.append(None)
            else:
                found.append(ranking.bearings(entry, board, problem.baselines, index.best_before(entry)))
        return found


def as_json(root: Path, problem: Problem, device: str | None) -> list[dict[str, Any]]:
    """The same, one object a device."""
    with Store(root).index() as index:
        return [
            {
                "problem": problem.name,
                "revision": problem.revision,
                "device": name,
                "ranked": [
                    {**asdict(standing.entry), **{k: v for k, v in asdict(standing).items() if k != "entry"}}
                    for standing in board.standings
                ],
                "unranked": [asdict(entry) for entry in board.unranked],
                "published": [figure.model_dump() for figure in problem.published],
            }
            for folder, name in _devices(index, problem, device).items()
            for board in [_board(index, problem, folder)]
        ]


def _devices(index: Index, problem: Problem, device: str | None) -> dict[str, str]:
    devices = index.devices(problem.name)
    if device is None:
        return devices
    if device not in devices and devices:
        raise UsageError(f"there are no runs of {problem.name} on {device!r}", did_you_mean(device, devices))
    return {folder: name for folder, name in devices.items() if folder == device}


def _board(index: Index, problem: Problem, folder: str) -> Board:
    return ranking.rank(index.standings(problem.name, problem.revision, folder), problem.baselines)


def _duels(board: Board) -> list[str]:
    """What to do about neighbours that are too close for their runs to tell apart: of the best three pairs."""
    return [
        f"{one.submission} and {other.submission} are within {ranking.CLOSE:.0%}: "
        f"python3 -m harness compare {other.submission} {one.submission} --duel tells whether one is faster."
        for one, other in ranking.close(board)[:3]
    ]


def _notes(index: Index, problem: Problem, folder: str) -> list[str]:
    outdated = index.outdated(problem.name, problem.revision, folder)
    if not outdated:
        return []
    return [f"{outdated} runs of other revisions of the problem are left out: this is revision {problem.revision}."]
