"""What whoever waited for an evaluation reads: the verdict in a line, and what to know of a run that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.command import typed
from harness.model import ClockOwner, Label, Run, Unranked, Verdict, outcome
from harness.ranking.board import Bearings
from harness.render.cases import case_list
from harness.render.document import Part, Verbatim
from harness.render.figures import in_microseconds, percent
from harness.render.fit import hanging, shortened

PRINTED_LINES, PRINTED_COLUMNS = 8, 200
"""The most lines of a submission's output that are shown, and the most characters of each line."""


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
