"""A problem's boards as parts of a document: the ranked table, the unranked submissions, and the notes below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.command import typed
from harness.model import NO_ISOLATION, OLDER_SOURCE, ClockOwner, Estimate, Problem, Verdict
from harness.ranking.board import Board, Standing, close, closeness
from harness.render import left_out, lists, notes
from harness.render import run as rendered
from harness.render.document import Part, Prose, Table
from harness.render.figures import error_figure, microseconds, percent, wide_note
from harness.verbs import leaderboard

_HEADERS = [
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


def parts(root: Path, problem: Problem, device: str | None, published: bool = True, cases: bool = False) -> list[Part]:
    """Return the boards of `problem`, for one device or all, followed by its families of secret cases and the figures
    that others published. `cases`: include each case of the ranked runs."""
    read = leaderboard.boards(root, problem, device)
    found: list[Part] = []
    for name, ranked in read.boards:
        found += board(problem, name, ranked, [*map(Prose, notes.of_cards(ranked)), *_duels(ranked)])
        if cases:
            found += [rendered.case_table(run, title) for title, run in leaderboard.ranked_runs(root, ranked)]
    if not found:
        found.append(f"No runs of {problem.name} yet: {typed('eval', problem.argument)}")
    if published:
        found += secret_cases(problem)
    if published and problem.published:
        found += _published(problem)
    return [*found, *lists.left_alone(read.faults)]


def board(problem: Problem, device_name: str, ranked: Board, below: Sequence[Part]) -> list[Part]:
    """Return a leaderboard: the ranked table, the unranked submissions with reasons, and the parts `below`."""
    parts: list[Part] = [f"{problem.title} ({problem.name}) on {device_name}"]
    if ranked.standings:
        said = notes.limit_note({s.entry.floor_format for s in ranked.standings if s.of_limit})
        rows = [_ranked_row(standing) for standing in ranked.standings]
        said += wide_note(str(row[2]) for row in rows)
        said += notes.no_baseline(problem, ranked) + notes.of_another_form(problem, device_name)
        said += [notes.WORKERS_OWN] if ranked.clock is ClockOwner.WORKER else []
        said += [notes.SOURCE_CHANGED] if any(standing.entry.older_source for standing in ranked.standings) else []
        parts.append(Table(_HEADERS, rows, said))
    else:
        parts.append("Nothing is ranked here yet.")
        parts += map(Prose, notes.terms(problem, device_name))
    verified = [entry for entry in ranked.unranked if entry.verdict is Verdict.ACCEPTED]
    if verified:
        rows = [[e.submission, error_figure(e.error), e.tolerance, e.runs or "", e.unranked, e.flags] for e in verified]
        parts.append(Table(["accepted, not ranked", "error", "tolerance", "runs", "because", "flags"], rows))
        reasons = sorted({reason for e in verified for reason in (e.unranked or "").split(", ")})
        parts += [Prose(f"{reason or 'not timed'}: {notes.why_unranked(reason)}.") for reason in reasons]
    parts += left_out.parts(ranked.unranked)
    if any(entry.flags for entry in (*(standing.entry for standing in ranked.standings), *verified)):
        parts.append(
            Prose("flags: what a scanner found suspicious in the source. This is not a verdict; `show` gives details.")
        )
    return [*parts, *below]


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


def secret_cases(problem: Problem) -> list[Part]:
    """Return the part below a problem's boards on the secret cases, which each run draws anew."""
    parts: list[Part] = []
    for where, cases in (("a GPU", problem.cases), ("a CPU", problem.cpu)):
        if cases.secret:
            drawn = "\n".join(f"  {family.label}" for family in cases.secret)
            parts.append(Prose(f"Each run on {where} also checks cases that it draws in secret:\n{drawn}"))
    return parts


def _published(problem: Problem) -> list[Part]:
    """Return the figures that others published for the problem, by source, apart from measurements."""
    parts: list[Part] = ["Published by others, not measured here:"]
    for source in dict.fromkeys(figure.source for figure in problem.published):
        rows = [[f.device, f.case, f.value, f.what] for f in problem.published if f.source == source]
        parts.append(Table(["device", "case", "figure", "of"], rows, title=source, frame=False))
    return parts


def _duels(board: Board) -> list[str]:
    """Return advice about neighbours on a board whose runs cannot tell them apart, for the best three pairs."""
    return [
        f"{one.submission} and {other.submission} are within {closeness(board):.0%}: "
        f"{typed('compare', other.submission, one.submission, '--duel')} tells whether one is faster."
        for one, other in close(board)[:3]
    ]
