"""How a job gets on, told by its judge and passed on: to the events at once, to the database every few seconds."""

from __future__ import annotations

import contextlib
import time

from harness.progress import Step
from harness.server.events import Event
from harness.server.serving import Serving
from harness.server.store import DatabaseGone
from harness.server.store.rows import JobState, SubmissionRow
from harness.server.verdicts import one_line

HEARTBEAT_S = 2.0
MOST_TOLD = 200
"""Of those that wait: so many are told their place when one ends."""


class Told:
    """A narrator for one job. Telling costs the judge no time: it is done in the server."""

    def __init__(self, serving: Serving, job: SubmissionRow) -> None:
        self._serving, self._job = serving, job
        self._written_s = time.monotonic()  # as it was taken it had its first heartbeat

    def __call__(self, line: str) -> None:
        said = one_line(line)
        self._publish("step", line=said)
        self._write(said)

    def step(self, step: Step) -> None:
        """Where the judge is: which case of what it is doing, of which how many are done."""
        self._publish(
            "step",
            doing=step.doing,
            case=one_line(step.case),
            done=step.done,
            total=step.total,
            line=one_line(step.line) if step.line else None,
            sample=step.sample,
        )
        number = min(int(step.done) + 1, step.total)
        self._write(f"{step.doing}, case {number} of {step.total}")

    def state(self, state: JobState, error: str | None = None, run: str | None = None) -> None:
        """The job's state has changed."""
        self._publish("state", state=state.value, attempt=self._job.attempt, error=error, run=run)

    def record(self, run: str, score_ns: float) -> None:
        """It is the best of its competition on its GPU."""
        self._publish("record", run=run, score_ns=score_ns, gpu=self._job.gpu)

    def queue(self) -> None:
        """Tell those that wait for the same card their new place."""
        if not self._serving.hub.listeners:
            return
        with contextlib.suppress(DatabaseGone):
            waiting = self._serving.database.queue.waiting(self._job.gpu, MOST_TOLD)
            for place, each in enumerate(waiting, 1):
                data = {"position": place, "of": len(waiting)}
                self._serving.hub.publish(Event("queue", each.competition, each.id, each.user, data))

    def _publish(self, kind: str, **data: object) -> None:
        self._serving.hub.publish(Event(kind, self._job.competition, self._job.id, self._job.user, data))

    def _write(self, said: str) -> None:
        if time.monotonic() - self._written_s < HEARTBEAT_S:
            return
        self._written_s = time.monotonic()
        with contextlib.suppress(DatabaseGone):
            self._serving.database.queue.heartbeat(self._job.job_id, self._job.attempt, said)
