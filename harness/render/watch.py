"""The feedback of `eval --watch` on each save, for a terminal."""

from __future__ import annotations

import time

from harness.model import Run
from harness.render import document, figures, verdicts
from harness.render import run as rendered
from harness.render.legible import legible
from harness.verbs.watch import Feedback

INDENT = " " * 10


def text(feedback: Feedback) -> str:
    """Return a heading for a save; later the seconds since the save, the sentence, and details that help to correct the
    file."""
    if feedback.after_s is None:
        return f"\n{time.strftime('%H:%M:%S')}  {legible(feedback.message)}"
    parts = [f"{feedback.after_s:6.1f} s  {legible(feedback.message)}"]
    run = feedback.run
    if run is not None and run.score is not None:
        table = document.text([rendered.case_table(run)])
        parts += [_indented(table), f"{INDENT}{_score(run, feedback.before)}"]
    elif feedback.detail:
        parts.append(_indented(legible(feedback.detail)))
    if run is not None and run.score is None and run.output.strip():
        parts.append(_indented(verdicts.printed(run.output, "an eval without --watch")))
    return "\n".join(parts)


def _score(run: Run, before: Run | None) -> str:
    """Return the score and its change: `812.3 µs, 0.955 × what it was (one process each: no interval)`."""
    assert run.score is not None
    now = figures.in_microseconds(run.score)
    if before is None or before.score is None:
        return f"{now}, in one process: a first look, which has no interval"
    ratio = run.score.latency_ns / before.score.latency_ns
    return f"{now}, {ratio:.3f} × what it was; one process each, so without an interval"


def _indented(text: str) -> str:
    return "\n".join(f"{INDENT}{line}" for line in text.rstrip().splitlines())
