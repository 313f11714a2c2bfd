"""The account behind a request: popcorn-cli's header, registering a client, joining a competition."""

from __future__ import annotations

import hmac
import re
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Request

from harness.server.limits import Rate, asker
from harness.server.serving import Denied, Serving
from harness.server.store.people import fingerprint, hashed
from harness.server.store.rows import Account

LONGEST_ID = 512
_CODE = re.compile(r"[0-9A-Za-z_-]{1,64}")
REGISTRATIONS_PER_HOUR = 20
"""From one address."""


async def serving_of(request: Request) -> Serving:
    """The server of a request."""
    found: Serving = request.app.state.serving
    return found


Here = Annotated[Serving, Depends(serving_of)]


Asks = Annotated[str | None, Header(alias="x-popcorn-cli-id")]


def client(serving: Here, x_popcorn_cli_id: Asks = None) -> Account:
    """Return the account of the client. Raises Denied 400, 401, 403."""
    if not x_popcorn_cli_id:
        raise Denied(400, "the header X-Popcorn-Cli-Id is missing: register, or put your cli_id into ~/.popcorn.yaml")
    if len(x_popcorn_cli_id) > LONGEST_ID:
        raise Denied(401, "this cli_id is nobody's")
    people = serving.database.people
    found = people.by_client(x_popcorn_cli_id)
    if found is None:
        if people.is_pending(x_popcorn_cli_id):
            named = fingerprint(x_popcorn_cli_id)
            raise Denied(401, f"your registration waits for the organisers: tell them your name and this: {named}")
        raise Denied(401, "this cli_id is nobody's: register, or ask the organisers for one")
    if found.blocked_because is not None:
        raise Denied(403, f"your account is shut: {found.blocked_because}")
    return found


Who = Annotated[Account, Depends(client)]


def administrator(serving: Here, authorization: Annotated[str | None, Header()] = None) -> None:
    """Raise Denied 401 without the administrator's token."""
    scheme, _, token = (authorization or "").partition(" ")
    if serving.admin_sha256 is None:
        raise Denied(401, "this server has no administrator's token: start it with PODIUM_ADMIN_TOKEN set")
    given = hashed(token.strip()) if scheme.lower() == "bearer" else ""
    if not hmac.compare_digest(given.encode(), serving.admin_sha256.encode()):
        raise Denied(401, "this is not the administrator's token")


def router() -> APIRouter:
    """Return the routes for registering and joining."""
    routes = APIRouter(tags=["accounts"])
    registrations = Rate(REGISTRATIONS_PER_HOUR, 3600)

    @routes.get("/auth/init")
    def register(request: Request, serving: Here, provider: Annotated[str, Query()] = "podium") -> dict[str, Any]:
        """Create an id for ~/.popcorn.yaml. It works once an administrator has approved it."""
        if provider not in ("discord", "github", "podium"):
            raise Denied(400, "the provider is discord, github or podium")
        wait_s = registrations.wait_s(asker(request))
        if wait_s:
            raise Denied(429, f"too many registrations from your address: try again in {wait_s} s", wait_s)
        return {"state": serving.database.people.register(provider)}

    @routes.post("/user/join")
    def join(serving: Here, who: Who, code: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        """Join the competitions of an invite code."""
        found = serving.database.people.join(who.id, code) if _CODE.fullmatch(code) else None
        if found is None:
            raise Denied(404, "this is no invite code, or somebody else has used it")
        return {"status": "ok", "leaderboards": found}

    return routes
