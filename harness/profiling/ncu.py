"""NVIDIA's Nsight Compute. It launches each kernel again for every group of counters.

Clocks are left alone (`--clock-control none`), because locking them takes rights that few users have, and a submission
is judged at the clocks that the card chooses. Caches are emptied before every launch, as for a judged call.
https://docs.nvidia.com/nsight-compute/NsightComputeCli/
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from harness.profiling.excerpt import Launch

REPORT = "profile.ncu-rep"
PAGE = "kernels.csv"

TIME = "gpu__time_duration.sum"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
REGISTERS = "launch__registers_per_thread"
SHARED = "launch__shared_mem_per_block"
METRICS = (TIME, DRAM, COMPUTE, OCCUPANCY, READ, WRITTEN, REGISTERS, SHARED)

HOW_TO_GET_IT = (
    "it comes with the CUDA toolkit (put its bin on PATH), or by itself from NVIDIA's apt repository: "
    "apt install cuda-nsight-compute-13-0; --tool torch does without: times, no counters"
)
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")

REMEDIES = {
    "ERR_NVGPUCTRPERM": "the driver keeps its counters from this user: run as root or with CAP_SYS_ADMIN (docker run "
    "--cap-add=SYS_ADMIN), or load the driver with NVreg_RestrictProfilingToAdminUsers=0; --tool torch does without",
    "No kernels were profiled": "the submission launched no kernel on the device",
}

# https://docs.nvidia.com/nsight-compute/NsightComputeCli/#print-units: short names since 2024, long names before.
_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9}
_UNITS |= {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}


def command(ncu: str, folder: Path, program: Sequence[str]) -> list[str]:
    words = "--profile-from-start off --clock-control none --cache-control all --target-processes application-only"
    words += " --set detailed --section SchedulerStats --section WarpStateStats --import-source yes"
    export = ["--metrics", ",".join(METRICS), "--force-overwrite", "--export", str(folder / REPORT)]
    return [ncu, *words.split(), *export, *program]


def page_command(ncu: str, folder: Path) -> list[str]:
    """Return the command that prints every metric of the report as CSV."""
    return [ncu, "--import", str(folder / REPORT), "--csv", "--page", "raw", "--print-units", "base"]


def read(page: str) -> list[Launch]:
    """Return the launches of a raw page. Raises ValueError if it is not such a page or lacks the times."""
    lines = page.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError("ncu printed no table")
    header, *rows = csv.reader(io.StringIO("\n".join(lines[start:])))
    if TIME not in header:
        raise ValueError(f"ncu's table has no {TIME}")
    units: dict[str, str] = {}
    if rows and not rows[0][0].strip():
        units = dict(zip(header, rows.pop(0), strict=False))
    return [_launch(dict(zip(header, row, strict=False)), units) for row in rows if len(row) == len(header)]


def _launch(row: dict[str, str], units: dict[str, str]) -> Launch:
    def figure(metric: str) -> float | None:
        try:
            value = float(row.get(metric, "").replace(",", "")) * _scale(units.get(metric, ""))
        except ValueError:  # "n/a" or not collected
            return None
        return value if math.isfinite(value) else None

    parts = [figure(READ), figure(WRITTEN)]
    return Launch(
        name=row.get("Kernel Name", "?"),
        time_ns=figure(TIME) or 0.0,
        dram_percent=figure(DRAM),
        compute_percent=figure(COMPUTE),
        occupancy_percent=figure(OCCUPANCY),
        dram_bytes=None if None in parts else sum(part or 0.0 for part in parts),
        registers=figure(REGISTERS),
        shared_bytes=figure(SHARED),
        grid=_extent(row.get("Grid Size")),
        block=_extent(row.get("Block Size")),
    )


def _scale(unit: str) -> float:
    """Return the factor to ns or bytes. In `Kbyte/block` only the part before the slash counts."""
    return _UNITS.get(unit.partition("/")[0], 1.0)


def _extent(written: str | None) -> str | None:
    """Return `(132, 1, 1)` as `132×1×1`."""
    return "×".join(re.findall(r"\d+", written)) if written else None
