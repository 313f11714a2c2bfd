"""Boards, verdicts and lists as parts of a document, with their figures as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from harness.command import page, typed
from harness.model import (
    NO_ISOLATION,
    OLDER_SOURCE,
    ClockOwner,
    Estimate,
    Excess,
    Label,
    Problem,
    Run,
    Unranked,
    Verdict,
    outcome,
)
from harness.ranking.board import Bearings, Board, Standing
from harness.records.entry import Entry
from harness.render import left_out
from harness.render.cases import case_list
from harness.render.document import Part, Prose, Table, Verbatim
from harness.render.figures import error_figure, in_microseconds, microseconds, percent, ratio, wide_note
from harness.render.fit import hanging, shortened
from harness.verbs.verify import ControlResult

PRINTED_LINES, PRINTED_COLUMNS = 8, 200
"""The most lines of a submission's output that are shown, and the most characters of each line."""


def board(problem: Problem, device_name: str, ranked: Board, notes: Sequence[str]) -> list[Part]:
    """Return a leaderboard: the ranked table, the unranked submissions with reasons, and notes."""
    parts: list[Part] = [f"{problem.title} ({problem.name}) on {device_name}"]
    if ranked.standings:
        below = limit_note({s.entry.floor_format for s in ranked.standings if s.of_limit})
        rows = [_ranked_row(standing) for standing in ranked.standings]
        below += wide_note(str(row[2]) for row in rows)
        below += no_baseline(problem, ranked) + of_another_form(problem, device_name)
        below += [WORKERS_OWN] if ranked.clock is ClockOwner.WORKER else []
        below += [SOURCE_CHANGED] if any(standing.entry.older_source for standing in ranked.standings) else []
        parts.append(Table(_RANKED_HEADERS, rows, below))
    else:
        parts.append("Nothing is ranked here yet.")
        parts += map(Prose, terms(problem, device_name))
    verified = [entry for entry in ranked.unranked if entry.verdict is Verdict.ACCEPTED]
    if verified:
        rows = [[e.submission, error_figure(e.error), e.tolerance, e.runs or "", e.unranked, e.flags] for e in verified]
        parts.append(Table(["accepted, not ranked", "error", "tolerance", "runs", "because", "flags"], rows))
        reasons = sorted({reason for e in verified for reason in (e.unranked or "").split(", ")})
        parts += [Prose(f"{reason or 'not timed'}: {why_unranked(reason)}.") for reason in reasons]
    parts += left_out.parts(ranked.unranked)
    if any(entry.flags for entry in (*(standing.entry for standing in ranked.standings), *verified)):
        parts.append(Prose("flags: what a scanner found suspicious in the source. It is no verdict; `show` says more."))
    return [*parts, *notes]


def of_another_form(problem: Problem, device_name: str) -> list[str]:
    """Return notes on how a foreign problem's board differs from others."""
    said = terms(problem, device_name)
    if problem.foreign is not None and not problem.foreign.cost:
        said.append("No floor: the problem states no cost, so no latency is held against what the device allows.")
    if problem.ranking == "mean":
        said.append("score: the arithmetic mean over the cases, as the problem asks for it.")
    return said


def terms(problem: Problem, device_name: str) -> list[str]:
    """Return notes on the devices and the deadline of the problem's competition, if these do not fit here and now."""
    return problem.foreign.terms(device_name, datetime.now(UTC)) if problem.foreign is not None else []


def secret_cases(problem: Problem) -> list[Part]:
    """Return the part below a problem's boards on the secret cases, which each run draws anew."""
    parts: list[Part] = []
    for where, cases in (("a GPU", problem.cases), ("a CPU", problem.cpu)):
        if cases.secret:
            drawn = "\n".join(f"  {family.label}" for family in cases.secret)
            parts.append(Prose(f"Each run on {where} also checks cases that it draws in secret:\n{drawn}"))
    return parts


