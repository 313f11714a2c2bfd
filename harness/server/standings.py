"""The board of a competition on one GPU for popcorn-cli: one line for each person, the fastest first.

A source that was judged several times counts with the median of its ranked runs (the slower of two middle ones), so
that judging again until lucky gains nothing. A source that was ever found wrong does not count, and neither does one
with a removed submission. Runs of a submission that its author deleted still count for other submissions of the same
bytes. A person counts with the fastest of their sources.
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
    """A person's line: the rank from 1, and the run and submission that stand for the person. Equal scores share a
    rank."""

    rank: int
    run: RunRow
    submission: SubmissionRow


SHORT_S = 0.2
SHARE = 0.1
"""While runs keep arriving, a board that takes longer than SHORT_S to make gets at most this fraction of the time."""


@dataclass(frozen=True)
class CompetitionBoard:
    """A board: each person's line, and by the person's number the count of ranked runs in submissions that stand."""

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
    """The boards of one server's competitions. Each is cached until a run is stored or a submission taken off, because
    anybody may ask often and there may be many runs."""

    queue: Queue
    _kept: dict[tuple[str, str], _Made] = field(default_factory=dict)
    _making: threading.Lock = field(default_factory=threading.Lock)

    def of(self, competition: str, gpu: str) -> CompetitionBoard:
        """Return a board. It never shows submissions that were taken off, and may lack a run that was just stored.
        Raises DatabaseGone."""
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
        if median[1].deleted_at is not None:  # the median's submission is hidden, so name the latest that stands
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
