"""The worker's own clock, for GPUs on which the judge's does not work: ROCm, and CUDA devices that fail the probe.

The submission can forge these times, so such a run is not ranked (`worker-timed`). The submission gets copies of its
inputs; after timed calls nobody compares them.
"""

from __future__ import annotations

from harness.judge.clock import Answer, request
from harness.judge.inputs import Call
from harness.judge.reply import violation
from harness.judge.session import Session
from harness.judge.stage import Snapshot, Stage
from harness.model import Manner


class WorkerClock:
    """The worker copies inputs to fresh addresses, and its outputs back."""

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
