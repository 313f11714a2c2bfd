"""How a worker's process ended, in words."""

from __future__ import annotations

import signal

_HINTS = {
    -signal.SIGSEGV: ": a load or store out of bounds, perhaps one without a mask, does this",
    -signal.SIGABRT: ": where the C library finds its heap overwritten, a store out of bounds did it",
    -signal.SIGKILL: ": the system kills a process that takes too much memory",
}


def how_it_ended(status: int) -> str:
    """`was killed by SIGSEGV`, of a status as subprocess has it."""
    if status < 0:
        return f"was killed by {_name_of_signal(-status)}"
    return f"exited with status {status}"


def hint(status: int) -> str:
    """What such an end comes of, to be added to it; "" where nothing is known."""
    return _HINTS.get(status, "")


def _name_of_signal(number: int) -> str:
    """`SIGSEGV`; a real-time signal has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
