"""The spread between cards of one model. `doctor --calibrate --fleet` measures and stores it, and the intervals of runs
include it.

    the same submissions on every card ─► results/calibration/<device>.fleet.json ─► measured ─► widened intervals

Without it `fleet.USUAL` stands for it. A board whose runs all come from a single card is left unchanged.
"""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from harness.model import Nanoseconds, Run, Value
from harness.ranking import fleet, stats
from harness.ranking.fleet import USUAL, Component
from harness.records import calibration_file
from harness.records.entry import card_of, confidence_of, freedom_of

SCHEMA_VERSION = 1


class Judged(Value):
    """One submission on one card: its score, the squared standard error of the score's logarithm, and the run."""

    submission: str
    card: str
    run: str
    score_ns: Nanoseconds
    squared_error: float = Field(ge=0, allow_inf_nan=False)


class FleetCalibration(Value):
    """The stored result of `doctor --calibrate --fleet` for one model: every submission once on every card."""

    schema_version: int = SCHEMA_VERSION
    device_slug: str
    measured_at: str
    problem: str
    problem_sha256: str
    judged: tuple[Judged, ...]

    @field_validator("schema_version")
    @classmethod
    def _readable(cls, version: int) -> int:
        if version != SCHEMA_VERSION:
            raise ValueError(f"its schema version is {version}, this program's is {SCHEMA_VERSION}")
        return version

    @model_validator(mode="after")
    def _full(self) -> FleetCalibration:
        self.component()
        return self

    def component(self) -> Component:
        """Return the part of the variance that the card adds. Raises ValueError if some submission was not judged on
        every card."""
        table = {(each.submission, each.card): each for each in self.judged}
        kernels, cards = ({key[side] for key in table} for side in (0, 1))
        if len(table) != len(self.judged) or len(table) != len(kernels) * len(cards):
            raise ValueError("not every submission was judged once on every card")
        rows = [[table[kernel, card] for card in sorted(cards)] for kernel in sorted(kernels)]
        return fleet.component(
            [[math.log(each.score_ns) for each in row] for row in rows],
            [[each.squared_error for each in row] for row in rows],
        )


def read(root: Path, device_slug: str) -> FleetCalibration | None:
    """Return the fleet calibration of a model, or None. Raises InfrastructureError if the file is damaged."""
    path = path_of(root, device_slug)
    return calibration_file.read(path, FleetCalibration, "calibration of a fleet", "doctor --calibrate --fleet")


def write(root: Path, found: FleetCalibration) -> Path:
    """Store a fleet calibration. Raises InfrastructureError."""
    return calibration_file.write(path_of(root, found.device_slug), found)


def path_of(root: Path, device_slug: str) -> Path:
    return root / "results" / "calibration" / f"{device_slug}.fleet.json"


def measured(root: Path, device_slug: str) -> Component | None:
    """Return what a card of this model adds, or None if nobody has measured it. Raises as `read` does."""
    known = read(root, device_slug)
    return known.component() if known is not None else None


def between(root: Path, a: Run, b: Run) -> Component | None:
    """Return what the cards of two runs of one model add to their ratio. None if one card judged both, or a run does
    not say."""
    cards = {card_of(run) for run in (a, b)}
    if len(cards) < 2 or None in cards or a.device.slug != b.device.slug:
        return None
    return measured(root, a.device.slug) or USUAL


def squared_error(run: Run) -> float:
    """Return the squared standard error of the score's logarithm, or 0 if the run has no interval."""
    if run.score is None or run.score.high_ns is None:
        return 0.0
    reach = math.log(run.score.high_ns / run.score.latency_ns)
    return (reach / stats.t_quantile(freedom_of(run), confidence_of(run))) ** 2
