"""A card's gauges by `nvidia-smi`, which comes with NVIDIA's driver."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess

from harness.machine.device import nvidia_name
from harness.model import Device

IDENTITY = ("uuid", "driver_version", "clocks.max.sm", "clocks.max.mem", "enforced.power.limit", "mig.mode.current")
STATE = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "pstate")
SLOWED = {
    f"clocks_event_reasons_counters.{cause}": (1e-3, "ms")
    for cause in ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
}
"""Counters of how long the card ran below its clocks since the driver was loaded, because it was too hot or its supply
failed. Each has the worth of one count and its unit. Throttling by the power limit is normal, and not counted."""

_TIMEOUT_S = 10.0


def identity(device: Device) -> dict[str, str]:
    """The card's identity and limits. Empty if unknown."""
    return _ask(device, IDENTITY)


def state(device: Device) -> dict[str, str]:
    """The card's clocks, temperature and power now, and for how long it has been slowed down so far."""
    return _ask(device, STATE) | _ask(device, tuple(SLOWED))


def processes(device: Device) -> dict[int, str]:
    """The processes that compute on the card: names by process id."""
    rows = _query("--query-compute-apps=pid,process_name", device)
    return {int(row[0]): row[1] for row in rows if len(row) == 2 and row[0].isdigit()}


def _ask(device: Device, fields: tuple[str, ...]) -> dict[str, str]:
    rows = _query(f"--query-gpu={','.join(fields)}", device)
    if len(rows) != 1 or len(rows[0]) != len(fields):
        return {}
    return {name: value for name, value in zip(fields, rows[0]) if "N/A" not in value and "Supported" not in value}


def _query(what: str, device: Device) -> list[list[str]]:
    """The rows of the answer. Empty if nvidia-smi is missing, fails, or does not know the query."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, what, "--format=csv,noheader,nounits", f"--id={nvidia_name(device)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(csv.reader(io.StringIO(done.stdout), skipinitialspace=True)) if done.returncode == 0 else []
