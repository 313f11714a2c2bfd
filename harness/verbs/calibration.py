"""The noise floor of a device: the difference that timing one source against itself shows. Measured and stored.

    doctor --calibrate ─► 16 pairs of workers, one source against itself ─► results/calibration/<device>.json
                                                                                       │
    compare, compare --duel ◄────────────────── noise(...) ◄───────────────────────────┘

There are two floors, both log-ratios. `duel_noise` is for a duel of a given number of pairs, timed in turns.
`runs_noise` is for two stored runs; the machine may have drifted between them. A device without a calibration gets a
default, and the result says so.
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
"""The problem to calibrate with. It has five cases on a GPU and three on a CPU, all bound by memory: few enough to time
16 pairs in minutes."""

DEFAULT_NOISE = {"cpu": math.log1p(0.05), "cuda": math.log1p(0.01), "rocm": math.log1p(0.01)}
"""The noise of a device that was never calibrated. It is wider than the design's estimate for a quiet device (0.3 %
between processes, and as much drift), because other programs may be running."""


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
    """Return the noise floor of `device`: for a duel of `pairs` pairs (at least 2), or for two stored runs if None.

    Raises InfrastructureError, as `read` does.
    """
    stored = read(root, device.slug)
    if stored is None:
        return Noise(DEFAULT_NOISE[device.kind], False, "a default: this device is not calibrated (doctor --calibrate)")
    floor = stored.runs_noise if pairs is None else stored.duel_noise(pairs)
    return Noise(floor, True, f"calibrated here on {stored.measured_at[:10]}")


def read(root: Path, device_slug: str) -> Calibration | None:
    """Return the stored calibration of a device, or None. Raises InfrastructureError if the file is damaged."""
    return calibration_file.read(_path(root, device_slug), Calibration, "calibration", "doctor --calibrate")


def calibrate(root: Path, device: Device, narrate: Callable[[str], None], pairs: int = PAIRS) -> Calibration:
    """Time a bundled source against itself on `device`. Store the calibration and return it.

    Raises Disqualified if the source fails here, ProblemError if no problem names a baseline, and InfrastructureError.
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
    """Choose the source to time: the first baseline of the preferred problem, else of the first problem that has
    one."""
    names = sorted(catalog.problem_names(root), key=lambda name: (name != PREFERRED_PROBLEM, name))
    for problem in (catalog.load_problem(root, name) for name in names):
        for baseline in problem.baselines:
            path = places.find(root, f"submissions/{problem.name}/{baseline}.py")
            return problem, catalog.load_submission(problem, path)
    raise ProblemError("calibration needs a baseline, and no problem names one", "add one to a problem.yml")


def _path(root: Path, device_slug: str) -> Path:
    return root / "results" / "calibration" / f"{device_slug}.json"
