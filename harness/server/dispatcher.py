"""Takes jobs from the queue and has them judged, one after another on each card.

    Dispatcher.start ─► recover: conclude or put back the jobs that ran when the last server died
                    └─► a thread a card: claim ─► judge, in a process of its own ─► conclude

A run's id consists of its job and attempt, and the run's file is written before the job's state. If the server dies in
between, the next one finds the file and does not judge again. Runs are stored like those of `eval`. Runs that were not
meant to be ranked (test, benchmark, profile) go to results/trials, which no board reads.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from harness import catalog
from harness.errors import InfrastructureError, PodiumError
from harness.library import judges
from harness.library.request import Depth, Request
from harness.model import DISTURBED, Problem, Run, Unranked, Verdict
from harness.progress import Narrate
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.render.legible import without_paths
from harness.server import recall, removal
from harness.server.exhaustion import exhausted
from harness.server.failures import Failures
from harness.server.log import say
from harness.server.narration import Places, Told
from harness.server.recall import Closable
from harness.server.serving import Serving
from harness.server.store import DatabaseGone
from harness.server.store.rows import JobState, Mode, RunRow, SubmissionRow
from harness.server.stored_run import TIERS, board_name, row_of, run_id
from harness.server.verdicts import error_of, state_of

DEPTHS: dict[Mode, Depth] = {
    Mode.TEST: "verdict",
    Mode.BENCHMARK: "quick",
    Mode.LEADERBOARD: "full",
    Mode.PROFILE: "profile",
}

MOST_CROWDED = 2
"""How often a run on a disturbed machine is judged again."""

MOST_FAILURES = 3
"""How often a judge may fail at one submission before the submission fails."""

SETTLE_S = 30.0
"""The seconds between attempts to move the files of submissions that were taken off a board."""

FAILED = "the judge failed: "
IDLE_S = 1.0
AGAIN_S = 0.5


Judging = Callable[[Request, Narrate, Callable[[Closable], None]], Run]
"""The type of `judges.judge_apart` and of a cluster's `Link.judge`."""

Done = TypeVar("Done")


