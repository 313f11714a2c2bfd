"""Floors: the least time that a device's datasheet allows for a case.

floor = max(bytes / bandwidth, sum over dtypes of flops / peak), the least over the storage formats that the problem
allows. This is the roofline model (https://doi.org/10.1145/1498765.1498785). It does not model the latencies of its two
sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.model import Device, Floor


def floor(cost: Mapping[str, Mapping[str, Any]], device: Device) -> Floor | None:
    """The floor of a case with this `cost` (see `Reference.cost`), or None if the device's peaks are unknown."""
    floors = [found for name, entry in cost.items() if (found := _floor_of_format(name, entry, device)) is not None]
    return min(floors, key=lambda found: found.latency_ns, default=None)


def _floor_of_format(name: str, entry: Mapping[str, Any], device: Device) -> Floor | None:
    if device.bandwidth_bytes_per_s is None:
        return None
    # A dtype without a known peak counts as free. The floor is then too low, which harms no submission.
    peaks = device.peak_flops_per_s
    sides = {
        "bandwidth": entry["bytes"] / device.bandwidth_bytes_per_s * 1e9,
        "flops": sum(count / peaks[dtype] for dtype, count in entry["flops"].items() if dtype in peaks) * 1e9,
    }
    binds = max(sides, key=lambda side: sides[side])
    return Floor(latency_ns=sides[binds], binds=binds, format=name) if sides[binds] > 0 else None
