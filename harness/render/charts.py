"""The geometry of a report's charts with rows: submissions on a case, samples of a process.

x is in per cent of the drawing's width, y in pixels. So a chart is as wide as its window and its text keeps its size,
on a phone too. templates/charts.html.j2 draws the charts as SVG. No chart decides anything: order, intervals and floors
are given.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.model import Case, CaseValue, Estimate, Measurement
from harness.render.axis import Axis, Tick, log_axis
from harness.render.figures import microseconds, percent
from harness.verbs.report import Sheet

ROWS_DRAWN = 24
"""The most submissions in a chart of cases. The table behind it has all of them."""
DOTS_DRAWN = 60
"""The most samples of a process that are drawn as dots. For more, only quantiles are drawn."""


@dataclass(frozen=True)
class Row:
    """A submission in a panel: its latency and the ends of its interval, in per cent. None if it was not timed."""

    name: str
    baseline: bool
    at: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    tip: str = ""


@dataclass(frozen=True)
class Panel:
    """A case: one row for each submission, on one axis in microseconds, and the floor if it is known."""

    title: str
    case: str
    ticks: tuple[Tick, ...]
    floor: float | None
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Spread:
    """One process's samples: `quantiles` at 5, 25, 50, 75 and 95 %, and `ends`, the least and the most, in per cent.

    `dots`: x in thousandths of the width, y in pixels. `figures_ns`: these seven values in nanoseconds, in order of
      size.
    """

    name: str
    count: int
    quantiles: tuple[float, ...]
    ends: tuple[float, float]
    dots: tuple[tuple[int, int], ...]
    figures_ns: tuple[float, ...]


@dataclass(frozen=True)
class Distribution:
    """A case's samples within a run, one row for each process, with the case's latency and interval."""

    title: str
    case: str
    ticks: tuple[Tick, ...]
    at: float
    low: float | None
    high: float | None
    rows: tuple[Spread, ...]


def tell_apart(cases: Sequence[Case]) -> tuple[dict[str, str], str]:
    """Return two things: a label for each case's key, of the parameters in which `cases` differ; and a label of the
    parameters that all share."""
    keys = list(dict.fromkeys(key for case in cases for key in case.parameters))
    shared = [key for key in keys if len({str(case.parameters.get(key)) for case in cases}) == 1]
    if len(cases) == 1:
        shared = []
    labels = {case.key: _label(case, [key for key in keys if key not in shared]) for case in cases}
    return labels, _label(cases[0], shared) if cases else ""


def case_panels(sheets: Sequence[Sheet], cases: Sequence[Case]) -> list[Panel]:
    """Return a panel for each of `cases`, with the first ROWS_DRAWN of the ranked `sheets` and every baseline."""
    drawn = [s for number, s in enumerate(sheets) if number < ROWS_DRAWN or s.baseline]
    labels, _ = tell_apart(cases)
    panels = []
    for case in cases:
        timed = {s.entry.id: m for s in drawn if (m := measurement(s, case)) is not None}
        if not timed:
            continue
        floors = {m.floor.latency_ns for m in timed.values() if m.floor is not None}
        axis = log_axis([v for m in timed.values() for v in extent(m.latency)] + [f / 1e3 for f in floors])
        rows = tuple(_row(sheet, timed.get(sheet.entry.id), axis) for sheet in drawn)
        floor = axis.at(min(floors) / 1e3) if floors else None
        panels.append(Panel(labels[case.key], case.label, axis.ticks, floor, rows))
    return panels


def distributions(measurements: Sequence[Measurement]) -> list[Distribution]:
    """Return a run's samples, one distribution for each case."""
    labels, _ = tell_apart([m.case for m in measurements])
    return [_distribution(m, labels[m.case.key]) for m in measurements]


def measurement(sheet: Sheet, case: Case) -> Measurement | None:
    """Return the measurement of `sheet`'s run on `case`, or None."""
    runs = sheet.run.measurements if sheet.run is not None else ()
    return next((m for m in runs if m.case.key == case.key), None)


def extent(estimate: Estimate) -> list[float]:
    """Return every value of `estimate` that a chart must have room for, in microseconds."""
    ends = (estimate.latency_ns, estimate.low_ns, estimate.high_ns)
    return [end / 1e3 for end in ends if end is not None]


def ends(estimate: Estimate, axis: Axis) -> tuple[float, float] | tuple[None, None]:
    if estimate.low_ns is None or estimate.high_ns is None:
        return None, None
    return axis.at(estimate.low_ns / 1e3), axis.at(estimate.high_ns / 1e3)


def _label(case: Case, keys: Sequence[str]) -> str:
    return " ".join(f"{key}={_short(case.parameters[key])}" for key in keys if key in case.parameters)


def _short(value: CaseValue) -> str:
    if not isinstance(value, list) or len(value) <= 6:
        return str(value).replace(", ", ",")
    return f"[{','.join(map(str, value[:4]))},… {len(value)} in all]"


def _row(sheet: Sheet, timed: Measurement | None, axis: Axis) -> Row:
    if timed is None:
        return Row(sheet.entry.submission, sheet.baseline)
    latency, floor = timed.latency, timed.floor
    note = percent(timed.of_limit) or microseconds(_bare(latency))
    tip = f"{sheet.entry.submission}: {microseconds(latency)} µs"
    if floor:
        time_us = microseconds(Estimate(latency_ns=floor.latency_ns))
        tip += f", {note} of the limit: the floor is {time_us} µs ({floor.format})"
    low, high = ends(latency, axis)
    return Row(sheet.entry.submission, sheet.baseline, axis.at(latency.latency_ns / 1e3), low, high, note, tip)


def _bare(estimate: Estimate) -> Estimate:
    return Estimate(latency_ns=estimate.latency_ns)


def _distribution(timed: Measurement, title: str) -> Distribution:
    drawn = [value / 1e3 for process in timed.samples_ns for value in _shown(process)]
    axis = log_axis(drawn + extent(timed.latency))
    rows = [_spread(f"process {n}", process, axis) for n, process in enumerate(timed.samples_ns, 1)]
    low, high = ends(timed.latency, axis)
    return Distribution(
        title, timed.case.label, axis.ticks, axis.at(timed.latency.latency_ns / 1e3), low, high, tuple(rows)
    )


def _spread(name: str, process: Sequence[float], axis: Axis) -> Spread:
    figures = quantiles(process)
    places = [axis.at(value / 1e3) for value in figures]
    dots = [(round(10 * axis.at(value / 1e3)), _jitter(i)) for i, value in enumerate(process)]
    kept = tuple(dots) if len(dots) <= DOTS_DRAWN else ()
    return Spread(name, len(process), tuple(places[1:6]), (places[0], places[6]), kept, figures)


def _shown(process: Sequence[float]) -> Sequence[float]:
    """Return the samples that the axis must hold. With many samples the few outermost are left out, since they would
    press all others together. A line to them then ends at the drawing's edge."""
    return process if len(process) <= DOTS_DRAWN else quantiles(process)[1:6]


def quantiles(process: Sequence[float]) -> tuple[float, ...]:
    """Return the minimum, the quantiles at 5, 25, 50, 75 and 95 %, and the maximum."""
    cuts = statistics.quantiles(process, n=20, method="inclusive") if len(process) > 1 else [process[0]] * 19
    return min(process), cuts[0], cuts[4], cuts[9], cuts[14], cuts[18], max(process)


def _jitter(number: int) -> int:
    """Return a height in the row that keeps neighbouring samples apart, by the sample's number."""
    return 5 + (number * 5) % 13
