"""The judge's own clock: what a call takes as seen from outside, held against what the worker says that it took.

    judge    pour the inputs, open the gate ──────────────────────────────► reply      turnaround
    worker                                   page in, flush │ custom_kernel │ snapshot
                                             └──────────── the same for an idle call ────────────┘

The inputs of a call are secret until its clock runs, and its snapshot is taken before it is answered: whatever a
submission computes for it, it computes in between. So turnaround - latency is the same for every honest submission, and
the same as for a call that computes nothing; what a submission does outside the interval that the worker times comes on
top. Every timed call is measured so: there is no audit that a submission could tell from the rest.

Work in the place of the flush, or beside it in a thread, would not show so. Some calls, and nobody knows which before,
are made without a flush: they leave no room for it, and an honest submission takes no longer with warm caches.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.judge.session import Answer, Fault
from harness.model import Case, Verdict

PATIENCE_S, LEAST_PATIENCE_S = 0.05, 0.001
"""How long inputs are held back for a GPU's stream to hold all of a call: a hundred times what most hosts take, and the
same for a submission that waits for the device in its calls and so is never ready before."""

COMPARED = {"cpu": (0.0, 0.75), "cuda": (0.5, 0.5), "rocm": (0.5, 0.5)}
"""Which quantile of the calls is held against which of the idle calls. A busy machine makes single calls slow and none
quick, and work that is hidden slows all: on a CPU the quickest call must take longer than three in four idle ones do.
What a call takes on a GPU besides its latency is the device's own time for the most part, and steady."""

HIDDEN_SHARE = 0.25
HIDDEN_NS = {"cpu": 5e6, "cuda": 0.2e6, "rocm": 0.5e6}
"""Time beside the interval that is put down to noise: this share of the latency and this much. From honest submissions,
measured by bench/honest_clock.py (docs/security.md); not measured on ROCm."""

IDLE_EXCESS_SHARE = 1.0
IDLE_EXCESS_NS = {"cpu": 10e6, "cuda": 1e6, "rocm": 2e6}
"""The same for idle calls beside those of another process, which differ more."""


MOST_SPREAD = 1.5
"""A process in which the third quartile of a case's latencies is further above the first, and by more than the margin,
was disturbed: what its calls took outside is no evidence."""

LABELLED_SHARE = 0.25
"""The interquartile mean leaves out as many of the slowest."""

UNFLUSHED_LEAST, UNFLUSHED_ONE_IN = 3, 8

ACCUSED, MOST_SET_ASIDE = 3, 4
"""Processes, see Doubts. Of honest ones on a busy CPU one case in a hundred is objected to (docs/security.md)."""


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
    labels that calls bore, with how many did."""

    calls: Turnarounds = field(default_factory=Turnarounds)
    idle: Turnarounds = field(default_factory=Turnarounds)
    unflushed: Turnarounds = field(default_factory=Turnarounds)
    idle_unflushed: Turnarounds = field(default_factory=Turnarounds)
    borne: Counter[str] = field(default_factory=Counter)

    @property
    def labels(self) -> set[str]:
        """Those of more than LABELLED_SHARE of its calls."""
        count = len(self.calls) + len(self.unflushed)
        return {label for label, borne in self.borne.items() if borne > LABELLED_SHARE * count}

    def kind(self, flush: bool) -> tuple[Turnarounds, Turnarounds]:
        """The calls with a flush or those without, and the idle ones of that kind."""
        return (self.calls, self.idle) if flush else (self.unflushed, self.idle_unflushed)

    def hidden_ns(self, device_kind: str) -> float:
        """How much longer its calls took than they say, those with a flush or those without, whichever is more."""
        latency_ns = float(np.median(self.calls.latency_ns))
        warm = Turnarounds(self.unflushed.turnaround_ns, [latency_ns] * len(self.unflushed))
        return max(excess_ns(device_kind, self.calls, self.idle), excess_ns(device_kind, warm, self.idle_unflushed))


def patience_s(was_ready: Sequence[bool]) -> float:
    """With a submission, some calls of which were ready for their inputs within PATIENCE_S, or none."""
    return PATIENCE_S if any(was_ready) else LEAST_PATIENCE_S


def flushes(count: int) -> list[bool]:
    """Whether each call of a sitting flushes: `count` that do, and a few among them that do not, as chance will."""
    plan = [True] * count + [False] * max(UNFLUSHED_LEAST, count // UNFLUSHED_ONE_IN)
    secrets.SystemRandom().shuffle(plan)
    return plan


@dataclass(frozen=True)
class Objection:
    """What is wrong with a sitting's latencies as the judge's clock sees it, in words.

    Where it is not `certain`, what was timed varied too much for it to be the submission's doing for sure."""

    words: str
    certain: bool


