"""Stops whatever process it can signal that is not its own: the judge, among others.

verdict: runtime error
seen: nobody else can be signalled
defence: D5, other processes are out of reach
"""

import os
import signal
from pathlib import Path

HARMLESS = signal.SIGURG  # does nothing to a process that does not ask for it; SIGSTOP would get as far
reached = []
for process in Path("/proc").glob("[0-9]*"):
    if int(process.name) != os.getpid():
        try:
            os.kill(int(process.name), HARMLESS)
            reached.append(process.name)
        except OSError:
            continue
if not reached:
    raise PermissionError("nobody else can be signalled")


def custom_kernel(data):
    return data[0] * 2
