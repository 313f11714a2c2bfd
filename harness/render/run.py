"""One run in full: everything stored except the single samples, which `--json` has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.machine.environment import flattened
from harness.model import (
    CPU_BOUND,
    GPU_BOUND,
    Case,
    CaseCheck,
    ClockOwner,
    Device,
    Floor,
    Label,
    Measurement,
    Run,
    Total,
    Verdict,
    outcome,
    told_apart,
)
from harness.ranking.stats import centre_of_cases
from harness.render import timing
from harness.render.document import Facts, Part, Prose, Table, Verbatim
from harness.render.figures import error_figure, microseconds, percent, ratio, significant, wide_note
from harness.render.fit import hanging
from harness.render.notes import limit_note, why_unranked

_REMEDIES = {
    Label.HOST_BOUND: "; .item(), .tolist() and synchronize() do that",
    Label.COPIED: "; allocate it in the call with torch.empty",
}
_TOLD_ELSEWHERE = ("isolation", "python", "packages")


def parts(shown: Run, every_report: bool = True, not_ranked: str | None = None) -> list[Part]:
    """Return all parts. Without `every_report`, only the most telling report of a wrong case is included. `not_ranked`:
    why the board does not rank the run, if the run itself does not say so."""
    found: list[Part] = [Facts(_facts(shown, not_ranked or shown.unranked_because))]
    if shown.measurements:
        found += [case_table(shown), *map(Prose, label_notes(shown)), timing.samples(shown.measurements)]
        found += [timing.manners(shown.measurements), timing.constants_of(shown.constants)]
        found.append(timing.workers_clock(shown.measurements))
    found += [timing.profile_of(each, shown.device.kind) for each in shown.profiles]
    if shown.baselines:
        found.append(timing.baselines_of(shown.baselines))
    if shown.rounds:
        found.append(timing.rounds_of(shown.rounds))
    if shown.checks:
        found.append(_checks(shown.checks))
    if shown.totals:
        found.append(totals_of(shown.totals))
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
    # What is wrong comes last, where it is on the screen.
    if shown.ending.detail:
        report = shown.ending.verdict is Verdict.WRONG_ANSWER
        found.append(Verbatim(hanging(shown.ending.detail) if report else shown.ending.detail, title="What was seen:"))
    told = shown.ending.detail or ""
    others = [c for c in shown.checks if c.report and c.report not in told]
    if not every_report and told and others:
        reports = f"{len(others)} more test cases are" if len(others) > 1 else "1 more test case is"
        found.append(f"{reports} wrong: --json has every report.")
    else:
        found += [Verbatim(hanging(c.report), title=f"{c.case.label}:") for c in others if c.report]
    if shown.output.strip():
        found.append(Verbatim(shown.output.rstrip(), title="What it printed:"))
    return found


def _facts(shown: Run, not_ranked: str | None) -> list[tuple[str, Any]]:
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
        ("clock", clock(shown) or "nothing was timed"),
        ("seed", shown.master_seed),
        ("verdict", f"{outcome(shown.ending.verdict, shown.unranked_because)}: {shown.ending.message}"),
        ("tolerance met", shown.tolerance or ""),
        ("error", error_figure(shown.error)),
        ("score µs", (microseconds(shown.score) if shown.score else "none") + _of_which_mean(shown)),
    ]
    if bound := score_bound(shown):
        facts.append(("its bound", bound))
    if shown.reproduces:
        facts.insert(1, ("reproduces", shown.reproduces))
    if not_ranked and shown.ending.verdict is Verdict.ACCEPTED:
        facts.append(("not ranked", why_unranked(not_ranked)))
    return facts


def _of_which_mean(shown: Run) -> str:
    """Name the mean, if it is not the usual geometric one."""
    return " (arithmetic mean over the cases)" if shown.ranking == "mean" else ""


def score_bound(shown: Run) -> str:
    """How much higher the score were if every case had seemed shorter by its whole bound; "" if a bound is unknown."""
    latencies_ns = [m.latency.latency_ns for m in shown.measurements]
    bounds_ns = [m.bound_ns for m in shown.measurements if m.bound_ns is not None]
    if not latencies_ns or len(bounds_ns) < len(latencies_ns):
        return ""
    longest_ns = [latency_ns + bound_ns for latency_ns, bound_ns in zip(latencies_ns, bounds_ns, strict=True)]
    more = centre_of_cases(longest_ns, shown.ranking) / centre_of_cases(latencies_ns, shown.ranking) - 1
    return f"{percent(more)}, if every case seemed shorter by its whole bound"


def _device(device: Device) -> str:
    """Return the device's memory, its peaks if known, and how many bytes flush a GPU's caches."""
    told = [f"{device.memory_bytes / 1e9:.4g} GB"]
    if device.kind != "cpu":
        told.append(f"flushed by {device.flush_bytes / 2**20:.4g} MiB")
    if device.bandwidth_bytes_per_s is not None:
        told.append(f"{device.bandwidth_bytes_per_s / 1e12:.4g} TB/s")
    told += [f"{name} {peak / 1e12:.4g} TFLOP/s" for name, peak in device.peak_flops_per_s.items()]
    return ", ".join(told)


def clock(shown: Run) -> str:
    """Return who timed the run, in words, or "" if nothing was timed."""
    if not shown.measurements:
        return ""
    return "the judge's" if shown.clock is ClockOwner.JUDGE else f"{Label.WORKER_TIMED}: {Label.WORKER_TIMED.why}"


def case_table(shown: Run, title: str = "") -> Table:
    """Return a table of latency, floor, share of the limit and what binds, with the bound where it is unusually
    wide."""
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
    below = limit_note(m.floor.format for m in shown.measurements if m.floor) + wide_note(row[1] for row in rows)
    if any(row[5] for row in rows):
        share, least_ns = _usual_bound(shown.device)
        usual = f"{100 * share:g}\xa0% + {least_ns / 1e3:g} µs"
        below.append(f"bound: the most by which a latency can be less than the truth; shown if above {usual}")
    return Table(headers, rows, below, title="; ".join(filter(None, (title, shared))))


def binds(floor: Floor | None) -> str:
    """Return the bound of a floor and the format of its data: `bandwidth (mxfp4)`."""
    return f"{floor.binds} ({floor.format})" if floor else ""


def label_notes(shown: Run) -> list[str]:
    """Explain the labels of the run's cases, with advice."""
    borne = {label for measured in shown.measurements for label in labels(shown, measured)}
    return [f"{label}: {label.why}{_REMEDIES.get(label, '')}" for label in Label if label in borne]


def labels(shown: Run, measured: Measurement) -> list[str]:
    return sorted({*measured.labels, *([Label.WORKER_TIMED] if shown.clock is ClockOwner.WORKER else [])})


def _wide_bound(measured: Measurement, device: Device) -> bool:
    """Whether a submission could understate its latency by more than the usual amount."""
    share, least_ns = _usual_bound(device)
    return (measured.bound_ns or 0.0) > share * measured.latency.latency_ns + least_ns


def _usual_bound(device: Device) -> tuple[float, float]:
    """Return the usual bound: a share of the latency, plus nanoseconds."""
    return CPU_BOUND if device.kind == "cpu" else GPU_BOUND


def _named(cases: Sequence[Case]) -> tuple[list[str], str]:
    """Return the names that tell `cases` apart, and a title with the parameters that they share."""
    names, shared = told_apart(cases)
    return names, f"every case: {shared}" if shared else ""


def _checks(checks: Sequence[CaseCheck]) -> Table:
    names, title = _named([c.case for c in checks])
    tolerances = max((list(c.excess) for c in checks), key=len)
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


def totals_of(totals: Sequence[Total]) -> Table:
    """Return the totals over the outputs of many calls, one row each."""
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
