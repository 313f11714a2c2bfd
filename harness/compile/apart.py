"""A call in a forked process: what crashes, aborts or hangs there does so there.

apart(lambda: 6 * 7, cpu_s=1, wall_s=9)  ─►  ForkedCall(returned=42, status=0, printed="", said="")
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ForkedCall:
    """What a forked call returned, and what it wrote to stdout and stderr.

    status: 0 where it returned, the exit status or minus the signal where it crashed, None where it took too long.
    """

    returned: Any
    status: int | None
    printed: str
    said: str


def apart(call: Callable[[], Any], cpu_s: int, wall_s: float) -> ForkedCall:
    """Call in a forked process, for so much processor time, and so much time in all.

    What `call` returns must have a JSON form; it must not raise.
    """
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            try:
                _die_with_parent()
                os.close(reading)
                os.dup2(printed.fileno(), 1)
                os.dup2(said.fileno(), 2)
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                os.write(writing, json.dumps(call()).encode())
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
            finally:
                os._exit(1)
        in_time = False
        try:
            os.close(writing)
            answer, in_time = _read(reading, time.monotonic() + wall_s)
        finally:
            os.close(reading)
            if not in_time:
                os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        said.seek(0)
        returned = json.loads(answer) if status == 0 else None
        in_time = in_time and status != -signal.SIGXCPU
        return ForkedCall(returned, status if in_time else None, printed.read(), said.read())


def _die_with_parent() -> None:
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def _read(source: int, deadline: float) -> tuple[bytes, bool]:
    """What is written to a pipe until it is closed, and whether that was before `deadline`."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if select.select([source], [], [], left)[0]:
            part = os.read(source, 1 << 16)
            if not part:
                return b"".join(parts), True
            parts.append(part)
    return b"".join(parts), False
