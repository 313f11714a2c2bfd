"""The public pages: the front page, a board, a run, and the comparison of two runs."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request, Response
from markupsafe import Markup, escape

from harness.errors import InfrastructureError
from harness.model import Run, Verdict, outcome
from harness.ranking.comparison import Comparison
from harness.records.entry import Entry
from harness.records.store import Store
from harness.render import compare as rendered
from harness.render import run as told
from harness.render import timing
from harness.render.compare import CONTEXT_LINES, lines_of
from harness.render.document import Table
from harness.render.legible import HIGHLIGHTED_CHARACTERS, highlighted, legible, without_paths
from harness.server import sessions
from harness.server.board.answers import PageRoute, etag, page, unless_known
from harness.server.board.results import LiveBoard, digest
from harness.server.board.site import Site, asset, fingerprint, shown_run
from harness.server.board.view import Asked, show
from harness.server.serving import Denied
from harness.server.store import DatabaseGone
from harness.server.store.rows import Account
from harness.verbs import compare
from harness.verbs.compare import Versions

HTML = "text/html; charset=utf-8"
MOST_COMPARED_LINES = 2_000
"""The most lines of a source whose difference is shown. The time grows with the square of the length."""
MOST_COMPARED_CHARACTERS = HIGHLIGHTED_CHARACTERS
LATEST_RECORDS = 12
WAITING_SHOWN = 50
_MEDIA = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


def routes(site: Site) -> APIRouter:
    """Return the routes of these pages."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    @router.get("/")
    def front(request: Request) -> Response:
        return page(site.render("front.html.j2", request, site.account(request), **_front(site)))

    @router.get("/board/{problem}/{device}")
    def board(request: Request, problem: str, device: str) -> Response:
        live, who = board_of(site, problem, device), site.account(request)
        # A form sends its empty fields, too. The address keeps only the effective ones.
        asked = Asked.of(request.query_params)
        tag = etag(request, live.revision, _viewer(request, who), fingerprint("board.css"), _moods(site))

        def made() -> str:
            shown = show(live, asked)
            of_problem = [c for c in site.serving.competitions().values() if c.problem == live.problem.name]
            return site.render(
                "board.html.j2", request, who, shown=shown, live=live, asked=asked, of_problem=of_problem
            )

        return unless_known(request, tag, made, HTML, private=who is not None)

    @router.get("/run/{run_id}")
    def run(request: Request, run_id: str) -> Response:
        who = site.account(request)
        found = _shown_run(site, run_id, who)
        tag = etag(request, digest(found.run.model_dump_json()), _viewer(request, who), str(found.opened))
        return unless_known(
            request,
            tag,
            lambda: site.render("run.html.j2", request, who, **_run(site, found)),
            HTML,
            private=who is not None,
        )

    @router.get("/compare/{a}/{b}")
    def compared(request: Request, a: str, b: str) -> Response:
        who = site.account(request)
        return page(site.render("compare.html.j2", request, who, **_compared(*compared_runs(site, a, b, who))))

    @router.get("/static/{stamp}/{name}")
    def static(stamp: str, name: str) -> Response:
        try:
            content = asset(name)
        except KeyError:
            raise Denied(404, "there is no such file") from None
        kept = "public, max-age=31536000, immutable" if stamp == fingerprint(name) else "no-cache"
        headers = {"Cache-Control": kept, "X-Content-Type-Options": "nosniff"}
        return Response(content, headers=headers, media_type=_MEDIA[name.rpartition(".")[2]])

    return router


def board_of(site: Site, problem: str, device: str) -> LiveBoard:
    """Return a board. Raises Denied 404."""
    live = site.board(problem, device)
    if live is None:
        raise Denied(404, "there is no such board: no run of this problem on this device is stored here")
    return live


def _viewer(request: Request, who: Account | None) -> str:
    """Return the parts of a page that depend on the viewer: their name, and the token in its forms."""
    return f"{who.name} {sessions.csrf_token(request)}" if who is not None else ""


def _moods(site: Site) -> str:
    """Return a digest of the facts about competitions that a board shows."""
    return digest(*(f"{c.name}{c.title}{c.problem}{c.over()}{c.begun()}" for c in site.serving.competitions().values()))


def _front(site: Site) -> dict[str, object]:
    queue = site.serving.database.queue
    removed = site.ledger.removed()
    boards = {key: live.without(removed) for key, live in site.boards.items()}
    records = [(live, entry) for live in boards.values() for entry in live.records]
    records.sort(key=lambda each: (each[1].started_at, each[1].id), reverse=True)
    devices: dict[str, list[LiveBoard]] = {}
    for live in boards.values():
        devices.setdefault(live.problem.name, []).append(live)
    return {
        "competitions": list(site.serving.competitions().values()),
        "boards": list(boards.values()),
        "by_problem": devices,
        "records": records[:LATEST_RECORDS],
        "running": queue.running(),
        "waiting": queue.waiting(limit=WAITING_SHOWN),
        "fault": site.results.fault,
    }


OF_EVAL = (
    "It was judged on the server itself, by `eval`. Of such runs only published ones are shown with their sources."
)


@dataclass(frozen=True)
class ShownRun:
    """A run that may be shown. `opened`: with its source and its output."""

    run: Run
    source: str | None
    why_not: str
    opened: bool
    author: str
    submission: int | None
    live: LiveBoard | None


