"""The one place that orders submissions.

Ranked are accepted runs with a score, of one clock and of the problem's present files. Two whose intervals overlap
cannot be told apart; each then has a range of ranks, from one more than the number certainly faster than it to the
number not certainly slower.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.model import DISTURBED, ClockOwner, Unranked, Verdict, of_limit
from harness.ranking.fleet import Component
from harness.records.entry import Entry

CLOSE = 0.02
"""Runs of minutes apart differ by as much when nothing but the machine has changed (docs/experiments.md, E2)."""

FAR_OFF = (*DISTURBED, Unranked.IMPRECISE, Unranked.BELOW_FLOOR)
"""Why a run is not ranked, where its score may be far off: it is not held against others."""


@dataclass(frozen=True)
class Standing:
    """An entry's place on its board. `first` and `last` are equal unless it is tied; `times_baseline` is the best
    baseline's latency over its own, above 1 for what is faster."""

    entry: Entry
    first: int
    last: int
    times_baseline: float | None
    of_limit: float | None

    @property
    def rank(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}\N{EN DASH}{self.last}"


@dataclass(frozen=True)
class Board:
    """One problem on one device: what is ranked, best first, and what is not, with the reasons in each entry. `clock`
    is the one that all of the ranked were timed by. `between_cards` is part of the intervals of runs that several cards
    have judged, where it was measured."""

    standings: tuple[Standing, ...]
    unranked: tuple[Entry, ...]
    clock: ClockOwner = ClockOwner.JUDGE
    between_cards: Component | None = None

    def ranks(self, entry: Entry) -> bool:
        """Whether a run is one of those that are ranked here."""
        return entry.ranked and not entry.older and entry.clock is self.clock

    def why_not(self, entry: Entry) -> str | None:
        """The reasons, with commas between, why a run that was accepted is not ranked here."""
        if entry.verdict is not Verdict.ACCEPTED:
            return entry.unranked
        worker_timed = entry.worker_timed and self.clock is ClockOwner.JUDGE
        reasons = [
            Unranked.OLDER if entry.older else None,
            entry.unranked,
            Unranked.WORKER_TIMED if worker_timed else None,
        ]
        return ", ".join(reason for reason in reasons if reason) or None


@dataclass(frozen=True)
class Bearings:
    """Where one run's score lies: `times_baseline` and `times_best` are the best baseline's latency and the best one
    before it, of `best`, over its own. None where there is nothing to hold it against, or where its score may be far
    off (`FAR_OFF`) and no baseline was timed in turns with it. `level`: its interval and the best one's overlap, so the
    ratio tells nothing."""

    of_limit: float | None
    floor_format: str | None
    times_baseline: float | None
    times_best: float | None
    best: str | None
    level: bool = False


def rank(
    entries: Sequence[Entry],
    baselines: Sequence[str],
    rank_worker_timed: bool = False,
    between_cards: Component | None = None,
) -> Board:
    """The board of `entries`, one a submission. `baselines` names the submissions that others are compared with.

    Where the judge timed none that can be ranked, and only if `rank_worker_timed`, those that the submissions' own
    processes timed are ranked. `between_cards` is part of the entries' intervals already.
    """
    judged = any(Board((), ()).ranks(entry) for entry in entries)
    clock = ClockOwner.WORKER if rank_worker_timed and not judged else ClockOwner.JUDGE
    board = Board((), (), clock, between_cards)
    ranked = sorted(filter(board.ranks, entries), key=lambda e: (e.score_ns or 0.0, e.submission))
    best_baseline = min((e.score_ns for e in ranked if e.submission in baselines and e.score_ns), default=None)
    lows = sorted(e.low_ns for e in ranked if e.low_ns is not None)
    highs = sorted(e.high_ns for e in ranked if e.high_ns is not None)
    standings = [_standing(entry, lows, highs, len(ranked), best_baseline) for entry in ranked]
    rest = [replace(entry, unranked=board.why_not(entry)) for entry in entries if not board.ranks(entry)]
    rest.sort(key=lambda e: (e.verdict.exit_code, e.older, e.submission))
    return replace(board, standings=tuple(standings), unranked=tuple(rest))


def bearings(entry: Entry, board: Board, baselines: Sequence[str], best: Entry | None) -> Bearings | None:
    """Those of `entry`, which has a score or gets None, on `board`; `best` is the best ranked run before it."""
    if entry.score_ns is None:
        return None
    ranked = [standing.entry for standing in board.standings if entry.clock is board.clock]
    others = [other for other in ranked if other.submission != entry.submission]
    if entry.unranked in FAR_OFF:
        others, best = [], None
    baseline_ns = min((e.score_ns for e in others if e.submission in baselines and e.score_ns), default=None)
    return Bearings(
        of_limit=of_limit(entry.floor_ns, entry.score_ns),
        floor_format=entry.floor_format,
        times_baseline=_times_baseline(entry, baseline_ns),
        times_best=best.score_ns / entry.score_ns if best and best.score_ns else None,
        best=best.submission if best else None,
        level=best is not None and not _certainly_faster(best, entry) and not _certainly_faster(entry, best),
    )


def closeness(board: Board, confidence: float = 0.95) -> float:
    """How near, as a share, two runs are that a duel on one card must tell apart: CLOSE, or what two cards of the fleet
    differ by for one source."""
    between = board.between_cards
    return max(CLOSE, math.expm1(between.reach(confidence)) if between is not None else 0.0)


def close(board: Board) -> list[tuple[Entry, Entry]]:
    """Neighbours on the board whose scores are within `closeness` of each other: only a duel can tell them apart."""
    near = closeness(board)
    entries = [standing.entry for standing in board.standings]
    return [
        (one, other)
        for one, other in pairwise(entries)
        if one.score_ns and other.score_ns and other.score_ns <= (1 + near) * one.score_ns
    ]


def _standing(
    entry: Entry, lows: Sequence[float], highs: Sequence[float], ranked: int, best_baseline_ns: float | None
) -> Standing:
    """`lows` and `highs`: the ends of the intervals of all that are ranked, in order. Found in them are those certainly
    faster and certainly slower; a board may have thousands."""
    assert entry.score_ns is not None
    faster = 0 if entry.low_ns is None else bisect_left(highs, entry.low_ns)
    slower = 0 if entry.high_ns is None else len(lows) - bisect_right(lows, entry.high_ns)
    return Standing(
        entry=entry,
        first=1 + faster,
        last=ranked - slower,
        times_baseline=_times_baseline(entry, best_baseline_ns),
        of_limit=of_limit(entry.floor_ns, entry.score_ns),
    )


def _times_baseline(entry: Entry, best_baseline_ns: float | None) -> float | None:
    """As the run itself found in turns, if it did; else the best baseline's own run over this one."""
    if entry.speed_up is not None or not entry.score_ns:
        return entry.speed_up
    return best_baseline_ns / entry.score_ns if best_baseline_ns else None


def _certainly_faster(one: Entry, other: Entry) -> bool:
    """True when `one`'s interval lies wholly below the other's. Without an interval nothing is certain."""
    return one.high_ns is not None and other.low_ns is not None and one.high_ns < other.low_ns
