"""Browser sessions: a session in a cookie, and in each form a token that other sites cannot know.

    sign in with a client's id ─► begin(response, …) ─► cookie ─► account(request, people)
    a form: <input type="hidden" name="csrf" value="{{ csrf }}"> from csrf_token(request) ─► check_csrf(request, csrf)

The cookie is HttpOnly and SameSite=Lax; behind TLS also Secure. The token is a keyed hash of the session, so it is not
stored. The sign-in form has no session yet, so only its origin is checked.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from harness.server.store.people import SESSION_DAYS, People
from harness.server.store.rows import Account

COOKIE = "podium_session"
_LONGEST = 200


class ForgedForm(Exception):
    """A form that was not sent from one of this server's pages. The message is a sentence. Answer 403."""


def secret(request: Request) -> str | None:
    """Return the content of the cookie, whether a session has it or not."""
    found = request.cookies.get(COOKIE)
    return found if found and len(found) <= _LONGEST and found.isascii() else None


def account(request: Request, people: People) -> Account | None:
    """Return the signed-in account, if any and not blocked. Raises DatabaseGone."""
    held = secret(request)
    found = people.by_session(held) if held is not None else None
    return found if found is not None and found.blocked_because is None else None


def begin(request: Request, response: Response, people: People, who: Account) -> None:
    """Sign in: begin a session and set its cookie in `response`. The browser's old session ends. Raises
    DatabaseGone."""
    held = secret(request)
    if held is not None:
        people.end_session(held)
    response.set_cookie(
        COOKIE,
        people.begin_session(who.id),
        max_age=SESSION_DAYS * 86_400,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
        path="/",
    )


def end(request: Request, response: Response, people: People) -> None:
    """Sign out. Raises DatabaseGone."""
    held = secret(request)
    if held is not None:
        people.end_session(held)
    response.delete_cookie(COOKIE, path="/")


def csrf_token(request: Request) -> str:
    """Return the token for forms of this session, or "" without a session."""
    held = secret(request)
    return hmac.new(held.encode(), b"podium form", hashlib.sha256).hexdigest() if held is not None else ""


def check_csrf(request: Request, given: object) -> None:
    """Raise ForgedForm unless `given` is the token of the request's session and the form comes from this server."""
    check_origin(request)
    expected = csrf_token(request)
    said = given.encode() if isinstance(given, str) else b""
    if not expected or not hmac.compare_digest(expected.encode(), said):
        raise ForgedForm(
            "this form was not sent from a page of this server, or you have signed out: load the page again"
        )


def check_origin(request: Request) -> None:
    """Raise ForgedForm if the browser says that another site sent the request. Used alone for the sign-in form."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    host = request.headers.get("host", "")
    foreign = origin is not None and _netloc(origin) != host
    if foreign or (site is not None and site not in ("same-origin", "none")):
        raise ForgedForm("this form was sent from a page of another site")


def _netloc(origin: str) -> str | None:
    """Return the host and port of an origin, or None if it is invalid."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
