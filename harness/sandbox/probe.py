"""Test whether an isolation holds here: a confined process does the work that it must be able to do, then tries
forbidden actions.

    python3 -m harness.sandbox.probe JUDGE_PID HASH_OF_ITS_ENVIRONMENT SCRATCH CONFINED DEVICE_KIND

It prints `holds`, or the forbidden actions that succeeded. A traceback shows the necessary action that failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.sandbox.confinement import confine_as_told

ANSWER = b"holds\n"
TRY_S = 60.0
"""The first initialisation of a GPU on a machine takes seconds."""


def main() -> None:
    confine_as_told()
    judge_pid, judge_environment, scratch, confined, device_kind = sys.argv[1:]
    _work()
    attempts = _attempts(int(judge_pid), judge_environment, Path(scratch)) if confined == "True" else {}
    broken = [what for what, attempt in attempts.items() if _succeeds(attempt)]
    if device_kind == "cuda" and not broken:
        _compute_by_libcuda()
    elif device_kind == "rocm" and not broken:
        _compute_by_torch()
    print("; ".join(broken) or "holds", flush=True)


def _work() -> None:
    """Do what submissions need. Raises OSError, subprocess.CalledProcessError."""
    Path("probe").write_text("the current directory is work/")
    Path("probe").unlink()
    Path("/dev/null").write_text("gone")
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    Path(torch.origin).read_bytes()
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)


def _compute_by_libcuda() -> None:
    """Check that the driver finds exactly one device, which can fill memory. Without torch, whose import takes seconds.
    Raises OSError."""
    driver, size = ctypes.CDLL("libcuda.so.1"), 4096
    count, device, context, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    filled = ctypes.create_string_buffer(size)
    for call, arguments in (
        ("cuInit", (0,)),
        ("cuDeviceGetCount", (ctypes.byref(count),)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(memory), ctypes.c_size_t(size))),
        ("cuMemsetD8_v2", (memory, ctypes.c_ubyte(7), ctypes.c_size_t(size))),
        ("cuMemcpyDtoH_v2", (filled, memory, ctypes.c_size_t(size))),
    ):
        if status := driver[call](*arguments):
            raise OSError(f"{call} fails: {status}")
    assert count.value == 1 and filled.raw == bytes([7]) * size


def _compute_by_torch() -> None:
    """The same check on ROCm. Raises RuntimeError."""
    import torch

    assert torch.cuda.device_count() == 1 and torch.ones(1, device="cuda").item() == 1


def _attempts(judge_pid: int, judge_environment: str, scratch: Path) -> dict[str, Callable[[], object]]:
    harness = Path(__file__).resolve().parents[1]
    return {
        "reads the judge's code": lambda: (harness / "judge" / "__init__.py").read_bytes(),
        "writes beside its directory": lambda: (scratch / "written").write_text(""),
        "writes to the temporary directory": lambda: tempfile.TemporaryFile(dir=scratch.parent),
        "opens the kernel's settings for writing": lambda: open("/proc/sys/kernel/core_pattern", "r+").close(),
        "reads the judge's environment": lambda: _read_environment(judge_pid, judge_environment),
        "opens a socket to the network": _open_socket,
    }


def _succeeds(attempt: Callable[[], object]) -> bool:
    with contextlib.suppress(OSError):
        attempt()
        return True
    return False


def _read_environment(pid: int, expected: str) -> None:
    """Raises OSError if the environment cannot be read or is not the judge's: a process namespace has other numbers."""
    if hashlib.sha256(Path(f"/proc/{pid}/environ").read_bytes()).hexdigest() != expected:
        raise ProcessLookupError


def _open_socket() -> None:
    """Raises OSError if there is no socket, or if only the loopback exists, as in a network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        if [name for _, name in socket.if_nameindex()] == ["lo"]:
            raise OSError("no network")


if __name__ == "__main__":
    main()