def published(problem: Problem) -> list[Part]:
    """Return the figures that others published for the problem, by source, apart from measurements."""
    parts: list[Part] = ["Published by others, not measured here:"]
    for source in dict.fromkeys(figure.source for figure in problem.published):
        rows = [[f.device, f.case, f.value, f.what] for f in problem.published if f.source == source]
        parts.append(Table(["device", "case", "figure", "of"], rows, title=source, frame=False))
    return parts


def failure(shown: Run, stored: bool = True, cases: Sequence[str] = (), secret: int = 0) -> Part:
    """Return the facts on a failed run: its cases one by one, the detail, and the end of the submission's output.
    `cases`: labels, of which the untried ones are listed too. `secret`: the number of untried secret cases."""
    lines = [f"{shown.submission}:", case_list(shown.checks, cases, secret)] if shown.checks else []
    detail = shown.ending.detail or shown.ending.message
    lines.append(f"{shown.submission}: {hanging(detail) if shown.ending.verdict is Verdict.WRONG_ANSWER else detail}")
    whole = typed("show", shown.id) if stored else "--json"
    return Verbatim("\n".join(lines + ([printed(shown.output, whole)] if shown.output.strip() else [])))


def printed(output: str, whole: str) -> str:
    """Return the end of a submission's output. If it is cut, name the command that shows the `whole`."""
    lines = output.strip().splitlines()
    last = [f"  {shortened(line, PRINTED_COLUMNS)}" for line in lines[-PRINTED_LINES:]]
    cut = f"the last {PRINTED_LINES} of {len(lines)} lines" if len(lines) > PRINTED_LINES else ""
    if not cut and max(map(len, lines)) > PRINTED_COLUMNS:
        cut = "long lines are cut"
    return "\n".join([f"It printed{f' ({cut}; all: {whole})' if cut else ''}:", *last])


_RANKED_HEADERS = [
    "rank",
    "submission",
    "score µs",
    "×\xa0best baseline",
    "of the limit",
    "error",
    "tolerance",
    "runs",
    "source",
    "isolation",
    "flags",
]
OF_THE_LIMIT = "of the limit: floor ÷ latency; 100 % is best. The floor is the least time that the datasheet allows"
"""The note below every table with that column, followed by the formats of the floors."""
WORKERS_OWN = "worker-timed: the submissions' own processes timed these; a submission can change such a time."
"""The note below such times."""
SOURCE_CHANGED = (
    f"{OLDER_SOURCE}: the file has changed since this run. The run stays ranked; eval judges the present file."
)
"""The note below a board with such runs."""

_HINTS = {
    Unranked.NOISY: ": judge it again when nothing else runs",
    Unranked.UNSTABLE: ": see its rounds with `show`",
    Unranked.IMPRECISE: ": end what else runs and judge it again",
    Unranked.VOIDED: ": see why with `show`, then judge it again",
    Unranked.CROWDED: ": judge it again when nothing else runs",
    Unranked.BELOW_FLOOR: ": check the cost in the problem's reference.py",
    Unranked.WORKER_TIMED: ": judge it again, on a CPU or with CUDA, where the judge times",
    Unranked.OLDER: ": judge it again",
    Unranked.UNSANDBOXED: f"; see {page('sandbox')}",
}
"""Advice on runs that are not ranked, appended to the reason."""


def why_unranked(reasons: str | None) -> str:
    """Say why an accepted run is not ranked: a sentence for each of the comma-separated reasons."""
    return "; ".join(map(_why_unranked, reasons.split(", "))) if reasons else "it has no score"


def _why_unranked(reason: str) -> str:
    if reason not in tuple(Unranked):
        return reason  # from an older Podium
    return Unranked(reason).why + _HINTS.get(Unranked(reason), "")


def _ranked_row(standing: Standing) -> list[object]:
    entry = standing.entry
    assert entry.score_ns is not None
    estimate = Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)
    return [
        standing.rank,
        entry.submission,
        microseconds(estimate),
        f"{standing.times_baseline:.2f}" if standing.times_baseline else "",
        percent(standing.of_limit),
        error_figure(entry.error),
        entry.tolerance,
        entry.runs,
        OLDER_SOURCE if entry.older_source else "",
        "none" if entry.isolation == NO_ISOLATION.tier else "",
        entry.flags,
    ]


