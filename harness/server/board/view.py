"""A board as one page shows it: which rows, in which order, of what the address asks for; and the heat map.

Everything asked for stands in the address, so that a link shows the same: ?q=fp8&sort=error&page=2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlencode

from markupsafe import Markup, escape

from harness.model import Estimate, Verdict
from harness.ranking.board import Board, Standing, close, rank
from harness.records.entry import CaseFigures, Entry
from harness.render import plots
from harness.render.charts import tell_apart
from harness.render.figures import microseconds, percent
from harness.render.left_out import is_quick_try
from harness.render.plots import Moment, Plot
from harness.server.board.made_once import MadeOnce
from harness.server.board.results import LiveBoard
from harness.verbs.report import Sheet

ROWS = 50
"""Submissions on a page."""
POINTS = 100
"""Of a board's best submissions those that its plots show beside the records."""
SHADES = 10
DUELS = 3
WHOLES = 32
"""Of boards and competitions that are kept between two pages."""

UNKNOWN = "?"
"""No competition's name."""

_LONGEST_QUESTION = 100

SORTS = ("score", "limit", "error", "age", "name", "author")


@dataclass(frozen=True)
class Asked:
    """What the address asks of a board."""

    q: str = ""
    tolerance: str = ""
    competition: str = ""
    sort: str = "score"
    page: int = 1

    @staticmethod
    def of(query: Mapping[str, str]) -> Asked:
        """What makes no sense is left out."""
        text = {name: query.get(name, "")[:_LONGEST_QUESTION] for name in ("q", "tolerance", "competition")}
        sort = query.get("sort", "score")
        number = query.get("page", "1")
        page = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1
        return Asked(**text, sort=sort if sort in SORTS else "score", page=max(page, 1))

    def address(self, **changes: str | int) -> Markup:
        """The query of the same question with `changes`."""
        # A changed filter or order begins at the first page.
        asked = replace(self, **({"page": 1} | changes))  # type: ignore[arg-type]
        plain = Asked()
        given = {n: v for n in Asked.__dataclass_fields__ if (v := getattr(asked, n)) != getattr(plain, n)}
        return Markup(escape(f"?{urlencode(given)}" if given else "?"))


@dataclass(frozen=True)
class BoardRow:
    """A submission on a board's page. `place` is None where it is not ranked."""

    entry: Entry
    place: Standing | None
    author: str
    baseline: bool


@dataclass(frozen=True)
class Shade:
    """A cell of the heat map: what it says, and how dark it is, 0 to SHADES - 1; None where nothing was timed."""

    text: str = ""
    shade: int | None = None
    tip: str = ""


@dataclass(frozen=True)
class Heat:
    """Rows by columns of cases. `against`: the floor, or where none is known the board's best on each case."""

    columns: tuple[tuple[str, ...], ...]
    shared: str
    rows: tuple[tuple[BoardRow, tuple[Shade, ...]], ...]
    against: str


@dataclass(frozen=True)
class Whole:
    """What of a board is the same on each of its pages, whatever is asked but a competition. What it is called
    is said in `Shown`. `duels`: the first neighbours that only a duel can tell apart."""

    board: Board
    rivals: bool
    floors: tuple[str, ...]
    tolerances: tuple[str, ...]
    competitions: tuple[str, ...]
    history: Plot | None
    errors: Plot | None
    frontier: tuple[Sheet, ...]
    records: tuple[Entry, ...]
    duels: tuple[tuple[Entry, Entry], ...]


@dataclass(frozen=True)
class Shown:
    """All that a board's page shows. `whole.rivals`: a baseline is ranked. `whole.floors`: the formats that the floors
    are of, none where no floor is known. `found` and the like: how many fit the filter, of which a page shows some."""

    live: LiveBoard
    whole: Whole
    rows: tuple[BoardRow, ...]
    found: int
    page: int
    pages: int
    verified: tuple[BoardRow, ...]
    verified_found: int
    left_out: tuple[BoardRow, ...]
    left_out_found: int
    heat: Heat | None
    confidence: float


