"""The worker's direct parent: it tells the judge when the worker stops, goes on, and ends.

    python waiter.py REPORT_FD COMMAND...

Only a parent is told at once that a process has stopped with all its threads (waitpid(2), WUNTRACED). The keeper has
other things to do, and in bubblewrap's namespace it is not the parent, so this small process stands in every tier
between them and the worker. It starts COMMAND as the leader of a process group of its own and writes one RECORD for
each change: a letter, the child's process id as it is numbered here, and the time on the clock that all processes
share (CLOCK_MONOTONIC, in ns). It ends as COMMAND ended.

It is not confined and cannot be traced, and the worker's system call filter refuses signals to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
import time

RECORD = struct.Struct("=cxxxiq")
STARTED, STOPPED, CONTINUED, ENDED = b"B", b"S", b"C", b"E"
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36  # linux/prctl.h


def main() -> None:
    report_fd, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(report_fd, False)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            os.execv(command[0], command)
        except OSError as error:
            print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
            os._exit(127)
    with contextlib.suppress(OSError):  # it may have started already
        os.setpgid(child, child)
    with contextlib.suppress(OSError):  # root's may: what it says is a time
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.closerange(0, report_fd)
    os.closerange(report_fd + 1, os.sysconf("SC_OPEN_MAX"))
    _end_as(_watch(child, report_fd))


def _watch(child: int, report_fd: int) -> int:
    """Report until `child` has ended; its wait status."""
    _report(report_fd, STARTED, child)
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED | os.WCONTINUED)
        if pid != child:
            continue  # one that the worker left behind
        if os.WIFSTOPPED(status):
            # With all that it has started, before the time is noted: nobody may go on for it.
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGSTOP)
            _report(report_fd, STOPPED, child)
        elif os.WIFCONTINUED(status):
            _report(report_fd, CONTINUED, child)
        else:
            _report(report_fd, ENDED, child)
            return status


def _report(report_fd: int, what: bytes, child: int) -> None:
    try:
        os.write(report_fd, RECORD.pack(what, child, time.monotonic_ns()))
    except OSError:  # the judge is gone: the worker dies with this process
        os.kill(os.getpid(), signal.SIGKILL)


def _end_as(wait_status: int) -> None:
    """End with the status or by the signal that the worker did."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


if __name__ == "__main__":
    main()
