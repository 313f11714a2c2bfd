"""The one place that orders submissions.

A board ranks accepted runs that have a score, were timed by one clock, and belong to the problem's present files. Two
runs whose intervals overlap cannot be told apart. Each then has a range of ranks: from 1 + the number of runs certainly
faster, to the number of runs not certainly slower.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.model import DISTURBED, ClockOwner, Estimate, Unranked, Verdict, of_limit
from harness.ranking import fleet
from harness.ranking.fleet import USUAL, Component
from harness.records.entry import Entry

CLOSE = 0.02
"""Two runs minutes apart can differ by this much although only the machine's state changed (docs/experiments.md, E2).
"""

FAR_OFF = (*DISTURBED, Unranked.IMPRECISE, Unranked.BELOW_FLOOR)
"""Reasons not to rank a run whose score may be far off. Such a run is not compared with others."""


@dataclass(frozen=True)
class Standing:
    """An entry's place on its board. `first` and `last` differ only if it is tied. `times_baseline` is the best
    baseline's latency over the entry's, so above 1 for a faster entry."""

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
    """One problem on one device. `standings`: the ranked entries, best first. `unranked`: the others, each with its
    reasons. `clock`: the clock that timed all ranked entries. `between_cards`: what a card adds, which the intervals
    contain. None if one card judged all ranked runs, as far as they say."""

    standings: tuple[Standing, ...]
    unranked: tuple[Entry, ...]
    clock: ClockOwner = ClockOwner.JUDGE
    between_cards: Component | None = None

    @property
    def cards(self) -> int:
        """How many cards judged the ranked runs, as far as they say."""
        return len({standing.entry.card for standing in self.standings} - {None})

    def ranks(self, entry: Entry) -> bool:
        """True if this board ranks the run."""
        return entry.ranked and not entry.older and entry.clock is self.clock

    def why_not(self, entry: Entry) -> str | None:
        """The reasons why an accepted run is not ranked here, joined by commas."""
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
    """How one run's score compares with others. `times_baseline`: the best baseline's latency over the run's.
    `times_best`: the latency of `best`, the best submission before this run, over the run's. Both are None if there is
    nothing to compare with. They are also None if the score may be far off (`FAR_OFF`), except for a baseline that was
    timed in turns with the run. `level`: the intervals of the run and of `best` overlap, so their ratio shows nothing.
    """

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
    """The board of `entries`, which holds one entry per submission. `baselines` names the submissions to compare the
    others with.

    With `rank_worker_timed`, and only if no run timed by the judge can be ranked, worker-timed runs are ranked. If
    several cards judged the ranked runs, their intervals are widened by `between_cards`, what a card adds as it was
    measured on this model, or else by `fleet.USUAL`.
    """
    judged = any(Board((), ()).ranks(entry) for entry in entries)
    clock = ClockOwner.WORKER if rank_worker_timed and not judged else ClockOwner.JUDGE
    board = Board((), (), clock)
    ranked = sorted(filter(board.ranks, entries), key=lambda e: (e.score_ns or 0.0, e.submission))
    if len({entry.card for entry in ranked} - {None}) > 1:
        board = replace(board, between_cards=between_cards or USUAL)
        ranked = [widened(entry, board.between_cards) for entry in ranked]
    best_baseline = min((e.score_ns for e in ranked if e.submission in baselines and e.score_ns), default=None)
    lows = sorted(e.low_ns for e in ranked if e.low_ns is not None)
    highs = sorted(e.high_ns for e in ranked if e.high_ns is not None)
    standings = [_standing(entry, lows, highs, len(ranked), best_baseline) for entry in ranked]
    rest = [replace(entry, unranked=board.why_not(entry)) for entry in entries if not board.ranks(entry)]
    rest.sort(key=lambda e: (e.verdict.exit_code, e.older, e.submission))
    return replace(board, standings=tuple(standings), unranked=tuple(rest))


def widened(entry: Entry, found: Component | None) -> Entry:
    """`entry` with what a card adds in its interval."""
    if found is None or entry.widened or entry.score_ns is None or entry.low_ns is None:
        return entry
    score = Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)
    wide = fleet.widened(score, entry.freedom, found, entry.confidence)
    return replace(entry, low_ns=wide.low_ns, high_ns=wide.high_ns, widened=True)


def bearings(entry: Entry, board: Board, baselines: Sequence[str], best: Entry | None) -> Bearings | None:
    """The bearings of `entry` on `board`, or None if the entry has no score. `best` is the best ranked run before
    it."""
    entry = widened(entry, board.between_cards)
    if entry.score_ns is None:
        return None
    best = widened(best, board.between_cards) if best is not None else None
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
    """The relative difference below which only a duel on one card tells two runs apart: CLOSE, or the difference
    between two cards of the fleet for one source, whichever is larger."""
    between = board.between_cards
    return max(CLOSE, math.expm1(between.reach(confidence)) if between is not None else 0.0)


def close(board: Board) -> list[tuple[Entry, Entry]]:
    """Neighbours on the board whose scores are within `closeness` of each other. Only a duel can tell them apart."""
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
    """The standing of `entry`. `lows` and `highs` are the sorted ends of the intervals of all ranked entries. Bisection
    counts the entries certainly faster and slower, because a board may have thousands."""
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
    """The speed-up that the run itself measured in turns, if it did. Else the best baseline's score over this run's."""
    if entry.speed_up is not None or not entry.score_ns:
        return entry.speed_up
    return best_baseline_ns / entry.score_ns if best_baseline_ns else None


def _certainly_faster(one: Entry, other: Entry) -> bool:
    """True if `one`'s interval lies wholly below `other`'s. False without both intervals."""
    return one.high_ns is not None and other.low_ns is not None and one.high_ns < other.low_ns
