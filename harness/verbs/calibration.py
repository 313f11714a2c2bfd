"""How far apart a device finds a source from itself: its noise floor, measured and kept.

    doctor --calibrate ─► 16 pairs of workers, one source against itself ─► results/calibration/<device>.json
                                                                                       │
    compare, compare --duel ◄────────────────── noise(...) ◄───────────────────────────┘

Two floors, both log-ratios: `duel_noise` for so many pairs of a duel, timed in turns; `runs_noise` for two stored runs,
between which the machine may have drifted. A device without a calibration has a stated default.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from harness import catalog
from harness.catalog import places
from harness.catalog.config import load_config
from harness.errors import ProblemError
from harness.model import Device, Nanoseconds, Problem, Submission, Value
from harness.ranking import stats
from harness.ranking.comparison import paired_scores
from harness.ranking.speed import Noise
from harness.records import calibration_file

SCHEMA_VERSION = 2
PAIRS = 16
PREFERRED_PROBLEM = "kv_replicate"
"""Five cases on a GPU and three on a CPU, all bound by memory: few enough to time 16 pairs in minutes."""

DEFAULT_NOISE = {"cpu": math.log1p(0.05), "cuda": math.log1p(0.01), "rocm": math.log1p(0.01)}
"""For a device that was never calibrated: wider than the design's estimate of a quiet one (0.3 % between processes and
as much drift), because what else runs here is unknown."""


class Calibration(Value):
    """One calibration, as stored. The scores are those of the two workers of each pair, in the order of the pairs."""

    schema_version: int = SCHEMA_VERSION
    device: str
    device_slug: str
    measured_at: str
    problem: str
    submission: str
    submission_sha256: str
    run_processes: int = Field(ge=2)
    confidence: float = Field(gt=0, lt=1)
    runs_noise: float = Field(ge=0, allow_inf_nan=False)
    first_scores_ns: tuple[Nanoseconds, ...] = Field(min_length=2)
    second_scores_ns: tuple[Nanoseconds, ...] = Field(min_length=2)
    environment: dict[str, Any]

    def duel_noise(self, pairs: int) -> float:
        """The noise floor of a duel of `pairs` pairs, at least 2: a log-ratio."""
        both = zip(self.second_scores_ns, self.first_scores_ns, strict=True)
        return stats.noise_floor([math.log(new / old) for new, old in both], pairs, self.confidence)

    @field_validator("schema_version")
    @classmethod
    def _readable(cls, version: int) -> int:
        if version != SCHEMA_VERSION:
            raise ValueError(f"its schema version is {version}, this program's is {SCHEMA_VERSION}")
        return version


def noise(root: Path, device: Device, pairs: int | None) -> Noise:
    """The noise floor of `device` for a duel of so many pairs, at least 2, or without a number for two stored runs.

    Raises InfrastructureError as `read` does.
    """
    stored = read(root, device.slug)
    if stored is None:
        return Noise(DEFAULT_NOISE[device.kind], False, "a default: this device is not calibrated (doctor --calibrate)")
    floor = stored.runs_noise if pairs is None else stored.duel_noise(pairs)
    return Noise(floor, True, f"calibrated here on {stored.measured_at[:10]}")


def read(root: Path, device_slug: str) -> Calibration | None:
    """The calibration of a device, or None if there is none. Raises InfrastructureError for a file that is none."""
    return calibration_file.read(_path(root, device_slug), Calibration, "calibration", "doctor --calibrate")


def calibrate(root: Path, device: Device, narrate: Callable[[str], None], pairs: int = PAIRS) -> Calibration:
    """Time a bundled source against itself on `device`, store what came of it and return it.

    Raises Disqualified when the source fails here, ProblemError when no problem names a baseline, InfrastructureError.
    """
    from harness.judge.duel import duel
    from harness.machine import environment, lock
    from harness.sandbox import tiers

    problem, submission = _subject(root)
    config = load_config(root)
    narrate(f"calibrating {device.name} with {submission.name} of {problem.name} against itself, {pairs} pairs")
    with lock.hold(device, narrate, problem.limits.evaluation_s * pairs) as expect:
        surroundings = environment.describe(device, tiers.strongest(device))
        held = contextlib.nullcontext(expect)
        found = duel(
            problem, submission, submission, device, config, pairs=pairs, exclusive=lambda: held, narrate=narrate
        )
    first, second = paired_scores(found.measurements)
    processes = max(config.sampling(device.kind, quick=False).processes, 2)
    taken = [score for pair in zip(first, second, strict=True) for score in pair]
    calibration = Calibration(
        device=device.name,
        device_slug=device.slug,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        problem=problem.name,
        submission=submission.name,
        submission_sha256=submission.sha256,
        run_processes=processes,
        confidence=config.confidence,
        runs_noise=stats.noise_floor_apart(taken, processes, config.confidence),
        first_scores_ns=tuple(first),
        second_scores_ns=tuple(second),
        environment=surroundings,
    )
    calibration_file.write(_path(root, device.slug), calibration)
    return calibration


def _subject(root: Path) -> tuple[Problem, Submission]:
    """The source to time: the first baseline of the preferred problem, or of the first that has one."""
    names = sorted(catalog.problem_names(root), key=lambda name: (name != PREFERRED_PROBLEM, name))
    for problem in (catalog.load_problem(root, name) for name in names):
        for baseline in problem.baselines:
            path = places.find(root, f"submissions/{problem.name}/{baseline}.py")
            return problem, catalog.load_submission(problem, path)
    raise ProblemError("calibration needs a baseline, and no problem names one", "add one to a problem.yml")


def _path(root: Path, device_slug: str) -> Path:
    return root / "results" / "calibration" / f"{device_slug}.json"
