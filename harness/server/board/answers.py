"""The parts of every answer: headers, ETags, and pages in place of errors.

No content of a page can run code. Scripts, styles and requests are limited to this server's own files, forms go only to
this server, and no other page may frame it (https://www.w3.org/TR/CSP3/).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from harness import __version__
from harness.errors import PodiumError, UsageError
from harness.render.legible import without_paths
from harness.server.board.results import digest
from harness.server.serving import Denied
from harness.server.sessions import ForgedForm
from harness.server.store import DatabaseGone

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
RETRY_S = 5


def etag(request: Request, *revisions: str) -> str:
    """Return the ETag of this address for a page made from parts with these `revisions`. Pages show ages, so it changes
    every hour."""
    hour = datetime.now(UTC).strftime("%Y-%m-%dT%H")
    return f'"{digest(__version__, hour, str(request.url.path), str(request.url.query), *revisions)}"'


def unless_known(
    request: Request, tag: str, make: Callable[[], str | bytes], media_type: str, *, private: bool = False
) -> Response:
    """Return 304 if the client has the page under this `tag`, else the page that `make` returns. The client must ask
    each time."""
    headers = {
        **HEADERS,
        "ETag": tag,
        "Cache-Control": "private, no-cache" if private else "no-cache",
        "Vary": "Cookie",
    }
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(make(), headers=headers, media_type=media_type)


def page(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a page that must not be cached: it belongs to one person or to this moment."""
    kept = {"Cache-Control": "private, no-store", **HEADERS, **(headers or {})}
    return HTMLResponse(text, status_code=status, headers=kept)


class PageRoute(APIRoute):
    """A route that shows errors as pages with a sentence."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which turns each error into a page."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except Denied as error:
                return refused_page(error.status, error.sentence, error.retry_s)
            except ForgedForm as error:
                return refused_page(403, str(error))
            except DatabaseGone as error:
                return refused_page(503, error.told, RETRY_S)
            except UsageError as error:
                return refused_page(400, error.message)
            except PodiumError as error:
                return refused_page(500, without_paths(error.message))
            except RequestValidationError:
                return refused_page(422, "the address or the form is not one that this page understands")
            except HTTPException as error:
                return refused_page(error.status_code, str(error.detail))

        return handled


def refused_page(status: int, sentence: str, retry_s: int | None = None) -> Response:
    """Return an error as a page."""
    from harness.server.board.site import render  # it imports this module

    headers = {"Retry-After": str(retry_s)} if retry_s is not None else {}
    return page(render("error.html.j2", status=status, sentence=sentence, account=None, csrf=""), status, headers)
