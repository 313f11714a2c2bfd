"""Whose fault it is that a GPU's memory is full: what a worker keeps is what becomes free when it ends.

So nobody needs to know what the judge, the driver or other programs hold. The evaluation is over by then anyway. It was
tried with made-up figures of free memory (tests/test_share.py), and not yet on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.errors import InfrastructureError
from harness.judge.reply import Fault
from harness.judge.session import Session
from harness.model import Device, Verdict

SAID_BY_TORCH = "out of memory"


class DeviceFull(InfrastructureError):
    """A GPU's memory is full. A submission or another program may hold it."""


@contextmanager
def full_memory_is_no_crash() -> Iterator[None]:
    """Raises DeviceFull if the judge's own torch finds no memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = str(error).partition(". ")[0]
        raise DeviceFull(f"the device's memory is full: {said}", "see what else uses the device") from error


def has_memory(device: Device) -> bool:
    """Whether the device has memory of its own, which only judge and workers should use."""
    return device.kind != "cpu"


def free_bytes(device: Device) -> int:
    """The device's free memory, after the judge has given back what torch keeps for later."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device.torch_device)[0]


def keep_still(session: Session) -> None:
    """Stop a worker and all that it started, or end them: what one frees must not be laid to another that is ended."""
    try:
        still = session.stop()
    except Fault:
        still = False
    if not still:
        session.end()


def blame(session: Session, device: Device, shares: int) -> None:
    """End the worker, once it has given back what torch keeps for later. Raises Fault if it kept more of the device's
    memory than one of `shares` equal parts."""
    if not has_memory(device):
        return
    try:
        session.trim()
    except Fault:  # it has ended, or is within a call: what it holds is not what it keeps
        return
    before = free_bytes(device)
    session.end()
    kept, most = free_bytes(device) - before, device.memory_bytes // shares
    if kept > most:
        message = f"the submission keeps {kept / 1e9:.1f} GB of the device's memory after its call"
        raise Fault(Verdict.RUNTIME_ERROR, f"{message}; at most {most / 1e9:.1f} GB are its share")
