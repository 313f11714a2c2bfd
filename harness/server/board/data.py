"""The data behind the pages: JSON and CSV, new bests as an Atom feed, and a submission's rank as a badge.

/board/PROBLEM/DEVICE/  board.json  board.csv  cases.csv  records.csv  feed.atom  badge/SUBMISSION.svg
/run/ID/                run.json  samples.csv
/compare/A/B/           compare.json                                   /feed.atom  every board's new bests
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from markupsafe import escape

from harness import __version__
from harness.model import Estimate
from harness.records.entry import Entry
from harness.render import compare as rendered
from harness.render import sheet
from harness.render.figures import microseconds
from harness.render.legible import legible
from harness.server.board.answers import PageRoute, etag, unless_known
from harness.server.board.made_once import MadeOnce
from harness.server.board.pages import board_of, compared_runs, why_not_compared
from harness.server.board.results import LiveBoard
from harness.server.board.site import Site, board_address, run_address, shown_run
from harness.server.serving import Denied

JSON = "application/json"
CSV = "text/csv; charset=utf-8"
ATOM = "application/atom+xml; charset=utf-8"
SVG = "image/svg+xml"
FEED_ENTRIES = 50
DOCUMENTS = 8
"""The most documents of boards that are cached."""

BADGE_CHARACTERS = 40
_QUOTES: Any = {
    "output": True,
    "ending": {"detail"},
    "checks": {"__all__": {"report"}},
    "triage": {"__all__": {"what"}},
}
"""The fields of a run that may quote its source: its output, the details of a fault, and findings in the source."""

CHARACTER = 7
"""The largest width of a badge's character in pixels."""


