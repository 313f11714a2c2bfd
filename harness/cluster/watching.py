"""One job's attempts, watched: a sign of life, the run, or the reason why an attempt is lost."""

from __future__ import annotations

import contextlib
import datetime
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from harness import errors
from harness.cluster.attempts import Attempts
from harness.cluster.job import ClusterJob, Said
from harness.errors import InfrastructureError, PodiumError
from harness.library.judges import END_S
from harness.model import Run
from harness.progress import Narrate, note

if TYPE_CHECKING:
    from harness.cluster.placement import Placement

LOOK_S = 1.0
LOOK_AROUND_S = 5.0
HINT_S = 5.0
"""So long a job waits before it says so, and all jobs of a Placement before the first of them does."""


ENDED = ("ActorDiedError", "ActorUnavailableError")
"""Ray's errors for a job whose process, raylet or node has ended. Their texts are long and name neither."""


class JobEnded(InfrastructureError):
    """The job was ended by its caller, and has no run."""


class Placed:
    """A job that is being judged; `close` ends it from any thread."""

    def __init__(self) -> None:
        self.closing = threading.Event()

    def close(self) -> None:
        self.closing.set()


def by_this_clock(run: Run) -> Run:
    """`run`, which has just arrived, as begun by this machine's clock. Nodes' clocks may differ, and of two sources of
    one submission the later stands for it."""
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=run.duration_s)
    number = f"{began:%Y%m%dT%H%M%S}-{run.id.partition('-')[2]}"
    return run.model_copy(update={"id": number, "started_at": began.isoformat(timespec="milliseconds")})


