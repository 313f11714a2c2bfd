"""Which labels a case earns, and why a run is not ranked: each mark of model/label with when it holds."""

from __future__ import annotations

from collections.abc import Sequence

from harness.judge import bounds
from harness.judge.sitting import Sitting, too_many_void, void_share
from harness.judge.trial import Timings, Trial
from harness.model import (
    ClockOwner,
    Device,
    Ending,
    Estimate,
    Floor,
    Label,
    Manner,
    Measurement,
    Unranked,
    Verdict,
    eligibility,
)

ROUNDING = 1e-9
"""The mean of equal times may be so much larger than they are."""


def labels(
    timings: Timings,
    trial: Trial,
    latency: Estimate,
    floor: Floor | None,
    device: Device,
    most_half_width: float | None,
) -> tuple[Label, ...]:
    """Return the labels of one case of `trial`, which was timed as `timings` says."""
    pace, on_gpu = timings.pace, device.kind != "cpu"
    launch_ns = trial.entrant.caller.constants.launch_ns
    run_is_void = too_many_void(each.sittings for each in trial.timings)
    host_bound = on_gpu and pace.manner is Manner.STOPPED
    earned = {
        Label.HOST_BOUND: host_bound,
        Label.COPIED: on_gpu and pace.copied and not host_bound,
        Label.CROWDED: crowded(timings.sittings),
        Label.VOIDED: run_is_void and void_share(timings.sittings) > eligibility.MOST_VOID,
        Label.WIDE: eligibility.is_wider(latency, most_half_width),
        Label.LATENCY_BOUND: floor is not None and launch_ns is not None and floor.latency_ns < 2 * launch_ns,
        Label.TOO_SHORT: not on_gpu and latency.latency_ns <= bounds.CPU_NS * (1 + ROUNDING),
        Label.WORKER_TIMED: pace.manner is Manner.WORKER,
    }
    return tuple(sorted(label for label, holds in earned.items() if holds))


def labels_of_pairs(sittings: Sequence[Sequence[Sitting]]) -> tuple[Label, ...]:
    """Return the labels of one case of a duel, by the sittings of both sides."""
    earned = {
        Label.CROWDED: any(map(crowded, sittings)),
        Label.VOIDED: any(too_many_void([side]) for side in sittings),
    }
    return tuple(sorted(label for label, holds in earned.items() if holds))


def crowded(sittings: Sequence[Sitting]) -> bool:
    """Whether other processes used the processors in most of these sittings."""
    return 2 * sum(sitting.crowded for sitting in sittings) > len(sittings)


def unranked_because(
    trial: Trial,
    ending: Ending,
    measurements: Sequence[Measurement],
    chosen: bool,
    quick: bool,
    safe: bool,
    reproduced: bool,
    imprecise: bool,
) -> Unranked | None:
    """Return why the run of `trial` is not ranked, or None. `chosen`: only some of the cases were judged. `safe`: the
    submission was confined, or need not be."""
    if ending.verdict is Verdict.INFRASTRUCTURE_ERROR:
        return Unranked.UNJUDGED
    if quick and not chosen and ending.verdict is not Verdict.ACCEPTED:
        return Unranked.QUICK  # whatever ran it: boards fold failed quick tries, and nothing was timed
    holds = {
        Unranked.INTERPRETED: trial.entrant.caller.seen.interpreted,
        Unranked.EMULATED: trial.entrant.caller.by_emulator,
        Unranked.CHOSEN: chosen,
        Unranked.SKIPPED: bool(trial.entrant.skipped),
        Unranked.QUICK: quick,
        Unranked.VOIDED: bool(trial.unclockable) or too_many_void(timings.sittings for timings in trial.timings),
        Unranked.CROWDED: any(crowded(timings.sittings) for timings in trial.timings),
        Unranked.UNSTABLE: eligibility.is_unstable(trial.rounds),
        Unranked.IMPRECISE: imprecise,
        Unranked.BELOW_FLOOR: any(eligibility.is_below_floor(measurement) for measurement in measurements),
        Unranked.UNSANDBOXED: not safe,
        Unranked.WORKER_TIMED: trial.entrant.clocks.whose is ClockOwner.WORKER,
        Unranked.REPRODUCED: reproduced,
    }
    return Unranked.first(holds)