def routes(site: Site) -> APIRouter:
    """Return the routes of the data."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    @router.get("/board/{problem}/{device}/board.json")
    def board_json(request: Request, problem: str, device: str) -> Response:
        live = board_of(site, problem, device)
        made = lambda: _of_board(live, "json", lambda: _dump(_board(live)))  # noqa: E731
        return unless_known(request, etag(request, live.revision), made, JSON)

    @router.get("/board/{problem}/{device}/board.csv")
    def board_csv(request: Request, problem: str, device: str) -> Response:
        live = board_of(site, problem, device)
        made = lambda: sheet.boards([live.board])  # noqa: E731
        return unless_known(request, etag(request, live.revision), made, CSV)

    @router.get("/board/{problem}/{device}/cases.csv")
    def cases_csv(request: Request, problem: str, device: str) -> Response:
        live = board_of(site, problem, device)
        made = lambda: _of_board(live, "cases", lambda: _cases(live))  # noqa: E731
        return unless_known(request, etag(request, live.revision), made, CSV)

    @router.get("/board/{problem}/{device}/records.csv")
    def records_csv(request: Request, problem: str, device: str) -> Response:
        live = board_of(site, problem, device)
        return unless_known(request, etag(request, live.revision), lambda: sheet.runs(live.records), CSV)

    @router.get("/board/{problem}/{device}/feed.atom")
    def board_feed(request: Request, problem: str, device: str) -> Response:
        live = board_of(site, problem, device)
        tag = etag(request, live.revision, str(request.base_url))
        return unless_known(request, tag, lambda: _feed(request, [live], f"{problem} on {live.device_name}"), ATOM)

    @router.get("/feed.atom")
    def feed(request: Request) -> Response:
        removed = site.ledger.removed()
        boards = [live.without(removed) for live in site.boards.values()]
        tag = etag(request, *(live.revision for live in boards), str(request.base_url))
        return unless_known(request, tag, lambda: _feed(request, boards, "all boards"), ATOM)

    @router.get("/board/{problem}/{device}/badge/{submission}.svg")
    def badge(request: Request, problem: str, device: str, submission: str) -> Response:
        live = board_of(site, problem, device)
        rank = next((s.rank for s in live.board.standings if s.entry.submission == submission), None)
        if rank is None and all(entry.submission != submission for entry in live.board.unranked):
            raise Denied(404, "there is no such submission on this board")
        said = f"{rank} of {len(live.board.standings)}" if rank else "not ranked"
        made = lambda: _badge(f"{problem} on {live.device_name}", f"rank {said}" if rank else said)  # noqa: E731
        return unless_known(request, etag(request, live.revision), made, SVG)

    @router.get("/favicon.svg")
    def icon() -> Response:
        return Response(_ICON, headers={"Cache-Control": "public, max-age=86400"}, media_type=SVG)

    @router.get("/run/{run_id}/run.json")
    def run_json(request: Request, run_id: str) -> Response:
        who = site.account(request)
        found = shown_run(site, run_id, who)
        if found is None:
            raise Denied(404, "there is no such run")
        _, run, opened = found
        left_out: Any = None if opened else _QUOTES
        text = run.model_dump_json(indent=1, exclude=left_out)
        return unless_known(request, etag(request, text), lambda: text, JSON, private=who is not None)

    @router.get("/run/{run_id}/samples.csv")
    def samples_csv(request: Request, run_id: str) -> Response:
        who = site.account(request)
        found = shown_run(site, run_id, who)
        if found is None:
            raise Denied(404, "there is no such run")
        rows = [
            [m.case.label, process, number, ns]
            for m in found[1].measurements
            for process, samples in enumerate(m.samples_ns, 1)
            for number, ns in enumerate(samples, 1)
        ]
        text = _csv(("case", "process", "sample", "latency_ns"), rows)
        return unless_known(request, etag(request, text), lambda: text, CSV, private=who is not None)

    @router.get("/compare/{a}/{b}/compare.json")
    def compare_json(request: Request, a: str, b: str) -> Response:
        old, new, found = compared_runs(site, a, b, site.account(request))
        if why_not_compared(old.source, new.source):
            document = {key: value for key, value in rendered.as_json(found, "", "").items() if key != "diff"}
        else:
            document = rendered.as_json(found, old.source or "", new.source or "")
        return unless_known(request, etag(request, _dump(document)), lambda: _dump(document), JSON, private=True)

    return router


_documents: MadeOnce[bytes] = MadeOnce(DOCUMENTS)


def _of_board(live: LiveBoard, kind: str, make: Callable[[], str]) -> bytes:
    """Return a document with every ranked submission's cases, cached for each state of a board, since there may be
    thousands."""
    return _documents.get((live.problem.name, live.device, live.revision, kind), lambda: make().encode())


def _board(live: LiveBoard) -> dict[str, Any]:
    def entry(each: Entry) -> dict[str, Any]:
        return {**asdict(each), "author": live.author(each.id) or None}

    return {
        "problem": live.problem.name,
        "revision": live.problem.revision,
        "problem_sha256": live.problem.sha256,
        "device": live.device,
        "device_name": live.device_name,
        "clock": live.board.clock,
        "runs": live.runs,
        "ranked": [
            {
                **entry(standing.entry),
                "first": standing.first,
                "last": standing.last,
                "times_baseline": standing.times_baseline,
                "of_limit": standing.of_limit,
                "cases": [
                    {"case": f.case.parameters, **{k: v for k, v in asdict(f).items() if k != "case"}}
                    for f in live.figures(standing.entry.id)
                ],
            }
            for standing in live.board.standings
        ],
        "unranked": [entry(each) for each in live.board.unranked],
        "records": [entry(each) for each in live.records],
    }


def _cases(live: LiveBoard) -> str:
    rows = [
        [s.entry.submission, s.entry.id, f.case.label, f.latency_ns, f.low_ns, f.high_ns, f.floor_ns, f.format]
        for s in live.board.standings
        for f in live.figures(s.entry.id)
    ]
    headers = ("submission", "id", "case", "latency_ns", "low_ns", "high_ns", "floor_ns", "floor_format")
    return _csv(headers, rows)


def _csv(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    found = io.StringIO()
    writer = csv.writer(found, lineterminator="\n")
    writer.writerow(headers)
    writer.writerows([sheet.cell(value) for value in row] for row in rows)
    return found.getvalue()


def _dump(document: object) -> str:
    # JSON has no NaN and no infinity. They are written as strings, as in run files.
    return json.dumps(_finite(document), ensure_ascii=False, indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def _feed(request: Request, boards: Sequence[LiveBoard], what: str) -> str:
    """Return an Atom feed (RFC 4287). An entry's id is the address of its run; addresses are those of the request."""
    base = str(request.base_url).rstrip("/")
    found = [(live, entry) for live in boards for entry in live.records]
    found.sort(key=lambda each: (each[1].started_at, each[1].id), reverse=True)
    found = found[:FEED_ENTRIES]
    updated = _moment(found[0][1].started_at) if found else "1970-01-01T00:00:00Z"
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        f"<title>Podium: new bests of {_xml(what)}</title>",
        f"<id>{_xml(base)}{_xml(request.url.path)}</id>",
        f'<link rel="self" href="{_xml(base)}{_xml(request.url.path)}"/>',
        f"<updated>{updated}</updated>",
        f'<generator version="{__version__}">podium</generator>',
    ]
    for live, entry in found:
        score = Estimate(latency_ns=entry.score_ns or 1.0, low_ns=entry.low_ns, high_ns=entry.high_ns)
        where = f"{live.problem.name} on {live.device_name}"
        author = live.author(entry.id) or "podium"
        lines += [
            "<entry>",
            f"<title>{_xml(entry.submission)}: {_xml(microseconds(score))} µs, the new best of {_xml(where)}</title>",
            f"<id>{_xml(base)}{run_address(entry.id)}</id>",
            f'<link href="{_xml(base)}{run_address(entry.id)}"/>',
            f'<link rel="related" href="{_xml(base)}{board_address(live.problem.name, live.device)}"/>',
            f"<updated>{_moment(entry.started_at)}</updated>",
            f"<author><name>{_xml(author)}</name></author>",
            "</entry>",
        ]
    return "\n".join([*lines, "</feed>", ""])


def _xml(text: str) -> str:
    """Return `text` for XML, which has no control characters: `legible` replaces them by their names."""
    return str(escape(legible(text).replace("\N{REPLACEMENT CHARACTER}", "?").encode("utf-8", "replace").decode()))


def _moment(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="seconds")
    except ValueError:
        return "1970-01-01T00:00:00+00:00"


def _badge(left: str, right: str) -> str:
    """Return a badge: two words on two backgrounds. White text on each has a contrast above 4.5 to 1."""
    left, right = (
        text if len(text) <= BADGE_CHARACTERS else f"{text[: BADGE_CHARACTERS - 1]}…" for text in (left, right)
    )
    a, b = (CHARACTER * len(text) + 12 for text in (left, right))
    said = _xml(f"{left}: {right}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{a + b}" height="20" role="img" aria-label="{said}">'
        f"<title>{said}</title>"
        f'<rect width="{a + b}" height="20" rx="3" fill="#444a54"/>'
        f'<path d="M{a} 0h{b - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{b - 3}z" fill="#18794e"/>'
        '<g fill="#fff" font-family="DejaVu Sans,Verdana,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{a / 2}" y="14">{_xml(left)}</text><text x="{a + b / 2}" y="14">{_xml(right)}</text></g></svg>\n'
    )


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="#1f5fbf" d="M6 3h4v12H6z"/>'
    '<path fill="#18794e" d="M1 8h4v7H1z"/><path fill="#a85400" d="M11 10h4v5h-4z"/></svg>'
)
