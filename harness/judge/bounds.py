"""How far a latency can be trusted: by how much at most a submission can make it seem less than it is.

Measured with attacks, on an H200 and on CPUs (docs/clock.md). Copies by the copy engine over PCIe, up to 3 MiB, are
the exception.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.judge.null_calls import Constants
from harness.judge.pace import Pace
from harness.judge.sitting import Sitting
from harness.model import Device, Manner

GPU_SHARE, GPU_NS = 0.02, 300.0
CPU_SHARE, CPU_NS = 0.05, 150e3
"""On a CPU no call counts with less than that either: a shorter one could be made to seem to take nothing."""

CPU_NS_A_BYTE = 0.1
"""What copying a new output to the judge's memory takes, which a submission that finds that memory and writes there
saves: 1.3 ms for 16.8 MB (AMD EPYC, 2026-11-22)."""

CPU_NS_AN_OUTPUT, CPU_NS_A_MODEL = 15e3, 75e3
"""What the worker's own steps take for each output but the first, and for the call of a module, which a submission
without them saves as well: 12 and 65 us with caches that were emptied (AMD EPYC, 2 busy processors, 2026-11-24)."""

GATED_NS, LONG_NS = 1e3, 5e3
"""What is added in these manners: the gate's own constant differs by as much from worker to worker, and so long before
a call's end its word can be written (H200, 2026-11-22)."""


def of(
    pace: Pace, constants: Constants, device: Device, latency_ns: float, sittings: Sequence[Sitting]
) -> float | None:
    """The bound in ns on one case's latency; None for what the worker timed."""
    if pace.manner is Manner.WORKER:
        return None
    if device.kind == "cpu":
        null_ns = [ns for sitting in sittings for ns in sitting.null_ns]
        low, high = np.quantile(null_ns, (0.25, 0.75)).tolist() if null_ns else (0.0, 0.0)
        # What null calls take more than before a submission was there may be its doing.
        more_ns = max((sitting.subtracted_ns - constants.null_ns for sitting in sittings), default=0.0)
        steps_ns = CPU_NS_A_BYTE * pace.copied_bytes + CPU_NS_AN_OUTPUT * max(pace.outputs - 1, 0)
        steps_ns += CPU_NS_A_MODEL * pace.of_a_model
        return CPU_SHARE * latency_ns + max(CPU_NS, high - low) + max(more_ns, 0.0) + steps_ns
    bound_ns = GPU_SHARE * latency_ns + GPU_NS
    gated, long = pace.manner.gated and (pace.own_constant or pace.manner.long), pace.manner.long
    if gated or long:
        bound_ns += max(constants.of(pace.manner) - constants.of(Manner.SANDWICH), 0.0)
    return bound_ns + gated * GATED_NS + long * LONG_NS
