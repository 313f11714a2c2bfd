"""Figures as they are shown: latencies with their intervals, shares, errors, and what is over a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.model import Estimate, Excess

TIMES_OR_DIVIDED = "\N{MULTIPLICATION SIGN}/\N{DIVISION SIGN}"
"""Between a figure and how many times wider than itself its interval is, to either side."""


def microseconds(estimate: Estimate) -> str:
    """`812.3 ±0.5 %`: the centre in µs and its interval. A wide one, symmetric only as a factor, as `×/÷ 2.3`."""
    centre = f"{significant(estimate.latency_ns / 1e3)}"
    if estimate.low_ns is None or estimate.high_ns is None:
        return centre
    factor = math.sqrt(estimate.high_ns / estimate.low_ns)
    if factor > 1.2:
        return f"{centre} {TIMES_OR_DIVIDED}\xa0{significant(factor, 2)}"
    return f"{centre} ±{significant(100 * (factor - 1), 2)}\xa0%"


def wide_note(figures: Iterable[str]) -> list[str]:
    """What the mark of a wide interval means, where one of these `microseconds` has it."""
    wide = any(TIMES_OR_DIVIDED in figure for figure in figures)
    return [f"{TIMES_OR_DIVIDED} 2: the interval goes from half of the figure to twice the figure"] if wide else []


def in_microseconds(estimate: Estimate) -> str:
    """`812.3 µs ±0.5 %`: the same in a sentence, with its unit."""
    centre, *interval = microseconds(estimate).split(" ", 1)
    return " ".join([centre, "µs", *interval])


def percent(share: float | None) -> str:
    """`24 %`, `5.6 %`; "" where nothing is known."""
    return "" if share is None else f"{significant(100 * share, 2)}\xa0%"


def ratio(excess: Excess | None) -> str:
    """`0.73 rel_l2`: how much of a tolerance is used, and by which limit."""
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
