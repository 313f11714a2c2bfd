"""One run in full: everything that is stored of it, but each sample, which `--json` has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.machine.environment import flattened
from harness.model import (
    Case,
    CaseCheck,
    ClockOwner,
    Constant,
    Device,
    Estimate,
    Floor,
    Label,
    Measurement,
    Round,
    Run,
    Total,
    Verdict,
    outcome,
    told_apart,
)
from harness.ranking import stats
from harness.render.charts import quantiles
from harness.render.document import Facts, Part, Table, Verbatim
from harness.render.terminal import (
    error_figure,
    limit_note,
    microseconds,
    percent,
    ratio,
    significant,
    why_unranked,
)

_THROTTLED = "clocks_event_reasons_counters."  # of nvidia-smi: microseconds that clocks were held down for a reason
_LABELS = {
    Label.HOST_BOUND: f"{Label.HOST_BOUND.why}; .item(), .tolist() and synchronize() do that",
    Label.COPIED: f"{Label.COPIED.why}; allocate it in the call with torch.empty",
    Label.CROWDED: Label.CROWDED.why,
}
_TOLD_ELSEWHERE = ("isolation", "python", "packages")


def parts(shown: Run) -> list[Part]:
    found: list[Part] = [Facts(_facts(shown))]
    if shown.measurements:
        found += [case_table(shown), *label_notes(shown), _samples(shown.measurements), _timing(shown.measurements)]
        found += [_constants(shown.constants), _workers_clock(shown.measurements)]
    if shown.rounds:
        found.append(_rounds(shown.rounds))
    if shown.checks:
        found.append(_checks(shown.checks))
    if shown.totals:
        found.append(_totals(shown.totals))
    found.append(Table(["skipped case", "why"], [[s.case.label, s.reason] for s in shown.skipped]))
    if shown.triage:
        rows = [[finding.rule, finding.severity, finding.what] for finding in shown.triage]
        title = "Suspicious in the source, by a scanner that decides nothing:"
        found.append(Table(["rule", "severity", "what was seen"], rows, title=title, widths=[None, None, 80]))
    environment = {key: value for key, value in shown.environment.items() if key not in _TOLD_ELSEWHERE}
    found.append(Facts(list(flattened(environment)), title="Measured on:"))
    unused = "gpu" if shown.device.kind == "cpu" else "cpu"
    config = {key: value for key, value in shown.config.items() if key != unused}
    found.append(Facts(list(flattened(config)), title="Configuration:"))
    # Last, where it is on the screen: what is wrong.
    if shown.ending.detail:
        found.append(Verbatim(shown.ending.detail, title="What was seen:"))
    told = shown.ending.detail or ""
    found += [Verbatim(c.report, title=f"{c.case.label}:") for c in shown.checks if c.report and c.report not in told]
    if shown.output.strip():
        found.append(Verbatim(shown.output.rstrip(), title="What it printed:"))
    return found


def _facts(shown: Run) -> list[tuple[str, Any]]:
    packages = " ".join(f"{name} {version}" for name, version in shown.environment.get("packages", {}).items())
    facts = [
        ("run", f"{shown.id} (schema {shown.schema_version})"),
        ("submission", f"{shown.submission}, from {shown.submission_path}"),
        ("source", f"sources/{shown.submission_sha256}.py"),
        ("problem", f"{shown.problem}, revision {shown.problem_revision} ({shown.problem_sha256})"),
        ("device", f"{shown.device.name} ({shown.device.arch}), as {shown.device.torch_device}"),
        ("", f"{shown.device.slug}/: {_device(shown.device)}"),
        ("software", f"python {shown.environment.get('python', '?')} {packages}"),
        ("isolation", shown.environment.get("isolation", "?")),
        ("judged", f"{shown.started_at}, in {shown.duration_s:.1f} s"),
        ("clock", clock(shown)),
        ("seed", shown.master_seed),
        ("verdict", f"{outcome(shown.ending.verdict, shown.unranked_because)}: {shown.ending.message}"),
        ("tolerance met", shown.tolerance or ""),
        ("error", error_figure(shown.error)),
        ("score µs", microseconds(shown.score) if shown.score else "none"),
    ]
    if shown.reproduces:
        facts.insert(1, ("reproduces", shown.reproduces))
    if shown.unranked_because and shown.ending.verdict is Verdict.ACCEPTED:
        facts.append(("not ranked", why_unranked(shown.unranked_because)))
    return facts


def _device(device: Device) -> str:
    """Its memory, its peaks where they are known, and how many bytes empty its caches."""
    told = [f"{device.memory_bytes / 1e9:.4g} GB", f"flushed by {device.flush_bytes / 2**20:.4g} MiB"]
    if device.bandwidth_bytes_per_s is not None:
        told.append(f"{device.bandwidth_bytes_per_s / 1e12:.4g} TB/s")
    told += [f"{name} {peak / 1e12:.4g} TFLOP/s" for name, peak in device.peak_flops_per_s.items()]
    return ", ".join(told)


def clock(shown: Run) -> str:
    """Who timed the run, in words; "" where nothing was timed."""
    if not shown.measurements:
        return ""
    return "the judge's" if shown.clock is ClockOwner.JUDGE else f"{Label.WORKER_TIMED}: {Label.WORKER_TIMED.why}"


def case_table(shown: Run, title: str = "") -> Table:
    """Latency, floor, what it reaches of the limit, what binds, and the bound where it is worth a word."""
    names, shared = _named([m.case for m in shown.measurements])
    rows = []
    for name, m in zip(names, shown.measurements, strict=True):
        floor = m.floor
        rows.append(
            [
                name,
                microseconds(m.latency),
                f"{floor.latency_ns / 1e3:.2f}" if floor else "",
                percent(m.of_limit),
                binds(floor),
                significant(m.bound_ns / 1e3, 2) if m.bound_ns and _wide_bound(m, shown.device) else "",
                ", ".join(labels(shown, m)),
            ]
        )
    headers = ["case", "latency µs", "floor µs", "of the limit", "binds", "bound µs", "labels"]
    below = limit_note(m.floor.format for m in shown.measurements if m.floor)
    return Table(headers, rows, below, title="; ".join(filter(None, (title, shared))))


def binds(floor: Floor | None) -> str:
    """`bandwidth (mxfp4)`: what binds a floor, and the format of the data that it is the floor of."""
    return f"{floor.binds} ({floor.format})" if floor else ""


def label_notes(shown: Run) -> list[str]:
    """What the labels of its cases mean, and what to do about them."""
    borne = {label for measured in shown.measurements for label in measured.labels}
    return [f"{label}: {note}" for label, note in _LABELS.items() if label in borne]


def labels(shown: Run, measured: Measurement) -> list[str]:
    return sorted({*measured.labels, *([Label.WORKER_TIMED] if shown.clock is ClockOwner.WORKER else [])})


def _wide_bound(measured: Measurement, device: Device) -> bool:
    """Whether a submission can make its latency seem less by more than 2 % + 0.3 µs, on a CPU 5 % + 50 µs."""
    share, least_ns = (0.05, 50_000) if device.kind == "cpu" else (0.02, 300)
    return (measured.bound_ns or 0.0) > share * measured.latency.latency_ns + least_ns


def _samples(measurements: Sequence[Measurement]) -> Table:
    """Quantiles over all processes, and each process's own estimate. Named as in `case_table`."""
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


