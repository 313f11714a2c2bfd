"""The board of a competition on one GPU, as popcorn-cli asks for it: one line a person, the fastest first.

A source that was judged several times counts with the median of its ranked runs (the slower of two middles), so that
judging again until lucky gains nothing; one that was ever found wrong does not count. Runs of a submission that its
author has deleted go on counting so, for whatever else was judged of the same bytes. A source of which a submission was
removed does not count. A person counts with the fastest of their sources.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from harness.model import Verdict
from harness.server.store.queue import Queue
from harness.server.store.rows import RunRow, SubmissionRow


@dataclass(frozen=True)
class Place:
    """A person's line: rank from 1, and the run and submission that stand for them. People with the same score share a
    rank."""

    rank: int
    run: RunRow
    submission: SubmissionRow


SHORT_S = 0.2
SHARE = 0.1
"""A board whose making takes longer than SHORT_S has at most this part of the time, while runs keep coming."""


@dataclass(frozen=True)
class CompetitionBoard:
    """A board: everyone's line, and how many ranked runs each person has in submissions that stand, by their number."""

    places: list[Place]
    ranked_runs: Counter[int]


@dataclass(frozen=True)
class _Made:
    board: CompetitionBoard
    runs: int
    taken_off: tuple[object, ...]
    at_s: float
    took_s: float


@dataclass
class Standings:
    """The boards of one server's competitions, each kept until a run was stored or a submission taken off: anybody may
    ask for one as often as they like, and the runs may be many."""

    queue: Queue
    _kept: dict[tuple[str, str], _Made] = field(default_factory=dict)
    _making: threading.Lock = field(default_factory=threading.Lock)

    def of(self, competition: str, gpu: str) -> CompetitionBoard:
        """The board. What was taken off is not on it; a run that was stored this moment may not be on it yet. Raises
        DatabaseGone."""
        with self._making:
            runs, taken_off = self.queue.stored(), self.queue.last_taken_off()
            known = self._kept.get((competition, gpu))
            begun_s = time.monotonic()
            if known is not None and known.taken_off == taken_off:
                wait_s = known.took_s / SHARE if known.took_s > SHORT_S else 0.0
                if known.runs == runs or begun_s - known.at_s < wait_s:
                    return known.board
            made = _board(self.queue, competition, gpu)
            ended_s = time.monotonic()
            self._kept[competition, gpu] = _Made(made, runs, taken_off, ended_s, ended_s - begun_s)
            return made


def _board(queue: Queue, competition: str, gpu: str) -> CompetitionBoard:
    counts: Counter[int] = Counter()
    by_source: dict[tuple[int, str], list[tuple[RunRow, SubmissionRow]]] = {}
    wrong: set[str] = set()
    for run, submission in queue.runs_of_competition(competition, gpu):
        if Verdict(run.verdict).disqualifies or submission.removed_at is not None:
            wrong.add(submission.sha256)
        if run.ranked:
            counts[submission.user_id] += submission.deleted_at is None and submission.removed_at is None
            by_source.setdefault((submission.user_id, submission.sha256), []).append((run, submission))
    best: dict[int, tuple[RunRow, SubmissionRow]] = {}
    for (user, sha256), runs in by_source.items():
        standing = [submission for _, submission in runs if submission.deleted_at is None]
        if sha256 in wrong or not standing:
            continue
        in_order = sorted(runs, key=lambda each: (each[0].score_ns or 0.0, each[0].id))
        median = in_order[len(in_order) // 2]
        if median[1].deleted_at is not None:  # nobody sees that one any more: the latest that stands is named
            median = (median[0], max(standing, key=lambda each: each.id))
        if user not in best or _score(median) < _score(best[user]):
            best[user] = median
    ordered = sorted(best.values(), key=lambda each: (_score(each), each[1].id))
    places: list[Place] = []
    for number, (run, submission) in enumerate(ordered, 1):
        same = places and places[-1].run.score_ns == run.score_ns
        places.append(Place(places[-1].rank if same else number, run, submission))
    return CompetitionBoard(places, counts)


def _score(found: tuple[RunRow, SubmissionRow]) -> float:
    return found[0].score_ns or 0.0
