"""The content of a board's page: the rows that the address asks for, in its order, and the heat map.

The address holds the whole question, so that a link shows the same page: ?q=fp8&sort=error&page=2.
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
"""The submissions on a page."""
POINTS = 100
"""The most submissions in the plots of a board, the best ones, besides the records."""
SHADES = 10
DUELS = 3
WHOLES = 32
"""The most boards and competitions that are cached."""

UNKNOWN = "?"
"""Stands for every unknown competition."""

_LONGEST_QUESTION = 100

SORTS = ("score", "limit", "error", "age", "name", "author")


@dataclass(frozen=True)
class Asked:
    """The question that the address asks of a board."""

    q: str = ""
    tolerance: str = ""
    competition: str = ""
    sort: str = "score"
    page: int = 1

    @staticmethod
    def of(query: Mapping[str, str]) -> Asked:
        """Parse a query. Invalid values are ignored."""
        text = {name: query.get(name, "")[:_LONGEST_QUESTION] for name in ("q", "tolerance", "competition")}
        sort = query.get("sort", "score")
        number = query.get("page", "1")
        page = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1
        return Asked(**text, sort=sort if sort in SORTS else "score", page=max(page, 1))

    def address(self, **changes: str | int) -> Markup:
        """Return the query of the same question with `changes`."""
        # A changed filter or order starts at the first page.
        asked = replace(self, **({"page": 1} | changes))  # type: ignore[arg-type]
        plain = Asked()
        given = {n: v for n in Asked.__dataclass_fields__ if (v := getattr(asked, n)) != getattr(plain, n)}
        return Markup(escape(f"?{urlencode(given)}" if given else "?"))


@dataclass(frozen=True)
class BoardRow:
    """A submission on a board's page. `place`: None if it is not ranked."""

    entry: Entry
    place: Standing | None
    author: str
    baseline: bool


@dataclass(frozen=True)
class Shade:
    """A cell of the heat map: its text, and its darkness from 0 to SHADES - 1, or None if nothing was timed."""

    text: str = ""
    shade: int | None = None
    tip: str = ""


@dataclass(frozen=True)
class Heat:
    """Rows by columns of cases. `against`: the floor, or without a known floor the board's best on each case."""

    columns: tuple[tuple[str, ...], ...]
    shared: str
    rows: tuple[tuple[BoardRow, tuple[Shade, ...]], ...]
    against: str


@dataclass(frozen=True)
class Whole:
    """The parts of a board that are the same on all of its pages, for a given competition. `Shown` describes the names.
    `duels`: the first neighbours that only a duel can tell apart."""

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
    """The content of a board's page. `whole.rivals`: whether a baseline is ranked. `whole.floors`: the formats of the
    floors, empty without a known floor. `found`, `verified_found`, `left_out_found`: how many match the filter; a page
    shows only some of them."""

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
    """Return the page that `asked` asks for. A board may have thousands of rows; only those of the page are made."""
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
    """Return the shared parts, cached for each state of a board. All unknown names of competitions share one entry, so
    that nobody can displace others' entries by inventing names."""
    known = competition if competition in live.of_competition else competition and UNKNOWN
    return _kept.get((live.revision, known), lambda: _made(live, competition))


def forget() -> None:
    """Clear the cache."""
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
    """Return the board, or the board of a competition's submissions and the problem's baselines."""
    if not competition:
        return live.board
    names = live.problem.baselines
    entries = [standing.entry for standing in live.board.standings] + list(live.board.unranked)
    baselines = [entry for entry in entries if entry.submission in names and entry.id not in live.origins]
    theirs = [*baselines, *live.of_competition.get(competition, ())]
    return rank(theirs, names, live.worker_timed_too, live.between_cards)


def _records(board: Board) -> tuple[Entry, ...]:
    """Return the runs on `board` that were faster than every earlier one."""
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
    """Sort the rows. Each order begins with the rows that are most interesting in it."""
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
    return standings  # the board's own order


def _heat(live: LiveBoard, rows: Sequence[BoardRow]) -> Heat | None:
    """Return how near each shown submission is to the floor on each case."""
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
    """Return how long ago a moment was: `3 h` or `2 days`, or "" if it is not a date. Pages are renewed every hour
    (`etag`), so no finer."""
    began = plots.date(moment)
    if began is None:
        return ""
    hours = max((datetime.now(UTC) - began).total_seconds(), 0) / 3600
    if hours < 1:
        return "under 1 h"
    if hours < 48:
        return f"{int(hours)} h"
    return f"{int(hours / 24)} days"
