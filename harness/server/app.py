"""The application: the routes of popcorn-cli, the board's pages, and errors as one sentence each."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from harness import __version__
from harness.errors import InfrastructureError
from harness.render.legible import without_paths
from harness.server.board import LiveSite
from harness.server.board.answers import refused_page
from harness.server.dispatcher import Dispatcher
from harness.server.events import TooManyListeners
from harness.server.guard import BODY_S, Guarded
from harness.server.log import say
from harness.server.popcorn import accounts, admin, streams, submissions
from harness.server.serving import Denied, Serving
from harness.server.sessions import ForgedForm
from harness.server.store import DatabaseGone
from harness.server.verdicts import one_line


def create(serving: Serving, dispatcher: Dispatcher | None = None, body_s: float = BODY_S) -> FastAPI:
    """Create the application of one server. `dispatcher` has been started; the application stops it when it ends."""

    board = LiveSite(serving)
    board.prepare()

    @contextlib.asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        board.start()
        yield
        if dispatcher is not None:
            dispatcher.stop()
        board.stop()

    app = FastAPI(title="Podium", version=__version__, lifespan=living, docs_url=None, redoc_url=None)
    app.state.serving = serving
    app.include_router(accounts.router())
    app.include_router(admin.router())
    app.include_router(submissions.router())
    app.include_router(board.router)
    app.include_router(streams.router())  # the last, because its path matches many others
    _add_errors(app)
    app.add_middleware(Guarded, body_s=body_s)
    return app


def _add_errors(app: FastAPI) -> None:
    """Answer every error with {"detail": one sentence}. A browser gets a page for an unknown address."""

    @app.exception_handler(Denied)
    async def denied(request: Request, error: Denied) -> Response:
        headers = {"Retry-After": str(error.retry_s)} if error.retry_s is not None else None
        return _told(error.status, error.sentence, headers)

    @app.exception_handler(InfrastructureError)
    async def broken(request: Request, error: InfrastructureError) -> Response:
        say(error.message)
        said = error.told if isinstance(error, DatabaseGone) else without_paths(error.message)
        return _told(503, f"{said}: try again later", {"Retry-After": "5"})

    @app.exception_handler(TooManyListeners)
    async def crowded(request: Request, error: TooManyListeners) -> Response:
        return _told(503, str(error), {"Retry-After": "30", "Connection": "close"})

    @app.exception_handler(ForgedForm)
    async def forged(request: Request, error: ForgedForm) -> Response:
        return _told(403, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first: dict[str, Any] = error.errors()[0]
        where = [str(part) for part in first.get("loc", ())]
        named = ".".join(where[1:]) or "the request"
        status = 400 if where[:1] == ["query"] else 422
        return _told(status, f"{named}: {str(first.get('msg', 'is not right')).lower()}")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        words = {404: "there is no such page", 405: "this address does not take that method"}
        said = words.get(error.status_code, str(error.detail))
        if error.status_code == 404 and "text/html" in request.headers.get("accept", ""):
            return refused_page(404, said)
        return _told(error.status_code, said, error.headers)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        say(f"{request.method} {request.url.path}: {type(error).__name__}: {error}")
        return _told(500, "the server has made a mistake, which is in its log")


def _told(status: int, sentence: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"detail": one_line(sentence)}, status, headers=headers)
