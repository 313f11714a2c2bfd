"""What the experiments E1 to E5 share: the device, the timers that judge submissions, and the form of a report.

    options(doc, seconds) ─► device, out, seconds
    timer(device)         ─► the very class that times submissions on it
    Raw                   ─► OUT/<name>.csv, a row a sample, on disk as soon as it is written
    report                ─► a table for people, then one line of JSON for `bench/gpu.py`

An experiment holds the device's lock while it measures, as an evaluation does.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harness import device as devices
from harness.machine_lock import hold
from harness.model import Device
from harness.worker.timers import CpuTimer, GpuTimer, Timer

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Options:
    """`seconds` is the time an experiment may spend sampling; raw samples go to the folder `out`."""

    device: Device
    out: Path
    seconds: float


def options(doc: str | None, seconds: float) -> Options:
    """What the command line says. Raises UsageError for a device that is not here."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto: a GPU if there is one")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where the raw CSV goes")
    parser.add_argument("--seconds", type=float, default=seconds, help="time to spend sampling")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    return Options(devices.detect(ROOT, given.device), given.out, given.seconds)


@contextlib.contextmanager
def measuring(device: Device) -> Iterator[None]:
    """The device ours alone, and the current one of this process."""
    with hold(device, lambda line: print(line, file=sys.stderr)):
        if device.kind != "cpu":
            import torch

            torch.cuda.set_device(device.torch_device)
        yield


def timer(device: Device, flush_bytes: int | None = None) -> Timer:
    """The timer that judges submissions on `device`; it flushes `flush_bytes`, or what the device's file says."""
    kind = CpuTimer if device.kind == "cpu" else GpuTimer
    return kind(device.flush_bytes if flush_bytes is None else flush_bytes)


class Raw:
    """A CSV file that keeps up: what was added is in it even if the process is killed."""

    def __init__(self, out: Path, name: str, columns: Sequence[str]) -> None:
        self._file = (out / f"{name}.csv").open("w", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(columns)

    def add(self, *rows: Sequence[Any]) -> None:
        self._writer.writerows(rows)
        self._file.flush()


def report(name: str, device: Device, headline: str, rows: Sequence[Mapping[str, Any]], **facts: Any) -> None:
    """Print the table `rows`, the `headline` and all of it as one line of JSON, in which `facts` stand as well."""
    print(f"{name} on {device.name}, {time.strftime('%Y-%m-%d')}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", floatfmt=".5g"))
    print(headline)
    document = {"bench": name, "device": device.name, "date": time.strftime("%Y-%m-%d"), "headline": headline}
    print(json.dumps({**document, "rows": list(rows), **facts}, default=float))


def not_measured(name: str, device: Device, why: str) -> None:
    """Say plainly that nothing was measured."""
    print(f"{name}: not measured on {device.name}: {why}")
    print(json.dumps({"bench": name, "device": device.name, "not_measured": why}))
