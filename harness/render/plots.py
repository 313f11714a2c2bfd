"""The geometry of a report's two plots: latency against error, and the best score over time.

As in `charts`, x is in per cent of the width and y in pixels from the top.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from harness.model import Estimate
from harness.render.axis import Axis, Tick, log_axis, time_axis
from harness.render.charts import ends, extent
from harness.render.figures import microseconds
from harness.verbs.report import Line, Sheet

PLOT_HEIGHT = 280
LABEL_HEIGHT = 14
"""The least distance between two names, in pixels. Every point also has its name as a tooltip and in the table."""
EXACT_AT = 3.0
"""The position of an error of 0, in per cent of the width."""


@dataclass(frozen=True)
class PlotLabel:
    """The position of a point's name: its height, and whether it is to the right or the left."""

    y: float
    right: bool


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None
    high: float | None
    name: str
    tip: str
    baseline: bool
    label: PlotLabel | None = None


@dataclass(frozen=True)
class Plot:
    """Points on two axes, and the corners of a line of steps through the best points."""

    points: tuple[Point, ...]
    steps: tuple[tuple[float, float], ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]

    @property
    def segments(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        return list(itertools.pairwise(self.steps))


def frontier(sheets: Sequence[Sheet]) -> list[Sheet]:
    """Return the ranked `sheets` that no other beats in both latency and error, from the fastest to the most exact.

    They show which submission is fastest at each accuracy.
    """
    best: list[Sheet] = []
    for sheet in sorted(_with_error(sheets), key=lambda s: (s.entry.score_ns or 0.0, s.entry.error or 0.0)):
        if not best or (sheet.entry.error or 0.0) < (best[-1].entry.error or 0.0):
            best.append(sheet)
    return best


def error_plot(sheets: Sequence[Sheet]) -> Plot | None:
    """Return the plot of the score in microseconds against the error, or None if fewer than two errors are above 0."""
    shown, edge = _with_error(sheets), frontier(sheets)
    positive = [s.entry.error for s in shown if s.entry.error]
    if len(positive) < 2:
        return None
    exact = len(positive) < len(shown)
    # An exact result does not fit on a log axis: it stands to the left of all others, under a tick of its own.
    x_axis = log_axis([*positive, min(positive) / 3] if exact else positive)
    y_axis = log_axis([v for s in shown for v in extent(_score(s))])

    def point(sheet: Sheet) -> Point:
        entry = sheet.entry
        x, more = x_axis.at(entry.error or 0.0) or EXACT_AT, f", error {entry.error:.2g}"
        return _point(x, _score(sheet), y_axis, entry.submission, more, sheet.baseline)

    points, best = [point(sheet) for sheet in shown], [point(sheet) for sheet in edge]
    # The line is level from the right edge to a point's own error, and there goes up to the next more exact point.
    steps = [(x, point.y) for point, right in zip(best, [100.0, *(p.x for p in best)]) for x in (right, point.x)]
    x_ticks = [Tick(EXACT_AT, "0")] if exact else []
    x_ticks += [tick for tick in x_axis.ticks if not exact or tick.at > 4 * EXACT_AT]
    return Plot(_named(points, [*best, *points]), tuple(steps), tuple(x_ticks), _upright(y_axis))


def records(lines: Sequence[Line]) -> list[Line]:
    """Return the ranked runs that were faster than every earlier one, in the order they began."""
    found: list[Line] = []
    for line in _dated(lines):
        if not found or _latency(line).latency_ns < _latency(found[-1]).latency_ns:
            found.append(line)
    return found


@dataclass(frozen=True)
class Moment:
    """A ranked run in a plot over time: its submission, when it began, and its score."""

    name: str
    began: datetime
    score: Estimate
    baseline: bool


def history_plot(lines: Sequence[Line]) -> Plot | None:
    """Return the plot of every ranked run's score by date, with the best so far. None with fewer than two moments."""
    return history([_moment(line) for line in _dated(lines)], [_moment(line) for line in records(lines)])


def history(shown: Sequence[Moment], best: Sequence[Moment]) -> Plot | None:
    """Return the plot of the scores of `shown` by date. `best`: the records among them in their order, joined by a line
    of steps. None with fewer than two moments."""
    moments = sorted({moment.began for moment in shown})
    if len(moments) < 2:
        return None
    x_axis = time_axis(moments)
    y_axis = log_axis([value for moment in shown for value in extent(moment.score)])

    def point(moment: Moment) -> Point:
        began = moment.began.astimezone(UTC).isoformat()[:16]
        x, more = x_axis.at(moment.began.timestamp()), f", {began}"
        return _point(x, moment.score, y_axis, moment.name, more, moment.baseline)

    points, corners = [point(moment) for moment in shown], [point(moment) for moment in best]
    # The line goes down at each record, then is level to the next record, and from the last to the present.
    steps = [
        (x, corner.y)
        for corner, after in itertools.zip_longest(corners, corners[1:])
        for x in (corner.x, after.x if after else 100.0)
    ]
    return Plot(_named(points, corners[::-1]), tuple(steps), x_axis.ticks, _upright(y_axis))


def _moment(line: Line) -> Moment:
    return Moment(line.run.submission, _began(line), _latency(line), line.baseline)


def date(text: str) -> datetime | None:
    """Parse a moment with its time zone, such as a run's `started_at`. Return None for anything else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _with_error(sheets: Sequence[Sheet]) -> list[Sheet]:
    known = [s for s in sheets if s.standing is not None and s.entry.error is not None]
    return [s for s in known if math.isfinite(s.entry.error or 0.0)]


def _score(sheet: Sheet) -> Estimate:
    entry = sheet.entry
    assert entry.score_ns is not None
    return Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)


def _dated(lines: Sequence[Line]) -> list[Line]:
    """Return the ranked runs of sources that were never found wrong, in the order they began."""
    ranked = [line for line in lines if line.ranked and not line.disqualified]
    return sorted((line for line in ranked if date(line.run.started_at)), key=_began)


def _began(line: Line) -> datetime:
    moment = date(line.run.started_at)
    assert moment is not None
    return moment


def _latency(line: Line) -> Estimate:
    assert line.run.score is not None
    return line.run.score


def _height(percent: float) -> float:
    """Return the pixels from the top for `percent` of an axis."""
    return PLOT_HEIGHT * (1 - percent / 100)


def _upright(axis: Axis) -> tuple[Tick, ...]:
    return tuple(Tick(_height(tick.at), tick.label) for tick in axis.ticks)


def _point(x: float, latency: Estimate, axis: Axis, name: str, more: str, baseline: bool) -> Point:
    low, high = (None if end is None else _height(end) for end in ends(latency, axis))
    tip = f"{name}: {microseconds(latency)} µs{more}"
    return Point(x, _height(axis.at(latency.latency_ns / 1e3)), low, high, name, tip, baseline)


def _named(points: Sequence[Point], wanted: Sequence[Point]) -> tuple[Point, ...]:
    """Return `points` with names for the `wanted` ones that keep their distance from names already placed. Earlier
    wanted points come first."""
    named: list[Point] = []
    for point in wanted:
        if all(abs(point.y - other.y) >= LABEL_HEIGHT for other in named):
            named.append(point)
    return tuple(replace(p, label=PlotLabel(p.y, right=p.x < 50)) if p in named else p for p in points)
