"""The pages of one person: signing in, the upload form, and their submissions.

A person signs in with the id that popcorn-cli keeps in ~/.popcorn.yaml. The browser then holds a session. Each form
carries a token of that session (`sessions`). Uploads pass through `admission`, as those of popcorn-cli do.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from starlette.datastructures import UploadFile

from harness.server import admission, removal, sessions
from harness.server.board.answers import PageRoute, page
from harness.server.board.site import Site
from harness.server.limits import Rate, asker
from harness.server.serving import Denied
from harness.server.store.rows import Account, Mode, SubmissionRow
from harness.server.verdicts import word_of

MODES = (
    (Mode.LEADERBOARD, "a ranked run"),
    (Mode.BENCHMARK, "a quick look"),
    (Mode.TEST, "right or wrong"),
    (Mode.PROFILE, "where its time goes"),
)
ON_A_PAGE = 50
SIGN_INS, SIGN_INS_S = 20, 60.0
"""The most attempts from one address in this many seconds, so that nobody can try many ids."""

_FORM: dict[str, int] = {"max_files": 1, "max_fields": 20}
"""`guard` has already limited the length of a form and the time in which it must arrive."""


def routes(site: Site) -> APIRouter:
    """Return the routes of these pages."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    sign_ins = Rate(SIGN_INS, SIGN_INS_S)

    def signed_in(request: Request) -> Account:
        who = site.account(request)
        if who is None:
            raise Denied(401, "sign in first")
        return who

    @router.get("/sign-in")
    def sign_in_form(request: Request, then: str = "/mine") -> Response:
        return page(site.render("sign_in.html.j2", request, site.account(request), then=_inside(then), fault=""))

    @router.post("/sign-in")
    async def sign_in(request: Request) -> Response:
        sessions.check_origin(request)
        wait_s = sign_ins.wait_s(asker(request))
        if wait_s:
            raise Denied(429, f"too many attempts to sign in: try again in {wait_s} s", wait_s)
        form = await request.form(**_FORM)
        client, then = form.get("client"), _inside(form.get("then"))
        people = site.serving.database.people
        who = await run_in_threadpool(people.by_client, client.strip()) if isinstance(client, str) else None
        if who is None or who.blocked_because is not None:
            said = f"this account is blocked: {who.blocked_because}" if who else "no account has this id"
            return page(site.render("sign_in.html.j2", request, None, then=then, fault=said), 401)
        response = RedirectResponse(then, 303)
        await run_in_threadpool(sessions.begin, request, response, people, who)
        return response

    @router.post("/sign-out")
    async def sign_out(request: Request) -> Response:
        sessions.check_csrf(request, (await request.form(**_FORM)).get("csrf"))
        response = RedirectResponse("/", 303)
        await run_in_threadpool(sessions.end, request, response, site.serving.database.people)
        return response

    @router.get("/mine")
    def mine(request: Request, number: Annotated[int, Query(alias="page", ge=1, le=100_000)] = 1) -> Response:
        who = site.account(request)
        if who is None:
            return RedirectResponse("/sign-in?then=/mine", 303)
        offset = (number - 1) * ON_A_PAGE
        queue = site.serving.database.queue
        rows = queue.of_user(who.id, limit=ON_A_PAGE + 1, offset=offset)
        shown = [(row, queue.runs(row.id)[-1:]) for row in rows[:ON_A_PAGE]]
        return page(
            site.render(
                "mine.html.j2", request, who, shown=shown, word_of=word_of, at=number, more=len(rows) > ON_A_PAGE
            )
        )

    @router.get("/submission/{number}")
    def submission(request: Request, number: int) -> Response:
        who = site.account(request)
        row = seen_submission(site, number, who)
        queue = site.serving.database.queue
        own = who is not None and who.id == row.user_id
        runs = queue.runs(row.id) if own or (row.mode is Mode.LEADERBOARD and row.removed_at is None) else []
        states = queue.states(row.job_id) if own else []
        word = word_of(row, runs[-1] if runs else None)
        values = {
            "row": row,
            "own": own,
            "runs": runs,
            "states": states,
            "word": word,
            "position": queue.position(row.id),
        }
        return page(site.render("submission_page.html.j2", request, who, **values))

    @router.post("/submission/{number}/delete")
    async def delete(request: Request, number: int) -> Response:
        form = await request.form(**_FORM)
        sessions.check_csrf(request, form.get("csrf"))

        def act() -> None:
            who = signed_in(request)
            row = seen_submission(site, number, who)
            if row.user_id != who.id:
                raise Denied(403, "this submission is another's")
            competition = site.serving.competitions().get(row.competition)
            if competition is not None and competition.over():
                raise Denied(403, "after the deadline nothing is taken back")
            removal.delete(site.serving.database, site.serving.root, row.id)
            site.results.wake()

        await run_in_threadpool(act)
        return RedirectResponse("/mine", 303)

    @router.get("/submit")
    def submit_form(request: Request, competition: str = "") -> Response:
        who = site.account(request)
        if who is None:
            return RedirectResponse(f"/sign-in?then={quote('/submit?competition=' + quote(competition[:64]))}", 303)
        return page(site.render("submit.html.j2", request, who, **_choices(site, competition), fault=""))

    @router.post("/submit")
    async def submit(request: Request) -> Response:
        form = await request.form(**_FORM)
        sessions.check_csrf(request, form.get("csrf"))
        file = form.get("file")
        named = [form.get(name) for name in ("competition", "gpu", "mode")]
        if not isinstance(file, UploadFile) or not file.filename:
            raise Denied(422, "choose a file")
        name, source = file.filename, await file.read()
        competition, gpu, mode = (each if isinstance(each, str) else "" for each in named)

        def act() -> int | Response:
            who = signed_in(request)
            try:
                asked = site.serving.competition(competition)
                return admission.accept(site.serving, who, asked, gpu, mode, name, source)[0]
            except Denied as error:
                values = _choices(site, competition)
                headers = {"Retry-After": str(error.retry_s)} if error.retry_s is not None else {}
                text = site.render("submit.html.j2", request, who, **values, fault=error.sentence)
                return page(text, error.status, headers)

        done = await run_in_threadpool(act)
        return done if isinstance(done, Response) else RedirectResponse(f"/submission/{done}", 303)

    return router


def seen_submission(site: Site, number: int, who: Account | None) -> SubmissionRow:
    """Return a submission that `who` may see. Raises Denied 404, also for a deleted submission or another person's
    trial."""
    row = site.serving.database.queue.submission(number) if 0 < number < 2**63 else None
    own = row is not None and who is not None and who.id == row.user_id
    if row is None or row.deleted_at is not None or not (own or row.mode is Mode.LEADERBOARD):
        raise Denied(404, "there is no such submission")
    return row


def _choices(site: Site, competition: str) -> dict[str, object]:
    open_now = [c for c in site.serving.competitions().values() if c.begun() and not c.over()]
    gpus = list(dict.fromkeys(gpu for each in open_now for gpu in site.serving.gpus(each)))
    profiles = any(each.profile for each in open_now)
    modes = [(mode, what) for mode, what in MODES if profiles or mode is not Mode.PROFILE]
    return {"competitions": open_now, "chosen": competition, "gpus": gpus, "modes": modes}


def _inside(address: object) -> str:
    """Return where to go after signing in: always a page of this server, whatever the form says."""
    inside = isinstance(address, str) and address.startswith("/") and not address.startswith(("//", "/\\"))
    plain = isinstance(address, str) and address.isascii() and address.isprintable() and "\\" not in address
    return str(address) if inside and plain else "/mine"
