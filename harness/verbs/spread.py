"""The spread between cards of one model. `doctor --calibrate --fleet` measures and stores it, and the intervals of runs
include it.

    the same submissions on every card ─► results/calibration/<device>.fleet.json ─► between ─► widened intervals

Two kinds of board are left unchanged: one whose runs all come from a single card, and one of a model without a fleet
calibration.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from harness.model import Estimate, Nanoseconds, Run, Value
from harness.ranking import fleet, stats
from harness.ranking.fleet import Component
from harness.records import calibration_file
from harness.records.entry import Entry
from harness.records.run_file import load_run

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


def card_of(run: Run) -> str | None:
    """Return the card that judged the run: its UUID, or its name in the cluster. None if the run does not say."""
    return _told(run, "gpu", "uuid") or _told(run, "cluster", "card")


def cards(runs: Iterable[Run]) -> int:
    """Return how many cards judged these runs, as far as the runs hold UUIDs. Processors are no cards."""
    return len({_told(run, "gpu", "uuid") for run in runs} - {None})


def between(root: Path, device_slug: str, entries: Iterable[Entry]) -> Component | None:
    """Return the spread that cards add to the intervals of these runs. None if one card judged all of them, or the
    spread was not measured."""
    known = read(root, device_slug)
    if known is None:
        return None
    cards = {card_of(run) for entry in entries if (run := _run(root, entry)) is not None}
    return known.component() if len(cards) > 1 else None


def widened(root: Path, entry: Entry, found: Component) -> Entry:
    """Return `entry` with the spread between cards in its interval."""
    run = _run(root, entry)
    if run is None or run.score is None or entry.score_ns is None or entry.low_ns is None:
        return entry
    score = Estimate(latency_ns=entry.score_ns, low_ns=entry.low_ns, high_ns=entry.high_ns)
    wide = fleet.widened(score, freedom_of(run), found, confidence_of(run))
    return replace(entry, low_ns=wide.low_ns, high_ns=wide.high_ns)


def squared_error(run: Run) -> float:
    """Return the squared standard error of the score's logarithm, or 0 if the run has no interval."""
    if run.score is None or run.score.high_ns is None:
        return 0.0
    reach = math.log(run.score.high_ns / run.score.latency_ns)
    return (reach / stats.t_quantile(freedom_of(run), confidence_of(run))) ** 2


def freedom_of(run: Run) -> int:
    """Return the degrees of freedom of the score's interval. They follow from the planned processes, whatever happened
    later."""
    sampling = run.config.get("cpu" if run.device.kind == "cpu" else "gpu")
    asked = sampling.get("processes") if isinstance(sampling, dict) else None
    had: Sequence[object] = run.measurements[0].samples_ns if run.measurements else ()
    processes = min(asked, len(had)) if isinstance(asked, int) else len(had)
    return max(processes - 1, 1)


def confidence_of(run: Run) -> float:
    found = run.config.get("confidence")
    return found if isinstance(found, float) and 0 < found < 1 else 0.95


def _told(run: Run, source: str, name: str) -> str | None:
    told = run.environment.get(source)
    found = told.get(name) if isinstance(told, dict) else None
    return found if isinstance(found, str) else None


def _run(root: Path, entry: Entry) -> Run | None:
    with contextlib.suppress(ValueError):
        return load_run(root / "results" / entry.path)
    return None