def runs(entries: Sequence[Entry]) -> list[Part]:
    """Return stored runs, one a line. The clock is shown only if the judge did not time all of them."""
    rows = []
    for entry in entries:
        score = entry.score_ns and Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)
        words = outcome(entry.verdict, entry.unranked)
        unranked = entry.unranked if entry.verdict is Verdict.ACCEPTED else None
        figure = microseconds(score) if score else ""
        rows.append([entry.id, entry.problem, entry.device, words, unranked, figure])
    headers = ["run", "problem", "device", "verdict", "not ranked", "score µs"]
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


def verdict_line(shown: Run, bearings: Bearings | None = None, stored: bool = True) -> str:
    """Return the line that is printed last.

    `accepted: mine on mla: all 5 test cases are right; 812 µs ±0.5 %, 31 % of the limit (mxfp4), 1.5 × as fast as the
    best baseline, 0.97 × as fast as the best so far (triton_fp8)`. Facts that `bearings` lacks are left out.
    """
    words = outcome(shown.ending.verdict, shown.unranked_because)
    crowded = any(Label.CROWDED in measurement.labels for measurement in shown.measurements)
    if bearings and crowded:  # also for a quick run, which is unranked for another reason
        bearings = replace(bearings, times_baseline=shown.speed_up, times_best=None)
    figures = []
    if shown.score:
        figures.append(in_microseconds(shown.score))
    if bearings and bearings.of_limit:
        figures.append(f"{percent(bearings.of_limit)} of the limit ({bearings.floor_format})")
    if bearings and bearings.times_baseline:
        figures.append(f"{bearings.times_baseline:.2f} \N{MULTIPLICATION SIGN} as fast as the best baseline")
    if bearings and bearings.times_best:
        held = f"{bearings.times_best:.2f} \N{MULTIPLICATION SIGN} as fast as"
        figures.append(f"{'not told apart from' if bearings.level else held} the best so far ({bearings.best})")
    if crowded:
        most = max((each.others_share or 0.0 for each in shown.rounds), default=0.0)
        figures.append(f"while other processes took up to {most:.0%} of the processors")
    if figures and shown.clock is ClockOwner.WORKER and shown.unranked_because != Unranked.WORKER_TIMED:
        figures.append(Unranked.WORKER_TIMED)
    if figures and shown.unranked_because:
        besides = f", {Label.CROWDED}" if crowded and shown.unranked_because != Unranked.CROWDED else ""
        figures.append(f"not ranked: {shown.unranked_because}{besides}")
    score = f"; {', '.join(figures)}" if figures else ""
    where = f" (show {shown.id})" if stored else ""
    return f"{words}: {shown.submission} on {shown.problem}: {shown.ending.message}{score}{where}"


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
    below = ["12 / 7: 12 on a GPU, 7 on a CPU"] if any(" / " in cell for row in rows for cell in row[2:5]) else []
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


NO_FIGURE = "\N{INFINITY}"


def _margin(excess: Excess | None) -> str:
    """Return `450.12 max_mismatch`, or `∞ max_mismatch` over a limit of 0."""
    return ratio(excess) if excess is None or math.isfinite(excess.ratio) else f"{NO_FIGURE} {excess.limit}"


def limit_note(formats: Iterable[str | None]) -> list[str]:
    """Explain "of the limit" where floors of these `formats` are shown. Empty if there is none."""
    named = sorted({name for each in formats if each for name in each.split(", ")})
    return [f"{OF_THE_LIMIT}, here for {' and '.join(named)} data."] if named else []


def no_baseline(problem: Problem, ranked: Board) -> list[str]:
    """Say why a board has no column `× best baseline`, and how to get it. Empty if it has the column."""
    if not ranked.standings or any(standing.times_baseline for standing in ranked.standings):
        return []
    if not problem.baselines:
        return ["no × best baseline: the problem names no baseline."]
    return [f"no × best baseline: no baseline is ranked here. Judge {' or '.join(problem.baselines)} for one."]
