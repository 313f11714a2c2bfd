"""Boards, verdicts and lists as parts of a document, and the figures in them as text."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence

from harness.entry import Entry
from harness.model import (
    BELOW_FLOOR,
    CROWDED,
    NOISY,
    OLDER,
    REPRODUCED,
    UNSANDBOXED,
    UNSTABLE,
    VOIDED,
    WORKER_TIMED,
    Clock,
    Estimate,
    Excess,
    Problem,
    Run,
    Verdict,
    outcome,
)
from harness.ranking import Bearings, Board, Standing
from harness.render.document import Part, Table, Verbatim
from harness.sandbox.isolation import NO_ISOLATION
from harness.verification import ControlResult

PRINTED_LINES = 8


def board(problem: Problem, device_name: str, ranked: Board, notes: Sequence[str]) -> list[Part]:
    """A leaderboard: the ranked table, what is not ranked and why, and notes."""
    parts: list[Part] = [f"{problem.title} ({problem.name}) on {device_name}"]
    if ranked.standings:
        below = [WORKERS_OWN] if ranked.clock is Clock.WORKER else []
        parts.append(Table(_RANKED_HEADERS, [_ranked_row(standing) for standing in ranked.standings], below))
    else:
        parts.append("Nothing is ranked here yet.")
    verified = [entry for entry in ranked.unranked if entry.verdict is Verdict.ACCEPTED]
    left_out = [entry for entry in ranked.unranked if entry.verdict is not Verdict.ACCEPTED]
    if verified:
        rows = [[e.submission, error_figure(e.error), e.tolerance, e.runs, e.unranked, e.flags] for e in verified]
        parts.append(Table(["accepted, not ranked", "error", "tolerance", "runs", "because", "flags"], rows))
        reasons = sorted({reason for e in verified for reason in (e.unranked or "").split(", ")})
        parts += [f"{reason or 'not timed'}: {why_unranked(reason)}." for reason in reasons]
    if left_out:
        room = max(_width() - 45, 40)
        rows = [
            [e.submission, outcome(e.verdict, e.unranked), OLDER if e.older else "", _shorten(e.message, room)]
            for e in left_out
        ]
        parts.append(Table([f"left out ({len(left_out)})", "verdict", "judged", "what was seen"], rows))
    if any(entry.flags for entry in (*(standing.entry for standing in ranked.standings), *verified)):
        parts.append("Flags are what a scanner of the source found suspicious, which is no verdict: see `show`.")
    return [*parts, *notes]


def secret_cases(problem: Problem) -> list[Part]:
    """Below its boards: what runs are checked on besides the stated cases, drawn anew by each."""
    parts: list[Part] = []
    for where, cases in (("a GPU", problem.cases), ("a CPU", problem.cpu)):
        if cases.secret:
            drawn = "\n".join(f"  {family.label}" for family in cases.secret)
            parts.append(f"Each run on {where} also checks cases that it draws in secret:\n{drawn}")
    return parts


def published(problem: Problem) -> list[Part]:
    """Figures that others published for the problem, by source, apart from anything measured here."""
    parts: list[Part] = ["Published by others, not measured here:"]
    for source in dict.fromkeys(figure.source for figure in problem.published):
        rows = [[f.device, f.case, f.value, f.what] for f in problem.published if f.source == source]
        parts.append(Table(["device", "case", "figure", "of"], rows, title=source, frame=False))
    return parts


def failure(shown: Run) -> Part:
    """What to know of a run that failed: the detail, and the last of what the submission printed."""
    lines = [f"{shown.submission}: {shown.ending.detail or shown.ending.message}"]
    return Verbatim("\n".join(lines + ([printed(shown)] if shown.output.strip() else [])))


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
    "tolerance",
    "runs",
    "isolation",
    "flags",
]
WORKERS_OWN = "worker-timed: the submissions' own processes timed these; a submission can change such a time."
"""Stands below a board of such times."""
_UNRANKED = {
    "interpreted": "verified through Triton's interpreter; interpreted time is no measurement",
    "quick": "a quick look: one process",
    NOISY: "the judge's own clock could not confirm the times: judge it again when nothing else runs",
    UNSTABLE: "the machine became slower while it was timed: see its rounds with `show`",
    VOIDED: "more than a tenth of the calls had to be taken again: see why with `show`, then judge it again",
    CROWDED: "other processes took the processors meanwhile: judge it again when nothing else runs",
    BELOW_FLOOR: "it took less than the device's datasheet allows: check the cost in the problem's reference.py",
    WORKER_TIMED: "timed by the submission's own process: judge it again, on a CPU or with CUDA, where the judge times",
    OLDER: "the problem's files have changed since it was judged: judge it again",
    UNSANDBOXED: "nothing confined the submission; see docs/security.md",
    "skipped": "cases left out that do not fit this device's memory",
    REPRODUCED: "judged with the seeds of an earlier run, so its inputs could be known",
}


def why_unranked(reasons: str | None) -> str:
    """In words, why a run that was accepted is not ranked: of each reason, with commas between, a sentence."""
    return "; ".join(_UNRANKED.get(reason, reason or "it has no score") for reason in (reasons or "").split(", "))


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
        error_figure(entry.error),
        entry.tolerance,
        entry.runs,
        "none" if entry.isolation == NO_ISOLATION.tier else "",
        entry.flags,
    ]


def runs(entries: Sequence[Entry]) -> Part:
    """Stored runs, a line each."""
    rows = []
    for entry in entries:
        score = entry.score_ns and Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)
        words = outcome(entry.verdict, entry.unranked)
        unranked = entry.unranked if entry.verdict is Verdict.ACCEPTED else None
        clock = WORKER_TIMED if entry.worker_timed else ""
        figure = microseconds(score) if score else ""
        rows.append([entry.id, entry.problem, entry.device, words, unranked, figure, clock])
    headers = ["run", "problem", "device", "verdict", "not ranked", "score µs", "clock"]
    return Table(headers, rows) if rows else "No runs yet."


def verdict_line(shown: Run, bearings: Bearings | None = None) -> str:
    """What a caller wants to read last.

    `accepted: mine on mla: all 5 test cases are right; 812 µs ±0.5 %, 31 % of the floor, 1.5 × as fast as the best
    baseline, 0.97 × as fast as the best so far (triton_fp8)`: of `bearings` what there is.
    """
    words = outcome(shown.ending.verdict, shown.unranked_because)
    figures = []
    if shown.score:
        centre, *interval = microseconds(shown.score).split(" ", 1)
        figures.append(" ".join([centre, "µs", *interval]))
    if bearings and bearings.fraction_of_floor:
        figures.append(f"{significant(100 * bearings.fraction_of_floor, 2)} % of the floor")
    if bearings and bearings.times_baseline:
        figures.append(f"{bearings.times_baseline:.2f} \N{MULTIPLICATION SIGN} as fast as the best baseline")
    if bearings and bearings.times_best:
        held = f"{bearings.times_best:.2f} \N{MULTIPLICATION SIGN} as fast as"
        figures.append(f"{'not told apart from' if bearings.level else held} the best so far ({bearings.best})")
    if any(CROWDED in measurement.labels for measurement in shown.measurements):
        most = max(each.others_share or 0.0 for each in shown.rounds)
        figures.append(f"while other processes took up to {most:.0%} of the processors")
    if figures and shown.clock is Clock.WORKER and shown.unranked_because != WORKER_TIMED:
        figures.append(WORKER_TIMED)
    if figures and shown.unranked_because:
        figures.append(f"not ranked: {shown.unranked_because}")
    score = f"; {', '.join(figures)}" if figures else ""
    return f"{words}: {shown.submission} on {shown.problem}: {shown.ending.message}{score} (show {shown.id})"


def problems(found: Sequence[Problem]) -> Part:
    rows = [
        [p.name, p.title, len(p.cases.test), p.cases.secret_count, len(p.cases.benchmark), ", ".join(p.tolerances)]
        for p in found
    ]
    return (
        Table(["problem", "title", "tests", "secret", "benchmarks", "tolerances"], rows)
        if rows
        else "No problems here."
    )


def verification(problem: Problem, results: Sequence[ControlResult]) -> Part:
    """The controls: the verdict due, the verdict got, and the worst limit's value over the limit, a tolerance each."""
    tolerances = list(problem.tolerances)
    rows = [
        [r.name, r.due.words, r.got.words, *(ratio(r.excess.get(t)) for t in tolerances), "NO" if r.faults else "yes"]
        for r in results
    ]
    headers = ["control", "due", "got", *(f"of {name}" for name in tolerances), "as due"]
    return Table(headers, rows, title=f"{problem.name}: {len(results)} controls")


