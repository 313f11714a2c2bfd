"""Axes of a chart: the position of a value, in per cent of the axis' length, and the values with ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

MARGIN = 0.06
"""The fraction of the axis' length left free at either end, so that no mark is cut in half."""
MOST_TICKS = 5
WIDE, NARROW = 190, 110
"""The length in pixels of the shortest axis, on a wide screen and on a phone."""
CHARACTER, GAP = 7.0, 8.0
"""In pixels: the largest width of a digit of the labels, and the free space between two labels."""
EDGE = 8.0
"""Near either end, within this per cent of the length, a label stands on the inner side of its tick
(templates/charts.html.j2)."""
LEAST_FACTOR = 1.25
"""The least factor that a log axis spans, so that noise is not enlarged to fill it."""
BEYOND = 1e100
"""The limit of an axis; its inverse is the lower limit. A stored interval may reach to the largest float."""


@dataclass(frozen=True)
class Tick:
    """A value with a tick, in per cent of the length. `narrow`: its label has room on a phone, too."""

    at: float
    label: str
    narrow: bool = True


@dataclass(frozen=True)
class Axis:
    """An axis over the values from `low` to `high`: logarithmic for positive values, or linear."""

    low: float
    high: float
    ticks: tuple[Tick, ...]
    logarithmic: bool = True

    def at(self, value: float) -> float:
        """Return the position of `value`, from 0 to 100. Values outside the axis get 0 or 100."""
        return _at(self.low, self.high, value, self.logarithmic)


def log_axis(values: Sequence[float]) -> Axis:
    """Return an axis that holds all the positive `values`, with round ticks. Values BEYOND the limit are at its end."""
    low, high = (min(max(value, 1 / BEYOND), BEYOND) for value in (min(values), max(values)))
    widen = max(LEAST_FACTOR / (high / low), 1) ** 0.5
    low, high = low / widen, high * widen
    margin = (high / low) ** MARGIN
    low, high = low / margin, high * margin
    ticks = [Tick(_at(low, high, value), _plain(value)) for value in _round_values(low, high)]
    return Axis(low, high, _apart(ticks))


def time_axis(moments: Sequence[datetime]) -> Axis:
    """Return a linear axis over `moments`, in seconds since 1970. The first, the last and the middle are labelled by
    date."""
    seconds = [moment.timestamp() for moment in moments]
    first, last = min(seconds), max(seconds)
    span = max(last - first, 60.0)
    low, high = first - MARGIN * span, last + MARGIN * span
    steps = 2 if span > 60 else 1
    marked = [first + span * step / steps for step in range(steps + 1)]
    labels = [_moment(second, span) for second in marked]
    ticks = [Tick(_at(low, high, s, False), label) for s, label in zip(marked, labels)]
    return Axis(low, high, tuple(ticks), logarithmic=False)


def _apart(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    """Return the `ticks` whose labels do not overlap, and mark those that also fit on a phone."""
    wide = _with_room(ticks, WIDE)
    narrow = _with_room(wide, NARROW)
    return tuple(replace(tick, narrow=tick in narrow) for tick in wide)


def _with_room(ticks: Sequence[Tick], length_px: float) -> list[Tick]:
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or label_ends(tick, length_px)[0] >= label_ends(kept[-1], length_px)[1] + GAP:
            kept.append(tick)
    return kept


def label_ends(tick: Tick, length_px: float) -> tuple[float, float]:
    """Return where the label of `tick` begins and ends, in pixels of an axis of this length."""
    at, width = tick.at * length_px / 100, CHARACTER * len(tick.label)
    left = at if tick.at < EDGE else at - width if tick.at > 100 - EDGE else at - width / 2
    return left, left + width


def _at(low: float, high: float, value: float, logarithmic: bool = True) -> float:
    if logarithmic:
        low, high, value = math.log(low), math.log(high), math.log(value) if value > 0 else -math.inf
    return 100 * min(max((value - low) / (high - low), 0.0), 1.0)


def _round_values(low: float, high: float) -> list[float]:
    """Return at most MOST_TICKS round values between `low` and `high`: powers of ten, or also their multiples by 2 and
    5 or by 3. If these are fewer than three, return even steps."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        values = [m * 10.0**e for e in decades for m in mantissas if low <= m * 10.0**e <= high]
        if len(values) <= MOST_TICKS:
            break
    if len(values) > MOST_TICKS:
        return values[:: math.ceil(len(values) / MOST_TICKS)]
    return values if len(values) >= 3 else _even_values(low, high)


def _even_values(low: float, high: float) -> list[float]:
    """Return the multiples of the smallest round step that gives at most MOST_TICKS. A round step is 1, 2, 5 or 10
    times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / MOST_TICKS))
    for step in (power, 2 * power, 5 * power, 10 * power):
        multiples = range(math.ceil(low / step), math.floor(high / step) + 1)
        if len(multiples) <= MOST_TICKS:
            break
    return [n * step for n in multiples]


def _plain(value: float) -> str:
    """Return the shortest decimal of a round value. Values far from 1 are written as powers of ten."""
    if value >= 1e6 or value < 1e-3:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e−").replace("e-", "e−").replace("e+", "e")
    return f"{value:,.10f}".rstrip("0").rstrip(".")


def _moment(second: float, span_s: float) -> str:
    moment = datetime.fromtimestamp(second, UTC)
    return moment.strftime("%H:%M" if span_s < 86400 else "%Y-%m-%d")
