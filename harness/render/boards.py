"""A problem's boards, read from the index and ranked: as parts of a document, as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import ranking
from harness.config import load_config
from harness.errors import UsageError, did_you_mean
from harness.index import Index
from harness.model import Problem, Run
from harness.ranking import Bearings, Board
from harness.render import run as rendered
from harness.render import terminal
from harness.render.document import Part
from harness.store import Store, load_run


def parts(root: Path, problem: Problem, device: str | None, published: bool = True, cases: bool = False) -> list[Part]:
    """The boards of `problem`, of one device's folder or of all, with each case of what is ranked if `cases`; below
    them what runs draw in secret, and figures that others published."""
    found: list[Part] = []
    with Store(root).index() as index:
        for folder, name in _devices(index, problem, device).items():
            board = _board(root, index, problem, folder)
            found += terminal.board(problem, name, board, _duels(board))
            if cases:
                found += [rendered.case_table(run, title) for title, run in _runs(root, board)]
        faults = [f"Left alone in results/: {path}: {fault}" for path, fault in index.faults()]
    if not found:
        found.append(f"No runs of {problem.name} yet: python3 -m harness eval {problem.name}")
    if published:
        found += terminal.secret_cases(problem)
    if published and problem.published:
        found += terminal.published(problem)
    return [*found, *faults]


def bearings(root: Path, problem: Problem, runs: Sequence[Run]) -> list[Bearings | None]:
    """Where each of `runs` stands, which are stored; None for one without a score."""
    with Store(root).index() as index:
        found: list[Bearings | None] = []
        for run in runs:
            entry = index.entry(run.id)
            board = _board(root, index, problem, run.device.slug)
            if entry is None:
                found.append(None)
            else:
                found.append(ranking.bearings(entry, board, problem.baselines, index.best_before(entry)))
        return found


def as_json(root: Path, problem: Problem, device: str | None, cases: bool = False) -> list[dict[str, Any]]:
    """The same, one object a device."""
    with Store(root).index() as index:
        return [
            {
                "problem": problem.name,
                "revision": problem.revision,
                "problem_sha256": problem.sha256,
                "device": name,
                "clock": board.clock,
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
            for folder, name in _devices(index, problem, device).items()
            for board in [_board(root, index, problem, folder)]
        ]


def _cases(root: Path, board: Board) -> dict[str, list[dict[str, Any]]]:
    """By submission, all that is stored of its cases but the samples."""
    return {
        name: [measured.model_dump(mode="json", exclude={"samples_ns"}) for measured in run.measurements]
        for name, run in _runs(root, board)
    }


def _runs(root: Path, board: Board) -> list[tuple[str, Run]]:
    """The runs that are ranked, by submission, but for those whose files cannot be read now."""
    found = []
    for entry in (standing.entry for standing in board.standings):
        with contextlib.suppress(ValueError):
            found.append((entry.submission, load_run(root / "results" / entry.path)))
    return found


def _devices(index: Index, problem: Problem, device: str | None) -> dict[str, str]:
    devices = index.devices(problem.name)
    if device is None:
        return devices
    if device not in devices and devices:
        raise UsageError(f"there are no runs of {problem.name} on {device!r}", did_you_mean(device, devices))
    return {folder: name for folder, name in devices.items() if folder == device}


def _board(root: Path, index: Index, problem: Problem, folder: str) -> Board:
    worker_timed = load_config(root).rank_worker_timed
    return ranking.rank(index.standings(problem, folder), problem.baselines, worker_timed)


def _duels(board: Board) -> list[str]:
    """What to do about neighbours that are too close for their runs to tell apart: of the best three pairs."""
    return [
        f"{one.submission} and {other.submission} are within {ranking.CLOSE:.0%}: "
        f"python3 -m harness compare {other.submission} {one.submission} --duel tells whether one is faster."
        for one, other in ranking.close(board)[:3]
    ]