class Watched:
    """One job's attempts, of which it watches the present one. What a given-up one says later is not read."""

    def __init__(self, placement: Placement, placed: Placed, attempts: Attempts, narrate: Narrate) -> None:
        self._placement, self._placed, self._attempts, self._narrate = placement, placed, attempts, narrate
        self._ray = placement.ray
        self._refused: set[str] = set()  # nodes that refused it, by their numbers
        self._avoid: set[str] = set()  # and those that lost it
        self._on: str | None = None  # the present attempt's node
        self._card: str | None = None
        self._lost_on: list[str] = []  # cards of attempts that were lost
        self._present: Any = None  # an actor: see job.Judging
        self._begun = False

    def attempt(self, job: ClusterJob, reference: Any) -> None:
        """Place `job` and watch it until it has its run or is lost. Raises JobEnded, UsageError, ProblemError,
        InfrastructureError where no node may judge it."""
        self._on = self._card = None
        job = job.model_copy(update={"lost_on": tuple(self._lost_on)})
        prospects, silent_s = self._placement.prospects, self._placement.silent_s
        asked, looked, started = self._place(job, reference), 0.0, math.inf
        placed = heard = fitting = time.monotonic()
        while True:
            if self._placed.closing.is_set():
                raise JobEnded(f"{job.submission.name} was ended before it had a verdict")
            ready, _ = self._ray.wait([asked], timeout=LOOK_S)
            now = time.monotonic()
            if ready:
                self._begun, heard = True, now
                prospects.heard()
                if self._take(job, self._next(asked)):
                    return
                asked = self._present.next.remote()
            elif self._begun and now - heard > silent_s:
                self._give_up(job, f"nothing was heard of it for {silent_s:g} s")
                return
            elif not self._begun and now - looked > LOOK_AROUND_S:
                looked = now
                if (on := prospects.node_of(self._present)) is not None:
                    started, self._on = min(started, now), on
                if now - started > silent_s:
                    self._give_up(job, f"its process said nothing within {silent_s:g} s of its start")
                    return
                if now - placed > HINT_S and started > now and prospects.hint_is_due():
                    self._narrate(f"{job.submission.name}: waits until a node with a free {job.slug} begins it")
                if started <= now or (
                    prospects.may_run(job, self._avoid)
                    and (now - placed < prospects.lonely_s or prospects.anybody(job, self._avoid))
                ):
                    fitting = now
                elif self._avoid != self._refused and prospects.may_run(job, self._refused):
                    self._avoid = set(self._refused)
                    note(self._narrate, f"{job.submission.name}: no other node may judge it; one that lost it may")
                    self._kill()
                    asked, placed, fitting = self._place(job, reference), now, now
                elif now - fitting > prospects.lonely_s:
                    raise prospects.why_nobody(job, self._avoid)

    def _place(self, job: ClusterJob, reference: Any) -> Any:
        """Hand it to Ray; what brings its first word."""
        self._begun, self._present = False, self._placement.place(job, reference, self._avoid)
        return self._present.next.remote()

    def end(self) -> None:
        """End the present attempt if it still runs, and wait until its judge has ended."""
        if self._present is not None and self._begun:
            self._ray.wait([self._present.end.remote()], timeout=END_S + LOOK_S)
        self._kill()

    def _next(self, asked: Any) -> Said:
        """What a job says next; `over` with the reason where it says nothing any more."""
        try:
            said: Said = self._ray.get(asked, timeout=self._placement.silent_s)
            return said
        except Exception as error:  # every kind of RayError, and what unpickling may raise
            if not self._ray.is_initialized():  # not the job is lost but the cluster, for Ray's client
                raise
            name = type(error).__name__
            if name in ENDED:
                return {"over": f"its process has ended, or its node ({name})"}
            return {"over": f"{name}: {' '.join(str(error).split())[:200]}"}

    def _take(self, job: ClusterJob, said: Said) -> bool:
        """Act on what the present attempt says; whether that was its last word."""
        name = job.submission.name
        self._on = said.get("on", self._on)
        if "begun" in said:
            where = said["begun"]
            self._card = where["card"]
            again = f", attempt {job.attempt}" if job.attempt > 1 else ""
            note(self._narrate, f"{name}: judged on {where['node']}, {where['card']}{again}")
        elif "told" in said:
            self._narrate(f"{name}: {said['told']}")
        elif "run" in said:
            run = by_this_clock(Run.model_validate(said["run"]))
            if not said["source_sha256"] == run.submission_sha256 == job.submission.sha256:
                self._give_up(job, "it judged another source")
            elif (run.problem, run.submission) != (job.problem, name):
                self._give_up(job, f"its run is of another job: {run.submission!r} of {run.problem!r}")
            elif run.problem_sha256 != job.problem_sha256:
                self._give_up(job, f"it judged by other files of {run.problem}: their hash is not the job's")
            elif run.device.slug != job.slug:
                self._give_up(job, f"it judged on {run.device.slug}, and the job is for {job.slug}")
            elif not self._attempts.settle(job.attempt, run):
                note(self._narrate, f"{name}: a result of attempt {job.attempt} is dropped: it is lost")
            return True
        elif "refused" in said:
            self._give_up(job, f"the node refused it: {'; '.join(said['refused'])}")
            self._refused |= {node.id for node in self._placement.nodes() if node.refuses(job.pins, job.slug)}
            self._avoid |= self._refused
            return True
        elif "error" in said:
            kind = getattr(errors, said["error"]["kind"], PodiumError)
            if kind is not InfrastructureError and issubclass(kind, PodiumError):
                raise kind(said["error"]["message"], said["error"]["hint"])
            self._give_up(job, said["error"]["message"])
            return True
        elif "over" in said:
            self._give_up(job, said["over"])
            return True
        return False

    def _give_up(self, job: ClusterJob, why: str) -> None:
        if self._attempts.lost(job.attempt, why):
            note(self._narrate, f"{job.submission.name}: attempt {job.attempt} is lost: {why}")
            self._look_elsewhere(job)
        self._kill()

    def _look_elsewhere(self, job: ClusterJob) -> None:
        """Have the next attempt go to another node if there is one, also a busy one, and else to another card: where
        judges end at once, as on a full disk, a card is always free, and would get each attempt of every job."""
        if self._card is not None:
            self._lost_on.append(self._card)
        if self._on is None and self._present is not None:  # it ended before its first word
            self._on = self._placement.prospects.last_node_of(self._present)
        if self._on is not None:
            wider, narrower = self._avoid | {self._on}, self._refused | {self._on}
            self._avoid = next(
                (each for each in (wider, narrower) if self._placement.prospects.may_run(job, each)), self._avoid
            )

    def _kill(self) -> None:
        """Have Ray end the present attempt's process: a judge that it has ends with it."""
        actor, self._present = self._present, None
        if actor is not None:
            with contextlib.suppress(Exception):  # it has ended meanwhile
                self._ray.kill(actor)
