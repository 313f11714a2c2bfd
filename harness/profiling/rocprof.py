"""AMD's rocprofv3: a trace of every kernel, and one more run for each counter that the chip has.

Kernels outside the profiled calls are left out by their time stamps: rocprofv3 counts in CLOCK_BOOTTIME.
https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/latest/how-to/using-rocprofv3.html
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.profiling.excerpt import Launch

FETCHED, WRITTEN, OCCUPANCY, MATRIX = "FETCH_SIZE", "WRITE_SIZE", "OccupancyPercent", "MfmaUtil"
COUNTERS = (FETCHED, WRITTEN, OCCUPANCY, MATRIX)
"""One run for each: together they need more hardware counters than a chip has. The first two are in KiB."""

HOW_TO_GET_IT = (
    "it comes with ROCm 6.2 or newer, in /opt/rocm/bin (put it on PATH), or from AMD's apt repository: "
    "apt install rocprofiler-sdk; --tool torch does without: times, no counters"
)
PLACES = ("/opt/rocm/bin", "/opt/rocm-*/bin")

Spans = Sequence[tuple[int, int]]


def command(rocprof: str, folder: Path, program: Sequence[str]) -> list[str]:
    words = ["--kernel-trace", "--stats", "--output-format", "csv", "pftrace"]
    return [rocprof, *words, "--output-directory", str(folder), "--output-file", "profile", "--", *program]


def counter_command(rocprof: str, counter: str, folder: Path, program: Sequence[str]) -> list[str]:
    words = ["--pmc", counter, "--output-format", "csv"]
    return [rocprof, *words, "--output-directory", str(folder), "--output-file", counter, "--", *program]


def read(folder: Path, spans: Spans) -> tuple[list[Launch], bool]:
    """Return the launches within `spans`, and whether there are any outside. Raises ValueError without a trace."""
    paths = sorted(folder.rglob("*kernel_trace.csv"))
    if not paths:
        raise ValueError("rocprofv3 left no *kernel_trace.csv")
    rows = [row for path in paths for row in _rows(path)]
    within = _within(rows, spans)
    return [_launch(row) for row in within], len(within) < len(rows)


def counted(folder: Path, counter: str, spans: Spans) -> dict[str, float]:
    """Return the median of `counter` over the launches within `spans`, by the kernel's name."""
    values: dict[str, list[float]] = {}
    for path in sorted(folder.rglob(f"{counter}*counter_collection.csv")):
        for row in _within(_rows(path), spans):
            if row.get("Counter_Name") == counter:
                values.setdefault(row["Kernel_Name"], []).append(float(row["Counter_Value"]))
    return {name: statistics.median(each) for name, each in values.items()}


def with_counters(
    launches: Sequence[Launch], counters: dict[str, dict[str, float]], bandwidth_bytes_per_s: float | None
) -> list[Launch]:
    """Return `launches` completed with the values of `counters`, by counter and kernel."""

    def completed(launch: Launch) -> Launch:
        found = {counter: values[launch.name] for counter, values in counters.items() if launch.name in values}
        moved = (found[FETCHED] + found[WRITTEN]) * 1024 if FETCHED in found and WRITTEN in found else None
        known = moved is not None and bandwidth_bytes_per_s and launch.time_ns
        return replace(
            launch,
            dram_bytes=moved,
            dram_percent=100 * moved / (launch.time_ns * 1e-9) / bandwidth_bytes_per_s if known else None,  # type: ignore[operator]
            occupancy_percent=found.get(OCCUPANCY),
            compute_percent=found.get(MATRIX),
        )

    return [completed(launch) for launch in launches]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _within(rows: Sequence[dict[str, str]], spans: Spans) -> list[dict[str, str]]:
    def inside(row: dict[str, str]) -> bool:
        start, end = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
        return any(began <= start and end <= ended for began, ended in spans)

    return [row for row in rows if inside(row)]


def _launch(row: dict[str, str]) -> Launch:
    """Read a row of the trace. The columns are those of ROCm 6.3; 6.2 calls the LDS Group_Segment_Size and has no
    registers."""
    shared = row.get("LDS_Block_Size", row.get("Group_Segment_Size"))
    vgprs = [row[name] for name in ("VGPR_Count", "Accum_VGPR_Count") if row.get(name)]
    items, group = ([int(row[f"{what}_Size_{axis}"]) for axis in "XYZ"] for what in ("Grid", "Workgroup"))
    return Launch(
        name=row["Kernel_Name"],
        time_ns=float(int(row["End_Timestamp"]) - int(row["Start_Timestamp"])),
        registers=sum(map(float, vgprs)) if vgprs else None,
        shared_bytes=float(shared) if shared else None,
        grid="×".join(str(-(-total // max(each, 1))) for total, each in zip(items, group, strict=True)),
        block="×".join(map(str, group)),
    )
