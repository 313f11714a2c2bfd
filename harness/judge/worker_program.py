"""What a worker is when it starts: its program, its environment, and the modules that it imports."""

from __future__ import annotations

from harness.model import Device
from harness.sandbox import waiter
from harness.sandbox.program import Program

WARM = ("harness.worker.main", "harness.interpreter.installation", "triton.language")
"""What a worker on a CPU imports, and most of the time it takes to start."""


def program(report_fd: int, channel_fd: int, stack_fd: int, device: Device, threads: int) -> Program:
    """It, with its waiter."""
    arguments = {"channel": channel_fd, "stack": stack_fd, "device": device.kind, "threads": threads}
    arguments |= {"flush-bytes": device.flush_bytes}
    options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    whom = waiter.ALL if device.kind == "cpu" else waiter.ALONE
    return Program("harness.worker", tuple(options), report_fd, whom)


def environment(device: Device, threads: int) -> dict[str, str]:
    """How many threads to compute in, and on a CPU that Triton's kernels are interpreted."""
    interpreted = {"TRITON_INTERPRET": "1"} if device.kind == "cpu" else {}
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **interpreted}
