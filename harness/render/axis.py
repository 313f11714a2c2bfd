"""Axes of a chart: where a value lies, in per cent of the axis' length, and which values are marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

MARGIN = 0.06
"""Of the axis' length left free at either end, so that no mark is cut in half."""
MOST_TICKS = 5
"""As many as have room on a phone."""
LEAST_DISTANCE = 16
"""Per cent of the axis' length between two ticks, so that on a phone their labels stay apart."""
LEAST_FACTOR = 1.25
"""A log axis spans at least this: noise is not blown up to fill it."""


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis over the positive values from `low` to `high`, or a linear one."""

    low: float
    high: float
    ticks: tuple[Tick, ...]
    logarithmic: bool = True

    def at(self, value: float) -> float:
        """Where `value` lies: 0 to 100 from one end of the axis to the other, held within them."""
        return _at(self.low, self.high, value, self.logarithmic)


def log_axis(values: Sequence[float]) -> Axis:
    """An axis that holds all `values`, positive, with round ticks."""
    low, high = min(values), max(values)
    widen = max(LEAST_FACTOR / (high / low), 1) ** 0.5
    low, high = low / widen, high * widen
    margin = (high / low) ** MARGIN
    low, high = low / margin, high * margin
    ticks: list[Tick] = []
    for value in _round_values(low, high):
        at = _at(low, high, value)
        if not ticks or at - ticks[-1].at >= LEAST_DISTANCE:
            ticks.append(Tick(at, _plain(value)))
    return Axis(low, high, tuple(ticks))


def time_axis(moments: Sequence[datetime]) -> Axis:
    """A linear axis over `moments`, in seconds since 1970, with the first, the last and what lies between by date."""
    seconds = [moment.timestamp() for moment in moments]
    first, last = min(seconds), max(seconds)
    span = max(last - first, 60.0)
    low, high = first - MARGIN * span, last + MARGIN * span
    steps = 2 if span > 60 else 1
    marked = [first + span * step / steps for step in range(steps + 1)]
    labels = [_moment(second, span) for second in marked]
    ticks = [Tick(_at(low, high, s, False), label) for s, label in zip(marked, labels)]
    return Axis(low, high, tuple(ticks), logarithmic=False)


def _at(low: float, high: float, value: float, logarithmic: bool = True) -> float:
    if logarithmic:
        low, high, value = math.log(low), math.log(high), math.log(value) if value > 0 else -math.inf
    return 100 * min(max((value - low) / (high - low), 0.0), 1.0)


def _round_values(low: float, high: float) -> list[float]:
    """At most MOST_TICKS round values between `low` and `high`: powers of ten, or with their doubles and halves, or
    where those are too few even steps."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        values = [m * 10.0**e for e in decades for m in mantissas if low <= m * 10.0**e <= high]
        if len(values) <= MOST_TICKS:
            break
    if len(values) > MOST_TICKS:
        return values[:: math.ceil(len(values) / MOST_TICKS)]
    return values if len(values) >= 3 else _even_values(low, high)


def _even_values(low: float, high: float) -> list[float]:
    """The multiples of the least of 1, 2, 5, 10, ... times a power of ten that gives no more than MOST_TICKS."""
    power = 10.0 ** math.floor(math.log10((high - low) / MOST_TICKS))
    for step in (power, 2 * power, 5 * power, 10 * power):
        multiples = range(math.ceil(low / step), math.floor(high / step) + 1)
        if len(multiples) <= MOST_TICKS:
            break
    return [n * step for n in multiples]


def _plain(value: float) -> str:
    """The shortest decimal of a round value; powers of ten far from 1 as such."""
    if value >= 1e6 or value < 1e-3:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e−").replace("e-", "e−").replace("e+", "e")
    return f"{value:,.10f}".rstrip("0").rstrip(".")


def _moment(second: float, span_s: float) -> str:
    moment = datetime.fromtimestamp(second, UTC)
    return moment.strftime("%H:%M" if span_s < 86400 else "%Y-%m-%d")
