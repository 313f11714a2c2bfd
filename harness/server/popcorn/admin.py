"""An administrator's requests, with a token: stop and start, inspect, remove, open and close competitions, invite."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query

from harness.errors import ProblemError
from harness.server import competition as competitions
from harness.server import removal
from harness.server.popcorn import answers
from harness.server.popcorn.accounts import Here, administrator
from harness.server.popcorn.submissions import Number
from harness.server.serving import Denied
from harness.server.store.rows import stamp
from harness.server.verdicts import one_line

STOPPED = "the organisers have stopped submissions for now"
MOST_INVITES = 1000


def router() -> APIRouter:
    """Return all routes under /admin. Each needs the token."""
    routes = APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(administrator)])

    @routes.post("/start")
    def start(serving: Here) -> dict[str, Any]:
        """Accept submissions again."""
        if serving.closed_because == STOPPED:
            serving.closed_because = None
        return {"status": "ok", "accepting_jobs": serving.closed_because is None}

    @routes.post("/stop")
    def stop(serving: Here) -> dict[str, Any]:
        """Accept no submissions. Queued ones are still judged."""
        if serving.closed_because is None:
            serving.closed_because = STOPPED
        return {"status": "ok", "accepting_jobs": False}

    @routes.get("/stats")
    def stats(serving: Here, last_day_only: Annotated[bool, Query()] = False) -> dict[str, Any]:
        """Count the submissions in each state."""
        since = stamp(datetime.now(UTC) - timedelta(days=1)) if last_day_only else ""
        by_state = serving.database.queue.totals(since)
        counted = {"num_submissions": sum(by_state.values()), "num_users": len(serving.database.people.all())}
        return {"status": "ok", "stats": {**counted, **{f"num_{state}": count for state, count in by_state.items()}}}

    @routes.get("/submissions/{number}")
    def show(serving: Here, number: Number) -> dict[str, Any]:
        """Show any submission."""
        found = serving.database.queue.submission(number)
        if found is None:
            raise Denied(404, f"there is no submission {number}")
        told = {"user_name": found.user, "deleted_at": found.deleted_at, "removed_because": found.removed_because}
        return {"status": "ok", "submission": {**answers.submission(serving, found), **told}}

    @routes.delete("/submissions/{number}")
    def remove(
        serving: Here, number: Number, reason: Annotated[str, Query(max_length=500)] = "no reason was given"
    ) -> dict[str, Any]:
        """Take any submission off the board. Its author sees the reason."""
        if serving.database.queue.submission(number) is None:
            raise Denied(404, f"there is no submission {number}")
        removal.remove(serving.database, serving.root, number, one_line(reason) or "no reason was given")
        return {"status": "ok", "submission_id": number}

    @routes.post("/leaderboards")
    def put_up(serving: Here, directory: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        """Show the competition of configs/competitions/DIRECTORY.yml, as the file is now."""
        name = PurePosixPath(directory).name.lower()
        if not competitions.NAME.fullmatch(name):
            raise Denied(400, "a competition's name has a-z, 0-9, _ and - only")
        try:
            return {"status": "ok", "leaderboard": serving.put_up(name).name}
        except ProblemError as error:
            raise Denied(400, one_line(error.message)) from None

    @routes.delete("/leaderboards/{name}")
    def take_down(serving: Here, name: str, force: Annotated[bool, Query()] = False) -> dict[str, Any]:
        """Hide a competition. Its submissions stay in the database."""
        found = serving.competition(name)
        if not force and serving.database.queue.of_competition(found.name, limit=1):
            raise Denied(400, f"{found.name} has submissions: take it down with force")
        serving.take_down(found.name)
        return {"status": "ok", "leaderboard": found.name}

    @routes.post("/invites")
    def invite(
        serving: Here,
        leaderboards: Annotated[list[str], Body(min_length=1, max_length=100)],
        count: Annotated[int, Body(ge=1, le=MOST_INVITES)] = 1,
    ) -> dict[str, Any]:
        """Create codes, each for one person and all of these competitions."""
        names = list(dict.fromkeys(serving.competition(name).name for name in leaderboards))
        return {"status": "ok", "leaderboards": names, "codes": serving.database.people.invite(names, count)}

    @routes.get("/leaderboards/{name}/invites")
    def invites(serving: Here, name: str) -> dict[str, Any]:
        """List the codes of a competition, and who has used them."""
        found = serving.competition(name)
        listed = [
            {"code": each.code, "created_at": each.created_at, "user_name": each.user, "used_at": each.used_at}
            for each in serving.database.people.invites(found.name)
        ]
        return {"status": "ok", "leaderboard": found.name, "invites": listed}

    @routes.delete("/invites/{code}")
    def revoke(serving: Here, code: str) -> dict[str, Any]:
        """Revoke a code. A person who joined with it loses access."""
        found = serving.database.people.revoke(code) if code.isascii() and code.isalnum() else []
        if not found:
            raise Denied(404, "there is no such invite code")
        return {"status": "ok", "code": code, "leaderboards": found}

    @routes.post("/update-problems")
    def update_problems(serving: Here) -> dict[str, Any]:
        """Refuse: problems are files of the server, and nothing is fetched."""
        raise Denied(400, "this server fetches no problems: change its files, then create-leaderboard reads them again")

    return routes