def microseconds(estimate: Estimate) -> str:
    """`812.3 ±0.5 %`: the centre in µs and its interval. A wide one, symmetric only as a factor, as `×/÷ 2.3`."""
    centre = f"{significant(estimate.latency_ns / 1e3)}"
    if estimate.low_ns is None or estimate.high_ns is None:
        return centre
    factor = math.sqrt(estimate.high_ns / estimate.low_ns)
    if factor > 1.2:
        return f"{centre} \N{MULTIPLICATION SIGN}/\N{DIVISION SIGN}\xa0{significant(factor, 2)}"
    return f"{centre} ±{significant(100 * (factor - 1), 2)}\xa0%"


def ratio(excess: Excess | None) -> str:
    """`0.73 rel_l2`: how much of a tolerance is used, and by which limit."""
    if excess is None:
        return ""
    return f"{excess.ratio:.2f} {excess.limit}" if math.isfinite(excess.ratio) else excess.limit


def _width() -> int:
    return shutil.get_terminal_size((120, 24)).columns


def error_figure(error: float | None) -> str:
    return "" if error is None else f"{error:.2g}"


def significant(value: float, digits: int = 4) -> str:
    if value >= 1e9:
        return f"{value:.0e}"
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(digits - 1 - math.floor(math.log10(value)), 0)
    return f"{value:,.{decimals}f}"


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
