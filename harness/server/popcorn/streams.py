"""Submitting with a stream of events as the answer. Clients before July 2026 always use it, newer ones only to profile.

    status   at least every 15 s, and at the judge's steps     data: {"status": "processing", "elapsed_time", "message"}
    result   accepted (for the leaderboard: ranked)            data: {"status": "success", "results", "reports"}
    error    anything else: the client exits with 1            data: {"status": "error", "detail"}

The submission is queued like any other: a client that hangs up loses only the stream.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, File, UploadFile
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from harness.server import admission
from harness.server.events import Event, Subscription
from harness.server.popcorn import answers
from harness.server.popcorn.accounts import Here, Who
from harness.server.serving import Denied, Serving
from harness.server.store import DatabaseGone
from harness.server.store.rows import JobState, SubmissionRow
from harness.server.verdicts import place

STATUS_S = 15.0
STEP_S = 2.0
"""The least time between two status events about steps."""


def router() -> APIRouter:
    """Return the routes POST /profile/{board}/{gpu} and POST /{board}/{gpu}/{mode}. The latter comes last, because it
    would match other requests."""
    routes = APIRouter(tags=["streams"])

    @routes.post("/profile/{board}/{gpu}")
    def profile(serving: Here, who: Who, board: str, gpu: str, file: Annotated[UploadFile, File()]) -> dict[str, Any]:
        """Refuse profiling by Nsight Compute, which clients since July 2026 request with options. It needs more access
        than a sandbox allows."""
        competition = serving.competition(board)
        serving.gpu(competition, gpu)
        admission.mode_of("profile", competition)
        raise Denied(
            400, "there is no Nsight Compute in the sandbox: --mode profile without options has torch.profiler"
        )

    @routes.post("/{board}/{gpu}/{mode}")
    async def stream(
        serving: Here, who: Who, board: str, gpu: str, mode: str, file: Annotated[UploadFile, File()]
    ) -> StreamingResponse:
        """Queue a file and stream its progress until the verdict."""
        competition = serving.competition(board)
        source = await file.read()
        name = file.filename or ""
        stack = contextlib.ExitStack()
        try:
            listener = stack.enter_context(serving.hub.subscribe(competition=competition.name, account=who.id))
            number, _ = await run_in_threadpool(admission.accept, serving, who, competition, gpu, mode, name, source)
            listener.narrow(number)
        except BaseException:
            stack.close()
            raise
        return StreamingResponse(_told(serving, number, listener, stack), media_type="text/event-stream")

    return routes


async def _told(
    serving: Serving, number: int, listener: Subscription, stack: contextlib.ExitStack
) -> AsyncIterator[str]:
    begun_s = told_s = time.monotonic()
    with stack:
        yield _status(begun_s, f"Submission {number} accepted")
        while True:
            event = await listener.next(STATUS_S)
            if event is not None and event.kind == "step" and time.monotonic() - told_s < STEP_S:
                continue
            told_s = time.monotonic()
            if event is not None and event.kind in ("step", "queue"):
                yield _status(begun_s, _words(number, event))
                continue
            try:
                row = await run_in_threadpool(serving.database.queue.submission, number)
                assert row is not None
                if row.state.over:
                    yield await run_in_threadpool(_ending, serving, row)
                    return
                yield _status(begun_s, f"Submission {number}: {row.progress or row.state.value}")
            except DatabaseGone as error:
                yield _status(begun_s, error.told)
            if serving.closing:
                said = f"the server is being restarted; submission {number} is kept: popcorn submissions show {number}"
                yield _event("error", {"status": "error", "detail": said, "status_code": 503})
                return


def _words(number: int, event: Event) -> str:
    if event.kind == "queue":
        return f"Submission {number}: number {event.data['position']} of {event.data['of']} in the queue"
    if event.data.get("line"):
        return f"Submission {number}: {event.data['line']}"
    return f"Submission {number}: {place(event.data['doing'], event.data['done'], event.data['total'])}"


def _ending(serving: Serving, row: SubmissionRow) -> str:
    runs = serving.database.queue.runs(row.id)
    last = runs[-1] if runs else None
    run = answers.run_of(serving.root, last) if last is not None else None
    state, error = answers.told(row, last)
    if state is JobState.SUCCEEDED and last is not None and run is not None:
        result = answers.full(row, last, run)
        return _event("result", {"status": "success", "results": [result], "reports": [answers.report(row, run)]})
    ending: dict[str, Any] = {"status": "error", "detail": f"submission {row.id}: {error or state.value}"}
    if run is not None and run.ending.detail:
        ending["raw_error"] = run.ending.detail[: answers.LONGEST_OUTPUT]
    return _event("error", ending)


def _status(begun_s: float, message: str) -> str:
    elapsed_s = round(time.monotonic() - begun_s, 1)
    return _event("status", {"status": "processing", "elapsed_time": elapsed_s, "message": message})


def _event(kind: str, data: dict[str, Any]) -> str:
    """Return one event. Its data is one line in any case: JSON in ASCII has no line breaks."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
