"""The judge's own clock: what a call takes as seen from outside, held against what the worker says that it took.

    judge    pour the inputs, open the gate ────────────────► reply, looked through    turnaround
    worker                                   page in, flush │ custom_kernel │ snapshot
                                             └──────────── the same for an idle call ────────────┘

The inputs of a call are secret until its clock runs, and its snapshot is taken before it is answered: whatever a
submission computes for it, it computes in between. So turnaround - latency is what a call that computes nothing takes,
and what a submission does outside the interval that the worker times comes on top. The turnarounds are held against the
very figure that is scored, so it does not matter in which calls the worker lies; and idle calls, whose latencies it
could lie about too, may be only so much slower than in a process without the submission. Every timed call is measured
so: there is no audit that a submission could tell from the rest.

Work in the place of the flush or of paging in, or beside them in a thread, would not show so. Some calls are made
without a flush, on the arena's own memory: they leave no room for it, and an honest submission takes no longer with
warm caches. That the worker is told which they are is of no use to it: in them too the work must be done within the
latency that the others claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from harness import stats
from harness.judge.neighbours import Crowding
from harness.judge.reply import Answer

COMPARED = {"cpu": (0.0, 0.75), "cuda": (0.25, 0.5), "rocm": (0.25, 0.5)}
"""Which quantile of the turnarounds is held against which of what idle calls take besides their latencies. A busy
machine makes single calls slow and none quick, and work that is hidden slows all: on a CPU even the quickest call must
take longer than the latency and three in four idle ones do. A GPU's calls are steadier."""


@dataclass(frozen=True)
class Margin:
    """Time beside the interval that is put down to noise: a share of the latency and so many nanoseconds. And how much
    slower idle calls may be than in a process without the submission; what is beyond counts for nothing."""

    hidden_share: float
    hidden_ns: float
    idle_share: float
    idle_ns: float

    def hidden(self, latency_ns: float) -> float:
        return self.hidden_share * latency_ns + self.hidden_ns

    def idle(self, latency_ns: float) -> float:
        return self.idle_share * latency_ns + self.idle_ns


MARGINS = {
    "cpu": Margin(0.25, 3e6, 1.0, 6e6),
    "cuda": Margin(0.05, 0.1e6, 0.02, 0.25e6),
    "rocm": Margin(0.25, 0.5e6, 1.0, 2e6),
}
"""From honest submissions, measured by bench/honest_clock.py (docs/security.md); not measured on ROCm. To both figures
comes by how much idle calls scatter without the submission, so that a machine less steady than those which were
measured accuses nobody."""

MOST_SPREAD = 1.5
"""A process in which the third quartile of a case's latencies is further above the first, and by more than the margin,
was disturbed: what its calls took outside is no evidence."""

LABELLED_SHARE = 0.25
"""The interquartile mean leaves out as many of the slowest."""

LEAVES_THREADS = "each call leaves more threads running than it found"

ACCUSED, ACCUSED_SHARE = 3, 1 / 3
MOST_SET_ASIDE, SET_ASIDE_SHARE = 4, 1 / 4
"""Processes and shares of them, see Doubts. Of honest ones on a busy CPU one case in a hundred is objected to
(docs/security.md): in a duel of many pairs 3 may come together by chance."""


@dataclass
class Turnarounds:
    """Calls of one case in one process, in nanoseconds: from the pouring of the inputs to the reply, and the latency
    claimed."""

    turnaround_ns: list[float] = field(default_factory=list)
    latency_ns: list[float] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.turnaround_ns.append(answer.turnaround_ns)
        self.latency_ns.append(answer.reply.latency_ns)

    def __len__(self) -> int:
        return len(self.latency_ns)

    @property
    def besides_ns(self) -> list[float]:
        """What each call took besides its latency."""
        return [whole - part for whole, part in zip(self.turnaround_ns, self.latency_ns, strict=True)]


@dataclass
class Sitting:
    """The calls of one case in one process, and the idle calls among them, each kind with a flush and without; and the
    labels that calls bore, with how many did; and who else computed meanwhile."""

    calls: Turnarounds = field(default_factory=Turnarounds)
    idle: Turnarounds = field(default_factory=Turnarounds)
    unflushed: Turnarounds = field(default_factory=Turnarounds)
    idle_unflushed: Turnarounds = field(default_factory=Turnarounds)
    borne: Counter[str] = field(default_factory=Counter)
    threads_grew: int = 0
    crowding: Crowding | None = None

    def note(self, answer: Answer) -> None:
        self.borne.update(answer.reply.labels)
        self.threads_grew += answer.aftermath.more_threads > 0

    def slower(self, other: Sitting, device_kind: str) -> Sitting:
        """Of two that hold idle calls only, of each kind the slower."""
        _, usual = COMPARED[device_kind]

        def besides(calls: Turnarounds) -> float:
            return float(np.quantile(calls.besides_ns, usual))

        return Sitting(
            idle=max(self.idle, other.idle, key=besides),
            idle_unflushed=max(self.idle_unflushed, other.idle_unflushed, key=besides),
        )

    @property
    def crowded(self) -> bool:
        """Whether it may have waited for other processes."""
        return self.crowding is not None and self.crowding.disturbs

    @property
    def leaves_threads(self) -> bool:
        """Whether most calls left more threads running than they found."""
        return self.threads_grew > len(self.calls) / 2

    @property
    def labels(self) -> set[str]:
        """Those of more than LABELLED_SHARE of its calls."""
        count = len(self.calls) + len(self.unflushed)
        return {label for label, borne in self.borne.items() if borne > LABELLED_SHARE * count}

    def kind(self, flush: bool) -> tuple[Turnarounds, Turnarounds]:
        """The calls with a flush or those without, and the idle ones of that kind."""
        return (self.calls, self.idle) if flush else (self.unflushed, self.idle_unflushed)