def _shown_run(site: Site, run_id: str, who: Account | None) -> ShownRun:
    """Return a run. Raises Denied 404, also for a run that this person must not see, so that its existence stays
    hidden."""
    found = shown_run(site, run_id, who)
    if found is None:
        raise Denied(404, "there is no such run")
    _, run, opened = found
    origin = site.ledger.origins([run.id]).get(run.id)
    source, why = None, "Its competition does not show it to you." if origin else OF_EVAL
    if opened:
        try:
            text = (
                site.serving.database.queue.source(origin.submission)
                if origin
                else Store(site.results.root).source(run.problem, run.submission_sha256)
            )
            source = text.decode("utf-8", "replace")
        except InfrastructureError as error:
            said = error.told if isinstance(error, DatabaseGone) else without_paths(error.message)
            why = f"{said[:1].upper()}{said[1:]}."
    live = site.boards.get((run.problem, run.device.slug))
    author, number = (origin.user, origin.submission) if origin else ("", None)
    return ShownRun(run, source, why, opened, author, number, live)


def _run(site: Site, found: ShownRun) -> dict[str, object]:
    run = found.run
    standing = None
    others: list[Entry] = []
    if found.live is not None:
        entries = [s.entry for s in found.live.board.standings]
        standing = next((s for s in found.live.board.standings if s.entry.id == run.id), None)
        others = [entry for entry in entries[:3] if entry.id != run.id]
    kind = run.device.kind
    tables: list[tuple[str, Table]] = [
        (f"Profile of {each.case.label}", replace(timing.profile_of(each, kind), title="")) for each in run.profiles
    ]
    if run.constants:
        tables.append(("What a call that computes nothing takes", timing.constants_of(run.constants)))
    if run.rounds:
        tables.append(("What the machine did in each process", timing.rounds_of(run.rounds)))
    if any(m.hidden_ns or m.idle_excess_ns for m in run.measurements):
        tables.append(("What the judge's clock saw", timing.workers_clock(run.measurements)))
    packages = run.environment.get("packages", {})
    environment = {k: v for k, v in run.environment.items() if k != "packages"}
    facts = [(key, _flat(value)) for key, value in environment.items()]
    facts += [(f"package {name}", str(version)) for name, version in packages.items()]
    reports = [(c.case.label, c.report) for c in run.checks if c.report and c.report not in (run.ending.detail or "")]
    return {
        "found": found,
        "run": run,
        "words": outcome(run.ending.verdict, run.unranked_because),
        "bad": run.ending.verdict is not Verdict.ACCEPTED,
        "standing": standing,
        "others": others,
        "tables": tables,
        "facts": facts,
        "totals": told.totals_of(run.totals) if run.totals else None,
        "reports": reports,
        "live": found.live,
        "source": _highlighted(found.source) if found.source is not None else None,
    }


@functools.lru_cache(maxsize=32)
def _highlighted(source: str) -> Markup:
    """Colour a source. For a long source this takes longer than the rest of its page, so the result is cached."""
    return highlighted(source)


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_flat(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_flat, value))
    return str(value)


def compared_runs(site: Site, a: str, b: str, who: Account | None) -> tuple[ShownRun, ShownRun, Comparison]:
    """Return two runs that `who` may see, and the comparison of B with A. Raises Denied 404, and UsageError if they
    cannot be compared."""
    old, new = _shown_run(site, a, who), _shown_run(site, b, who)
    return old, new, compare.compare(site.results.root, Versions(old.run, new.run, b"", b""))


def _compared(old: ShownRun, new: ShownRun, found: Comparison) -> dict[str, object]:
    names = found.names
    lines: Sequence[tuple[Markup, str]] | None = None
    why = why_not_compared(old.source, new.source)
    if not why and old.source is not None and new.source is not None:
        lines = difference(old.source, new.source, (f"A {names[0]}", f"B {names[1]}"))
    return {
        "old": old,
        "new": new,
        "names": names,
        "found": found,
        "table_of_cases": rendered.table(found),
        "verdict": rendered.verdict_line(found),
        "noise": rendered.noise(found),
        "lines": lines,
        "why": why,
    }


def why_not_compared(*sources: str | None) -> str:
    """Return why the difference of two sources is not shown, in a sentence, or "" if it is shown."""
    if None in sources:
        return "The sources are not both shown to you."
    shown = [source for source in sources if source is not None]
    longest = max(len(source) for source in shown)
    if longest > MOST_COMPARED_CHARACTERS:
        most = f"{MOST_COMPARED_CHARACTERS:,} characters"
    elif max(len(lines_of(source)) for source in shown) > MOST_COMPARED_LINES:
        most = f"{MOST_COMPARED_LINES:,} lines"
    else:
        return ""
    return f"The sources have more than {most}: compare them on your own machine."


@functools.lru_cache(maxsize=64)
def difference(a: str, b: str, names: tuple[str, str]) -> tuple[tuple[Markup, str], ...]:
    """Return the lines of the unified diff, each with its kind: add, del, hunk, head or same."""
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    lines = difflib.unified_diff(lines_of(a), lines_of(b), *names, n=CONTEXT_LINES, lineterm="")
    # Only invisible characters of a source are replaced.
    return tuple(
        (escape(legible(line)), "head" if number < 2 else kinds.get(line[:1], "same"))
        for number, line in enumerate(lines)
    )
