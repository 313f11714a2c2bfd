"""The device nodes that a GPU needs, the groups that may open them, and the variables that tell a worker its GPU."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from harness.machine.device import nvidia_name, pci_address
from harness.model import Device

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
_RENDER_NODES = Path("/sys/class/drm")


def gpu_nodes(device: Device, only: bool) -> list[str]:
    """The nodes of `device` and those that all GPUs of its vendor share. Without `only`, also the nodes of the other
    GPUs.

    Raises LookupError if the device's own node cannot be identified.
    """
    if device.kind == "cpu":
        return []
    if device.kind == "cuda":
        own = [_nvidia_node(pci_address(device))] if only else _existing("/dev", "nvidia[0-9]*")
        return [
            *own,
            *_existing("/dev", "nvidiactl"),
            *_existing("/dev", "nvidia-uvm*"),
            *_existing("/dev/nvidia-caps", "*"),
        ]
    own = [_render_node(pci_address(device))] if only else _existing("/dev/dri", "renderD*")
    return [*_existing("/dev", "kfd"), *own]


def visibility(device: Device, only: bool) -> dict[str, str]:
    """The environment variables that show only `device` to CUDA or HIP. `only` as for `gpu_nodes`."""
    if device.kind == "cpu":
        return {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    variable = "HIP_VISIBLE_DEVICES" if device.kind == "rocm" else "CUDA_VISIBLE_DEVICES"
    index = int(device.torch_device.partition(":")[2] or 0)
    outer = os.environ.get(variable, "").split(",")
    own = outer[index] if index < len(outer) and outer[index] else str(index)
    if only and own.isdigit():
        # A runtime numbers only the cards that it can open. NVIDIA's names do not depend on numbers.
        own = "0" if device.kind == "rocm" else nvidia_name(device)
    return {variable: own}


def groups_of(nodes: Iterable[str]) -> tuple[int, ...]:
    """The groups whose members may open `nodes`, except root's."""
    return tuple(sorted({os.stat(node).st_gid for node in nodes if os.path.exists(node)} - {0}))


def _nvidia_node(address: str) -> str:
    """Find the node's number in the file `information`, which the driver provides for each card."""
    try:
        lines = (_NVIDIA_GPUS / address / "information").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("Device Minor"):
            return f"/dev/nvidia{int(line.partition(':')[2])}"
    raise LookupError(f"{_NVIDIA_GPUS / address} does not say which node in /dev is the card's")


def _render_node(address: str) -> str:
    """Find the render node whose directory in sysfs links to the card's."""
    for entry in _RENDER_NODES.glob("renderD*"):
        if (entry / "device").resolve().name == address:
            return f"/dev/dri/{entry.name}"
    raise LookupError(f"no entry in {_RENDER_NODES} is of the card at {address}")


def _existing(folder: str, pattern: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob(pattern) if stat.S_ISCHR(path.stat().st_mode))
