"""A report: one HTML file that needs only a browser and no network.

All text by strangers passes two gates: `legible` (the environment's `finalize`) and jinja2's autoescape. Style and
script are this package's own files. The page's Content-Security-Policy names them by their hashes and allows nothing
else: no other script runs, and nothing is fetched.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness import __version__
from harness.errors import InfrastructureError, UsageError
from harness.model import NO_ISOLATION, OLDER_SOURCE, Estimate, Problem, Unranked, outcome
from harness.records import whole_file
from harness.render import charts, figures, left_out, legible, notes, plots, run, timing
from harness.verbs.report import Part, Sheet, Shelf, read

RUNS_LISTED = 500
"""The most runs of a device that a report lists, the latest first. The page states the total number."""
PRINTED_CHARACTERS = 20_000
"""The most characters of a submission's output or a mismatch report in a report. The last ones are kept."""

BOARDS_TOLD = 5
"""The most boards in the sentence of a link's preview."""

_OF_REPORTS = (b'<meta name="generator" content="Podium', b'<meta property="og:site_name" content="Podium">')
"""The head of a report contains one of these. Reports of an older Podium contain only the second."""

TEMPLATES = Path(__file__).parent / "templates"


def write(root: Path, problems: Sequence[Problem], out: Path, device: str | None = None) -> str:
    """Write a report to `out` and return a line that says so. If it fails, the old file stays.

    Raises UsageError if `out` cannot be a file or holds something other than a report, InfrastructureError if it cannot
    be written.
    """
    if not whole_file.may_replace(out, _is_report):
        what = f"{out} exists and is not a report of Podium, so it is not overwritten"
        raise UsageError(what, "name another file with --out")
    page = report(root, problems, datetime.now(UTC), device).encode("utf-8", "replace")
    if not out.parent.is_dir():
        raise UsageError(f"{out} cannot be written: {out.parent} is not a directory", "name another file with --out")
    try:
        whole_file.write(out, page)
    except OSError as error:
        untouched = "; the one that is there is untouched" if out.exists() else ""
        hint = f"make room or name another file with --out{untouched}"
        raise InfrastructureError(f"{out} cannot be written: {error.strerror}", hint) from None
    return f"{out}: {max(len(page) / 1e6, 0.1):.1f} MB, for any browser, with or without a network"


def _is_report(head: bytes) -> bool:
    return head.startswith(b"<!doctype html>") and any(mark in head for mark in _OF_REPORTS)


def report(root: Path, problems: Sequence[Problem], made_at: datetime, device: str | None = None) -> str:
    """Return the boards of `problems` and their runs as one page. `device`: the folder of one device in results/.

    Raises UsageError if there are no runs on it.
    """
    parts, faults = read(root, problems, device)
    style, script = _asset("report.css"), _asset("report.js")
    page = environment().get_template("report.html.j2")
    return page.render(
        parts=parts,
        faults=faults,
        made_at=made_at,
        version=__version__,
        style=style,
        script=script,
        policy=_policy(style, script),
        charts=charts,
        plots=plots,
        runs_listed=RUNS_LISTED,
        title=_title(parts),
        summary=_summary(parts),
    )


def _title(parts: Sequence[Part]) -> str:
    """Return the title for a tab, a bookmark and a link's preview: the problem and its best score."""
    if len(parts) != 1:
        return f"{', '.join(part.problem.name for part in parts if part.shelves) or 'No runs'} · Podium"
    best = min(_bests(parts), key=lambda each: each[2].entry.score_ns or math.inf, default=None)
    if best is None:
        return f"{parts[0].problem.title} · Podium"
    part, shelf, first = best
    return f"{part.problem.title}: {_told(first)} on {shelf.name} · Podium"


def _summary(parts: Sequence[Part]) -> str:
    """Return a sentence for each board, for a link's preview."""
    told = [
        f"{part.problem.name} on {shelf.name}: {_told(first)}, the best of {len(shelf.ranked)} ranked."
        for part, shelf, first in _bests(parts)[:BOARDS_TOLD]
    ]
    return " ".join(told) or "Leaderboards of attention kernels; nothing is ranked here yet."


def _bests(parts: Sequence[Part]) -> list[tuple[Part, Shelf, Sheet]]:
    return [(part, shelf, shelf.ranked[0]) for part in parts for shelf in part.shelves if shelf.ranked]


def _told(sheet: Sheet) -> str:
    """Return `30.50 µs by gluon_fp8`."""
    return f"{_microseconds(sheet.entry.score_ns)} µs by {sheet.entry.submission}"


