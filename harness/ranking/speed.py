"""Judges a ratio of latencies with its interval: is B faster than A, slower, the same, or is that unknown?

        -noise      0      +noise          log(B / A)
           │   ├──┼──┤       │             SAME        the interval lies within the noise
           │        │   ├────┼──●───┤      SLOWER      the interval excludes 0, its centre is beyond the noise
           │   ├────────●────┼──┤          AMBIGUOUS   anything else

The noise is how far a source appears to differ from itself on this device (`calibration`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.model import Label
from harness.ranking.stats import Ratio

DOUBTFUL_LABELS = (Label.HOST_BOUND, Label.VOIDED, Label.CROWDED)
"""A case with one of these labels is never called the same."""

_DISTURBED = (Label.VOIDED, Label.CROWDED)
"""A case with one of these labels is not called faster or slower either: other processes affected its time."""


class Speed(enum.StrEnum):
    """What can be said of B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Noise:
    """How far the log-ratio of a source to itself can be from 0 on a device. `source` says where the number comes
    from."""

    log_ratio: float
    calibrated: bool
    source: str

    @property
    def percent(self) -> float:
        return 100 * math.expm1(self.log_ratio)


@dataclass(frozen=True)
class SpeedFinding:
    """B's latency over A's, the conclusion, and its reason. `ratio` is None if either has no latency."""

    speed: Speed
    reason: str
    ratio: Ratio | None = None


def judge(ratio: Ratio, noise: Noise, labels: Sequence[str] = (), doubtful: str = "") -> SpeedFinding:
    """What the ratio B / A means if a source differs from itself by up to `noise`. `doubtful`: a reason to say nothing
    about the ratio, or ""."""
    if ratio.low is None or ratio.high is None:
        return SpeedFinding(
            Speed.AMBIGUOUS,
            "too few processes: an interval needs two of each run, and a `--quick` run has one",
            ratio,
        )
    band = f"the noise, ±{noise.percent:.2g}\N{NO-BREAK SPACE}%"
    if doubtful:
        return SpeedFinding(Speed.AMBIGUOUS, doubtful, ratio)
    if disturbed := [f"{label}: {label.why}" for label in _DISTURBED if label in labels]:
        return SpeedFinding(Speed.AMBIGUOUS, "; ".join(disturbed), ratio)
    difference, interval = _signed(ratio.value), _between(ratio.low, ratio.high)
    if abs(math.log(ratio.value)) > noise.log_ratio and (ratio.low > 1 or ratio.high < 1):
        speed = Speed.SLOWER if ratio.value > 1 else Speed.FASTER
        reason = f"{difference} in latency is beyond {band}, and its interval, {interval}, excludes equality"
        return SpeedFinding(speed, reason, ratio)
    if doubts := [f"{label}: {label.why}" for label in DOUBTFUL_LABELS if label in labels]:
        return SpeedFinding(Speed.AMBIGUOUS, "; ".join(doubts), ratio)
    if max(-math.log(ratio.low), math.log(ratio.high)) <= noise.log_ratio:
        return SpeedFinding(Speed.SAME, f"the interval, {interval}, lies within {band}", ratio)
    if ratio.low <= 1 <= ratio.high:
        return SpeedFinding(
            Speed.AMBIGUOUS, f"the interval, {interval}, holds equality and reaches beyond {band}", ratio
        )
    return SpeedFinding(Speed.AMBIGUOUS, f"{difference} is within {band}, but its interval, {interval}, is not", ratio)


def _between(low: float, high: float) -> str:
    """Both ends of an interval. If either end needs a factor, both are factors: `÷2.4 to -21 %` would be hard to
    read."""
    factors = _takes_factor(low) or _takes_factor(high)
    return " to ".join(_factor(end) if factors else _signed(end) for end in (low, high))


def _takes_factor(ratio: float) -> bool:
    return not 0.5 <= ratio <= 2


def _factor(ratio: float) -> str:
    return f"×{ratio:.3g}" if ratio >= 1 else f"÷{1 / ratio:.3g}"


def _signed(ratio: float) -> str:
    """`+3.1 %` for 1.031. From twice as long or half as long on, a factor: `×9.7` or `÷9.7`."""
    if _takes_factor(ratio):
        return _factor(ratio)
    percent = 100 * (ratio - 1)
    return f"{percent:+.{0 if abs(percent) >= 10 else 2}{'f' if abs(percent) >= 10 else 'g'}}\N{NO-BREAK SPACE}%"
