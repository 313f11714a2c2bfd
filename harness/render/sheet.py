"""Boards, their cases and stored runs as CSV: a header, then one row each, with times in ns. A device is named by its
folder in results/, which `--device` accepts.

A text that a spreadsheet would take for a formula gets a leading apostrophe, because submissions are named after files
with any name. Numbers stay as they are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from harness.model import Measurement, Run
from harness.ranking.board import Board
from harness.records.entry import Entry
from harness.render.legible import legible

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ENTRY = (
    "submission", "verdict", "unranked", "score_ns", "low_ns", "high_ns", "floor_ns", "error", "tolerance", "runs",
    "clock", "older_source", "isolation", "flags", "id", "sha256", "started_at", "message",
)  # fmt: skip


def boards(found: Iterable[Board]) -> str:
    """Return a row for each submission of each board: the ranked ones in order, then the others."""
    rows: list[Sequence[object]] = []
    for board in found:
        for standing in board.standings:
            place = (standing.first, standing.last, standing.of_limit, standing.times_baseline)
            rows.append([standing.entry.device, *place, *_fields(standing.entry)])
        rows += [[entry.device, None, None, None, None, *_fields(entry)] for entry in board.unranked]
    return _written(("device", "first", "last", "of_limit", "times_baseline", *_ENTRY), rows)


def cases(found: Iterable[tuple[str, Run]]) -> str:
    """Return a row for each timed case of each ranked run, with the submission's name."""
    rows = [
        [run.device.slug, submission, run.id, each.case.label, *_times(each)]
        for submission, run in found
        for each in run.measurements
    ]
    times = ("latency_ns", "low_ns", "high_ns", "bound_ns", "floor_ns", "of_limit")
    return _written(("device", "submission", "id", "case", *times), rows)


def runs(entries: Iterable[Entry]) -> str:
    """Return a row for each stored run."""
    rows = [[entry.problem, entry.revision, entry.device, *_fields(entry)] for entry in entries]
    return _written(("problem", "revision", "device", *_ENTRY), rows)


def _fields(entry: Entry) -> list[object]:
    return [getattr(entry, name) for name in _ENTRY]


def _times(measured: Measurement) -> list[float | None]:
    latency, floor_ns = measured.latency, measured.floor.latency_ns if measured.floor else None
    return [latency.latency_ns, latency.low_ns, latency.high_ns, measured.bound_ns, floor_ns, measured.of_limit]


def _written(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(headers)
    writer.writerows([cell(value) for value in row] for row in rows)
    return sheet.getvalue()


def cell(value: object) -> object:
    """Return `value` as a cell. Text is made safe against formulas; a number stays as it is."""
    if not isinstance(value, str):
        return value
    shown = legible(value)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
