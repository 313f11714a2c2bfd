"""The judge's own clock: what a call takes as seen from outside, held against what the worker says that it took.

    judge    request ──────────────────────────────────────────────────────────────► reply      turnaround
    worker            place, poison, sleep, page in, flush │ custom_kernel │ snapshot
                      └───────────── the same for an idle call ─────────────┘

The inputs of a call are secret until it is asked for, and its snapshot is taken before it is answered: whatever a
submission computes for it, it computes in between. So turnaround - latency is the same for every honest submission, and
the same as for a call that computes nothing; what a submission does outside the interval that the worker times comes on
top. Every timed call is measured so: there is no audit that a submission could tell from the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

FIRST_SLEEP_US, MIN_SLEEP_US, MAX_SLEEP_US = 300.0, 20.0, 5000.0
SLEEP_FACTOR = 1.5
"""A GPU sleeps this much longer than the host usually takes to enqueue a call."""

HIDDEN_SHARE = 0.25
HIDDEN_NS = {"cpu": 5e6, "cuda": 0.5e6, "rocm": 0.5e6}
"""Time beside the interval that is put down to noise: this share of the latency and this much, in every process of a
run. On an H200 honest calls had at most 0.39 ms in all of a run's processes (docs/security.md)."""

IDLE_EXCESS_SHARE = 1.0
IDLE_EXCESS_NS = {"cpu": 10e6, "cuda": 2e6, "rocm": 2e6}
"""The same for idle calls beside those of another process, which differ more."""


@dataclass
class Sleep:
    """How long the GPU is to sleep in each call of a case, learnt from the pilot's calls and then kept."""

    us: float = FIRST_SLEEP_US
    _host_us: list[float] = field(default_factory=list)
    _doublings: int = 0

    def learn(self, host_ns: int, labels: Sequence[str]) -> None:
        """From a call that kept the host busy so long. One in which it was not hidden doubles it, thrice at most."""
        self._host_us.append(host_ns / 1e3)
        if "host-bound" in labels:
            self._doublings = min(self._doublings + 1, 3)
        usual = sorted(self._host_us)[len(self._host_us) // 2]
        self.us = min(max(SLEEP_FACTOR * usual * 2**self._doublings, MIN_SLEEP_US), MAX_SLEEP_US)


@dataclass
class Turnarounds:
    """Calls of one case in one process, in nanoseconds: from the request to the reply, and the latency claimed."""

    turnaround_ns: list[float] = field(default_factory=list)
    latency_ns: list[float] = field(default_factory=list)

    def add(self, turnaround_ns: float, latency_ns: float) -> None:
        self.turnaround_ns.append(turnaround_ns)
        self.latency_ns.append(latency_ns)

    @property
    def besides_ns(self) -> list[float]:
        """What each call took besides its latency."""
        return [whole - part for whole, part in zip(self.turnaround_ns, self.latency_ns, strict=True)]


def objection(
    device_kind: str, latency_ns: float, hidden_ns: Sequence[float], idle_excess_ns: Sequence[float]
) -> str | None:
    """What is wrong with a case's latency as the judge's clock sees it, in words, or None; one value a process.

    Noise may be large in a process or two; work that is hidden is there in all.
    """
    hidden = min(hidden_ns, default=0.0)
    if hidden > HIDDEN_SHARE * latency_ns + HIDDEN_NS[device_kind]:
        return f"{hidden / 1e3:,.0f} us a call were spent outside the timed interval"
    excess = min(idle_excess_ns, default=0.0)
    if excess > IDLE_EXCESS_SHARE * latency_ns + IDLE_EXCESS_NS[device_kind]:
        return (
            f"even a call that computes nothing took {excess / 1e3:,.0f} us longer than it does without the submission"
        )
    return None


def hidden_ns(calls: Turnarounds, idle: Turnarounds) -> float:
    """How much longer the quickest of `calls` took outside its latency than three in four of the idle calls did.

    A busy machine makes single calls slow and none quick; work that is hidden slows all.
    """
    return min(calls.besides_ns) - float(np.quantile(idle.besides_ns, 0.75))
