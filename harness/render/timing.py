"""How a run was timed: its samples, each case's manner of timing, the subtracted constants, and the machine's
gauges."""

from __future__ import annotations

from collections.abc import Sequence

from harness.command import page
from harness.model import Constant, Estimate, Measurement, ProfiledCase, Round, TimedBaseline, eligibility, told_apart
from harness.ranking import stats
from harness.render.charts import quantiles
from harness.render.document import Table
from harness.render.figures import microseconds, percent, significant

_THROTTLED = "clocks_event_reasons_counters."  # nvidia-smi: microseconds for which clocks were held down, by reason


def samples(measurements: Sequence[Measurement]) -> Table:
    """Return quantiles over all processes, and each process's own estimate. Cases are named as in `run.case_table`."""
    labels, _ = told_apart([m.case for m in measurements])
    rows = []
    for label, m in zip(labels, measurements, strict=True):
        pooled = [sample for process in m.samples_ns for sample in process]
        counts = [len(process) for process in m.samples_ns]
        count = f"{len(counts)}×{counts[0]}" if len(set(counts)) == 1 else "+".join(map(str, counts))
        centres = [stats.interquartile_mean(process) for process in m.samples_ns]
        figures = [microseconds(Estimate(latency_ns=value)) for value in quantiles(pooled)]
        each = " ".join(microseconds(Estimate(latency_ns=centre)) for centre in centres)
        rows.append([label, count, *figures, each])
    names = ["least", "5\xa0%", "25\xa0%", "median", "75\xa0%", "95\xa0%", "most"]
    return Table(["samples, µs", "number", *names, "each process"], rows)


def manners(measurements: Sequence[Measurement]) -> Table:
    """Return how the judge timed each case, and how far the figure can be trusted. Cases are named as in
    `run.case_table`."""
    names, _ = told_apart([m.case for m in measurements])
    rows = [
        [name, m.manner, _microseconds(m.bound_ns), _microseconds(m.inside_ns), taken_again(m)]
        for name, m in zip(names, measurements, strict=True)
        if m.manner is not None
    ]
    below = ["bound: the most by which a submission could make its latency seem less than it is"]
    if any(m.inside_ns is not None for m in measurements):
        below.append("worker's events: the worker's own timing of a few calls in the pilot, a diagnosis and no score")
        below.append("  They contain a kernel's launch, some µs, which a latency does not. A few calls also vary more.")
    if any(m.voids for m in measurements):
        below.append("taken again: void calls by their reason, and their share of the case's calls")
        below.append(_all_taken_again(measurements))
    return Table(["case", "manner", "bound µs", "worker's events µs", "taken again"], rows, below)


def taken_again(measured: Measurement) -> str:
    """Return the void calls by reason, and their share of all calls: `cut by the slice: 3 (1.2 %)`."""
    calls = sum(eligibility.calls(measured))
    return ", ".join(f"{why}: {n} ({significant(100 * n / calls, 2)}\xa0%)" for why, n in measured.voids.items() if n)


def _all_taken_again(measurements: Sequence[Measurement]) -> str:
    """Return the run's void calls and the worst case's share, beside the limits for a ranked run."""
    calls = [eligibility.calls(measured) for measured in measurements]
    void, counted = map(sum, zip(*calls, strict=True))
    share = percent(eligibility.void_share(void, counted))
    worst = percent(max(eligibility.void_share(*case) for case in calls))
    run, case = percent(eligibility.MOST_VOID), percent(eligibility.MOST_VOID_OF_A_CASE)
    all_calls = f"{void:,} of {void + counted:,} calls ({share}, limit {run})"
    return f"taken again in all: {all_calls}; most in one case: {worst} (limit {case})"


def constants_of(constants: Sequence[Constant]) -> Table:
    rows = [[c.manner, _microseconds(c.latency_ns), _microseconds(c.spread_ns), c.calls] for c in constants]
    below = ["constant: the time of a call that computes nothing; it is subtracted from each call"]
    return Table(["constant", "µs", "interquartile range µs", "calls"], rows, below)


def baselines_of(baselines: Sequence[TimedBaseline]) -> Table:
    """Return the baselines that were timed in turns with the submission: their speed-up, or the reason why there is
    none."""
    rows = [
        [
            each.name,
            microseconds(each.score) if each.score else "",
            speed_up(each),
            speed_up_interval(each),
            "; ".join(filter(None, (each.why_not, each.doubt))),
        ]
        for each in baselines
    ]
    below = ["speed-up: how many times as long as the submission the baseline took, timed in turns with it"]
    return Table(["baseline", "score µs", "speed-up", "interval", "but"], rows, below)