class Dispatcher:
    """Judges the jobs in a server's queue. Tests replace `judge`."""

    def __init__(self, serving: Serving, judge: Judging = judges.judge_apart) -> None:
        self._serving, self._judge_apart = serving, judge
        self._queue = serving.database.queue
        self._store = Store(serving.root)
        self._threads: list[threading.Thread] = []
        self._judges: set[Closable] = set()
        self._problems: dict[str, tuple[dict[str, int], Problem]] = {}
        self._taken: set[int] = set()  # numbers of the jobs that threads hold
        self._failures = Failures()
        self._taking = threading.Lock()
        self._unsure = False  # whether the database failed during a claim
        self._stopping = threading.Event()
        self._places = Places(serving)
        self._settled_s = 0.0  # time of the last `_settle_taken_off`

    def start(self) -> None:
        """Lock the database, settle the jobs that the last server left, and begin. Raises InfrastructureError."""
        self._serving.database.connections.own()
        self._store.check_writable()
        self.recover()
        self._settle_taken_off()
        found, self._serving.cards = self._serving.cards, {}
        self.have(found)

    def have(self, found: dict[str, tuple[str, ...]]) -> None:
        """Judge on these cards, too, as far as they are new. Names are those of `Serving.cards`."""
        for gpu, cards in found.items():
            known = self._serving.cards.get(gpu, ())
            more = tuple((Counter(cards) - Counter(known)).elements())
            self._serving.cards = {**self._serving.cards, gpu: (*known, *more)}
            for card in more:
                thread = threading.Thread(target=self._work, args=(gpu, card), name=f"judging on {card}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        """End the judges. Their jobs wait again, and the next server judges them."""
        self._serving.close()
        self._places.close()
        self._stopping.set()
        for judge in list(self._judges):
            judge.close()
        with self._serving.arrived:
            self._serving.arrived.notify_all()
        for thread in self._threads:
            thread.join(judges.END_S)
        self._serving.database.close()

    def recover(self) -> None:
        """Conclude the jobs whose run was stored, and put back the others that ran when the last server ended."""
        for job in self._queue.running():
            if job.job_id in self._taken:
                continue
            run = self._stored(job)
            if run is None:
                self._again(job, "the server was started anew")
            else:
                self._conclude(job, run)

    def _stored(self, job: SubmissionRow) -> Run | None:
        """Return the run of this attempt if it was stored before the server died."""
        competition = self._serving.competitions().get(job.competition)
        tier = self._serving.root / "results" / TIERS[job.mode]
        problems = competition.problem if competition is not None else "*"
        for path in tier.glob(f"{problems}/*/{run_id(job)}.json"):
            with contextlib.suppress(ValueError):
                return load_run(path)
        return None

    def _work(self, gpu: str, card: str) -> None:
        told = ""
        while not self._stopping.is_set():
            try:
                self._settle_taken_off()
                job = self._take(gpu, card)
                if job is not None:
                    self._judge(job, card)
                    continue
            except DatabaseGone as error:
                if not self._unsure:
                    say(f"{error.message}; trying again until it works")
                self._unsure = True
                self._stopping.wait(AGAIN_S)
            except Exception as error:  # a bug of Podium must not end the competition
                said = f"judging on {card}: {type(error).__name__}: {error}"
                if said != told:
                    say(said)
                told = said
                self._stopping.wait(AGAIN_S)
            with self._serving.arrived:
                if not self._stopping.is_set():
                    self._serving.arrived.wait(IDLE_S)

    def _take(self, gpu: str, card: str) -> SubmissionRow | None:
        """Claim the next job. After a database failure a job may be marked as running without a thread: put it back
        first."""
        with self._taking:
            if self._unsure:
                self._serving.database.connections.own()
                self.recover()
                self._unsure = False
                say("the database works again")
            job = self._queue.claim(gpu, self._failures.left_by(card, self._serving.cards[gpu]))
            if job is not None:
                self._taken.add(job.job_id)
            return job

    def _settle_taken_off(self) -> None:
        """Now and then, move run files that could not be moved when they were taken off. Raises DatabaseGone."""
        with self._taking:
            if self._settled_s and time.monotonic() - self._settled_s < SETTLE_S:
                return
            self._settled_s = time.monotonic()
        try:
            removal.settle(self._serving.database, self._serving.root)
        except DatabaseGone:
            raise
        except InfrastructureError as error:
            say(f"{error.message}; it is tried again")

    def _judge(self, job: SubmissionRow, card: str) -> None:
        """Judge one job and settle it in any case."""
        try:
            self._settle(job, card)
        finally:
            self._taken.discard(job.job_id)

    def _settle(self, job: SubmissionRow, card: str) -> None:
        told = Told(self._serving, job)
        told.state(JobState.RUNNING)
        self._places.changed(job.gpu)
        try:
            competition = self._serving.competition_of(job)
            problem = self._until_done(lambda: self._problem(competition.problem), exhausted)
            source = self._until_done(lambda: self._queue.source(job.id))
            # Reports name the file as its author does. The stored run also names the author.
            submission = catalog.submission_of(problem, source, board_name(job), job.file_name)
            request = Request(
                root=self._serving.root,
                problem=competition.problem,
                submission=submission,
                device=competition.card or card,
                depth=DEPTHS[job.mode],
                confined=True,
                pinned=competition.pins,
            )
            limit_s = 2 * problem.limits.evaluation_s + 3600
            run = self._until_done(lambda: self._within(limit_s, job, request, told), exhausted)
            if run.ending.verdict is Verdict.INFRASTRUCTURE_ERROR and run.unranked_because != Unranked.UNJUDGED:
                raise InfrastructureError(run.ending.message)  # before it is stored: another attempt's run counts
            path = f"{job.competition}/{job.user}/{job.file_name}"
            run = run.model_copy(update={"id": run_id(job), "submission_path": path})
            self._until_done(functools.partial(self._store.write, run, submission, TIERS[job.mode]))
        except Exception as error:
            self._failed(job, error, card)
            return
        self._until_done(functools.partial(self._conclude, job, run))

    def _problem(self, name: str) -> Problem:
        """Return the problem as its file is now, for its name and limits. The judge reads it again. Raises
        ProblemError."""
        stamp = catalog.changed_ns(self._serving.root, name)
        known = self._problems.get(name)
        if known is None or known[0] != stamp:
            known = self._problems[name] = (stamp, catalog.load_problem(self._serving.root, name))
        return known[1]

    def _within(self, limit_s: float, job: SubmissionRow, request: Request, told: Told) -> Run:
        """Return the run of a judge that is ended after `limit_s`, or when nobody wants the run any more."""
        with recall.watching(self._queue, job, limit_s) as watched:

            def started(judge: Closable) -> None:
                watched(judge)
                self._judges.add(judge)
                if self._stopping.is_set():
                    judge.close()

            try:
                return self._judge_apart(request, told, started)
            finally:
                self._judges.difference_update(watched.judges)

    def _failed(self, job: SubmissionRow, error: Exception, card: str) -> None:
        """Put back a job whose judge returned no run. After MOST_FAILURES failures give up."""
        said = without_paths(error.message if isinstance(error, PodiumError) else f"{type(error).__name__}: {error}")
        if self._stopping.is_set():
            with contextlib.suppress(DatabaseGone):  # the next server finds the job running, and does the same
                self._again(job, "the server was stopped")
            return

        def settle() -> None:
            if recall.unwanted(self._queue, job):
                self._queue.put_back(job.job_id, job.attempt, "its judge was ended")  # which ends it
                say(f"submission {job.id}, attempt {job.attempt}: ended, because it was taken off")
                return
            before = [each for each in self._queue.states(job.job_id) if (each.detail or "").startswith(FAILED)]
            if len(before) + 1 < MOST_FAILURES:
                self._failures.note(job.job_id, card)
                self._again(job, f"{FAILED}{said}")
            else:
                self._failures.forget(job.job_id)
                self._queue.end(job.job_id, job.attempt, JobState.FAILED, f"it could not be judged here: {said}")
                Told(self._serving, job).state(JobState.FAILED, f"it could not be judged here: {said}")

        self._until_done(settle)
        self._stopping.wait(AGAIN_S)

    def _again(self, job: SubmissionRow, why: str, run: RunRow | None = None) -> None:
        """Put the job back. Raises DatabaseGone."""
        self._queue.put_back(job.job_id, job.attempt, why, run)
        say(f"submission {job.id}, attempt {job.attempt}: waits again: {why}")

    def _conclude(self, job: SubmissionRow, run: Run) -> None:
        """Store the run's row and the job's state in one transaction. Raises DatabaseGone."""
        row = row_of(job, run)
        told = Told(self._serving, job)
        if run.unranked_because in DISTURBED and job.mode is Mode.LEADERBOARD:
            again = sum(1 for earlier in self._queue.runs(job.id) if earlier.unranked in DISTURBED)
            if again < MOST_CROWDED:
                why = Unranked(run.unranked_because).why
                self._again(job, f"{why}: it is judged again", row)
                removal.settle(self._serving.database, self._serving.root, job.id)
                now_it_is = self._queue.submission(job.id)
                told.state(now_it_is.state if now_it_is is not None else JobState.PENDING)
                return
        best = self._queue.best_ns(job.competition, job.gpu, besides=run.id) if row.ranked else None
        state, error = state_of(run), error_of(run, job.mode)
        self._failures.forget(job.job_id)
        # A second attempt finds its own run stored, and continues with the step that failed.
        if not self._queue.end(job.job_id, job.attempt, state, error, row) and self._queue.run(run.id) is None:
            self._store.remove([(row.path, None)])  # boards of results/ would show a run that the database has not
            say(f"submission {job.id}, attempt {job.attempt}: its result is dropped: the attempt is over")
            return
        removal.settle(self._serving.database, self._serving.root, job.id)
        told.state(state, error, run.id)
        found = self._queue.submission(job.id)
        gone = found is None or found.deleted_at is not None or found.removed_at is not None
        if not gone and row.ranked and row.score_ns is not None and (best is None or row.score_ns < best):
            told.record(run.id, row.score_ns)
        self._places.changed(job.gpu)

    def _until_done(self, act: Callable[[], Done], waits: Callable[[Exception], bool] = lambda error: True) -> Done:
        """Repeat `act` while the disk is full or the database is gone. If the server ends meanwhile, the next one
        continues.
        `waits`: decides which of these errors are worth another attempt."""
        said = False
        while True:
            try:
                return act()
            except (InfrastructureError, OSError) as error:
                if self._stopping.is_set() or not waits(error):
                    raise
                if not said:
                    say(f"{error}; trying again until it works")
                said = True
                self._stopping.wait(AGAIN_S)
