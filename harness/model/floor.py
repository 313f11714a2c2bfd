"""The floor, which is the least time that a device allows, and how near a latency comes to it.

of the limit = floor / latency        100 % is best; the floor is a time
"""

from __future__ import annotations

from harness.model.value import Nanoseconds, Value


class Floor(Value):
    """The least time that the device's datasheet allows for a case. `binds` is what limits it: bandwidth or flops.
    `format` is the storage format with the lowest floor among those that the problem allows."""

    latency_ns: Nanoseconds
    binds: str
    format: str


def of_limit(floor_ns: float | None, latency_ns: float | None) -> float | None:
    """How much of the limit a latency reaches: floor / latency, so 1 is best. None if either is unknown.

    For a score it is the geometric mean over the cases, because score and floor are geometric means over the cases.
    """
    return floor_ns / latency_ns if floor_ns and latency_ns else None
