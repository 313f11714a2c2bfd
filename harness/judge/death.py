"""How a worker's process ended, in words."""

from __future__ import annotations

import contextlib
import signal
import subprocess

from harness.errors import InfrastructureError
from harness.judge.printed import Printed
from harness.sandbox.enclosure import Enclosure

_HINTS = {
    -signal.SIGSEGV: ": a load or store out of bounds, perhaps one without a mask, does this",
    -signal.SIGABRT: ": if the C library found its heap overwritten, a store out of bounds did it",
    -signal.SIGKILL: ": the system kills a process that takes too much memory",
}


def how_it_ended(status: int) -> str:
    """Describe an exit status of `subprocess`, such as `was killed by SIGSEGV`."""
    if status < 0:
        return f"was killed by {name_of_signal(-status)}"
    return f"exited with status {status}"


def not_started(enclosure: Enclosure, printed: Printed, grace_s: float) -> InfrastructureError:
    """Return the error for a worker that did not get as far as reading a submission. It and its output have `grace_s`
    seconds to end."""
    status = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = enclosure.wait(grace_s)
        printed.close(grace_s)
    last = (printed.text().strip().splitlines() or [""])[-1]
    how = "did not get ready" if status is None else how_it_ended(status)
    return InfrastructureError(f"a worker {how} as it started" + (f": {last}" if last else ""), "run this again")


def hint(status: int) -> str:
    """The usual cause of such an end, to append to its description; "" if unknown."""
    return _HINTS.get(status, "")


def name_of_signal(number: int) -> str:
    """Return the name of a signal, such as `SIGSEGV`. Real-time signals have no name: `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