@functools.cache
def environment(*folders: Path) -> Environment:
    """Return the template environment with its filters. Templates in `folders` take precedence over the report's
    own. It is kept, because it keeps the compiled templates."""
    made = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        microseconds=_microseconds,
        interval=_interval,
        half_width=_half_width,
        figure=_figure,
        error=lambda error: "" if error is None else f"{error:.2g}",
        moment=_moment,
        tail=lambda text: legible.tail(text, PRINTED_CHARACTERS),
        highlighted=legible.highlighted,
        place=lambda percent: f"{percent:.2f}%",
        pixel=lambda height: f"{height:.1f}",
        percent=figures.percent,
        binds=run.binds,
        ratio=figures.ratio,
        span=timing.span,
        speed_up=timing.speed_up,
        speed_up_interval=timing.speed_up_interval,
        clock=run.clock,
        taken_again=timing.taken_again,
        because=notes.why_unranked,
        cause=left_out.cause,
        size=_size,
        sentence=_sentence,
        coded=_coded,
    )
    made.globals.update(
        outcome=outcome, no_isolation=NO_ISOLATION.tier, unjudged=Unranked.UNJUDGED, older=Unranked.OLDER
    )
    made.globals.update(worker_timed=Unranked.WORKER_TIMED, workers_own=notes.WORKERS_OWN, labels=run.labels)
    made.globals.update(label_notes=run.label_notes, sections=_sections)
    made.globals.update(limit_note=notes.limit_note, no_baseline=notes.no_baseline, of_cards=notes.of_cards)
    made.globals.update(of_another_form=notes.of_another_form)
    made.globals.update(older_source=OLDER_SOURCE, source_changed=notes.SOURCE_CHANGED)
    return made


def _finalize(value: Any) -> Any:
    """Convert the value of a template's expression before it is escaped."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return "" if value is None else value
    return legible.legible(legible.without_paths(value))


def _coded(text: str) -> Markup:
    """`text` escaped, with what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_finalize(text)))))


def _asset(name: str) -> Markup:
    """Return a file of this package, to be put into the page unchanged."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> str:
    """Return the policy: only the inline style and script with these hashes, and no request. See
    https://www.w3.org/TR/CSP3/."""
    return (
        f"default-src 'none'; style-src '{_source_hash(style)}'; script-src '{_source_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _source_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _microseconds(latency_ns: float | None) -> str:
    """Return the centre without its interval, which has a column of its own."""
    return "" if latency_ns is None else figures.significant(latency_ns / 1e3)


def _interval(estimate: Any) -> str:
    """Return the interval of an Estimate or an Entry: `±0.5 %` or `×/÷ 2.3`."""
    centre = getattr(estimate, "score_ns", None) or estimate.latency_ns
    both = figures.microseconds(Estimate(latency_ns=centre, low_ns=estimate.low_ns, high_ns=estimate.high_ns))
    return both.removeprefix(_microseconds(centre)).strip(" ")


def _half_width(estimate: Any) -> str:
    """Return the sort key for an interval's column: half its width as a log-ratio."""
    low, high = estimate.low_ns, estimate.high_ns
    return _figure(math.log(high / low) / 2 if low and high else None)


def _figure(value: float | None) -> str:
    """Return the sort key of a cell, in the form that the script reads. None and NaN give "", which sorts last."""
    if value is None or math.isnan(value):
        return ""
    return repr(value) if math.isfinite(value) else f"{'-' * (value < 0)}Infinity"


def _moment(text: str) -> str:
    """Return a run's `started_at` as `2026-01-03 12:34` (UTC). Text that is not a date stays unchanged."""
    return text[:16].replace("T", " ") if plots.date(text) else text


def _sections(shelf: Shelf) -> list[tuple[str, str]]:
    """Return the entries of a device in the table of contents: the title, and the suffix of the section's id."""
    found = [("Board", "b")] if shelf.ranked else []
    found += [("Latency by case", "c")] if charts.case_panels(shelf.ranked, shelf.cases) else []
    found += [("Latency against error", "x")] if plots.frontier(shelf.ranked) else []
    found += [("Best over time", "h")] if plots.history_plot(shelf.lines) else []
    return [*found, ("Submissions", "s"), ("All runs", "r"), ("Environments", "e")]


def _size(count: int) -> str:
    return f"{count / 2**30:.0f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _sentence(text: str) -> str:
    """Return `text` with a capital at its beginning, unless it begins with a name such as `kv_replicate` or
    `batch_size=4`."""
    first = text.partition(" ")[0]
    return text if "_" in first or "=" in first else text[:1].upper() + text[1:]
