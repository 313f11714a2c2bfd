"""Tables and texts for a terminal, through tabulate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tabulate import tabulate

from harness.model import UNJUDGED, CaseCheck, Estimate, Excess, Measurement, Problem, Run, Verdict
from harness.ranking import Board, Standing
from harness.verification import ControlResult

TABLE_FORMAT = "simple_outline"


def board(problem: Problem, device_name: str, ranked: Board, notes: Sequence[str]) -> str:
    """A leaderboard: the ranked table, what is not ranked and why, notes, and figures that others published."""
    parts = [f"{problem.title} ({problem.name}) on {device_name}"]
    if ranked.standings:
        parts.append(_table(_RANKED_HEADERS, [_ranked_row(standing) for standing in ranked.standings]))
    else:
        parts.append("Nothing is ranked here yet.")
    verified = [entry for entry in ranked.unranked if entry.verdict is Verdict.ACCEPTED]
    left_out = [entry for entry in ranked.unranked if entry.verdict is not Verdict.ACCEPTED]
    if verified:
        rows = [[e.submission, _unranked(e.unranked), _error(e.error), e.tolerance, e.runs] for e in verified]
        headers = ["accepted, not ranked", "because", "error", "tolerance met", "runs"]
        parts.append(_table(headers, rows))
    if left_out:
        rows = [[e.submission, _words(e.verdict, e.unranked), _shorten(e.message, 70)] for e in left_out]
        parts.append(_table([f"left out ({len(left_out)})", "verdict", "what was seen"], rows))
    parts += notes
    if problem.published:
        rows = [[f.device, f.case, f.what, f.value, f.source] for f in problem.published]
        headers = ["device", "case", "what", "value", "source"]
        parts.append("Published by others, not measured here:\n" + _table(headers, rows))
    return "\n\n".join(parts)


_RANKED_HEADERS = [
    "rank",
    "submission",
    "score µs",
    "×\xa0best baseline",
    "%\xa0of floor",
    "error",
    "tolerance met",
    "runs",
]
_UNRANKED = {
    "interpreted": "verified through Triton's interpreter; interpreted time is no measurement",
    "quick": "a quick look: one process",
    "skipped": "cases left out that do not fit this device's memory",
}


def _words(verdict: Verdict, unranked: str | None) -> str:
    return "not judged here" if unranked == UNJUDGED else verdict.words


def _unranked(reason: str | None) -> str:
    return _UNRANKED.get(reason or "", reason or "it has no score")


def _ranked_row(standing: Standing) -> list[object]:
    entry = standing.entry
    assert entry.score_ns is not None
    estimate = Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)
    return [
        standing.rank,
        entry.submission,
        microseconds(estimate),
        f"{standing.times_baseline:.2f}" if standing.times_baseline else "",
        f"{100 * standing.fraction_of_floor:.0f}" if standing.fraction_of_floor else "",
        _error(entry.error),
        entry.tolerance,
        entry.runs,
    ]


def cases(measurements: Sequence[Measurement]) -> str:
    """One run's benchmark cases: latency, floor, percentage of it, what binds, samples."""
    rows = []
    for m in measurements:
        floor = m.floor
        rows.append(
            [
                m.case.label,
                microseconds(m.latency),
                f"{floor.latency_ns / 1e3:.2f}" if floor else "",
                f"{100 * floor.latency_ns / m.latency.latency_ns:.0f}" if floor else "",
                floor.binds if floor else "",
                "×".join(map(str, (len(m.samples_ns), len(m.samples_ns[0])))),
                ", ".join(m.labels),
            ]
        )
    return _table(["case", "latency µs", "floor µs", "%\xa0of floor", "binds", "samples", "labels"], rows)


