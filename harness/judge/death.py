"""How a worker's process ended, in words."""

from __future__ import annotations

import signal

from harness.errors import InfrastructureError

_HINTS = {
    -signal.SIGSEGV: ": a load or store out of bounds, perhaps one without a mask, does this",
    -signal.SIGABRT: ": where the C library finds its heap overwritten, a store out of bounds did it",
    -signal.SIGKILL: ": the system kills a process that takes too much memory",
}


def how_it_ended(status: int) -> str:
    """`was killed by SIGSEGV`, of a status as subprocess has it."""
    if status < 0:
        return f"was killed by {name_of_signal(-status)}"
    return f"exited with status {status}"


def not_started(status: int | None, printed: str) -> InfrastructureError:
    """Of a worker that ended, or None: came no further, before it was asked to read a submission; what it `printed`."""
    last = (printed.strip().splitlines() or [""])[-1]
    how = "did not come to work" if status is None else how_it_ended(status)
    return InfrastructureError(f"a worker {how} as it started" + (f": {last}" if last else ""), "run this again")


def hint(status: int) -> str:
    """What such an end comes of, to be added to it; "" where nothing is known."""
    return _HINTS.get(status, "")


def name_of_signal(number: int) -> str:
    """`SIGSEGV`; a real-time signal has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
