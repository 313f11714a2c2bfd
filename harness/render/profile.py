"""A profile in short: its kernels compared with the limits of the device, and the folder with its files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from harness.model import Estimate, of_limit
from harness.profiling.excerpt import Profile, ProfiledKernel
from harness.render.document import Part, Table
from harness.render.figures import microseconds, percent

KERNELS_SHOWN = 12
NAME_WIDTH = 44
_HOW_TO_OPEN = {
    ".ncu-rep": "ncu-ui opens it",
    ".pftrace": "ui.perfetto.dev opens it",
    "trace": "ui.perfetto.dev opens it",
}


def parts(found: Profile) -> list[Part]:
    what = "operators" if found.device.kind == "cpu" else "kernels"
    case = f"benchmark case {found.case_number}" if found.case_number else "a case of one's own"
    title = f"{found.submission} on {found.problem}, {case}: {found.case.label}"
    how = f"{found.device.name}, {found.tool}, {found.calls} calls"
    if not found.kernels:
        return [title, how, f"It ran no {what}.", *found.notes, _files(found)]
    shown = found.kernels[:KERNELS_SHOWN]
    left = len(found.kernels) - len(shown)
    more = [f"and {left} more, {_percent(sum(k.total_ns for k in found.kernels[len(shown) :]), found.total_ns)}"] * (
        left > 0
    )
    return [f"{title}\n{how}", _table(found, what, shown, more), *_sums(found, what), *found.notes, _files(found)]


def _table(found: Profile, what: str, shown: Sequence[ProfiledKernel], below: Sequence[str]) -> Table:
    headers = [
        what.removesuffix("s"),
        "a call",
        "µs each",
        "% of time",
        "DRAM %",
        "compute %",
        "occupancy %",
        "registers",
        "shared KiB",
        "blocks × threads",
    ]
    return Table(headers, [_row(found, kernel) for kernel in shown], below)


def _row(found: Profile, kernel: ProfiledKernel) -> list[str]:
    each = kernel.each
    return [
        each.name if len(each.name) <= NAME_WIDTH else f"{each.name[: NAME_WIDTH - 1]}…",
        f"{kernel.launches:.4g}",
        _microseconds(each.time_ns),
        f"{100 * kernel.total_ns / found.total_ns:.1f}" if found.total_ns else "",
        *(_figure(value) for value in (each.dram_percent, each.compute_percent, each.occupancy_percent)),
        _figure(each.registers),
        "" if each.shared_bytes is None else f"{each.shared_bytes / 1024:.3g}",
        f"{_count(each.grid)} × {_count(each.block)}" if each.grid and each.block else "",
    ]


def _sums(found: Profile, what: str) -> list[Part]:
    lines = [f"{what} of a call: {_microseconds(found.total_ns)} µs"]
    if found.device.kind == "cpu":
        lines[0] += f" of the {_microseconds(found.call_ns)} µs that a call took under the profiler"
    floor = found.floor
    if floor is None:
        lines.append("floor: not known for this device")
    else:
        share = percent(of_limit(floor.latency_ns, found.total_ns)) or "?"
        lines.append(
            f"floor: {_microseconds(floor.latency_ns)} µs, bound by {floor.binds} ({floor.format}): "
            f"the {what} reach {share} of the limit"
        )
    if found.dram_bytes is not None and found.needed_bytes:
        times = found.dram_bytes / found.needed_bytes
        lines.append(f"memory: {found.dram_bytes / 1e6:,.4g} MB moved, {times:.2f} times what the floor counts")
    return ["\n".join(lines)]


def _files(found: Profile) -> str:
    folder = found.folder
    seen = Path(os.path.relpath(folder)) if folder.is_relative_to(Path.cwd()) else folder
    lines = [f"all files: {seen}/"]
    for name in found.files:
        kind = "trace" if name.startswith("trace-") else Path(name).suffix
        lines.append(f"  {name}" + (f"   {_HOW_TO_OPEN[kind]}" if kind in _HOW_TO_OPEN else ""))
    return "\n".join(lines)


def _microseconds(time_ns: float) -> str:
    return microseconds(Estimate(latency_ns=time_ns)) if time_ns > 0 else "0"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}\N{NO-BREAK SPACE}%" if whole else "?"


def _count(extent: str) -> str:
    """Return the product of an extent: 132 for `132×1×1`."""
    return str(math.prod(int(number) for number in extent.split("×")))
