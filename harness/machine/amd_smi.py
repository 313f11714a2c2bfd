"""A card's gauges by `amd-smi`, which comes with ROCm. Written from its documentation and from output that its users
published (https://rocm.docs.amd.com/projects/amdsmi). It has not run on a machine with an AMD GPU yet.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from harness.machine.device import pci_address
from harness.model import Device

STATE = (
    "clock.gfx_0.clk",
    "clock.mem_0.clk",
    "temperature.hotspot",
    "temperature.mem",
    "power.socket_power",
    "power.throttle_status",
)
SLOWED = {
    f"throttle.{cause}_accumulated": (1.0, "ticks of the firmware")
    for cause in ("prochot", "socket_thermal", "vr_thermal", "hbm_thermal")
}
"""Counters on MI300 and later of how long the card ran below its clocks because it or its supply was too hot.
Throttling by the power limit (ppt) is normal, and not counted."""

_TIMEOUT_S = 10.0


def identity(device: Device) -> dict[str, str]:
    """The card's UUID, driver and limits."""
    listed, fixed = _ask(device, "list"), _ask(device, "static", "--driver", "--limit")
    return {name: value for name, value in (listed | fixed).items() if name == "uuid" or "." in name}


def state(device: Device) -> dict[str, str]:
    found = _ask(device, "metric", "--clock", "--temperature", "--power") | _ask(device, "metric", "--throttle")
    return {name: found[name] for name in (*STATE, *SLOWED) if name in found}


def processes(device: Device) -> dict[int, str]:
    """The processes that compute on the card: names by process id."""
    found = {}
    for listed in _query(device, "process").get("process_list") or []:
        about = listed.get("process_info") if isinstance(listed, dict) else None
        if isinstance(about, dict) and isinstance(about.get("pid"), int):
            found[about["pid"]] = str(about.get("name", "?"))
    return found


def _ask(device: Device, *what: str) -> dict[str, str]:
    """All known values, by dotted names."""
    return {name: value for name, value in _leaves(_query(device, *what)) if value not in ("N/A", "")}


def _leaves(node: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of `node` with their dotted names. A quantity is `{"value": 41, "unit": "W"}`. Its unit is
    dropped, as nvidia-smi's is: MHz, C, W."""
    if isinstance(node, dict):
        if "value" in node:
            yield from _leaves(node["value"], name)
        else:
            for key, below in node.items():
                yield from _leaves(below, f"{name}.{key}" if name else str(key))
    elif isinstance(node, (str, int, float)):
        yield name, str(node)


def _query(device: Device, *what: str) -> dict[str, Any]:
    """The output of amd-smi for this one card. Empty if amd-smi is missing, fails, or does not know the query."""
    program = shutil.which("amd-smi")
    if program is None:
        return {}
    command = [program, *what, "--json", f"--gpu={pci_address(device)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        # Warnings may precede the document. Some versions put the list of cards into an object.
        starts = [place for mark in "[{" if (place := done.stdout.find(mark)) >= 0]
        found = json.loads(done.stdout[min(starts, default=0) :]) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    cards = found.get("gpu_data") if isinstance(found, dict) else found
    return cards[0] if isinstance(cards, list) and len(cards) == 1 and isinstance(cards[0], dict) else {}
