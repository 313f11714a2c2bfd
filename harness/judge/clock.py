"""The judge's clock: both ends of what is timed are the judge's own, and the latency is what lies between them.

    Clock.time(session, stage, call, ...) ─► Answer      latency, the outputs as they were at the end, or why it is void

A submission may lie about its own times, patch every clock in its process and compute in threads, children and timers:
none of it is asked. What counts is that it cannot compute before the first stamp, because its inputs are not there and
it is stopped or the device is not its own, and that what it computes after the second is in no snapshot.

StopClock is for CPUs: the worker is stopped, inputs are poured, it is continued, and its stopping again is the end.
The one for GPUs is in `sandwich`, the one for those on which neither works in `worker_clock`.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harness.judge.inputs import Call
from harness.judge.reply import CallReply, violation
from harness.judge.session import Session
from harness.judge.stage import Snapshot, Stage, misplaced
from harness.model import Manner
from harness.sandbox.leash import AtRest


class Void(enum.StrEnum):
    """Why a call counts for nothing and is taken again. The values are shown by `show`."""

    RAN_WHILE_STOPPED = "ran while it was stopped"
    NOT_STOPPED = "a process of it could not be stopped in time"
    SLOW_TO_ARM = "took too long to enqueue its call"
    DISTURBED = "something else ran on the device before its inputs were there"
    NO_SLICE = "the device did not switch to it"
    FAILED_ARMED = "failed while its inputs were held back"
    NEEDS_ITS_HOST = "its stream waited for its host, which was stopped"
    ASKED_LATE = "the judge asked for its end too late"
    CUT = "it was not over when the device switched back"

    @property
    def excuses(self) -> bool:
        """Whether an honest call's outputs may be wrong then. Where the worker stood still until its inputs were there,
        and said itself that it was done, they are what it stands for: to void what it got wrong must not pay."""
        return self not in (Void.RAN_WHILE_STOPPED, Void.NOT_STOPPED)


@dataclass(frozen=True)
class Answer:
    """What came of a timed call. `elapsed_ns` lies between the judge's stamps, less nothing; `pour_ns` is what pouring
    and flushing took. `inside_ns` is the worker's own word. `asked_after_ns`: how long after the first stamp, at most,
    the judge asked the device for the second, where that matters. `later` takes the snapshot again, once the worker has
    waited for the device, where the device may have switched back before the call was over. Of a void call only `void`
    is sure to mean anything, and without a reply there is nothing to check."""

    reply: CallReply | None
    snapshot: Snapshot | None
    elapsed_ns: float
    void: Void | None = None
    inside_ns: float | None = None
    pour_ns: float = 0.0
    asked_after_ns: float = 0.0
    later: Callable[[], Snapshot] | None = None


class Clock(Protocol):
    manner: Manner

    def time(self, session: Session, stage: Stage, call: Call, label: str, null: int | None = None) -> Answer:
        """Have one call made and time it. `null` asks for one that computes nothing in the place of the submission's,
        on a GPU for so many cycles. Raises Fault."""


def request(call: Call, sequence: str, null: int | None, **more: bool) -> dict[str, object]:
    """What the worker is told of a call. `sequence`: the steps of one, by a name of worker/calls."""
    return {**call.request, "sequence": sequence, "null": null, **more}


class StopClock:
    """The worker stands still until its inputs are there, and its own stop is the end. Both stamps are of
    CLOCK_MONOTONIC: the judge's before it lets the worker go on, the waiter's when it has seen it stopped and stopped
    all of its group. The snapshot is taken then, and only then may the worker say what it has returned.

    A null call is one whose worker stops again at once: the least that a call takes is subtracted, and no more.
    Without `flushes` caches are left as they are, for calls whose time does not count.
    """

    manner = Manner.STOPPED

    def __init__(self, flushes: bool = True) -> None:
        self._flushes = flushes

    def time(self, session: Session, stage: Stage, call: Call, label: str, null: int | None = None) -> Answer:
        session.map(call.arena)
        stage.set_up(call.arena, call.places)
        session.begin(request(call, "between_stops" if null is None else "bare", null), label)
        with session.alive():
            elapsed_ns, void, rest = self._between_stops(session, stage)
            snapshot = stage.freeze(call)
            stage.look(call.read_only)
            if session.leash.ran_while_stopped() or (rest is not None and session.leash.others_ran(rest)):
                void = Void.RAN_WHILE_STOPPED
            session.leash.resume()
        reply = session.reply()
        if misplaced(reply.outputs, call):
            raise violation("the worker says that an output lies where it puts none")
        # Until it is asked again: what is still at work would slow the calls that compute nothing.
        if not session.stop():
            void = void or Void.NOT_STOPPED
        return Answer(reply, snapshot, elapsed_ns, void)

    def _between_stops(self, session: Session, stage: Stage) -> tuple[float, Void | None, AtRest | None]:
        """From the worker's going on until all of it stands still again, in ns; at rest are those it has started.
        Raises Ended, Fault."""
        leash = session.leash
        session.await_stop()
        leash.stop()  # its children as well
        before = leash.await_others()
        stage.pour()
        if self._flushes:
            stage.flush()
        ran = leash.ran_while_stopped() or (before is not None and leash.others_ran(before))
        began_ns = leash.resume()
        ended_ns = session.await_stop()
        leash.stop()
        rest = leash.others_at_rest()
        if rest is None:
            # The kernel may still copy for them: the end is when they are stopped, too.
            rest = leash.await_others()
            ended_ns = max(ended_ns, time.monotonic_ns())
        stopped = before is not None and rest is not None
        void = Void.RAN_WHILE_STOPPED if ran else None if stopped else Void.NOT_STOPPED
        return float(ended_ns - began_ns), void, rest
