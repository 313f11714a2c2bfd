"""The notes below boards and runs: the meaning of columns, and why a run is not ranked or a column is missing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from harness.command import page, typed
from harness.model import OLDER_SOURCE, Problem, Unranked
from harness.ranking.board import Board
from harness.ranking.fleet import USUAL

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


def limit_note(formats: Iterable[str | None]) -> list[str]:
    """Explain "of the limit" where floors of these `formats` are shown. Empty if there is none."""
    named = sorted({name for each in formats if each for name in each.split(", ")})
    return [f"{OF_THE_LIMIT}, here for {' and '.join(named)} data."] if named else []


def of_cards(board: Board) -> list[str]:
    """Say that several cards judged a board's runs, and what its intervals contain for that. Empty for one card."""
    found = board.between_cards
    if found is None:
        return []
    adds = f"a standard deviation of {found.percent:.2g} %"
    told = f"{found.kernels} kernels on {found.cards} cards"
    if found == USUAL:
        told = f"as on four H100s: `{typed('doctor', '--calibrate', '--fleet')}` measures it on this model"
    return [f"{board.cards} cards judged these runs: the intervals contain what a card adds, {adds} ({told})."]


def no_baseline(problem: Problem, ranked: Board) -> list[str]:
    """Say why a board has no column `× best baseline`, and how to get it. Empty if it has the column."""
    if not ranked.standings or any(standing.times_baseline for standing in ranked.standings):
        return []
    if not problem.baselines:
        return ["no × best baseline: the problem names no baseline."]
    return [f"no × best baseline: no baseline is ranked here. Judge {' or '.join(problem.baselines)} for one."]


def of_another_form(problem: Problem, device_name: str) -> list[str]:
    """Return notes on how a foreign problem's board differs from others."""
    said = terms(problem, device_name)
    if problem.foreign is not None and not problem.foreign.cost:
        said.append("No floor: the problem states no cost, so no latency is compared with the limit of the device.")
    if problem.ranking == "mean":
        said.append("score: the arithmetic mean over the cases, as the problem asks for it.")
    return said


def terms(problem: Problem, device_name: str) -> list[str]:
    """Return notes on the devices and the deadline of the problem's competition, if these do not fit here and now."""
    return problem.foreign.terms(device_name, datetime.now(UTC)) if problem.foreign is not None else []
