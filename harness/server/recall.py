"""A judge that is ended before its verdict: it has taken too long, or nobody wants the run any more.

An administrator's removal ends the judge, and so does the author's deletion of a test, a benchmark or a profile. One
that is to be ranked is judged to its end although its author deletes it: its run counts against the same bytes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from harness.server.store import DatabaseGone
from harness.server.store.queue import Queue
from harness.server.store.rows import Mode, SubmissionRow

LOOK_S = 2.0
"""Between two looks at the submission."""


class Closable(Protocol):
    """What judges somewhere, and can be ended."""

    def close(self) -> None: ...


class Recallable:
    """The judges of one attempt; each is told by a call. Threads may share it."""

    def __init__(self) -> None:
        self.judges: list[Closable] = []

    def __call__(self, judge: Closable) -> None:
        self.judges.append(judge)


@contextlib.contextmanager
def watching(queue: Queue, job: SubmissionRow, limit_s: float) -> Iterator[Recallable]:
    """Within it, what is told of the job's judges is ended after `limit_s`, or when the run is `unwanted`."""
    told, over = Recallable(), threading.Event()

    def watch() -> None:
        until = time.monotonic() + limit_s
        while not over.wait(LOOK_S):
            if told.judges and (time.monotonic() > until or unwanted(queue, job)):
                for each in told.judges:
                    each.close()
                return

    threading.Thread(target=watch, name=f"watching job {job.job_id}", daemon=True).start()
    try:
        yield told
    finally:
        over.set()


def unwanted(queue: Queue, job: SubmissionRow) -> bool:
    """Whether nobody wants the run: the submission was removed, or deleted and is not to be ranked. False where the
    database does not say."""
    with contextlib.suppress(DatabaseGone):
        found = queue.submission(job.id)
        if found is not None:
            return found.removed_at is not None or (found.deleted_at is not None and job.mode is not Mode.LEADERBOARD)
    return False
