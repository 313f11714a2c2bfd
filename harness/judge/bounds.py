"""The bound on a latency: how much less than the truth a submission can make it seem, at most.

Measured with attacks on an H200 and on CPUs (docs/clock-attacks.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.judge.null_calls import Constants
from harness.judge.pace import Pace
from harness.judge.sitting import Sitting
from harness.model import CPU_BOUND, GPU_BOUND, Device, Manner

GPU_SHARE, GPU_NS = GPU_BOUND
CPU_SHARE, CPU_NS = CPU_BOUND
"""The bound on a CPU: a share plus a time. No call counts with less than CPU_NS there: a shorter one could be made to
seem to take no time."""

CPU_NS_A_BYTE = 0.15
"""Time to copy a new output to the judge's memory. A submission that finds this memory and writes there saves it: for
16.8 MB 1.9 ms (1.8 to 2.1), and 2.3 ms (2.1 to 2.5) on a busy machine (AMD EPYC, 2026-11-30)."""

CPU_NS_AN_OUTPUT, CPU_NS_A_MODEL = 15e3, 75e3
"""Time of the worker's own steps for each output after the first, and for the call of a module. A submission that
avoids these steps saves it: 12 and 65 us when all caches were emptied (AMD EPYC, 2 busy processors, 2026-11-24), and
less since then."""

COPIED_NS = 10e3
"""Added to the bound on a GPU where an answer is a copy. The copy engine moves a part of it while the judge's kernels
have the device. With 16 of 64 MiB it gained 5.7 us (5.1 to 6.5), with 24 MiB 8.7 us (8.0 to 9.4), but then most answers
were wrong (H200, 2026-11-29)."""

GATED_NS, LONG_NS = 1e3, 5e3
"""Added to the bound of gated and of long calls. The gate's constant differs by GATED_NS from worker to worker, and may
be below the sandwich's, which is subtracted where a submission brings a gate about. The word of a long call can be
written LONG_NS before the call ends (H200, 2026-11-22)."""


def of(
    pace: Pace,
    constants: Constants,
    device: Device,
    latency_ns: float,
    sittings: Sequence[Sitting],
    copies: bool = False,
) -> float | None:
    """Return the bound in ns on the latency of one case; None if the worker timed it. `copies`: a right answer is a
    copy of inputs, bit for bit."""
    if pace.manner is Manner.WORKER:
        return None
    if device.kind == "cpu":
        null_ns = [ns for sitting in sittings for ns in sitting.null_ns]
        low, high = np.quantile(null_ns, (0.25, 0.75)).tolist() if null_ns else (0.0, 0.0)
        # The submission may have slowed the null calls since it came: that gain is added to the bound.
        more_ns = max((sitting.subtracted_ns - constants.null_ns for sitting in sittings), default=0.0)
        steps_ns = CPU_NS_A_BYTE * pace.copied_bytes + CPU_NS_AN_OUTPUT * max(pace.outputs - 1, 0)
        steps_ns += CPU_NS_A_MODEL * pace.of_a_model
        return CPU_SHARE * latency_ns + max(CPU_NS, high - low) + max(more_ns, 0.0) + steps_ns
    bound_ns = GPU_SHARE * latency_ns + GPU_NS
    gated, long = pace.manner.gated, pace.manner.long
    if long or (gated and pace.own_constant):
        bound_ns += max(constants.of(pace.manner) - constants.of(Manner.SANDWICH), 0.0)
    return bound_ns + gated * GATED_NS + long * LONG_NS + copies * COPIED_NS
