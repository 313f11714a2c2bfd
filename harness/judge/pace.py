"""How the calls of a case are made: how many, which of them with a flush, and how patiently."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE_S, LEAST_PATIENCE_S = 0.05, 0.001
"""How long inputs are held back for a GPU's stream to hold all of a call: a hundred times what most hosts take, and the
same for a submission that waits for the device in its calls and so is never ready before."""

UNFLUSHED_LEAST, UNFLUSHED_ONE_IN = 3, 8


@dataclass(frozen=True)
class Pace:
    """How a benchmark case is sampled: `count` times in each process, by calls that wait for the device or do not.

    What the host does for the rest of a call that waits shows in its turnaround, so idle calls beside it wait as well.
    """

    count: int
    waits: bool

    @property
    def patience_s(self) -> float:
        return LEAST_PATIENCE_S if self.waits else PATIENCE_S


def waits_for_device(was_ready: Sequence[bool]) -> bool:
    """Whether a submission does in its calls, of which these were ready for their inputs within PATIENCE_S or not."""
    return not any(was_ready)


def warm_ups(count: int) -> list[bool]:
    """Whether each of the calls flushes by which a case is warmed up. The last does not: what works on the arena's own
    memory for the first time may have to compile again."""
    return [number < count for number in range(1, count + 1)]


def flushes(count: int) -> list[bool]:
    """Whether each call of a sitting flushes: `count` that do, and a few among them that do not, as chance will."""
    plan = [True] * count + [False] * max(UNFLUSHED_LEAST, count // UNFLUSHED_ONE_IN)
    secrets.SystemRandom().shuffle(plan)
    return plan
