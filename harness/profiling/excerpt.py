"""The excerpt of a profile: its kernels, each summed over its launches, with the floor of the case."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness.model import Case, Device, Floor


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, or the median of its launches. On a CPU: an operator, with its own time only.

    A figure that the profiler does not report is None. `dram_percent` and `compute_percent`: of the peak sustained
    during the launch. `occupancy_percent`: of the warps (waves) that fit. `grid` and `block`: as the profiler writes
    them.
    """

    name: str
    time_ns: float
    dram_percent: float | None = None
    compute_percent: float | None = None
    occupancy_percent: float | None = None
    dram_bytes: float | None = None
    registers: float | None = None
    shared_bytes: float | None = None
    grid: str | None = None
    block: str | None = None


@dataclass(frozen=True)
class ProfiledKernel:
    """A kernel over all profiled calls. `launches` and `total_ns` are per call.

    `each`: the median of every figure over the launches; for an operator the mean time.
    """

    launches: float
    total_ns: float
    each: Launch


@dataclass(frozen=True)
class Profile:
    """One profile.

    `case_number`: the number of the benchmark case from 1; None for another case. `call_ns`: a whole call by the host's
      clock, under the profiler. `needed_bytes`: the bytes that the floor counts. `files`: the profiler's own files in
      `folder`.
    """

    problem: str
    submission: str
    submission_sha256: str
    device: Device
    case: Case
    case_number: int | None
    tool: str
    calls: int
    kernels: tuple[ProfiledKernel, ...]
    call_ns: float
    floor: Floor | None
    needed_bytes: float | None
    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def total_ns(self) -> float:
        """The time of all kernels of one call, without the gaps between them."""
        return sum(kernel.total_ns for kernel in self.kernels)

    @property
    def dram_bytes(self) -> float | None:
        """The bytes that all kernels of one call moved to and from memory, if the profiler reports them for each
        kernel."""
        moved = [(kernel.launches, kernel.each.dram_bytes) for kernel in self.kernels]
        if not moved or any(each is None for _, each in moved):
            return None
        return sum(launches * (each or 0.0) for launches, each in moved)

    def as_json(self) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "submission": self.submission,
            "submission_sha256": self.submission_sha256,
            "device": self.device.model_dump(mode="json"),
            "case": self.case.parameters,
            "case_number": self.case_number,
            "tool": self.tool,
            "calls": self.calls,
            "kernels": [
                {"launches": kernel.launches, "total_ns": kernel.total_ns, **asdict(kernel.each)}
                for kernel in self.kernels
            ],
            "total_ns": self.total_ns,
            "call_ns": self.call_ns,
            "dram_bytes": self.dram_bytes,
            "needed_bytes": self.needed_bytes,
            "floor": self.floor.model_dump(mode="json") if self.floor else None,
            "notes": list(self.notes),
            "folder": str(self.folder),
            "files": list(self.files),
        }


def kernels(launches: Sequence[Launch], calls: int) -> tuple[ProfiledKernel, ...]:
    """Group launches with the same name, grid and block into kernels, the most time-consuming first."""
    alike: dict[tuple[str, str | None, str | None], list[Launch]] = {}
    for launch in launches:
        alike.setdefault((launch.name, launch.grid, launch.block), []).append(launch)
    found = [
        ProfiledKernel(len(group) / calls, sum(launch.time_ns for launch in group) / calls, _median(group))
        for group in alike.values()
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.total_ns))


def _median(group: Sequence[Launch]) -> Launch:
    figures: dict[str, Any] = {}
    for field in fields(Launch):
        known = [value for launch in group if (value := getattr(launch, field.name)) is not None]
        numeric = field.name not in ("name", "grid", "block")
        figures[field.name] = None if not known else statistics.median(known) if numeric else known[0]
    return Launch(**figures)
