"""The least time that a device allows, and how near to it a latency comes.

of the limit = floor / latency        100 % is best; the floor is a time
"""

from __future__ import annotations

from harness.model.value import Nanoseconds, Value


class Floor(Value):
    """The least time that the device's datasheet allows for a case, and what binds it. `format`: of the data formats
    that the problem leaves to choose the one that takes the least."""

    latency_ns: Nanoseconds
    binds: str
    format: str


def of_limit(floor_ns: float | None, latency_ns: float | None) -> float | None:
    """How much of the limit a latency reaches: floor over latency, so that 1 is best. None where one is not known.

    Of a score it is the geometric mean of what its cases reach, as score and floor are the cases' geometric means.
    """
    return floor_ns / latency_ns if floor_ns and latency_ns else None