def _timing(measurements: Sequence[Measurement]) -> Table:
    """How the judge timed each case, and how far its figure can be trusted. Named as in `case_table`."""
    names, _ = told_apart([m.case for m in measurements])
    rows = [
        [name, m.manner, _microseconds(m.bound_ns), _microseconds(m.inside_ns), taken_again(m)]
        for name, m in zip(names, measurements, strict=True)
        if m.manner is not None
    ]
    below = ["bound: the most by which a submission could make its latency seem less than it is"]
    if any(m.inside_ns is not None for m in measurements):
        below.append("worker's events: the worker's own timing in the pilot, a diagnosis and never the score")
    if any(m.voids for m in measurements):
        below.append("taken again: void calls by their reason, and their share of all calls")
    return Table(["case", "manner", "bound µs", "worker's events µs", "taken again"], rows, below)


def taken_again(measured: Measurement) -> str:
    """`cut by the slice: 3 (1.2 %)`: of each reason the calls that were void, and their share of all."""
    calls = sum(map(len, measured.samples_ns)) + sum(measured.voids.values())
    return ", ".join(f"{why}: {n} ({significant(100 * n / calls, 2)}\xa0%)" for why, n in measured.voids.items() if n)


def _constants(constants: Sequence[Constant]) -> Table:
    rows = [[c.manner, _microseconds(c.latency_ns), _microseconds(c.spread_ns), c.calls] for c in constants]
    below = ["constant: the time of a call that computes nothing; it is subtracted from each call"]
    return Table(["constant", "µs", "interquartile range µs", "calls"], rows, below)


def _microseconds(time_ns: float | None) -> str:
    return "" if time_ns is None else significant(time_ns / 1e3)


