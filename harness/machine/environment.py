"""The environment of a run: the versions and machine facts that can change a latency or a result."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any

from harness import __version__
from harness.machine import gauges
from harness.model import Device, Isolation

_PACKAGES = ("torch", "triton", "numpy")
_EACH_ITS_OWN = ("load_average", "null_kernel_ns", "tick_ns", "worker_timed_because", "others_on_the_gpu", "cluster")


def describe(device: Device, isolation: Isolation) -> dict[str, Any]:
    """Versions of the software that computes, the operating system, the processors' load before the run, and the
    worker's isolation."""
    found: dict[str, Any] = {
        "podium": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "isolation": isolation.tier,
        "isolation_layers": asdict(isolation),
    }
    if device.kind != "cpu":
        import torch

        found["cuda"], found["hip"] = torch.version.cuda, torch.version.hip
        found["gpu"] = gauges.identity(device)
        found["others_on_the_gpu"] = gauges.others(device, {os.getpid()})
    return found


def versions(device: Device) -> dict[str, str | None]:
    """What a competition may pin."""
    return {"torch": _version("torch"), "triton": _version("triton"), "driver": gauges.driver(device)}


def flat(environment: Mapping[str, Any]) -> dict[str, str]:
    """A run's environment as text by name (`torch`, `isolation_layers seccomp`), without entries that differ in every
    run."""
    return dict(flattened({key: value for key, value in environment.items() if key not in _EACH_ITS_OWN}))


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested values as text, each with its full name. None is left out."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{key} " if key != "packages" else prefix)
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
