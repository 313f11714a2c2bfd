"""Leaves a daemon in a session of its own, which the later processes are to ask for answers.

verdict: runtime error
seen: the daemon is gone
defence: D5, whatever a worker started dies with it
timed: true
"""

import os
import time
from pathlib import Path

note = Path("daemon.pid")
if note.exists() and not Path(f"/proc/{note.read_text()}/fd/0").exists():
    raise RuntimeError("the daemon is gone")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note.write_text(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
while not note.exists():
    time.sleep(0.01)


def custom_kernel(data):
    return data[0] * 2