def show(live: LiveBoard, asked: Asked) -> Shown:
    """What `asked` shows of a board. A board may have thousands of rows, of which a page makes its own alone."""
    whole = _whole(live, asked.competition)
    board, standings = whole.board, whole.board.standings
    filtered = bool(asked.q or asked.tolerance)
    wanted = [each for each in standings if _fits(live, each.entry, asked)] if filtered else standings
    pages = max(math.ceil(len(wanted) / ROWS), 1)
    page = min(asked.page, pages)
    rows = [_row(live, s.entry, s) for s in _sorted(live, wanted, asked.sort)[(page - 1) * ROWS : page * ROWS]]
    others = [entry for entry in board.unranked if _fits(live, entry, asked)]
    verified = [entry for entry in others if entry.verdict is Verdict.ACCEPTED]
    left_out = [entry for entry in others if entry.verdict is not Verdict.ACCEPTED and not is_quick_try(entry)]
    return Shown(
        live=live,
        whole=whole,
        rows=tuple(rows),
        found=len(wanted),
        page=page,
        pages=pages,
        verified=tuple(_row(live, entry) for entry in verified[:ROWS]),
        verified_found=len(verified),
        left_out=tuple(_row(live, entry) for entry in left_out[:ROWS]),
        left_out_found=len(left_out),
        heat=_heat(live, rows),
        confidence=live.confidence,
    )


_kept: MadeOnce[Whole] = MadeOnce(WHOLES)


def _whole(live: LiveBoard, competition: str) -> Whole:
    """Made once for each state of a board. All names of competitions that it does not know are one, so that nobody
    drives out what others look at by making names up."""
    known = competition if competition in live.of_competition else competition and UNKNOWN
    return _kept.get((live.revision, known), lambda: _made(live, competition))


def forget() -> None:
    """Make all of it anew."""
    _kept.forget()


def _made(live: LiveBoard, competition: str) -> Whole:
    board = _of_competition(live, competition)
    standings, names = board.standings, live.problem.baselines
    drawn = [Sheet(s.entry, s, s.entry.submission in names, None, None, "") for s in standings[:POINTS]]
    records = _records(board) if competition else live.records
    return Whole(
        board=board,
        rivals=any(standing.times_baseline for standing in standings),
        floors=tuple(sorted({s.entry.floor_format for s in standings if s.of_limit and s.entry.floor_format})),
        tolerances=tuple(dict.fromkeys(s.entry.tolerance for s in standings if s.entry.tolerance)),
        competitions=tuple(sorted({origin.competition for origin in live.origins.values()})),
        history=_history(live, [standing.entry for standing in standings[:POINTS]], records),
        errors=plots.error_plot(drawn),
        frontier=tuple(plots.frontier(drawn)),
        records=records,
        duels=tuple(close(board)[:DUELS]),
    )


def _row(live: LiveBoard, entry: Entry, place: Standing | None = None) -> BoardRow:
    return BoardRow(entry, place, live.author(entry.id), entry.submission in live.problem.baselines)


def _of_competition(live: LiveBoard, competition: str) -> Board:
    """The board, or the one of a competition's submissions and the problem's baselines alone."""
    if not competition:
        return live.board
    names = live.problem.baselines
    entries = [standing.entry for standing in live.board.standings] + list(live.board.unranked)
    baselines = [entry for entry in entries if entry.submission in names and entry.id not in live.origins]
    theirs = [*baselines, *live.of_competition.get(competition, ())]
    return rank(theirs, names, live.worker_timed_too)


def _records(board: Board) -> tuple[Entry, ...]:
    """Of the runs that stand on `board` those that were faster than every one before."""
    found: list[Entry] = []
    for entry in sorted((standing.entry for standing in board.standings), key=lambda e: (e.started_at, e.id)):
        if not found or (entry.score_ns or math.inf) < (found[-1].score_ns or math.inf):
            found.append(entry)
    return tuple(found)


