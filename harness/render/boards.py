"""A problem's boards as parts of a document."""

from __future__ import annotations

from pathlib import Path

from harness.command import typed
from harness.model import Problem
from harness.ranking.board import Board, close, closeness
from harness.render import run as rendered
from harness.render import tables
from harness.render.document import Part
from harness.verbs import leaderboard


def parts(root: Path, problem: Problem, device: str | None, published: bool = True, cases: bool = False) -> list[Part]:
    """Return the boards of `problem`, for one device or all, followed by its families of secret cases and the figures
    that others published. `cases`: include each case of the ranked runs."""
    read = leaderboard.boards(root, problem, device)
    found: list[Part] = []
    for name, board in read.boards:
        found += tables.board(problem, name, board, _duels(board))
        if cases:
            found += [rendered.case_table(run, title) for title, run in leaderboard.ranked_runs(root, board)]
    if not found:
        found.append(f"No runs of {problem.name} yet: {typed('eval', problem.argument)}")
    if published:
        found += tables.secret_cases(problem)
    if published and problem.published:
        found += tables.published(problem)
    return [*found, *tables.left_alone(read.faults)]


def _duels(board: Board) -> list[str]:
    """Return advice about neighbours on a board whose runs cannot tell them apart, for the best three pairs."""
    said = []
    if board.between_cards is not None:
        found = board.between_cards
        said.append(
            f"Several cards judged these: the intervals hold what a card adds, a standard deviation of "
            f"{found.percent:.2g} % ({found.kernels} kernels on {found.cards} cards)."
        )
    return said + [
        f"{one.submission} and {other.submission} are within {closeness(board):.0%}: "
        f"{typed('compare', other.submission, one.submission, '--duel')} tells whether one is faster."
        for one, other in close(board)[:3]
    ]
