"""Running and waiting submissions as server-sent events: one JSON object for each message, as in `events.Event`.

    /live                     every submission
    /live/submission/NUMBER   one

Everybody may follow what the board shows to everybody: whose submission it is and how far it is. Only the author learns
what was wrong, and how a trial ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from harness.server.board.answers import HEADERS, PageRoute
from harness.server.board.mine import seen_submission
from harness.server.board.site import Site
from harness.server.events import Subscription, TooManyListeners
from harness.server.limits import asker
from harness.server.serving import Serving
from harness.server.store import DatabaseGone
from harness.server.store.rows import Account

PACE_S = 0.001
"""The pause after each message, for each open stream. A message takes 0.1 ms, so all streams together take at most a
tenth of a processor."""

SILENCE_S = 15.0
"""After this time without an event a comment is sent. It shows a proxy that the stream lives, and shows the server
whether the client has gone."""


def routes(site: Site) -> APIRouter:
    """Return the routes of the streams."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    async def viewer(request: Request) -> Account | None:
        try:
            return await run_in_threadpool(site.account, request)
        except DatabaseGone:
            return None

    @router.get("/live")
    async def everything(request: Request) -> Response:
        return _Stream(site.serving, request, None, await viewer(request))

    @router.get("/live/submission/{number}")
    async def one(request: Request, number: int) -> Response:
        who = await viewer(request)
        await run_in_threadpool(seen_submission, site, number, who)
        return _Stream(site.serving, request, number, who)

    return router


class _Stream(Response):
    """A response that listens only while it is being sent, so that nothing remains if a client leaves early."""

    def __init__(self, serving: Serving, request: Request, submission: int | None, who: Account | None) -> None:
        super().__init__()
        self._account = who.id if who else None
        self._serving, self._hub, self._submission = serving, serving.hub, submission
        self._who = who.name if who else None
        self._address = asker(request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        try:
            with self._hub.subscribe(
                submission=self._submission, address=self._address, account=self._account
            ) as listener:
                response = StreamingResponse(self._events(listener), headers=headers, media_type="text/event-stream")
                await response(scope, receive, send)
        except TooManyListeners as error:
            # EventSource gives up on any status but 200. The page stays readable.
            headers = {**HEADERS, "Retry-After": "30", "Connection": "close"}  # free the connection for others
            refused = Response(f"{error}\n", 503, headers, "text/plain; charset=utf-8")
            await refused(scope, receive, send)

    async def _events(self, listener: Subscription) -> AsyncIterator[str]:
        yield "retry: 5000\n\n"
        while not self._serving.closing:  # when the server ends, browsers reconnect to the next one
            events = [event for event in await listener.latest(SILENCE_S) if event.kind != "closing"]
            told = (event.for_its_author if event.user == self._who else event.for_others for event in events)
            yield "".join(f"data: {each}\n\n" for each in told if each) or ": nothing new\n\n"
            # Events that arrive meanwhile are sent together. A message costs the server the same whatever its length.
            await asyncio.sleep(PACE_S * self._hub.listeners)
