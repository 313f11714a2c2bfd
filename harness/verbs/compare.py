"""Two stored runs with their sources, compared as they were measured or timed again in turns.

take(root, A, B) ─► Versions ─► compare      from the stored samples
                           └──► duel         on this machine's device; nothing is stored
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness import catalog
from harness.catalog.config import MOST_DUEL_PAIRS, load_config
from harness.command import typed
from harness.errors import judging
from harness.model import Device, Run, Submission, Verdict
from harness.ranking import comparison, doubt
from harness.ranking.comparison import Comparison, PairedMeasurement
from harness.ranking.speed import DOUBTFUL_LABELS, Speed
from harness.records.store import Store
from harness.verbs import calibration

SLOWER_EXIT_CODE = 20
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Versions:
    """Two runs of one problem, and the source that each judged."""

    a: Run
    b: Run
    a_source: bytes
    b_source: bytes

    @property
    def texts(self) -> tuple[str, str]:
        """Both sources as text, for display."""
        return self.a_source.decode("utf-8", "replace"), self.b_source.decode("utf-8", "replace")


def take(root: Path, a: str, b: str) -> Versions:
    """Return the runs that `a` and `b` name, as `show` understands the names. If both names occur in several problems,
    take the one problem that they share. If the two runs were not both timed on one device, prefer other runs of the
    two submissions that were. Raises UsageError and InfrastructureError."""
    store = Store(root)
    shared = store.find(a).keys() & store.find(b).keys()
    problem = shared.pop() if len(shared) == 1 else None
    old, new = store.read(a, problem), store.read(b, problem)
    if old.problem == new.problem and _are_of_two_places(old, new):
        old, new = (store.read(run_id) for run_id in store.ranked_alike(a, b, old.problem) or (old.id, new.id))
    sources = [store.source(run.problem, run.submission_sha256) for run in (old, new)]
    return Versions(old, new, *sources)


def _are_of_two_places(old: Run, new: Run) -> bool:
    """Whether both runs were accepted but were not both timed on one device."""
    right = old.ending.verdict is new.ending.verdict is Verdict.ACCEPTED
    return right and (old.score is None or new.score is None or old.device.slug != new.device.slug)


def compare(root: Path, versions: Versions) -> Comparison:
    """Compare B's stored run with A's. Raises UsageError if they did not measure the same thing."""
    doubt.check_comparable(versions.a, versions.b)
    noise = calibration.noise(root, versions.a.device, None)
    config = load_config(root)
    return comparison.compare_runs(versions.a, versions.b, noise, config.confidence, config.rank_worker_timed)


def duel(
    root: Path, versions: Versions, device: Device, pairs: int, narrate: Callable[[str], None]
) -> tuple[Comparison, tuple[PairedMeasurement, ...]]:
    """Time B against A again in turns on `device`, with `pairs` pairs of processes (at least 2). Also return every
    sample. If Ctrl-C ended the duel early, a note of the comparison says so: `was_interrupted`.

    Raises UsageError, and judge.duel.Disqualified if one of the submissions fails.
    """
    from harness.judge import duel as judge  # imports torch
    from harness.machine import lock

    a, b = versions.a, versions.b
    doubt.check_of_one_problem(a, b)
    old, new = doubt.names_of(a, b) if a.id != b.id else (f"{a.submission} (A)", f"{b.submission} (B)")
    problem, config = catalog.problem_of(root, a), load_config(root)
    noise = calibration.noise(root, device, pairs)
    limit_s = problem.limits.evaluation_s * pairs
    with lock.hold_if_gpu(device, narrate, limit_s) as expect, judging(f"{old} against {new}"):
        found = judge.duel(
            problem,
            submission(a, versions.a_source).model_copy(update={"name": old}),  # the name is for messages only
            submission(b, versions.b_source).model_copy(update={"name": new}),
            device,
            config,
            pairs=pairs,
            exclusive=lambda: lock.hold_to_time(expect, device, narrate, limit_s),
            narrate=narrate,
        )
    names = (a.submission, b.submission)
    if found.pairs < pairs:
        noise = calibration.noise(root, device, found.pairs)
    compared = comparison.compare_pairs(
        problem.name, device.name, names, found.measurements, noise, config.confidence, problem.ranking
    )
    notes = [f"{INTERRUPTED} after {found.pairs} of {pairs} pairs"] if found.pairs < pairs else []
    notes += more_pairs(compared, found.pairs)
    return replace(compared, notes=tuple(notes), a_run=a.id, b_run=b.id), found.measurements


def was_interrupted(compared: Comparison) -> bool:
    """Whether Ctrl-C ended the duel before its last pair."""
    return any(note.startswith(INTERRUPTED) for note in compared.notes)


def more_pairs(compared: Comparison, pairs: int) -> Iterator[str]:
    """Advise on a duel of `pairs` pairs that found no difference, if more pairs would help.

    The noise floor and the interval both shrink with the square root of the number of pairs.
    """
    ratio, noise = compared.finding.ratio, compared.noise
    doubtful = any(label in DOUBTFUL_LABELS for case in compared.cases for label in case.labels)
    if compared.finding.speed is not Speed.AMBIGUOUS or doubtful or ratio is None:
        return
    assert ratio.low is not None and ratio.high is not None
    half_width = math.log(ratio.high / ratio.low) / 2
    if not noise.calibrated and half_width < noise.log_ratio:
        yield f"to tell smaller differences, measure this device's noise: {typed('doctor', '--calibrate')}"
        return
    blur = max(noise.log_ratio, half_width)
    needed = 8 * math.ceil(pairs / 8 * max(2.0, (blur / max(abs(math.log(ratio.value)), 1e-9)) ** 2))
    if needed <= MOST_DUEL_PAIRS:
        yield f"about {needed} pairs would tell a difference of this size: --pairs {needed}"


def exit_code(versions: Versions, compared: Comparison, percent: float) -> int:
    """Return 20 if B is slower than A by more than `percent`. If one has no score, return its verdict's exit code."""
    if compared.slower_by(percent):
        return SLOWER_EXIT_CODE
    if compared.finding.ratio is None:
        return versions.b.ending.verdict.exit_code or versions.a.ending.verdict.exit_code
    return 0


def submission(run: Run, source: bytes) -> Submission:
    """Return the submission that `run` judged, with its stored source."""
    return Submission(
        name=run.submission,
        problem=run.problem,
        sha256=run.submission_sha256,
        source=source,
        path=run.submission_path,
    )
