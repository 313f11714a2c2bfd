"""A reproduction for a terminal or as JSON: the differences around the run, each case then and now, and the result."""

from __future__ import annotations

import json
from typing import Any

from harness.model import Run, TimedBaseline, Verdict, outcome
from harness.ranking.speed import Speed
from harness.render import compare, document, figures, timing, verdicts
from harness.render.document import Part, Table
from harness.render.legible import legible
from harness.verbs.repro import Reproduction

SHOWN_CHARACTERS = 40
WORDS = {
    Speed.FASTER: "FASTER NOW",
    Speed.SLOWER: "SLOWER NOW",
    Speed.SAME: "THE SAME",
    Speed.AMBIGUOUS: "NOT TOLD APART",
}
TOLD = {True: "agrees", False: "differs", None: "cannot be told"}


def text(found: Reproduction) -> str:
    """Return the whole text. The result is in the last line."""
    return document.text(parts(found))


def parts(found: Reproduction) -> list[Part]:
    then, now = found.then, found.now
    told: list[Part] = [f"{then.id}, of {then.started_at[:10]}, again on {now.device.name}", differences(found)]
    if found.compared is not None:
        told += [compare.table(found.compared, "then", "now", WORDS), compare.noise(found.compared)]
    if found.baselines:
        told.append(baselines(found))
    if now.ending.verdict is not Verdict.ACCEPTED:
        told.append(verdicts.failure(now))
    same, checked = found.same_errors
    if checked:
        told.append(f"The error is the same to the last digit in {same} of {checked} checked cases.")
    return [*told, summary(found)]


def as_json(found: Reproduction) -> dict[str, Any]:
    same, checked = found.same_errors
    return {
        "run": found.then.id,
        "reproduced": found.reproduced,
        "verdict": {
            "then": found.then.ending.verdict.value,
            "now": found.now.ending.verdict.value,
            "agrees": found.verdict_agrees,
        },
        "score": {
            "then_ns": found.then.score.latency_ns if found.then.score else None,
            "now_ns": found.now.score.latency_ns if found.now.score else None,
            "agrees": found.score_agrees,
            "told": TOLD[found.score_agrees],
            "reason": found.reason,
        },
        "baselines": [{"name": then.name, "then": then.speed_up, "now": now.speed_up} for then, now in found.baselines],
        "errors": {"same": same, "checked": checked},
        "differences": [{"what": d.what, "then": d.then, "now": d.now} for d in found.differences],
        "now": json.loads(found.now.model_dump_json()),
        "exit_code": found.exit_code,
    }


def differences(found: Reproduction) -> Part:
    """Return a table of the facts that differ around the two runs."""
    if not found.differences:
        return "Problem, sampling, device and environment are what they were."
    rows = [[_shown(part) for part in (d.what, d.then, d.now)] for d in found.differences]
    return Table(["differs", "then", "now"], rows)


def baselines(found: Reproduction) -> Part:
    """Return the speed-up over each baseline of the problem, then and now."""
    rows = [
        [then.name, *(cell for each in (then, now) for cell in (_speed_up(each), each.why_not or each.doubt or ""))]
        for then, now in found.baselines
    ]
    return Table(["speed-up over", "then", "but", "now", "but"], rows)


def _speed_up(baseline: TimedBaseline) -> str:
    interval = timing.speed_up_interval(baseline)
    return timing.speed_up(baseline) + (f" ({interval})" if interval else "")


def summary(found: Reproduction) -> str:
    """Return the result: `reproduced: accepted then and now; 812.3 µs ±0.5 % then, 815.1 µs ±0.4 % now: ...`. If the
    scores cannot be compared: `verdict reproduced; the score cannot be told: ...`."""
    then, now = found.then, found.now
    words = "reproduced" if found.reproduced else "not reproduced"
    verdicts = [outcome(run.ending.verdict, run.unranked_because) for run in (then, now)]
    said = f"{verdicts[0]} then and now" if found.verdict_agrees else f"{verdicts[0]} then, {verdicts[1]} now"
    if then.score is None and now.score is None:
        reason = "" if found.verdict_agrees else f": {legible(now.ending.message)}"
        return f"{words}: {said}{reason}{_where(now)}"
    scores = f"{_score(then)} then, {_score(now)} now"
    if found.reproduced is None:
        words = f"verdict reproduced; the score {TOLD[None]}: {legible(found.reason)}"
        return f"{words} ({said}; {scores}){_where(now)}"
    return f"{words}: {said}; {scores}: {legible(found.reason)}{_where(now)}"


def _where(run: Run) -> str:
    return f" (show {run.id})" if run.ending.verdict is not Verdict.INFRASTRUCTURE_ERROR else ""


def _score(run: Run) -> str:
    return figures.in_microseconds(run.score) if run.score else "no score"


def _shown(value: str | None) -> str:
    """Return the value on one line, cut to fit a table."""
    line = "-" if value is None else legible(value).replace("\n", " ")
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"
