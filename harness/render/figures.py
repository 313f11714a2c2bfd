"""Figures as text: latencies with their intervals, shares, errors, and excesses over limits."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.model import Estimate, Excess

TIMES_OR_DIVIDED = "\N{MULTIPLICATION SIGN}/\N{DIVISION SIGN}"
"""Stands between a figure and the factor by which its interval extends to either side."""


def microseconds(estimate: Estimate) -> str:
    """Return the centre in µs and its interval: `812.3 ±0.5 %`. A wide interval, symmetric only as a factor, becomes
    `×/÷ 2.3`."""
    centre = f"{significant(estimate.latency_ns / 1e3)}"
    if estimate.low_ns is None or estimate.high_ns is None:
        return centre
    factor = math.sqrt(estimate.high_ns / estimate.low_ns)
    if factor > 1.2:
        return f"{centre} {TIMES_OR_DIVIDED}\xa0{significant(factor, 2)}"
    return f"{centre} ±{significant(100 * (factor - 1), 2)}\xa0%"


def wide_note(figures: Iterable[str]) -> list[str]:
    """Explain the mark of a wide interval if one of these figures of `microseconds` has it."""
    wide = any(TIMES_OR_DIVIDED in figure for figure in figures)
    return [f"{TIMES_OR_DIVIDED} 2: the interval goes from half of the figure to twice the figure"] if wide else []


def in_microseconds(estimate: Estimate) -> str:
    """Return the same for a sentence, with the unit: `812.3 µs ±0.5 %`."""
    centre, *interval = microseconds(estimate).split(" ", 1)
    return " ".join([centre, "µs", *interval])


def percent(share: float | None) -> str:
    """Return `24 %` or `5.6 %`, or "" for None."""
    return "" if share is None else f"{significant(100 * share, 2)}\xa0%"


def ratio(excess: Excess | None) -> str:
    """Return how much of a tolerance is used, and by which limit: `0.73 rel_l2`."""
    if excess is None:
        return ""
    return f"{excess.ratio:.2f} {excess.limit}" if math.isfinite(excess.ratio) else excess.limit


def error_figure(error: float | None) -> str:
    return "" if error is None else f"{error:.2g}"


def significant(value: float, digits: int = 4) -> str:
    if value >= 1e9:
        return f"{value:.0e}"
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(digits - 1 - math.floor(math.log10(value)), 0)
    return f"{value:,.{decimals}f}"
