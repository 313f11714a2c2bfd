"""Finds the device of this machine as a `Device` value. Imports torch only if there may be a GPU.

Facts of a model (peaks, caches, the size of the flush) come from configs/devices/*.yml, matched by name.
"""

from __future__ import annotations

import fnmatch
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from harness.catalog import places, strict_yaml
from harness.errors import InfrastructureError, UsageError
from harness.model import Device, Value

DEFAULT_FLUSH_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20, "rocm": 768 << 20}
"""For a model without a file. cpu: twice the last-level cache of a common server core complex; cuda: H200; rocm:
MI300X."""

CHECK_THE_DEVICE = "see what nvidia-smi or rocm-smi and dmesg say, reset it or restart the machine, and judge again"

NVIDIA_DRIVER_FILE = "/proc/driver/nvidia/version"
_GPU_DRIVER_FILES = (NVIDIA_DRIVER_FILE, "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


class DeviceFile(Value):
    """configs/devices/<name>.yml: datasheet numbers of a model, each with its source."""

    matches: tuple[str, ...] = Field(min_length=1)
    flush_bytes: int = Field(gt=0)
    bandwidth_bytes_per_s: float | None = Field(default=None, gt=0)
    peak_flops_per_s: dict[Literal["float32", "bfloat16", "float16", "float8", "float4"], PositiveFloat] = Field(
        default_factory=dict
    )
    last_level_cache_bytes: int | None = Field(default=None, gt=0)
    sources: dict[str, str]

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> DeviceFile:
        for name in ("flush_bytes", "bandwidth_bytes_per_s", "peak_flops_per_s", "last_level_cache_bytes"):
            if getattr(self, name) and not self.sources.get(name):
                raise ValueError(f"{name} has no entry in sources: say where the number is from")
        return self


def detect(root: Path, wanted: str = "auto") -> Device:
    """The device that `wanted` names: auto, cpu, cuda, cuda:1. Raises UsageError if it is not on this machine."""
    if not re.fullmatch(r"auto|cpu|(cuda|rocm)(:\d+)?", wanted):
        raise UsageError(f"{wanted!r} is not a device", "give cpu, cuda, cuda:1 or auto")
    if wanted == "cpu" or (wanted == "auto" and not driver_present()):
        return _cpu(root)
    index = int(wanted.partition(":")[2] or 0)
    found = _gpu(root, index)
    if found is not None and wanted.partition(":")[0] in ("auto", found.kind):
        return found
    if wanted == "auto":
        return _cpu(root)
    raise UsageError(
        f"torch sees no GPU {wanted} on this machine", "--device cpu (make: DEVICE=cpu) judges on the processor"
    )


def all_cards() -> list[str]:
    """torch's names of the GPUs on this machine, or ["cpu"] if there is none."""
    if not driver_present():
        return ["cpu"]
    import torch

    return [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]


def check_answers(device: Device) -> None:
    """Make `device` compute. Raises InfrastructureError if it cannot, for example because it has fallen off the bus."""
    if device.kind == "cpu":
        return
    import torch

    try:
        torch.ones(1, device=device.torch_device).item()
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        raise InfrastructureError(f"{device.name} no longer answers: {said}", CHECK_THE_DEVICE) from error


@contextmanager
def answering(device: Device) -> Iterator[None]:
    """If an error of torch's leaves this block and `device` no longer computes, raise InfrastructureError instead."""
    try:
        yield
    except RuntimeError:
        check_answers(device)
        raise


def slug(name: str) -> str:
    """The name of a device's folder: `nvidia-h200` for NVIDIA H200."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"


def pci_address(device: Device) -> str:
    """The PCI address as the kernel writes it: `0000:0f:00.0`."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device.torch_device)
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def card(device: Device) -> str:
    """A name that tells this card from all others of the machine, whatever number torch gives it: its UUID, or else its
    PCI address. If the card tells neither, its model and torch's number. `cpu` for the processors."""
    if device.kind == "cpu":
        return "cpu"
    import torch

    try:
        properties: Any = torch.cuda.get_device_properties(device.torch_device)
        uuid = str(getattr(properties, "uuid", ""))
        if re.search(r"[1-9a-f]", uuid.lower()):  # a card without a UUID reports zeros
            return f"GPU-{uuid}"
        return f"PCI-{pci_address(device)}"
    except (AssertionError, AttributeError, RuntimeError):  # this torch does not tell, or sees no such card
        return f"{device.slug}-{device.torch_device.partition(':')[2] or 0}"


def nvidia_name(device: Device) -> str:
    """`GPU-` and the card's UUID. Numbers would not do: the driver counts cards otherwise than torch, and
    CUDA_VISIBLE_DEVICES changes torch's numbers."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device.torch_device)
    return f"GPU-{properties.uuid}"


def driver_present() -> bool:
    """True if there may be a GPU. Importing torch to find out takes a second."""
    return any(os.path.exists(path) for path in _GPU_DRIVER_FILES)


def nvidia_driver_present() -> bool:
    """True if there may be an NVIDIA GPU."""
    return os.path.exists(NVIDIA_DRIVER_FILE)


def _cpu(root: Path) -> Device:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    name = f"{_processor_name()} ({count} CPUs)"
    return described(
        root,
        Device(
            kind="cpu",
            name=name,
            slug=slug(name),
            arch=platform.machine(),
            torch_device="cpu",
            memory_bytes=_memory_bytes(),
            flush_bytes=DEFAULT_FLUSH_BYTES["cpu"],
        ),
    )


def _gpu(root: Path, index: int) -> Device | None:
    import torch

    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    properties = torch.cuda.get_device_properties(index)
    rocm = torch.version.hip is not None
    arch = properties.gcnArchName.partition(":")[0] if rocm else f"sm_{properties.major}{properties.minor}"
    return described(
        root,
        Device(
            kind="rocm" if rocm else "cuda",
            name=properties.name,
            slug=slug(properties.name),
            arch=arch,
            torch_device=f"cuda:{index}",
            memory_bytes=properties.total_memory,
            flush_bytes=DEFAULT_FLUSH_BYTES["rocm" if rocm else "cuda"],
        ),
    )


def described(root: Path, device: Device) -> Device:
    """`device` with the facts from its file in configs/devices, if it has one."""
    folders = [place / "configs" / "devices" for place in reversed(places.places(root))]
    files = {path.name: path for folder in folders for path in folder.glob("*.yml")}
    for _, path in sorted(files.items()):
        known = strict_yaml.read(path, DeviceFile)
        if any(fnmatch.fnmatch(device.name.lower(), pattern.lower()) for pattern in known.matches):
            return device.model_copy(
                update={
                    "flush_bytes": known.flush_bytes,
                    "bandwidth_bytes_per_s": known.bandwidth_bytes_per_s,
                    "peak_flops_per_s": known.peak_flops_per_s,
                }
            )
    return device


def _processor_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
