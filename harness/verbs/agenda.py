"""The files of one evaluation in the order of judging, and estimates of how long they take.

    Agenda(submissions, device, stored_s) ─► line        3 files: one, two, three; about 5 min if ...
                                          ─► which(2)    , file 3 of 3, about 1 min left if ...
                                          ◄─ took(submission, seconds)

There are two kinds of files, with durations of their own: those that are timed, and those that are only checked.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
from collections.abc import Mapping, Sequence

from harness.errors import InfrastructureError
from harness.model import Device, Problem, Submission, Unranked, Verdict
from harness.progress import about
from harness.records.store import Store

NAMED = 6
"""The most files whose names are listed before the first is judged."""

MOST_AT_ONCE = 4
"""The most workers that are started at once. Each takes 0.2 GB of memory."""

LATEST = 5
"""The number of stored runs of each kind whose duration is read."""


class Agenda:
    """`stored_s`: durations of stored runs in seconds, as of `took_before`."""

    def __init__(
        self, submissions: Sequence[Submission], device: Device, stored_s: Mapping[bool, Sequence[float]]
    ) -> None:
        self._submissions, self._device, self._stored_s = submissions, device, stored_s
        self._took_s: dict[bool, list[float]] = {}

    @property
    def line(self) -> str:
        """Describe the work: `3 files: one, two, three; about 5 min if they take as long as stored runs here`."""
        submissions = self._submissions
        names = [submission.name for submission in submissions]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        line = f"{len(names)} files: {', '.join(names[:NAMED])}{more}"
        untimed = sum(map(self._untimed, submissions))
        if untimed:
            last = all(map(self._untimed, submissions[-untimed:]))
            which = f"the last {untimed}" if last and untimed < len(names) else f"{untimed} of them"
            line += f"; {which} use Triton or inline HIP, or refuse a processor: they are checked here, not timed"
        left_s = self.left_s(0)
        if left_s is None:
            return f"{line}; how long all of them take is told after the first"
        return f"{line}; {about(left_s)} if they take as long as stored runs here"

    def which(self, number: int) -> str:
        """Return `, file 3 of 10, about 5 min left if the rest take as long as those`. It gives no time
        until one file is judged."""
        if len(self._submissions) == 1:
            return ""
        left_s = self.left_s(number) if self._took_s else None
        left = f", {about(left_s)} left if the rest take as long as those" if left_s is not None else ""
        return f", file {number + 1} of {len(self._submissions)}{left}"

    def left_s(self, first: int, end: int | None = None) -> float | None:
        """Estimate the seconds that `submissions[first:end]` will take, or return None if some cannot be estimated.
        Each is expected to take as long as earlier files of its kind, else as stored runs of its kind,
        else as any earlier file."""
        every = [each for times in self._took_s.values() for each in times]
        left_s = 0.0
        for submission in self._submissions[first:end]:
            kind = self._untimed(submission)
            known = self._took_s.get(kind) or self._stored_s.get(kind) or every
            if not known:
                return None
            left_s += statistics.fmean(known)
        return left_s

    def took(self, submission: Submission, seconds: float) -> None:
        """Note how long the judging of `submission` took."""
        self._took_s.setdefault(self._untimed(submission), []).append(seconds)

    def to_start_ahead(self, number: int) -> int:
        """Return how many workers to start ahead, for the submissions after this one. If all of them are only checked,
        there is one worker for each processor, because a check takes less time than the start of a worker."""
        untimed = itertools.takewhile(self._untimed, self._submissions[number:])
        return max(min(sum(1 for _ in untimed), os.cpu_count() or 1, MOST_AT_ONCE) - 1, 0)

    def _untimed(self, submission: Submission) -> bool:
        """Whether the submission will probably be checked here but not timed."""
        return self._device.kind == "cpu" and for_gpus_only(submission)


def for_gpus_only(submission: Submission) -> bool:
    """Whether the source suggests that no CPU run of it could be ranked."""
    return any(word in submission.text for word in ("triton", "harness.hip", "NoDevice"))


def took_before(store: Store, problem: Problem, device: Device, quick: bool) -> dict[bool, list[float]]:
    """Return the durations in seconds of the latest stored runs on this kind of device. Key True: runs that were not
    timed. Key False: the others."""
    with store.index() as index:
        runs = [run for run in index.runs() if run.problem == problem.name and run.device == device.slug]
    found: dict[bool, list[float]] = {}
    for entry in sorted(runs, key=lambda run: run.started_at, reverse=True):
        of_kind = found.setdefault(entry.unranked == Unranked.INTERPRETED, [])
        same_kind = entry.unranked == Unranked.INTERPRETED or (entry.unranked == Unranked.QUICK) == quick
        if entry.verdict is Verdict.ACCEPTED and same_kind and len(of_kind) < LATEST:
            with contextlib.suppress(InfrastructureError):  # removed or damaged meanwhile
                of_kind.append(store.load(entry).duration_s)
    return {kind: took_s for kind, took_s in found.items() if took_s}
