"""Which isolation is in force on this machine: the strongest that holds, found out by trying.

One holds when a process that it confines has tried what it must not do, and failed (`probe`).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from harness.errors import InfrastructureError
from harness.model import NO_ISOLATION, Device, Isolation
from harness.sandbox import bubblewrap, landlock, probe, syscalls
from harness.sandbox.enclosure import Enclosure
from harness.sandbox.scratch import scratch

HOW_TO_GET_ONE = (
    "install bubblewrap (apt install bubblewrap), or use a Linux kernel with Landlock (5.13 or later) and a container "
    "that permits either"
)


_found: dict[str, Isolation] = {}
_forking: dict[str, Isolation] = {}
_refused: dict[str, str] = {}
"""What became of bubblewrap where it is installed and does not hold."""
_looking = threading.Lock()


def strongest(device: Device) -> Isolation:
    """The strongest isolation that holds here for work on `device`.

    Tried once a process: tenths of a second, and on ROCm the seconds in which torch gets ready for the device.
    """
    with _looking:
        if device.torch_device not in _found:
            _found[device.torch_device] = NO_ISOLATION
            for candidate in candidates(device):
                trouble = attempted(candidate, device)
                if not trouble:
                    _found[device.torch_device] = candidate
                    break
                if candidate.bubblewrap:
                    _refused.setdefault(device.torch_device, trouble)
        return _found[device.torch_device]


def bubblewrap_refused(device: Device) -> str:
    """What became of bubblewrap where it is installed and work on `device` is not in its namespaces; "" elsewhere."""
    return "" if strongest(device).bubblewrap else _refused.get(device.torch_device, "")


def for_trusted(device: Device) -> Isolation:
    """What confines sources whose author is trusted with code in the judge itself, as whoever wrote a problem's
    reference.py is with its controls: the strongest in which workers are forked, and not the strongest of all. There a
    worker starts in milliseconds, and in namespaces in seconds. `device`: a CPU."""
    found = strongest(device)
    if not found.bubblewrap:
        return found
    with _looking:
        if device.torch_device not in _forking:
            forking = (each for each in candidates(device) if not each.bubblewrap and each.confines)
            _forking[device.torch_device] = next((each for each in forking if holds(each, device)), found)
        return _forking[device.torch_device]


def require(device: Device) -> None:
    """Raises InfrastructureError where nothing confines work on `device`: strangers' sources are not run there."""
    if not strongest(device).confines:
        raise InfrastructureError(
            "nothing here can confine a submission, so a stranger's is not judged", HOW_TO_GET_ONE
        )


def candidates(device: Device) -> Iterator[Isolation]:
    """What is worth trying here, strongest first."""
    if sys.platform != "linux":
        return
    seccomp = syscalls.is_known()
    tiers = [(True, True), (True, False)] if bubblewrap.program() else []
    tiers += [(False, True)] if seccomp else []  # Landlock leaves the network open
    for namespaces, paths in (*tiers, (False, False)):
        if paths and landlock.abi() == 0:
            continue
        for own_uid in (True, False) if os.geteuid() == 0 else (False,):
            for one_gpu in (False,) if device.kind == "cpu" else (True, False):
                yield Isolation(namespaces, paths, seccomp, own_uid, one_gpu)


def holds(isolation: Isolation, device: Device) -> bool:
    """Whether a process confined by `isolation` can work on `device`, and do nothing that it must not."""
    return not attempted(isolation, device)


def attempted(isolation: Isolation, device: Device) -> str:
    """What such a process could not do that it must, or could that it must not: its last line; "" where it holds."""
    try:
        return _attempted(isolation, device)
    except (LookupError, OSError) as error:
        # the card's own node is not known; a directory cannot be given to another user
        return str(error) or type(error).__name__


def _attempted(isolation: Isolation, device: Device) -> str:
    judge = hashlib.sha256(Path("/proc/self/environ").read_bytes()).hexdigest()
    with scratch(b"", isolation.new_uid()) as folder:
        arguments = [str(os.getpid()), judge, str(folder), str(isolation.confines), device.kind]
        command = [sys.executable, "-s", "-P", "-B", "-m", "harness.sandbox.probe", *arguments]
        enclosure = Enclosure(command, isolation, device, folder)
        try:
            status = enclosure.wait(probe.TRY_S)
            answer = enclosure.stdout.read(1 << 16)
        except subprocess.TimeoutExpired:
            return f"it took more than {probe.TRY_S:g} s"
        finally:
            enclosure.kill()
            enclosure.close()
    if status == 0 and answer == probe.ANSWER:
        return ""
    return (answer.decode(errors="replace").strip().splitlines() or [f"it ended with status {status}"])[-1]
