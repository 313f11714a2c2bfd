"""A worker that was started before there is anything to judge: most of what a verdict takes on a CPU is its start.

    Plan      what a worker is started for
    Started   one, in a scratch directory whose submission is still empty
    Spare     those that are kept for the next evaluations, if they are of the same plan

It is confined as any other before it imports anything, and knows no seed and no source until it is used, once.
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
    """What a worker is started for; `threads` is how many it computes in. It is confined by `isolation`."""

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
        """Have it judge `source` within `deadline`; its scratch directory."""
        give(self._folder, source)
        self.session.deadline = deadline
        return self._folder

    def close(self) -> None:
        """End the worker and remove the directory."""
        self._stack.close()


class Spare:
    """Workers that wait for the next evaluations. One that has ended meanwhile is found out by whoever takes it.

    `ahead`: so many are started as soon as an evaluation has its own, where many follow that are short beside a start.
    """

    def __init__(self) -> None:
        self._waiting: list[Started] = []
        self._plan: Plan | None = None
        self.ahead = 0

    def take(self, plan: Plan) -> Started | None:
        """The first that waits, if it is of this plan. It is remembered what was asked for (`renew`)."""
        self._plan = plan
        while self._waiting:
            first = self._waiting.pop(0)
            if first.plan == plan and first.session.alive_at_rest():
                return first
            first.close()
        return None

    def renew(self, count: int = 1) -> None:
        """Have `count` wait, of the plan that was asked for last, where a start is long: on a CPU in namespaces."""
        plan = self._plan
        if plan is None or plan.device.kind != "cpu" or not plan.isolation.bubblewrap:
            return  # without namespaces workers are forked, in milliseconds
        with contextlib.suppress(OSError, InfrastructureError):  # the next evaluation says why none can be started
            while len(self._waiting) < count:
                self._waiting.append(Started(plan))

    def close(self) -> None:
        """End those that wait."""
        while self._waiting:
            self._waiting.pop().close()
