"""Which profiler fits a device, where its program is, and how to install it. verbs/profile runs it."""

from __future__ import annotations

import glob
import os
import shutil
import sys

from harness.errors import InfrastructureError, UsageError
from harness.model import Device
from harness.profiling import ncu, rocprof

_FITTING = {"cpu": ("torch",), "cuda": ("ncu", "torch"), "rocm": ("rocprofv3", "torch")}
_PLACES = {"ncu": ncu.PLACES, "rocprofv3": rocprof.PLACES}
_HOW_TO_GET_IT = {"ncu": ncu.HOW_TO_GET_IT, "rocprofv3": rocprof.HOW_TO_GET_IT}


def fitting(device: Device) -> tuple[str, ...]:
    """Return the profilers for this kind of device, the most informative first."""
    return _FITTING[device.kind]


def chosen(wanted: str, device: Device) -> str:
    """Choose a profiler. Raises UsageError if it does not support this kind of device."""
    if wanted == "auto":
        return fitting(device)[0]
    if wanted not in fitting(device):
        raise UsageError(f"{wanted} cannot profile {device.name}", f"here: {' or '.join(fitting(device))}")
    return wanted


def named(tool: str) -> str:
    return "torch.profiler" if tool == "torch" else tool


def find(tool: str) -> str:
    """Return the path of the tool's program. Raises InfrastructureError, which says how to install it."""
    if tool == "torch":
        return sys.executable
    folders = [found for place in _PLACES[tool] for found in sorted(glob.glob(place), reverse=True)]
    path = shutil.which(tool) or shutil.which(tool, path=os.pathsep.join(folders))
    if path is None:
        raise InfrastructureError(f"{tool} is not installed", _HOW_TO_GET_IT[tool])
    return path
