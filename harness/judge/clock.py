"""The judge's clock. The judge takes the stamps at both ends of a call. The latency is the time between them.

    Clock.time(session, stage, call, ...) ─► Answer      elapsed time and outputs, or the reason why the call is void

A submission may report false times, patch every clock in its process, and compute in threads, children and timers. None
of that counts. Before the first stamp it cannot compute: its inputs are not there, and its process is stopped or the
device runs the judge's kernels. Results computed after the second stamp are in no snapshot.

StopClock is for CPUs. The judge stops the worker, pours the inputs (copies them into the shared memory) and continues
the worker. The call ends when the worker stops itself again. `sandwich` has the clock for GPUs, `worker_clock` the
clock for devices on which neither works.
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
    """Why a call does not count and is repeated. `show` prints the values."""

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
        """Whether outputs of an honest call may be wrong in this case.

        They may not be wrong if the worker stood still until its inputs were there and said itself that it was done.
        Then the outputs are judged: a submission must gain nothing by making its wrong calls void.
        """
        return self not in (Void.RAN_WHILE_STOPPED, Void.NOT_STOPPED)


@dataclass(frozen=True)
class Answer:
    """The result of a timed call. If the call is void, only `void` is meaningful. Without a `reply` there is nothing to
    check.

    `elapsed_ns`: time between the judge's stamps; nothing is subtracted. `pour_ns`: time of pouring and flushing.
    `inside_ns`: the worker's own measurement. `asked_after_ns`: at most how long after stamp A the judge asked the
    device for stamp B; 0 where it does not matter. `later`: takes the snapshot again after the worker has waited for
    the device, where the device may have switched back before the call was over.
    """

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
        """Have one call made and time it. With `null`, the worker makes a null call in place of the submission's; on a
        GPU it waits for that number of clock cycles. Raises Fault."""


def request(call: Call, sequence: str, null: int | None, **more: bool) -> dict[str, object]:
    """Build the request for a call. `sequence`: the steps of the call, by the name that worker/calls gives them."""
    return {**call.request, "sequence": sequence, "null": null, **more}


class StopClock:
    """The worker stands still until its inputs are there. The call ends when the worker stops itself.

    Both stamps are on CLOCK_MONOTONIC. The judge takes the first before it continues the worker. The waiter takes the
    second after it has seen the worker stop and has stopped its whole group. Then the judge takes the snapshot, and
    only then may the worker describe its outputs.

    In a null call the worker stops again at once. That gives the least time that a call takes; this is subtracted and
    no more.
    """

    manner = Manner.STOPPED

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
        # Keep it stopped until the next request: processes still at work would slow the null calls.
        if not session.stop():
            void = void or Void.NOT_STOPPED
        return Answer(reply, snapshot, elapsed_ns, void)

    def _between_stops(self, session: Session, stage: Stage) -> tuple[float, Void | None, AtRest | None]:
        """Time the worker from its continuation until all its processes stand still again, in ns. Also return the
        reason to void the call, and the processes at rest that the worker started. Raises Ended, Fault."""
        leash = session.leash
        session.await_stop()
        leash.stop()  # the worker's children as well
        before = leash.await_others()
        stage.pour()
        stage.flush()
        ran = leash.ran_while_stopped() or (before is not None and leash.others_ran(before))
        began_ns = leash.resume()
        ended_ns = session.await_stop()
        leash.stop()
        rest = leash.others_at_rest()
        if rest is None:
            # The kernel may still copy data for them, so the call ends when they have stopped too.
            rest = leash.await_others()
            ended_ns = max(ended_ns, time.monotonic_ns())
        stopped = before is not None and rest is not None
        void = Void.RAN_WHILE_STOPPED if ran else None if stopped else Void.NOT_STOPPED
        return float(ended_ns - began_ns), void, rest
