"""The limits before every request: its length, the time in which it must arrive, and the number of connections.

Guarded     the application, with limits on each request's body
Patient     uvicorn's protocol, with limits on connections and on the time for a request's head
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import h11
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from harness.server.limits import network

MOST_BODY = 1_200_000
"""The most bytes of a request: the longest submission in its multipart form."""

BODY_S = 30.0
"""The seconds in which a request's body must arrive."""

HEAD_S = 10.0
"""The seconds in which a request's head must arrive, and for which a connection may idle."""

MOST_UNWANTED = 4_000_000
"""The bytes of a body that are read and discarded after the answer, before the connection is cut."""

MOST_LINGERING, LINGER_S = 100, 1.0
"""The most surplus connections that get an answer at once, and the seconds that each has to read it."""

MOST_CONNECTIONS = 2_000
MOST_OF_ADDRESS = 200
"""The most connections from one address (IPv6: one /64), which many people may share. Connections through a proxy on
this machine are not limited this way."""

LOOPBACK = ("127.0.0.1", "::1")
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
}


class _TooMuch(HTTPException):
    """FastAPI passes such an exception on while it reads a body, and answers with it."""


class Guarded:
    """Refuses bodies that are too long before they are read, and bodies that take too long."""

    def __init__(self, app: ASGIApp, body_s: float = BODY_S) -> None:
        self._app, self._body_s = app, body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith("//"):  # popcorn-cli's base address may end with a slash
            scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
        answered = False

        async def answer(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                known = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(each for each in extra if each[0] not in known)]
            await send(message)

        try:
            _check_length(scope)
            await self._app(scope, self._limited(receive), answer)
        except _TooMuch as error:
            if not answered:
                await _refuse(answer, error)

    def _limited(self, receive: Receive) -> Receive:
        received, whole = 0, False
        until_s = asyncio.get_running_loop().time() + self._body_s

        async def limited() -> Message:
            nonlocal received, whole
            if whole:
                return await receive()  # wait for the client to hang up
            left_s = until_s - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(left_s, 0.001))
            except TimeoutError:
                raise _TooMuch(408, f"the request took longer than {self._body_s:g} s to arrive") from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if received > MOST_BODY:
                raise _TooMuch(413, _TOO_LONG)
            return message

        return limited


_TOO_LONG = f"the request is longer than {MOST_BODY:,} bytes, which is the most"


def _check_length(scope: Scope) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or len(value) > 15 or int(value) > MOST_BODY):
            raise _TooMuch(413, _TOO_LONG)


async def _refuse(send: Send, error: _TooMuch) -> None:
    body = json.dumps({"detail": error.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send(
        {
            "type": "http.response.start",
            "status": error.status_code,
            "headers": [*headers, (b"connection", b"close")],
        }
    )
    await send({"type": "http.response.body", "body": body})


def patient(most: int = MOST_CONNECTIONS) -> type[Patient]:
    """Return the protocol of one server that allows `most` connections at once."""

    class Fitted(Patient):
        limit, addresses, lingering = most, Counter(), set()

    return Fitted


class Patient(H11Protocol):
    """Closes a connection whose request's head does not arrive in time. A connection beyond a limit (in total or for
    one address) gets an answer and is closed. Beyond MOST_LINGERING such connections are cut without an answer."""

    limit: int
    addresses: Counter[str]  # the number of connections of each address
    lingering: set[Patient]  # connections that are being told
    _waiting: asyncio.TimerHandle | None = None
    _unwanted = 0  # bytes of a body that arrived after the answer
    _counted = ""  # the address that this connection counts for

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        proxy = self.config.proxy_headers and address in LOOPBACK
        if len(self.connections) > self.limit:
            self._turn_away(f"{self.limit:,} connections are open, which is the most: try again later")
        elif address and not proxy and self.addresses[network(address)] >= MOST_OF_ADDRESS:
            self._turn_away(f"{MOST_OF_ADDRESS} connections are open from your address, which is the most: close one")
        else:
            if not proxy:
                self._counted = network(address)
                self.addresses[self._counted] += 1
            self._await_head()

    def _turn_away(self, sentence: str) -> None:
        """Answer before a request arrives, and wait a moment before closing. If data arrived after the close, the
        client's system would discard the answer."""
        self.connections.discard(self)
        if len(self.lingering) >= MOST_LINGERING:
            self.transport.abort()
            return
        self.lingering.add(self)
        body = json.dumps({"detail": sentence}).encode()
        head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 30\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.write_eof()
        self._waiting = self.loop.call_later(LINGER_S, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self in self.lingering:
            return
        super().data_received(data)
        if self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            self._unwanted += len(data)  # read for a while, for clients that read the answer only afterwards
            if self._unwanted > MOST_UNWANTED:
                self._give_up()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None:
            self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.lingering.discard(self)
        if self._counted:
            self.addresses[self._counted] -= 1
            if not self.addresses[self._counted]:
                del self.addresses[self._counted]
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()
