"""Workers that are started before there is anything to judge. On a CPU the start of a worker is most of an evaluation.

    Plan      the settings that a worker is started with
    Started   a worker in a scratch directory whose submission is still empty
    Spare     the workers kept for the next evaluations with the same plan

Such a worker is confined like any other before it imports anything. It knows no seed and no source until it is used. It
is used once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InfrastructureError
from harness.judge.deadline import Deadline
from harness.judge.emulation import Emulation
from harness.judge.session import Session
from harness.model import Device, Isolation, Problem
from harness.sandbox.scratch import give, scratch


@dataclass(frozen=True)
class Plan:
    """The settings that a worker is started with. It computes in `threads` threads and is confined by `isolation`."""

    problem: Problem
    device: Device
    threads: int
    emulation: Emulation
    isolation: Isolation


class Started:
    """A worker of `plan` in a scratch directory of its own. Raises OSError, InfrastructureError."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(scratch(b"", plan.isolation.new_uid()))
            self.session = Session(
                plan.problem,
                plan.device,
                self._folder,
                plan.threads,
                emulation=plan.emulation,
                isolation=plan.isolation,
            )
            stack.callback(self.session.kill)
            self._stack = stack.pop_all()

    def give(self, source: bytes, deadline: Deadline) -> Path:
        """Hand it `source` to judge within `deadline`. Returns its scratch directory."""
        give(self._folder, source)
        self.session.deadline = deadline
        return self._folder

    def close(self) -> None:
        """End the worker and remove the directory."""
        self._stack.close()


class Spare:
    """Workers that wait for the next evaluations. `take` drops those that have ended meanwhile.

    `ahead`: how many to start as soon as an evaluation has its own worker. For many evaluations that are short beside a
    start.
    """

    def __init__(self) -> None:
        self._waiting: list[Started] = []
        self._plan: Plan | None = None
        self.ahead = 0

    def take(self, plan: Plan) -> Started | None:
        """Return the first waiting worker of this plan, or None. The plan is remembered for `renew`."""
        self._plan = plan
        while self._waiting:
            first = self._waiting.pop(0)
            if first.plan == plan and first.session.alive_at_rest():
                return first
            first.close()
        return None

    def renew(self, count: int = 1) -> None:
        """Start workers of the last plan until `count` wait. Done only if a start is slow: on a CPU in namespaces."""
        plan = self._plan
        if plan is None or plan.device.kind != "cpu" or not plan.isolation.bubblewrap:
            return  # without namespaces a worker is forked within milliseconds
        with contextlib.suppress(OSError, InfrastructureError):  # the next evaluation reports the reason
            while len(self._waiting) < count:
                self._waiting.append(Started(plan))

    def close(self) -> None:
        """End the waiting workers."""
        while self._waiting:
            self._waiting.pop().close()
