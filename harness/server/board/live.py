"""What runs and waits, as server-sent events: one JSON object a message, as `events.Event` has it.

    /live                     every submission
    /live/submission/NUMBER   one

Everybody may listen to what everybody sees: whose submission it is and how far. What was wrong with it is told to its
author alone, and so is how a trial ended; a board tells of what stands on it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from harness.server.board.answers import HEADERS, PageRoute
from harness.server.board.mine import seen_submission
from harness.server.board.site import Site
from harness.server.events import Event, Hub, Subscription, TooManyListeners
from harness.server.store import DatabaseGone
from harness.server.store.rows import Account, JobState, Mode

MODES_KEPT = 1_000
"""Submissions whose modes are remembered: every listener asks for them at once."""

OVER = frozenset(state.value for state in JobState if state.over)
SILENCE_S = 15.0
"""After so long without an event a comment is sent: it shows a proxy that the stream lives, and us who has gone."""


def routes(site: Site) -> APIRouter:
    """The routes of the streams."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    async def viewer(request: Request) -> Account | None:
        try:
            return await run_in_threadpool(site.account, request)
        except DatabaseGone:
            return None

    @functools.lru_cache(maxsize=MODES_KEPT)
    def mode_of(number: int) -> Mode:
        row = site.serving.database.queue.submission(number)
        if row is None:
            raise KeyError(number)
        return row.mode

    @router.get("/live")
    async def everything(request: Request) -> Response:
        return _Stream(site.serving.hub, request, None, await viewer(request), mode_of)

    @router.get("/live/submission/{number}")
    async def one(request: Request, number: int) -> Response:
        who = await viewer(request)
        await run_in_threadpool(seen_submission, site, number, who)
        return _Stream(site.serving.hub, request, number, who, mode_of)

    return router


class _Stream(Response):
    """A response that listens while it is sent, and not before or after: nothing is left where a client goes early."""

    def __init__(
        self, hub: Hub, request: Request, submission: int | None, who: Account | None, mode_of: Callable[[int], Mode]
    ) -> None:
        super().__init__()
        self._mode_of = mode_of
        self._account = who.id if who else None
        self._hub, self._submission = hub, submission
        self._who = who.name if who else None
        self._address = request.client.host if request.client else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        try:
            with self._hub.subscribe(
                submission=self._submission, address=self._address, account=self._account
            ) as listener:
                response = StreamingResponse(self._events(listener), headers=headers, media_type="text/event-stream")
                await response(scope, receive, send)
        except TooManyListeners as error:
            # EventSource gives up on anything but 200; the page stays readable.
            refused = Response(f"{error}\n", 503, {**HEADERS, "Retry-After": "30"}, "text/plain; charset=utf-8")
            await refused(scope, receive, send)

    async def _events(self, listener: Subscription) -> AsyncIterator[str]:
        yield "retry: 5000\n\n"
        while True:
            event = await listener.next(SILENCE_S)
            yield f"data: {json.dumps(await self._told(event))}\n\n" if event is not None else ": nothing new\n\n"

    async def _told(self, event: Event) -> dict[str, object]:
        told = asdict(event)
        if event.user != self._who:
            told["data"] = {key: value for key, value in event.data.items() if key not in ("error", "line")}
            if event.data.get("state") in OVER and not await run_in_threadpool(self._is_for_the_board, event):
                told["data"] = {"state": "over"}
        return told

    def _is_for_the_board(self, event: Event) -> bool:
        """Whether everybody may know how it ended."""
        try:
            return self._mode_of(event.submission) is Mode.LEADERBOARD
        except (KeyError, DatabaseGone):
            return False
