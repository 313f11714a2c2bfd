"""Run a call in a forked process, so that a crash, abort or hang ends only that process.

apart(lambda: 6 * 7, cpu_s=1, wall_s=9)  ─►  ForkedCall(returned=42, status=0, printed="", said="")
Fork(lambda: 6 * 7, cpu_s=1).finish(wall_s=9)   the same; meanwhile this process can do other things
"""

from __future__ import annotations

import contextlib
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
from typing import Any, NoReturn


@dataclass(frozen=True)
class ForkedCall:
    """The return value of a forked call, and its output on stdout and stderr.

    `status`: 0 if it returned; the exit status, or minus the signal, if it crashed; None if it took too long.
    """

    returned: Any
    status: int | None
    printed: str
    said: str


class Fork:
    """A forked process that runs `call`, with a limit on its processor time. `finish` must be called.

    The return value of `call` must have a JSON form. `call` must not raise.
    """

    def __init__(self, call: Callable[[], Any], cpu_s: int) -> None:
        with contextlib.ExitStack() as stack:
            self._printed = stack.enter_context(tempfile.TemporaryFile("w+"))
            self._said = stack.enter_context(tempfile.TemporaryFile("w+"))
            self.reading, writing = os.pipe()
            """The end of a pipe that has bytes to read when the call is over."""
            sys.stdout.flush()
            sys.stderr.flush()
            self._child = os.fork()
            if self._child == 0:
                self._run(call, cpu_s, writing)
            os.close(writing)
            self._files = stack.pop_all()

    def _run(self, call: Callable[[], Any], cpu_s: int, writing: int) -> NoReturn:
        try:
            _die_with_parent()
            os.close(self.reading)
            os.dup2(self._printed.fileno(), 1)
            os.dup2(self._said.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.write(writing, json.dumps(call()).encode())
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        finally:
            os._exit(1)

    def finish(self, wall_s: float) -> ForkedCall:
        """Wait for at most `wall_s`, then end the process. Returns what came of the call."""
        with self._files:
            in_time = False
            try:
                answer, in_time = _read(self.reading, time.monotonic() + wall_s)
            finally:
                os.close(self.reading)
                if not in_time:
                    os.kill(self._child, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
            self._printed.seek(0)
            self._said.seek(0)
            returned = json.loads(answer) if status == 0 else None
            in_time = in_time and status != -signal.SIGXCPU
            return ForkedCall(returned, status if in_time else None, self._printed.read(), self._said.read())


def apart(call: Callable[[], Any], cpu_s: int, wall_s: float) -> ForkedCall:
    """Run `call` in a forked process, with limits on its processor time and its total time. See `Fork`."""
    return Fork(call, cpu_s).finish(wall_s)


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