def objection(device_kind: str, sitting: Sitting, idle_apart: Turnarounds) -> Objection | None:
    """What the clock has against a sitting, or None; `idle_apart`: idle calls in a process without the submission."""
    latency_ns = float(np.median(sitting.calls.latency_ns))
    hidden, excess = sitting.hidden_ns(device_kind), excess_ns(device_kind, sitting.idle, idle_apart)
    if hidden > HIDDEN_SHARE * latency_ns + HIDDEN_NS[device_kind]:
        words = f"{hidden / 1e3:,.0f} us a call were spent outside the timed interval"
    elif excess > IDLE_EXCESS_SHARE * latency_ns + IDLE_EXCESS_NS[device_kind]:
        words = f"even a call that computes nothing took {excess / 1e3:,.0f} us longer than without the submission"
    else:
        return None
    return Objection(
        f"{words}, beside {latency_ns / 1e3:,.1f} us in it", _is_quiet(sitting.calls, HIDDEN_NS[device_kind])
    )


class Doubts:
    """The objections to a run's processes so far.

    A process that is objected to is timed again and counts for nothing, so a submission that hides work in some
    processes and not in others is scored by the others. A busy machine is objected to now and then; a case that is so
    for certain in ACCUSED processes has work hidden. After MOST_SET_ASIDE processes nothing is timed again: what is
    then objected to counts, and keeps the run from being ranked.
    """

    def __init__(self, device_kind: str) -> None:
        self._device_kind = device_kind
        self._certain: Counter[str] = Counter()
        self._set_aside = 0

    def about(
        self, cases: Sequence[Case], sittings: Mapping[str, Sitting], idle_apart: Mapping[str, Turnarounds]
    ) -> str | None:
        """What is to be said against a process; None if nothing. Both mappings are by the cases' keys.

        Raises Fault for hidden work."""
        said = None
        for case in cases:
            seen = objection(self._device_kind, sittings[case.key], idle_apart[case.key])
            if seen is None:
                continue
            said = said or f"{case.label}: {seen.words}"
            self._certain[case.key] += seen.certain
            if self._certain[case.key] == ACCUSED:
                raise Fault(Verdict.INTEGRITY_VIOLATION, f"{case.label}: {seen.words}")
        return said

    def set_aside(self) -> bool:
        """Whether a process that was objected to is to be timed again."""
        self._set_aside += 1
        return self._set_aside <= MOST_SET_ASIDE


def _is_quiet(calls: Turnarounds, margin_ns: float) -> bool:
    low, high = np.quantile(calls.latency_ns, (0.25, 0.75))
    return bool(high <= MOST_SPREAD * low or high - low <= margin_ns)


def excess_ns(device_kind: str, calls: Turnarounds, idle: Turnarounds) -> float:
    """How much longer `calls` took outside their latencies than idle calls did, at the quantiles of COMPARED."""
    quick, usual = COMPARED[device_kind]
    return float(np.quantile(calls.besides_ns, quick) - np.quantile(idle.besides_ns, usual))
