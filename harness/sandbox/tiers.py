"""Find the strongest isolation that works on this machine, by trying each.

An isolation holds if a process confined by it has tried all forbidden actions and failed (`probe`).
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
"""Why bubblewrap does not hold although it is installed, for each device."""
_looking = threading.Lock()


def strongest(device: Device) -> Isolation:
    """The strongest isolation that holds here for work on `device`.

    Tried once in each process. This takes tenths of a second; on ROCm it takes the seconds that torch needs to
    initialise the device.
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
    """Why bubblewrap does not hold, if it is installed and work on `device` is not in its namespaces; else ""."""
    return "" if strongest(device).bubblewrap else _refused.get(device.torch_device, "")


def for_trusted(device: Device) -> Isolation:
    """The isolation for sources of trusted authors, who may run code in the judge anyway: the author of a problem's
    reference.py and of its controls. It is the strongest one in which workers are forked: these start in milliseconds,
    workers in namespaces in seconds. `device`: a CPU."""
    found = strongest(device)
    if not found.bubblewrap:
        return found
    with _looking:
        if device.torch_device not in _forking:
            forking = (each for each in candidates(device) if not each.bubblewrap and each.confines)
            _forking[device.torch_device] = next((each for each in forking if holds(each, device)), found)
        return _forking[device.torch_device]


def require(device: Device) -> None:
    """Raises InfrastructureError if nothing confines work on `device`: then sources of strangers are not run."""
    if not strongest(device).confines:
        raise InfrastructureError(
            "nothing here can confine a submission, so a stranger's is not judged", HOW_TO_GET_ONE
        )


def candidates(device: Device) -> Iterator[Isolation]:
    """The isolations worth trying here, strongest first."""
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
    """Whether a process confined by `isolation` can work on `device` and can do nothing forbidden."""
    return not attempted(isolation, device)


def attempted(isolation: Isolation, device: Device) -> str:
    """The last line about the necessary action that failed or the forbidden one that succeeded; "" if the isolation
    holds."""
    try:
        return _attempted(isolation, device)
    except (LookupError, OSError) as error:
        # for example: the card's node is unknown, or a directory cannot be given to another user
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