@dataclass(frozen=True)
class Finding:
    """What a sitting's calls took from outside beyond the latency that they are scored by, an idle call and what idle
    calls scatter by, in ns; and how much longer its idle calls took than those of a process without the submission. Of
    the calls with a flush and those without, whichever is more."""

    hidden_ns: float
    idle_excess_ns: float
    latency_ns: float


def find(device_kind: str, sitting: Sitting, apart: Sitting, tick_ns: float = 0.0) -> Finding:
    """`apart` holds idle calls only, of a process without the submission."""
    quick, usual = COMPARED[device_kind]
    latency_ns = stats.centre(sitting.calls.latency_ns, tick_ns)
    hidden, excess = [], []
    for flush in (True, False):
        calls, idle = sitting.kind(flush)
        low_ns, baseline_ns, high_ns = np.quantile(apart.kind(flush)[1].besides_ns, (0.25, usual, 0.75)).tolist()
        scatter_ns = high_ns - low_ns
        excess.append(float(np.quantile(idle.besides_ns, usual)) - baseline_ns)
        baseline_ns += min(excess[-1], MARGINS[device_kind].idle(latency_ns) + scatter_ns)
        hidden.append(float(np.quantile(calls.turnaround_ns, quick)) - latency_ns - baseline_ns - scatter_ns)
    return Finding(max(hidden), max(excess), latency_ns)


def others_share(sittings: Iterable[Sitting]) -> float | None:
    """The most that others took of the processors while one of `sittings` was timed."""
    return max((sitting.crowding.others for sitting in sittings if sitting.crowding is not None), default=None)


@dataclass(frozen=True)
class Objection:
    """What is wrong with a sitting's latencies as the judge's clock sees it, in words.

    Where it is not `certain`, what was timed varied too much for it to be the submission's doing for sure, or others
    took the processors from it."""

    words: str
    certain: bool


def objection(device_kind: str, sitting: Sitting, apart: Sitting, tick_ns: float = 0.0) -> Objection | None:
    """What the clock has against a sitting, or None. `apart` as for `find`."""
    found = find(device_kind, sitting, apart, tick_ns)
    margin = MARGINS[device_kind]
    if found.hidden_ns <= margin.hidden(found.latency_ns):
        return None
    inside, outside = f"{found.latency_ns / 1e3:,.1f} us in it", f"{found.hidden_ns / 1e3:,.0f} us a call"
    words = f"{outside} were spent outside the timed interval, beside {inside}"
    if sitting.crowded:
        words += f"; other processes took {others_share([sitting]):.0%} of the processors meanwhile"
    return Objection(words, _is_quiet(sitting.calls, margin.hidden_ns) and not sitting.crowded)


class Doubts:
    """The objections to a run's processes so far.

    A process that is objected to is timed again and counts for nothing, so a submission that hides work in some
    processes and not in others is scored by the others. A busy machine is objected to now and then; a case that is so
    for certain in ACCUSED processes, and in ACCUSED_SHARE of all, has work hidden. After MOST_SET_ASIDE processes, or
    SET_ASIDE_SHARE of all, nothing is timed again: what is objected to then counts, and keeps the run unranked.
    """

    def __init__(self, device_kind: str) -> None:
        self._device_kind = device_kind
        self._certain: Counter[str] = Counter()
        self._processes = self._set_aside = 0

    def objections(
        self, sittings: Mapping[str, Sitting], apart: Mapping[str, Sitting], tick_ns: float
    ) -> dict[str, Objection]:
        """By case, as the mappings are: what is to be said against a process. It does not count yet."""
        found = {}
        for key, sitting in sittings.items():
            seen = objection(self._device_kind, sitting, apart[key], tick_ns)
            if seen is not None:
                found[key] = seen
        return found

    def count(self, objections: Mapping[str, Objection]) -> str | None:
        """Takes note of one more process and of these objections to it. The case that has now been objected to often
        enough for a verdict, if there is one."""
        self._processes += 1
        self._certain.update(key for key, seen in objections.items() if seen.certain)
        enough = max(ACCUSED, ACCUSED_SHARE * self._processes)
        return next((key for key in objections if self._certain[key] >= enough), None)

    def set_aside(self) -> bool:
        """Whether a process that was objected to is to be timed again."""
        self._set_aside += 1
        return self._set_aside <= max(MOST_SET_ASIDE, SET_ASIDE_SHARE * self._processes)


def _is_quiet(calls: Turnarounds, margin_ns: float) -> bool:
    low, high = np.quantile(calls.latency_ns, (0.25, 0.75))
    return bool(high <= MOST_SPREAD * low or high - low <= margin_ns)
