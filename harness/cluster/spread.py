"""`doctor --calibrate --fleet`: judges the same submissions on every card of a model; verbs/spread keeps the result."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import catalog
from harness.cluster.link import Link
from harness.cluster.watching import Placed
from harness.errors import InfrastructureError, UsageError
from harness.library.request import Request
from harness.model import Device, Problem, Run, Submission
from harness.progress import Narrate
from harness.ranking.fleet import LEAST_CARDS, LEAST_KERNELS
from harness.verbs import spread as kept_spread
from harness.verbs.calibration import PREFERRED_PROBLEM
from harness.verbs.spread import FleetCalibration, Judged

KERNELS = 4
"""As many are judged on each card. More tell little more: degrees of freedom come from cards."""


def measure(root: Path, link: Link, device: Device, narrate: Narrate) -> FleetCalibration:
    """Judge KERNELS submissions on every card like `device`, store what came of it and return it.

    Those are taken, baselines first, that are ranked on every card; each is judged on all cards at once. Raises
    UsageError where there are too few cards, InfrastructureError where too few submissions are ranked.
    """
    cards = link.cards(device.slug)
    if len(cards) < LEAST_CARDS:
        raise UsageError(
            f"the cluster has {len(cards)} of {device.slug}: what a card adds takes {LEAST_CARDS} to measure",
            "pin a competition to one card instead: --device CARD",
        )
    problem, candidates = _subjects(root)
    telling = threading.Lock()
    placed: set[Placed] = set()
    ending = threading.Event()

    def started(each: Placed) -> None:
        placed.add(each)
        if ending.is_set():
            each.close()

    def judged(submission: Submission, card: str) -> Run:
        request = Request(root=root, problem=problem.name, submission=submission, device=card, depth="full")
        run = link.judge(request, lambda line: None, started)
        with telling:
            narrate(f"{submission.name} on {card}: {run.ending.verdict.words}{_why(run)}")
        return run

    narrate(f"calibrating {len(cards)} cards of {device.name} with submissions of {problem.name}")
    table: list[tuple[str, Run]] = []
    chosen = 0
    with ThreadPoolExecutor(len(cards)) as executor:
        try:
            for candidate in candidates:
                runs = list(executor.map(judged, [candidate] * len(cards), cards))
                if all(run.ranked for run in runs):
                    chosen += 1
                    table += zip(cards, runs, strict=True)
                if chosen == KERNELS:
                    break
        except BaseException:
            ending.set()
            for each in list(placed):
                each.close()
            raise
    if chosen < LEAST_KERNELS:
        raise InfrastructureError(
            f"{chosen} submissions of {problem.name} are ranked on every card: too few", "try again when they are idle"
        )
    found = _calibration(problem, device, table)
    narrate(f"stored in {kept_spread.write(root, found)}")
    return found


def _calibration(problem: Problem, device: Device, table: Sequence[tuple[str, Run]]) -> FleetCalibration:
    return FleetCalibration(
        device_slug=device.slug,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        problem=problem.name,
        problem_sha256=problem.sha256,
        judged=tuple(
            Judged(
                submission=run.submission,
                card=card,
                run=run.id,
                score_ns=run.score.latency_ns if run.score else 0,
                squared_error=kept_spread.squared_error(run),
            )
            for card, run in table
        ),
    )


def _subjects(root: Path) -> tuple[Problem, list[Submission]]:
    """The preferred problem, or the first with enough submissions, and these: baselines first."""
    names = sorted(catalog.problem_names(root), key=lambda name: (name != PREFERRED_PROBLEM, name))
    for problem in (catalog.load_problem(root, name) for name in names):
        found = sorted(catalog.submissions(root, problem), key=lambda each: each.name not in problem.baselines)
        if len(found) >= LEAST_KERNELS:
            return problem, found
    raise InfrastructureError(f"no problem has {LEAST_KERNELS} submissions to calibrate with")


def _why(run: Run) -> str:
    return f", {run.unranked_because}" if run.unranked_because else ""
