"""Lists as parts of a document: runs, submissions, problems, a problem's controls, files that are not runs."""

from __future__ import annotations

import math
import shutil
from collections.abc import Container, Mapping, Sequence
from typing import Any

from harness.model import OLDER_SOURCE, Estimate, Excess, Problem, Unranked, Verdict, outcome
from harness.records.entry import Entry
from harness.render.document import Part, Prose, Table
from harness.render.figures import microseconds, ratio
from harness.render.notes import WORKERS_OWN
from harness.verbs.verify import ControlResult

NO_FIGURE = "\N{INFINITY}"
NARROWEST_REASON = 30
"""The least columns for the reason why a submission is not ranked."""

CURRENT, NO_FILE = "current", "no file"
"""What the list of runs says of a submission's file: it holds the source that the run judged, or it is gone. If it
holds another source, the list says so as boards do."""


def runs(entries: Sequence[Entry], without_file: Container[str] = ()) -> list[Part]:
    """Return stored runs, one a line. `without_file`: the paths of submissions whose file is gone. The clock is shown
    only if the judge did not time all of them."""
    rows = []
    for entry in entries:
        score = entry.score_ns and Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)
        words = outcome(entry.verdict, entry.unranked)
        reasons = (Unranked.OLDER if entry.older else None, entry.unranked)
        unranked = ", ".join(filter(None, reasons)) if entry.verdict is Verdict.ACCEPTED else None
        figure = microseconds(score) if score else ""
        source = OLDER_SOURCE if entry.older_source else NO_FILE if entry.submission_path in without_file else CURRENT
        rows.append([entry.id, entry.problem, entry.device, words, unranked, figure, source])
    headers = ["run", "problem", "device", "verdict", "not ranked", "score µs", "source"]
    if not rows:
        return ["No runs yet."]
    if not any(entry.worker_timed for entry in entries):
        return [Table(headers, rows)]
    clocks = [Unranked.WORKER_TIMED if entry.worker_timed else "" for entry in entries]
    rows = [[*row, clock] for row, clock in zip(rows, clocks, strict=True)]
    return [Table([*headers, "clock"], rows), Prose(WORKERS_OWN)]


def left_alone(faults: Sequence[tuple[str, str]]) -> list[Part]:
    """Return a line for each file in results/ that is not a run, with the reason."""
    return [Prose(f"Left alone in results/: {path}: {fault}") for path, fault in faults]


def submissions(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the submissions that a server lists. The reasons wrap at the terminal's width, without one at 120."""
    headers = ["number", "competition", "file", "mode", "state", "why"]
    rows = []
    for each in found:
        own = each["podium"]
        rows.append(
            [str(each["id"]), each["leaderboard_name"], each["file_name"], own["mode"], own["state"], own["error"]]
        )
    others = [max(map(len, column)) for column in zip(headers[:-1], *(row[:-1] for row in rows), strict=True)]
    columns = shutil.get_terminal_size((120, 24)).columns
    room = columns - sum(others) - 3 * len(headers) - 1  # the table's lines and the spaces beside them
    return Table(headers, rows, widths=[*([None] * len(others)), max(room, NARROWEST_REASON)])


def problems(found: Sequence[Problem]) -> Part:
    rows = [
        [
            p.name,
            p.title,
            _on_either(len(p.cases.test), len(p.cpu.test)),
            _on_either(p.cases.secret_count, p.cpu.secret_count),
            _on_either(len(p.cases.benchmark), len(p.cpu.benchmark)),
            ", ".join(p.tolerances),
        ]
        for p in found
    ]
    below = ["19 / 15: 19 on a GPU, 15 on a CPU"] if any(" / " in cell for row in rows for cell in row[2:5]) else []
    return (
        Table(["problem", "title", "tests", "secret", "benchmarks", "tolerances"], rows, below)
        if rows
        else "No problems here."
    )


def _on_either(gpu: int, cpu: int) -> str:
    return str(gpu) if gpu == cpu else f"{gpu} / {cpu}"


def verification(problem: Problem, results: Sequence[ControlResult]) -> Part:
    """Return a table of the controls: the verdict due, the verdict got, and for each tolerance the largest ratio of an
    error to its limit."""
    tolerances = list(problem.tolerances)
    rows = [
        [r.name, r.due.words, r.got.words, *(_margin(r.excess.get(t)) for t in tolerances), "NO" if r.faults else "yes"]
        for r in results
    ]
    headers = ["control", "expected", "got", *(f"of {name}" for name in tolerances), "as expected"]
    controls = "1 control" if len(results) == 1 else f"{len(results)} controls"
    below = ["of a tolerance: the worst limit's value over the limit; above 1 it is broken"]
    if any(cell.startswith(NO_FIGURE) for row in rows for cell in row[3:-1]):
        below.append(f"{NO_FIGURE}: the limit is 0, so that nothing above it is a multiple of it")
    return Table(headers, rows, below, title=f"{problem.name}: {controls}")


def _margin(excess: Excess | None) -> str:
    """Return `450.12 max_mismatch`, or `∞ max_mismatch` over a limit of 0."""
    return ratio(excess) if excess is None or math.isfinite(excess.ratio) else f"{NO_FIGURE} {excess.limit}"
