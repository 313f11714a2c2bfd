"""What a GPU's driver says of the card: who it is, its clocks, temperature and power, and what has slowed it down.

Read by `nvidia-smi`, which comes with NVIDIA's driver. AMD's `amd-smi` has not been tried, and is not asked.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from typing import Any

from harness.model import Device

IDENTITY = ("uuid", "driver_version", "clocks.max.sm", "clocks.max.mem", "enforced.power.limit", "mig.mode.current")
STATE = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "pstate")
SLOWED_US = (
    "clocks_event_reasons_counters.sw_thermal_slowdown",
    "clocks_event_reasons_counters.hw_thermal_slowdown",
    "clocks_event_reasons_counters.hw_power_brake_slowdown",
)
"""Microseconds for which the card has run below its clocks since the driver was loaded, because it was too hot or its
supply failed. That it keeps to its power limit is no fault, and is not among them."""

_TIMEOUT_S = 10.0


def identity(device: Device) -> dict[str, str]:
    """Who the card is and what it may do; nothing where nobody can say."""
    return _ask(device, IDENTITY)


def state(device: Device) -> dict[str, str]:
    """Its clocks, temperature and power now, and for how long it has been slowed down so far."""
    return _ask(device, STATE) | _ask(device, SLOWED_US)


def slowed(before: dict[str, str], after: dict[str, str]) -> str | None:
    """What slowed the card down between two states, or None."""
    for name in SLOWED_US:
        lost_us = _number(after.get(name)) - _number(before.get(name))
        if lost_us > 0:
            return f"{name.rpartition('.')[2].replace('_', ' ')} for {lost_us / 1e3:,.1f} ms"
    return None


def others(device: Device, ours: set[int]) -> list[str]:
    """The processes that compute on the card beside `ours`, by name and id."""
    rows = _query("--query-compute-apps=pid,process_name", device)
    return [f"{row[1]} ({row[0]})" for row in rows if len(row) == 2 and row[0].isdigit() and int(row[0]) not in ours]


def _ask(device: Device, fields: tuple[str, ...]) -> dict[str, str]:
    rows = _query(f"--query-gpu={','.join(fields)}", device)
    if len(rows) != 1 or len(rows[0]) != len(fields):
        return {}
    return {name: value for name, value in zip(fields, rows[0]) if "N/A" not in value and "Supported" not in value}


def _query(what: str, device: Device) -> list[list[str]]:
    """The rows of the answer; none where nvidia-smi is missing, fails, or does not know what it is asked for."""
    program = shutil.which("nvidia-smi")
    if device.kind != "cuda" or program is None:
        return []
    command = [program, what, "--format=csv,noheader,nounits", f"--id={_uuid(device)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(csv.reader(io.StringIO(done.stdout), skipinitialspace=True)) if done.returncode == 0 else []


def _uuid(device: Device) -> str:
    """The driver counts cards otherwise than torch does, whose numbers CUDA_VISIBLE_DEVICES changes."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device.torch_device)
    return f"GPU-{properties.uuid}"


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