def speed_up(baseline: TimedBaseline | None) -> str:
    """Return how many times as long as the submission the baseline took, or "" if unknown."""
    return f"{baseline.speed_up:.3g}" if baseline is not None and baseline.speed_up else ""


def speed_up_interval(baseline: TimedBaseline | None) -> str:
    """Return `1.2 to 1.4`."""
    if baseline is None or not baseline.speed_up_low or not baseline.speed_up_high:
        return ""
    return f"{baseline.speed_up_low:.3g} to {baseline.speed_up_high:.3g}"


def profile_of(found: ProfiledCase, device_kind: str) -> Table:
    """Return where the time of a call goes, by torch.profiler in the submission's own process."""
    title = f"{found.case.label}, profiled:"
    if found.call_ns is None:
        counted = [("kernels interpreted", found.launches), ("instructions emulated", found.instructions)]
        below = ["there is no GPU here; times of an interpreter or emulator say nothing about a GPU, so none are shown"]
        return Table(["what", "a call"], [[what, f"{count:,}"] for what, count in counted if count], below, title=title)
    whole_ns = sum(part.self_ns for part in found.parts) or 1.0
    rows = [
        [part.name, f"{part.count:.4g}", _microseconds(part.self_ns), f"{100 * part.self_ns / whole_ns:.1f}"]
        for part in found.parts
    ]
    what = "operator" if device_kind == "cpu" else "kernel"
    whole = significant(found.call_ns / 1e3)
    below = [f"a call took {whole} µs under the profiler, which itself takes some of it; median of {found.calls}"]
    return Table([what, "a call", "own µs", "% of time"], rows, below, title=title)


def _microseconds(time_ns: float | None) -> str:
    return "" if time_ns is None else significant(time_ns / 1e3)


def workers_clock(measurements: Sequence[Measurement]) -> Table:
    """Return the judge's check of the worker's latencies, from runs of schema version 1. Cases are named as in
    `run.case_table`."""
    names, _ = told_apart([m.case for m in measurements])
    seen = [(name, m) for name, m in zip(names, measurements, strict=True) if m.hidden_ns or m.idle_excess_ns]
    rows = [[name, span(m.hidden_ns), span(m.idle_excess_ns)] for name, m in seen]
    below = [
        "hidden: how much longer calls took outside their latencies than idle calls did, by the judge's clock;",
        "idle excess: how much longer idle calls took than in a process without the submission;",
        f"both from the least to the most of the processes; below 0 is noise; what is allowed: {page('clock')}",
    ]
    return Table(["case", "hidden µs", "idle excess µs"], rows, below)


def rounds_of(rounds: Sequence[Round]) -> Table:
    """Return the state of the machine in each process, one column each: the judge's own work, and the driver's
    gauges."""
    names = list(dict.fromkeys(name for each in rounds for name in each.gauges))
    rows = [
        ["copy µs", *(microseconds(Estimate(latency_ns=each.copy_ns)) for each in rounds)],
        ["matrix product µs", *(microseconds(Estimate(latency_ns=each.product_ns)) for each in rounds)],
        *([name.removeprefix(_THROTTLED), *(each.gauges.get(name, "") for each in rounds)] for name in names),
    ]
    below = ["after each process: the judge's own work, and the driver's readings"]
    if any(each.constant_ns is not None for each in rounds):
        rows.append(["constant µs", *("" if (c := each.constant_ns) is None else _microseconds(c) for each in rounds)])
        below.append("constant: what was subtracted from its calls, in the manner sandwich")
    if any(each.others_share is not None for each in rounds):
        rows.append(["others", *("" if (o := each.others_share) is None else f"{o:.0%}" for each in rounds)])
        below.append("others: the share of the processors that other processes took meanwhile")
    for number, each in enumerate(rounds, 1):
        said = "; ".join(filter(None, (each.disturbed, each.objection, None if each.kept else "not counted")))
        if said:
            below.append(f"round {number}: {said}")
    return Table(["round", *map(str, range(1, len(rounds) + 1))], rows, below)


def span(values_ns: Sequence[float]) -> str:
    """Return the least and the most in µs: `-3.10 to 42.0`."""
    if not values_ns:
        return ""
    low, high = (_signed(value / 1e3) for value in (min(values_ns), max(values_ns)))
    return low if low == high else f"{low} to {high}"


def _signed(value: float) -> str:
    return f"-{significant(-value, 3)}" if value < 0 else significant(value, 3)
