"""The worker's own clock, for GPUs that the judge's does not work on: ROCm, and where the probe fails.

What it says can be forged by the submission, so a run that it timed is not ranked (`worker-timed`). The submission gets
copies of its inputs: of timed calls nobody compares them afterwards.
"""

from __future__ import annotations

from harness.judge.clock import Answer, request
from harness.judge.inputs import Call
from harness.judge.reply import violation
from harness.judge.session import Session
from harness.judge.stage import Snapshot, Stage
from harness.model import Manner


class WorkerClock:
    """Inputs are copied to fresh addresses by the worker, and its outputs back."""

    manner = Manner.WORKER

    def time(self, session: Session, stage: Stage, call: Call, label: str, null: int | None = None) -> Answer:
        session.map(call.arena)
        stage.set_up(call.arena, call.places)
        stage.pour()
        session.begin(request(call, "timed", null), label)
        session.go()
        reply = session.reply()
        if reply.inside_ns is None:
            raise violation("the worker does not say how long the call took")
        return Answer(reply, Snapshot({"arena": call.arena}), reply.inside_ns, None, reply.inside_ns)
