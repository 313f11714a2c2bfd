"""The geometry of a report's two plots: latency against error, and the best score over time.

As in `charts`, x is in per cent of the width and y in pixels from the top.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.model import Estimate
from harness.render.axis import Axis, Tick, log_axis, time_axis
from harness.render.charts import ends, extent
from harness.render.terminal import microseconds
from harness.verbs.report import Line, Sheet

PLOT_HEIGHT = 280
NAMED_POINTS = 12
"""Points of a plot that carry their name; every point has it as its tooltip, and the table has it."""
LABEL_HEIGHT, CHARACTER_WIDTH, ASSUMED_WIDTH = 14, 7, 480
"""Pixels; the width of a plot, which only the browser knows, for telling whether names would overlap."""
EXACT_AT = 3.0
"""Where an error of 0 stands, in per cent of the width."""


@dataclass(frozen=True)
class PlotLabel:
    """Where a point's name stands: at this height, to its right or to its left."""

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
    """Points on two axes, and the corners of a line of steps through the best of them."""

    points: tuple[Point, ...]
    steps: tuple[tuple[float, float], ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]

    @property
    def segments(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        return list(itertools.pairwise(self.steps))


def frontier(sheets: Sequence[Sheet]) -> list[Sheet]:
    """Of the ranked `sheets` those that no other beats in both latency and error, from the fastest to the most exact.

    They answer which submission is fastest at which accuracy.
    """
    best: list[Sheet] = []
    for sheet in sorted(_with_error(sheets), key=lambda s: (s.entry.score_ns or 0.0, s.entry.error or 0.0)):
        if not best or (sheet.entry.error or 0.0) < (best[-1].entry.error or 0.0):
            best.append(sheet)
    return best


def error_plot(sheets: Sequence[Sheet]) -> Plot | None:
    """Score in microseconds against error; None where fewer than two errors are above 0, which is nothing to plot."""
    shown = _with_error(sheets)
    positive = [s.entry.error for s in shown if s.entry.error]
    if len(positive) < 2:
        return None
    exact = len(positive) < len(shown)
    # An exact result has no place on a log axis: it stands to the left of all the others, under a tick of its own.
    x_axis = log_axis([*positive, min(positive) / 3] if exact else positive)
    y_axis = log_axis([v for s in shown for v in extent(_score(s))])
    edge = frontier(sheets)
    points = [_point(x_axis.at(s.entry.error or 0.0) or EXACT_AT, s, y_axis) for s in shown]
    corners = [(x_axis.at(s.entry.error or 0.0) or EXACT_AT, _height(y_axis, _score(s).latency_ns / 1e3)) for s in edge]
    # Level from the right, where any error will do, to a point's own error; there up to the next more exact one.
    steps = [
        corner for (x, y), (from_x, _) in zip(corners, [(100.0, 0.0), *corners]) for corner in ((from_x, y), (x, y))
    ]
    x_ticks = [tick for tick in x_axis.ticks if not exact or tick.at > 4 * EXACT_AT]
    ticks = ([Tick(EXACT_AT, "0")] if exact else []) + x_ticks
    named = [s.entry.submission for s in edge] + [s.entry.submission for s in shown]
    return Plot(_named(points, named), tuple(steps), tuple(ticks), _upright(y_axis))


def records(lines: Sequence[Line]) -> list[Line]:
    """The ranked runs that were faster than every one before, in the order they began."""
    found: list[Line] = []
    for line in _dated(lines):
        if not found or _latency_ns(line) < _latency_ns(found[-1]):
            found.append(line)
    return found


def history_plot(lines: Sequence[Line]) -> Plot | None:
    """Every ranked run's score by its date, and the least until then; None with fewer than two moments."""
    shown = _dated(lines)
    moments = [moment for line in shown if (moment := date(line.run.started_at))]
    if len(set(moments)) < 2:
        return None
    x_axis = time_axis(moments)
    y_axis = log_axis([value for line in shown if line.run.score for value in extent(line.run.score)])
    best = records(shown)
    points: list[Point] = []
    steps: list[tuple[float, float]] = []
    for moment, line in zip(moments, shown):
        assert line.run.score is not None
        x, y = x_axis.at(moment.timestamp()), _height(y_axis, _latency_ns(line) / 1e3)
        record = line in best
        if record:
            steps += [*([(x, steps[-1][1])] if steps else []), (x, y)]
        name = line.run.submission if record else ""
        tip = f"{line.run.submission}, {line.run.started_at[:16]}: {microseconds(line.run.score)} µs"
        points.append(_point_at(x, y, line.run.score, y_axis, name, tip, line.baseline))
    steps.append((100.0, steps[-1][1]))
    return Plot(
        _named(points, [line.run.submission for line in best[::-1]]), tuple(steps), x_axis.ticks, _upright(y_axis)
    )


def date(text: str) -> datetime | None:
    """A moment with its time zone, as runs state when they began; None for anything else."""
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
    """The ranked runs of sources that were never found wrong, in the order they began."""
    ranked = [line for line in lines if line.ranked and not line.disqualified]
    dated = [(moment, line) for line in ranked if (moment := date(line.run.started_at))]
    return [line for _, line in sorted(dated, key=lambda item: item[0])]


def _latency_ns(line: Line) -> float:
    assert line.run.score is not None
    return line.run.score.latency_ns


def _height(axis: Axis, value: float) -> float:
    """Pixels from the top."""
    return PLOT_HEIGHT * (1 - axis.at(value) / 100)


def _upright(axis: Axis) -> tuple[Tick, ...]:
    return tuple(Tick(PLOT_HEIGHT * (1 - tick.at / 100), tick.label) for tick in axis.ticks)


def _point(x: float, sheet: Sheet, axis: Axis) -> Point:
    score, entry = _score(sheet), sheet.entry
    tip = f"{entry.submission}: {microseconds(score)} µs, error {entry.error:.2g}"
    return _point_at(x, _height(axis, score.latency_ns / 1e3), score, axis, entry.submission, tip, sheet.baseline)


def _point_at(x: float, y: float, score: Estimate, axis: Axis, name: str, tip: str, baseline: bool) -> Point:
    low, high = ends(score, axis)
    if low is None or high is None:
        return Point(x, y, None, None, name, tip, baseline)
    return Point(x, y, PLOT_HEIGHT * (1 - low / 100), PLOT_HEIGHT * (1 - high / 100), name, tip, baseline)


def _named(points: Sequence[Point], wanted: Sequence[str]) -> tuple[Point, ...]:
    """`points` with labels for those of the first `wanted` names that find room beside them."""
    taken = [_box(point.x, point.y, 10, 10) for point in points]
    placed = {}
    for name in list(dict.fromkeys(name for name in wanted if name))[:NAMED_POINTS]:
        number, point = next((i, p) for i, p in enumerate(points) if p.name == name)
        for label in _places(point):
            box = _label_box(point, label)
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                placed[number] = dataclasses.replace(point, label=label)
                break
    return tuple(placed.get(i, point) for i, point in enumerate(points))


def _places(point: Point) -> list[PlotLabel]:
    """Where the name of `point` may stand, the best place first: inwards, at its own height."""
    inwards = point.x < 50
    heights = [point.y + shift for shift in (0, -LABEL_HEIGHT, LABEL_HEIGHT)]
    return [PlotLabel(y, side) for side in (inwards, not inwards) for y in heights if 8 < y < PLOT_HEIGHT - 4]


_Box = tuple[float, float, float, float]


def _label_box(point: Point, label: PlotLabel) -> _Box:
    width = CHARACTER_WIDTH * len(point.name)
    shift = (9 + width / 2) * (1 if label.right else -1)
    return _box(point.x + 100 * shift / ASSUMED_WIDTH, label.y, width, LABEL_HEIGHT)


def _box(x: float, y: float, width: float, height: float) -> _Box:
    """Left, top, right, bottom in pixels, of what is centred at `x` per cent and `y` pixels."""
    middle = x * ASSUMED_WIDTH / 100
    return middle - width / 2, y - height / 2, middle + width / 2, y + height / 2


def _overlap(one: _Box, other: _Box) -> bool:
    beside = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    return not beside or one[0] < 0 or one[2] > ASSUMED_WIDTH
