"""Tables and texts for a terminal, through tabulate."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence

from tabulate import tabulate

from harness.model import (
    NOISY,
    REPRODUCED,
    UNSANDBOXED,
    CaseCheck,
    Estimate,
    Excess,
    Measurement,
    Problem,
    Run,
    Verdict,
    outcome,
)
from harness.ranking import Board, Standing
from harness.sandbox.isolation import NO_ISOLATION
from harness.verification import ControlResult

TABLE_FORMAT = "simple_outline"
PRINTED_LINES = 8


def board(problem: Problem, device_name: str, ranked: Board, notes: Sequence[str]) -> str:
    """A leaderboard: the ranked table, what is not ranked and why, and notes."""
    parts = [f"{problem.title} ({problem.name}) on {device_name}"]
    if ranked.standings:
        parts.append(_table(_RANKED_HEADERS, [_ranked_row(standing) for standing in ranked.standings]))
    else:
        parts.append("Nothing is ranked here yet.")
    verified = [entry for entry in ranked.unranked if entry.verdict is Verdict.ACCEPTED]
    left_out = [entry for entry in ranked.unranked if entry.verdict is not Verdict.ACCEPTED]
    if verified:
        rows = [[e.submission, _error(e.error), e.tolerance, e.runs, e.unranked, e.flags] for e in verified]
        parts.append(_table(["accepted, not ranked", "error", "tolerance met", "runs", "because", "flags"], rows))
        parts += sorted({f"{e.unranked}: {_unranked(e.unranked)}." for e in verified})
    if left_out:
        room = max(_width() - 45, 40)
        rows = [[e.submission, outcome(e.verdict, e.unranked), _shorten(e.message, room)] for e in left_out]
        parts.append(_table([f"left out ({len(left_out)})", "verdict", "what was seen"], rows))
    if any(entry.flags for entry in (*(standing.entry for standing in ranked.standings), *verified)):
        parts.append("Flags are what a scanner of the source found suspicious, which is no verdict: see `show`.")
    parts += notes
    return "\n\n".join(parts)


def published(problem: Problem) -> str:
    """Figures that others published for the problem, by source, apart from anything measured here."""
    lines = ["Published by others, not measured here:"]
    for source in dict.fromkeys(figure.source for figure in problem.published):
        lines.append(f"  {source}")
        mine = [figure for figure in problem.published if figure.source == source]
        rows = [[f"    {f.device}", f.case, f.value, f.what] for f in mine]
        lines.append(tabulate(rows, tablefmt="plain", disable_numparse=True))
    return "\n".join(lines)


def failure(shown: Run) -> str:
    """What to know of a run that failed: the detail, and the last of what the submission printed."""
    parts = [f"{shown.submission}: {shown.ending.detail or shown.ending.message}"]
    return "\n".join(parts + ([printed(shown)] if shown.output.strip() else []))


def printed(shown: Run) -> str:
    """The last of what the submission printed."""
    lines = shown.output.strip().splitlines()
    more = f" (the last {PRINTED_LINES} of {len(lines)} lines)" if len(lines) > PRINTED_LINES else ""
    return "\n".join([f"It printed{more}:", *(f"  {_shorten(line, 200)}" for line in lines[-PRINTED_LINES:])])


_RANKED_HEADERS = [
    "rank",
    "submission",
    "score µs",
    "×\xa0best baseline",
    "%\xa0of floor",
    "error",
    "tolerance met",
    "runs",
    "isolation",
    "flags",
]
_UNRANKED = {
    "interpreted": "verified through Triton's interpreter; interpreted time is no measurement",
    "quick": "a quick look: one process",
    NOISY: "the judge's own clock could not confirm the times: judge it again when nothing else runs",
    UNSANDBOXED: "nothing confined the submission; see docs/security.md",
    "skipped": "cases left out that do not fit this device's memory",
    REPRODUCED: "judged with the seeds of an earlier run, so its inputs could be known",
}


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
        "none" if entry.isolation == NO_ISOLATION.tier else "",
        entry.flags,
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
        ("verdict", f"{outcome(shown.ending.verdict, shown.unranked_because)}: {shown.ending.message}"),
        ("tolerance met", shown.tolerance or ""),
        ("error", _error(shown.error)),
        ("score µs", microseconds(shown.score) if shown.score else "none"),
    ]
    if shown.reproduces:
        facts.insert(1, ("reproduces", shown.reproduces))
    if shown.unranked_because and shown.ending.verdict is Verdict.ACCEPTED:
        facts.append(("not ranked", _unranked(shown.unranked_because)))
    parts = [tabulate(facts, tablefmt="plain", disable_numparse=True)]
    if shown.measurements:
        parts.append(cases(shown.measurements))
    if shown.checks:
        parts.append(_checks(shown.checks))
    if shown.skipped:
        parts.append(_table(["skipped case", "why"], [[s.case.label, s.reason] for s in shown.skipped]))
    if shown.triage:
        rows = [[found.rule, found.severity, _shorten(found.what, 100)] for found in shown.triage]
        parts.append("Suspicious in the source, by a scanner that decides nothing:")
        parts.append(_table(["rule", "severity", "what was seen"], rows))
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
    words = outcome(shown.ending.verdict, shown.unranked_because)
    where = f" (show {shown.id})"
    return f"{words}: {shown.submission} on {shown.problem}: {shown.ending.message}{score}{where}"


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
    """`812.3 ±0.5 %`: the centre in µs and its interval. A wide one, symmetric only as a factor, as `×/÷ 2.3`."""
    centre = f"{_significant(estimate.latency_ns / 1e3)}"
    if estimate.low_ns is None or estimate.high_ns is None:
        return centre
    factor = math.sqrt(estimate.high_ns / estimate.low_ns)
    if factor > 1.2:
        return f"{centre} \N{MULTIPLICATION SIGN}/\N{DIVISION SIGN}\xa0{_significant(factor, 2)}"
    return f"{centre} ±{_significant(100 * (factor - 1), 2)}\xa0%"


def ratio(excess: Excess | None) -> str:
    """`0.73 rel_l2`: how much of a tolerance is used, and by which limit."""
    if excess is None:
        return ""
    return f"{excess.ratio:.2f} {excess.limit}" if math.isfinite(excess.ratio) else excess.limit


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table without the columns that are empty in every row."""
    kept = [i for i in range(len(headers)) if any(row[i] not in (None, "") for row in rows)]
    cells = [[row[i] for i in kept] for row in rows]
    # Numbers come formatted; tabulate must not read them again.
    return tabulate(cells, headers=[headers[i] for i in kept], tablefmt=TABLE_FORMAT, disable_numparse=True)


def _width() -> int:
    return shutil.get_terminal_size((120, 24)).columns


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