def run(shown: Run) -> str:
    """One run in full."""
    packages = " ".join(f"{name} {version}" for name, version in shown.environment.get("packages", {}).items())
    facts = [
        ("run", shown.id),
        ("submission", f"{shown.submission} ({shown.submission_sha256[:12]})"),
        ("problem", f"{shown.problem}, revision {shown.problem_revision}"),
        ("device", f"{shown.device.name} ({shown.device.arch})"),
        ("software", f"python {shown.environment.get('python', '?')} {packages}"),
        ("isolation", shown.environment.get("isolation", "?")),
        ("judged", f"{shown.started_at}, in {shown.duration_s:.1f} s"),
        ("verdict", f"{_words(shown.ending.verdict, shown.unranked_because)}: {shown.ending.message}"),
        ("tolerance met", shown.tolerance or ""),
        ("error", _error(shown.error)),
        ("score µs", microseconds(shown.score) if shown.score else "none"),
    ]
    if shown.unranked_because and shown.ending.verdict is Verdict.ACCEPTED:
        facts.append(("not ranked", _unranked(shown.unranked_because)))
    parts = [tabulate(facts, tablefmt="plain", disable_numparse=True)]
    if shown.measurements:
        parts.append(cases(shown.measurements))
    if shown.checks:
        parts.append(_checks(shown.checks))
    if shown.skipped:
        parts.append(_table(["skipped case", "why"], [[s.case.label, s.reason] for s in shown.skipped]))
    if shown.ending.detail:
        parts.append(shown.ending.detail)
    if shown.output.strip():
        parts.append("What it printed:\n" + shown.output.rstrip())
    return "\n\n".join(parts)


def _checks(checks: Sequence[CaseCheck]) -> str:
    tolerances = list(checks[0].excess)
    rows = [
        [c.case.label, c.verdict.words, c.calls, _error(c.error), *(ratio(c.excess.get(name)) for name in tolerances)]
        for c in checks
    ]
    return _table(["test case", "verdict", "calls", "error", *(f"of {name}" for name in tolerances)], rows)


def verdict_line(shown: Run) -> str:
    """`accepted: torch_bf16 on mla: all 5 test cases are right; 812 µs`: what a caller wants to read last."""
    score = f"; {_significant(shown.score.latency_ns / 1e3)} µs" if shown.score else ""
    words = _words(shown.ending.verdict, shown.unranked_because)
    return f"{words}: {shown.submission} on {shown.problem}: {shown.ending.message}{score}"


def problems(found: Sequence[Problem]) -> str:
    rows = [[p.name, p.title, len(p.cases.test), len(p.cases.benchmark), ", ".join(p.tolerances)] for p in found]
    return _table(["problem", "title", "tests", "benchmarks", "tolerances"], rows)


def verification(results: Sequence[ControlResult], tolerances: Sequence[str]) -> str:
    """The controls: the verdict due, the verdict got, and the worst limit's value over the limit, a tolerance each."""
    rows = [
        [r.name, r.due.words, r.got.words, *(ratio(r.excess.get(t)) for t in tolerances), "NO" if r.faults else "yes"]
        for r in results
    ]
    return _table(["control", "due", "got", *(f"of {name}" for name in tolerances), "as due"], rows)


def microseconds(estimate: Estimate) -> str:
    """`812.3 ±0.5 %`: the centre in µs and the half-width of its interval in per cent, as far as it has one."""
    centre = f"{_significant(estimate.latency_ns / 1e3)}"
    if estimate.low_ns is None or estimate.high_ns is None:
        return centre
    half_width = math.sqrt(estimate.high_ns / estimate.low_ns) - 1  # the interval is symmetric in the logarithm
    return f"{centre} ±{_significant(100 * half_width, 2)}\xa0%"


def ratio(excess: Excess | None) -> str:
    """`0.73 rel_l2`: how much of a tolerance is used, and by which limit."""
    if excess is None:
        return ""
    return f"{excess.ratio:.2f} {excess.limit}" if math.isfinite(excess.ratio) else excess.limit


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    # Numbers come formatted; tabulate must not read them again.
    return tabulate(rows, headers=headers, tablefmt=TABLE_FORMAT, disable_numparse=True)


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.2g}"


def _significant(value: float, digits: int = 4) -> str:
    if value >= 1e9:
        return f"{value:.0e}"
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(digits - 1 - math.floor(math.log10(value)), 0)
    return f"{value:,.{decimals}f}"


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
