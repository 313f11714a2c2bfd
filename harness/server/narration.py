"""The progress of a job, passed from its judge to the events at once and to the database every few seconds."""

from __future__ import annotations

import contextlib
import threading
import time

from harness.progress import Step
from harness.server.events import Event
from harness.server.log import say
from harness.server.serving import Serving
from harness.server.store import DatabaseGone
from harness.server.store.rows import JobState, Mode, SubmissionRow
from harness.server.verdicts import one_line, place

HEARTBEAT_S = 2.0
PLACES_S = 1.0
MOST_TOLD = 200
"""The most waiting submissions that are told their position when a job ends."""


class Told:
    """The narrator for one job. It runs in the server and costs the judge no time."""

    def __init__(self, serving: Serving, job: SubmissionRow) -> None:
        self._serving, self._job = serving, job
        self._written_s = time.monotonic()  # claiming the job wrote the first heartbeat

    def __call__(self, line: str) -> None:
        said = one_line(line)
        self._publish("step", line=said)
        self._write(said)

    def note(self, line: str) -> None:
        """Publish the line, which is of what happened to the job on a cluster, and log it."""
        say(f"submission {self._job.id}, attempt {self._job.attempt}: on the cluster: {one_line(line)}")
        self(line)

    def step(self, step: Step) -> None:
        """Publish the judge's present case and how many of how many are done."""
        self._publish(
            "step",
            doing=step.doing,
            case=one_line(step.case),
            done=step.done,
            total=step.total,
            line=one_line(step.line) if step.line else None,
            sample=step.sample,
        )
        self._write(place(step.doing, step.done, step.total))

    def state(self, state: JobState, error: str | None = None, run: str | None = None) -> None:
        """Publish a change of the job's state. The log omits `error`, which may quote the source."""
        if state is not JobState.PENDING:  # put_back has already logged the reason
            say(f"submission {self._job.id}, attempt {self._job.attempt}: {state.value.replace('_', ' ')}")
        self._publish("state", state=state.value, attempt=self._job.attempt, error=error, run=run)

    def record(self, run: str, score_ns: float) -> None:
        """Publish that the run is the best of its competition on its GPU."""
        self._publish("record", run=run, score_ns=score_ns, gpu=self._job.gpu)

    def _publish(self, kind: str, **data: object) -> None:
        public = self._job.mode is Mode.LEADERBOARD
        self._serving.hub.publish(Event(kind, self._job.competition, self._job.id, self._job.user, data, public))

    def _write(self, said: str) -> None:
        if time.monotonic() - self._written_s < HEARTBEAT_S:
            return
        self._written_s = time.monotonic()
        with contextlib.suppress(DatabaseGone):
            self._serving.database.queue.heartbeat(self._job.job_id, self._job.attempt, said)


class Places:
    """Tells waiting submissions their positions in the queue, after each change but at most every PLACES_S."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._told_s: dict[str, float] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._changing = threading.Lock()

    def changed(self, gpu: str) -> None:
        """Note that a job of this GPU was claimed or has ended."""
        with self._changing:
            if gpu in self._timers:
                return
            wait_s = self._told_s.get(gpu, -PLACES_S) + PLACES_S - time.monotonic()
            if wait_s > 0:
                timer = self._timers[gpu] = threading.Timer(wait_s, self._tell, (gpu,))
                timer.daemon = True
                timer.start()
                return
        self._tell(gpu)

    def _tell(self, gpu: str) -> None:
        with self._changing:
            self._timers.pop(gpu, None)
            self._told_s[gpu] = time.monotonic()
        hub = self._serving.hub
        if not hub.listeners:
            return
        with contextlib.suppress(DatabaseGone):
            waiting = self._serving.database.queue.waiting(gpu, MOST_TOLD)
            for place, each in enumerate(waiting, 1):
                said, public = {"position": place, "of": len(waiting)}, each.mode is Mode.LEADERBOARD
                hub.publish(Event("queue", each.competition, each.id, each.user, said, public))

    def close(self) -> None:
        """Stop telling."""
        with self._changing:
            for timer in self._timers.values():
                timer.cancel()
