"""A comparison for a terminal or as JSON: the finding, each case's latencies and ratio, and the sources' difference."""

from __future__ import annotations

import difflib
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from harness.model import Estimate, told_apart
from harness.ranking.comparison import Comparison, PairedMeasurement
from harness.ranking.speed import Speed, SpeedFinding
from harness.ranking.stats import Ratio
from harness.render import document
from harness.render.colour import wanted
from harness.render.document import Part, Table, Verbatim
from harness.render.figures import microseconds
from harness.render.legible import legible

SIDE_BY_SIDE_COLUMNS = 160
CONTEXT_LINES = 3
SAME_SOURCES = "The sources are the same."
_COLOURS = {"-": "red", "+": "green", "@": "cyan"}


def text(
    comparison: Comparison, a_source: str, b_source: str, width: int | None = None, colour: bool | None = None
) -> str:
    """Return the whole comparison. Default: as wide as the terminal, and coloured if stdout is a terminal."""
    columns = width or shutil.get_terminal_size((120, 24)).columns
    coloured = wanted() if colour is None else colour
    names = _headings(comparison)
    return document.text(_parts(comparison, Verbatim(difference(a_source, b_source, names, columns, coloured))))


def markdown(comparison: Comparison, a_source: str, b_source: str) -> str:
    names = _headings(comparison)
    lines = "\n".join(_unified(a_source, b_source, names))
    return document.markdown(_parts(comparison, Verbatim(lines, language="diff") if lines else SAME_SOURCES))


def _parts(comparison: Comparison, sources: Part) -> list[Part]:
    """Return the verdict first: the sources may differ in hundreds of lines, so they come last."""
    return [
        verdict_line(comparison),
        f"{comparison.problem} on {comparison.device}",
        table(comparison),
        *comparison.notes,
        noise(comparison),
        sources,
    ]


def noise(comparison: Comparison) -> str:
    """Return the line on the device's noise and its source."""
    return f"noise: ±{comparison.noise.percent:.2g}\N{NO-BREAK SPACE}%, {comparison.noise.source}"


def as_json(
    comparison: Comparison, a_source: str, b_source: str, measurements: Sequence[PairedMeasurement] = ()
) -> dict[str, Any]:
    """Return the comparison with the unified diff of the sources. For a duel, `measurements` adds every sample."""
    names = _headings(comparison)
    return {
        "problem": comparison.problem,
        "device": comparison.device,
        "a": {"submission": comparison.a, "run": comparison.a_run, "score_ns": comparison.a_ns},
        "b": {"submission": comparison.b, "run": comparison.b_run, "score_ns": comparison.b_ns},
        **_finding(comparison.finding),
        "confidence": comparison.confidence,
        "noise": asdict(comparison.noise),
        "notes": list(comparison.notes),
        "cases": [
            {"case": case.case.parameters, "a_ns": case.a_ns, "b_ns": case.b_ns, "labels": list(case.labels)}
            | _finding(case.finding)
            for case in comparison.cases
        ],
        "diff": "".join(f"{line}\n" for line in _unified(a_source, b_source, names)),
        "samples": [
            {"case": m.case.parameters, "a_samples_ns": m.a_samples_ns, "b_samples_ns": m.b_samples_ns}
            for m in measurements
        ],
    }


def difference(a_source: str, b_source: str, names: tuple[str, str], width: int, colour: bool) -> str:
    """Return the sources' difference, side by side if `width` allows, else as a unified diff."""
    if a_source == b_source:
        return SAME_SOURCES
    output = io.StringIO()
    console = Console(file=output, force_terminal=colour, no_color=not colour, width=width, highlight=False)
    if width >= SIDE_BY_SIDE_COLUMNS:
        console.print(_side_by_side(a_source, b_source, names))
    else:
        for line in _unified(a_source, b_source, names):
            heading = line.startswith(("--- ", "+++ "))
            console.print(Text(legible(line), "bold" if heading else _COLOURS.get(line[:1], "")), soft_wrap=True)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


WORDS = {speed: speed.upper() for speed in Speed}


