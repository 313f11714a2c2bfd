"""Run a call in a forked process, so that a crash, abort or hang ends only that process.

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
    """The return value of a forked call, and its output on stdout and stderr.

    `status`: 0 if it returned; the exit status, or minus the signal, if it crashed; None if it took too long.
    """

    returned: Any
    status: int | None
    printed: str
    said: str


def apart(call: Callable[[], Any], cpu_s: int, wall_s: float) -> ForkedCall:
    """Run `call` in a forked process, with limits on its processor time and its total time.

    The return value of `call` must have a JSON form. `call` must not raise.
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
    """Read a pipe until it is closed. Also return whether that was before `deadline`."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if select.select([source], [], [], left)[0]:
            part = os.read(source, 1 << 16)
            if not part:
                return b"".join(parts), True
            parts.append(part)
    return b"".join(parts), False