def _workers_clock(measurements: Sequence[Measurement]) -> Table:
    """What the judge's clock saw beside the worker's latencies, in schema version 1. Named as in `case_table`."""
    names, _ = told_apart([m.case for m in measurements])
    seen = [(name, m) for name, m in zip(names, measurements, strict=True) if m.hidden_ns or m.idle_excess_ns]
    rows = [[name, span(m.hidden_ns), span(m.idle_excess_ns)] for name, m in seen]
    below = [
        "hidden: how much longer calls took outside their latencies than idle calls did, by the judge's clock;",
        "idle excess: how much longer idle calls took than in a process without the submission;",
        "both from the least to the most of the processes; below 0 is noise; what is allowed: docs/security.md",
    ]
    return Table(["case", "hidden µs", "idle excess µs"], rows, below)


def _named(cases: Sequence[Case]) -> tuple[list[str], str]:
    """What tells each of `cases` from the others, and a title that says what they share."""
    names, shared = told_apart(cases)
    return names, f"every case: {shared}" if shared else ""


def _rounds(rounds: Sequence[Round]) -> Table:
    """What the machine did in each process, a column each: the judge's own work, and the driver's gauges."""
    names = list(dict.fromkeys(name for each in rounds for name in each.gauges))
    rows = [
        ["copy µs", *(microseconds(Estimate(latency_ns=each.copy_ns)) for each in rounds)],
        ["matrix product µs", *(microseconds(Estimate(latency_ns=each.product_ns)) for each in rounds)],
        *([name.removeprefix(_THROTTLED), *(each.gauges.get(name, "") for each in rounds)] for name in names),
    ]
    below = ["after each process: the judge's own work, and the driver's readings"]
    if any(each.others_share is not None for each in rounds):
        rows.append(["others", *("" if (o := each.others_share) is None else f"{o:.0%}" for each in rounds)])
        below.append("others: the share of the processors that other processes took meanwhile")
    for number, each in enumerate(rounds, 1):
        said = "; ".join(filter(None, (each.disturbed, each.objection, None if each.kept else "not counted")))
        if said:
            below.append(f"round {number}: {said}")
    return Table(["round", *map(str, range(1, len(rounds) + 1))], rows, below)


def _checks(checks: Sequence[CaseCheck]) -> Table:
    names, title = _named([c.case for c in checks])
    tolerances = list(checks[0].excess)
    rows = [
        [
            f"{name} (secret)" if c.secret else name,
            c.verdict.words,
            c.tolerance,
            c.calls,
            error_figure(c.error),
            error_figure(c.reference_error),
            *(ratio(c.excess.get(name)) for name in tolerances),
        ]
        for name, c in zip(names, checks, strict=True)
    ]
    headers = ["test case", "verdict", "tolerance", "calls", "error", "reference's error"]
    below = [
        "error: relative L2 norm of the difference from the exact answer, or from the reference where there is none",
        "of a tolerance: the limit that the output comes closest to, and the share of it; above 1 it is broken",
    ]
    if not tolerances:
        below = []
    if any(c.secret for c in checks):
        below.append("secret: this run drew the case; another run has another in its place")
    return Table([*headers, *(f"of {name}" for name in tolerances)], rows, below, title)


def _totals(totals: Sequence[Total]) -> Table:
    tolerances, parts = list(totals[0].excess), list(totals[0].parts)
    rows = [
        [
            t.what,
            t.tolerance or "none",
            *(
                "" if value is None else f"{value:.4f}"
                for value in (t.gain, t.row_gain, t.dim_rel_l2, *map(t.parts.get, parts))
            ),
            *(ratio(t.excess.get(name)) for name in tolerances),
        ]
        for t in totals
    ]
    below = [
        "gain: <out, ref> / <ref, ref> over all calls; row gain: its mean over rows; worst dim: the largest relative L2"
        " error of an index along the last axis" + ("; then how much of a part is there" if parts else "")
    ]
    headers = [
        "all calls of",
        "tolerance",
        "gain",
        "row gain",
        "worst dim",
        *(name.replace("_", " ") for name in parts),
    ]
    return Table([*headers, *(f"of {name}" for name in tolerances)], rows, below)


def span(values_ns: Sequence[float]) -> str:
    """`-3.10 to 42.0`: in µs, the least and the most."""
    if not values_ns:
        return ""
    low, high = (_signed(value / 1e3) for value in (min(values_ns), max(values_ns)))
    return low if low == high else f"{low} to {high}"


def _signed(value: float) -> str:
    return f"-{significant(-value, 3)}" if value < 0 else significant(value, 3)