def _fits(live: LiveBoard, entry: Entry, asked: Asked) -> bool:
    if asked.tolerance and entry.tolerance != asked.tolerance:
        return False
    if not asked.q:
        return True
    text = f"{entry.submission} {live.author(entry.id)}".casefold()
    return all(word in text for word in asked.q.casefold().split())


def _sorted(live: LiveBoard, standings: Sequence[Standing], sort: str) -> Sequence[Standing]:
    """Each order is the one that somebody who asks for it wants to see the beginning of."""
    match sort:
        case "limit":
            return sorted(standings, key=lambda s: -(s.of_limit or 0.0))
        case "error":
            return sorted(standings, key=lambda s: math.inf if s.entry.error is None else s.entry.error)
        case "age":
            return sorted(standings, key=lambda s: s.entry.started_at, reverse=True)
        case "name":
            return sorted(standings, key=lambda s: s.entry.submission.casefold())
        case "author":
            return sorted(standings, key=lambda s: (not live.author(s.entry.id), live.author(s.entry.id)))
    return standings  # the board's own


def _heat(live: LiveBoard, rows: Sequence[BoardRow]) -> Heat | None:
    """How near each shown submission is to the floor on each case."""
    figures = [{figure.case.key: figure for figure in live.figures(row.entry.id)} for row in rows]
    cases = list({key: figure.case for each in figures for key, figure in each.items()}.values())
    if not cases:
        return None
    labels, shared = tell_apart(cases)
    named = [(case.key, case.label) for case in cases]
    floored = any(figure.floor_ns for each in figures for figure in each.values())
    found = tuple(
        (row, tuple(_shade(each.get(key), label, live.best.get(key)) for key, label in named))
        for row, each in zip(rows, figures, strict=True)
    )
    columns = tuple(tuple(labels[case.key].split()) or (case.label,) for case in cases)
    return Heat(columns, shared, found, "the floor" if floored else "the best on this board")


def _shade(figure: CaseFigures | None, label: str, best_ns: float | None) -> Shade:
    if figure is None:
        return Shade()
    latency = Estimate(latency_ns=figure.latency_ns, low_ns=figure.low_ns, high_ns=figure.high_ns)
    tip = f"{label}: {microseconds(latency)} µs"
    against_ns = figure.floor_ns or best_ns
    if against_ns is None:
        return Shade(microseconds(Estimate(latency_ns=figure.latency_ns)), None, tip)
    share = against_ns / figure.latency_ns
    what = f"floor {microseconds(Estimate(latency_ns=against_ns))} µs ({figure.format})" if figure.floor_ns else "best"
    return Shade(percent(share), min(int(share * SHADES), SHADES - 1), f"{tip}, {what}")


def _history(live: LiveBoard, ranked: Sequence[Entry], records: Sequence[Entry]) -> Plot | None:
    best = [moment for entry in records if (moment := _moment(live, entry)) is not None]
    shown = {moment for entry in ranked if (moment := _moment(live, entry)) is not None}
    return plots.history(sorted({*shown, *best}, key=lambda moment: moment.began), best)


def _moment(live: LiveBoard, entry: Entry) -> Moment | None:
    began = plots.date(entry.started_at)
    if began is None or entry.score_ns is None:
        return None
    score = Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)
    return Moment(entry.submission, began, score, entry.submission in live.problem.baselines)


def age(moment: str) -> str:
    """How long ago it was: `3 h`, `2 days`; "" for what is no date. No finer than pages are made anew (`etag`)."""
    began = plots.date(moment)
    if began is None:
        return ""
    hours = max((datetime.now(UTC) - began).total_seconds(), 0) / 3600
    if hours < 1:
        return "under 1 h"
    if hours < 48:
        return f"{int(hours)} h"
    return f"{int(hours / 24)} days"
