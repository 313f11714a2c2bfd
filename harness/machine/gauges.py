"""The GPU driver's report on the card: its identity, clocks, temperature and power, and what has slowed it down.

The program that comes with each vendor's driver is asked. If it is missing or fails, the answers are empty.
"""

from __future__ import annotations

from types import ModuleType

from harness.machine import amd_smi, nvidia_smi
from harness.model import Device

_SMI: dict[str, ModuleType] = {"cuda": nvidia_smi, "rocm": amd_smi}
_SLOWED = nvidia_smi.SLOWED | amd_smi.SLOWED


def identity(device: Device) -> dict[str, str]:
    """The card's identity and limits, in the driver's own words and units. Empty if unknown."""
    return _SMI[device.kind].identity(device) if device.kind in _SMI else {}


def driver(device: Device) -> str | None:
    """The version of NVIDIA's driver. None on other devices."""
    return identity(device).get("driver_version") if device.kind == "cuda" else None


def state(device: Device) -> dict[str, str]:
    """The card's clocks, temperature and power now, and for how long it has been slowed down so far."""
    return _SMI[device.kind].state(device) if device.kind in _SMI else {}


def slowed(before: dict[str, str], after: dict[str, str]) -> str | None:
    """The cause that slowed the card down between two states, or None."""
    for name, (worth, unit) in _SLOWED.items():
        lost = worth * (_number(after.get(name)) - _number(before.get(name)))
        if name in before and lost > 0:
            cause = name.rpartition(".")[2].removesuffix("_accumulated").replace("_", " ")
            return f"{cause} for {lost:,.1f} {unit}"
    return None


def others(device: Device, ours: set[int]) -> list[str]:
    """The other processes that compute on the card, by name and process id. `ours` holds the process ids to leave
    out."""
    found = _SMI[device.kind].processes(device) if device.kind in _SMI else {}
    return [f"{name} ({number})" for number, name in found.items() if number not in ours]


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