def table(comparison: Comparison, a: str = "A", b: str = "B", words: Mapping[Speed, str] = WORDS) -> Table:
    """Return a table with both latencies of each case and of the score, B / A with its interval, and the finding in one
    of `words`. Below it are the reasons that hold for some cases only."""
    names, shared = told_apart([case.case for case in comparison.cases])
    found = [
        (name, case.a_ns, case.b_ns, case.finding, case.labels)
        for name, case in zip(names, comparison.cases, strict=True)
    ]
    if comparison.a_ns is not None and comparison.b_ns is not None:
        found.append(("score", comparison.a_ns, comparison.b_ns, comparison.finding, ()))
    rows = [_row(*each, words) for each in found]
    headers = ["case", f"{a} µs", f"{b} µs", f"{b} / {a}", "interval", "verdict", "labels"]
    return Table(headers, rows, _reasons(comparison, names), f"every case: {shared}" if shared else "")


def _reasons(comparison: Comparison, names: Sequence[str]) -> list[str]:
    """Return why cases cannot be decided, each reason once with the names of its cases. The reason of the whole
    comparison is left out, since the last line states it."""
    having: dict[str, list[str]] = {}
    for name, case in zip(names, comparison.cases, strict=True):
        if case.finding.speed is Speed.AMBIGUOUS and case.finding.reason != comparison.finding.reason:
            having.setdefault(case.finding.reason, []).append(name)
    return [f"  {'; '.join(cases)}: {reason}" for reason, cases in having.items()]


def verdict_line(comparison: Comparison) -> str:
    """Return the last line: `SLOWER: mine is slower than theirs: +3.1 % in latency is more than the noise ...`."""
    said = {"faster": "is faster than", "slower": "is slower than", "same": "is as fast as"}
    speed, (a, b) = comparison.finding.speed, map(legible, comparison.names)
    claim = f"{b} {said[speed]} {a}" if speed in said else f"{b} against {a}"
    return f"{speed.upper()}: {claim}: {legible(comparison.finding.reason)}"


def _headings(comparison: Comparison) -> tuple[str, str]:
    a, b = comparison.names
    return f"A {a}", f"B {b}"


def _row(
    label: str, a_ns: float, b_ns: float, finding: SpeedFinding, labels: Sequence[str], words: Mapping[Speed, str]
) -> list[str]:
    times = [microseconds(Estimate(latency_ns=latency)) for latency in (a_ns, b_ns)]
    ratio = finding.ratio
    value = f"{ratio.value:.4f}" if ratio else ""
    return [label, *times, value, _interval(ratio), words[finding.speed], ", ".join(map(legible, labels))]


def _interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f"{ratio.low:.4f} to {ratio.high:.4f}"


def _finding(finding: SpeedFinding) -> dict[str, Any]:
    return {
        "verdict": finding.speed.value,
        "reason": finding.reason,
        "ratio": asdict(finding.ratio) if finding.ratio else None,
    }


def lines_of(source: str) -> list[str]:
    """Return the lines to compare. Only a newline ends a line. Other characters at which str.splitlines splits, such as
    a form feed, stay within the line, where `legible` names them."""
    lines = source.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _unified(a_source: str, b_source: str, names: tuple[str, str]) -> Iterator[str]:
    lines = lines_of(a_source), lines_of(b_source)
    return difflib.unified_diff(*lines, *names, n=CONTEXT_LINES, lineterm="")


def _side_by_side(a_source: str, b_source: str, names: tuple[str, str]) -> Grid:
    """Return the changed parts with context, old on the left, new on the right, with line numbers."""
    old, new = lines_of(a_source), lines_of(b_source)
    grid = Grid(box=None, expand=True, padding=(0, 1))
    for name in names:
        grid.add_column("", justify="right", style="dim", no_wrap=True)
        grid.add_column(Text(legible(name), "bold"), ratio=1, overflow="fold")
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(CONTEXT_LINES)):
        if number:
            grid.add_row("", Text("⋮", "cyan"), "", Text("⋮", "cyan"))
        for operation, a_start, a_end, b_start, b_end in group:
            changed = operation != "equal"
            for offset in range(max(a_end - a_start, b_end - b_start)):
                left = _cell(old, a_start + offset, a_end, "red" if changed else "")
                right = _cell(new, b_start + offset, b_end, "green" if changed else "")
                grid.add_row(*left, *right)
    return grid


def _cell(lines: Sequence[str], index: int, end: int, style: str) -> tuple[str, Text]:
    return (str(index + 1), Text(legible(lines[index]), style)) if index < end else ("", Text())
