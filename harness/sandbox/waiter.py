"""The worker's direct parent. It tells the judge when the worker stops, goes on, and ends.

    python waiter.py REPORT_FD ALONE|ALL COMMAND...

Only a parent is told at once that a process has stopped with all its threads (waitpid(2), WUNTRACED). The keeper has
other work, and in bubblewrap's namespace it is not the parent. So this small process stands between keeper and worker
in every tier. It starts COMMAND as the leader of a process group of its own and ends as COMMAND ended. It writes one
RECORD for each change: a letter, the child's process id in this namespace, and the time on the clock that all processes
share (CLOCK_MONOTONIC, in ns).

With ALL, the time of a stop is taken when the child's descendants stand still too and all of them have been checked. A
process in a system call receives a signal only at the end of that call. Until then the kernel may copy data for it.

The waiter is not confined and cannot be traced. The worker's system call filter refuses signals to it.
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
from collections.abc import Callable

RECORD = struct.Struct("=cxxxiq")
STARTED, STOPPED, CONTINUED, ENDED = b"B", b"S", b"C", b"E"
ALONE, ALL = "alone", "all"
STOP_S, BUSY_S = 0.1, 0.05
"""How long all processes of a group may take to stop, a hundred times what most need; and how long the waiter
checks."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36  # linux/prctl.h
_LISTS_CHILDREN = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
_BETWEEN_LOOKS_S = 20e-6


def main() -> None:
    report_fd, whom, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    wait_on(report_fd, whom, lambda: _execute(command))


def wait_on(report_fd: int, whom: str, start: Callable[[], object]) -> None:
    """Fork a child that runs `start`, wait for it, and end as it does. Returns in the child only."""
    os.set_inheritable(report_fd, False)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        os.close(report_fd)
        os.setpgid(0, 0)
        if sys.platform == "linux":
            libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # only the waiter must not be traced
        start()
        return
    if sys.platform == "linux":
        libc.prctl(_PR_SET_NAME, b"podium-waiter", 0, 0, 0)
    with contextlib.suppress(OSError):  # the child may run COMMAND already
        os.setpgid(child, child)
    _hurry()
    os.closerange(0, report_fd)
    os.closerange(report_fd + 1, os.sysconf("SC_OPEN_MAX"))
    _end_as(_watch(child, report_fd, whom == ALL))


def _execute(command: list[str]) -> None:
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        os._exit(127)


def _watch(child: int, report_fd: int, all_of_it: bool) -> int:
    """Report changes until `child` has ended. Returns its wait status."""
    _report(report_fd, STARTED, child)
    while True:
        pid, status = _next()
        if pid != child:
            _hurry()
            continue  # an orphan of the worker's
        if os.WIFSTOPPED(status):
            # Stop its group too before the time is taken: no process may go on computing for it.
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGSTOP)
            at_ns = time.monotonic_ns()
            if all_of_it and (found := others(child)):
                # Kernel work that ends during this check is not seen, so the time is taken after the check.
                at_ns = _when_none_is_busy(child) if any(map(_is_busy, found)) else time.monotonic_ns()
            _report(report_fd, STOPPED, child, at_ns)
        elif os.WIFCONTINUED(status):
            _report(report_fd, CONTINUED, child)
        else:
            _report(report_fd, ENDED, child)
            return status


def _next() -> tuple[int, int]:
    """The next change of a child, as from os.waitpid.

    An ended child is reaped without priority. Its last thread may still be leaving /proc, and the kernel waits for it
    without sleeping (d_invalidate in release_task). With priority, on the processor that the thread needs, that took
    0.95 s.
    """
    what = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOWAIT)
    assert what is not None  # without WNOHANG it waits
    if what.si_code not in (os.CLD_STOPPED, os.CLD_CONTINUED):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return os.waitpid(what.si_pid, os.WUNTRACED | os.WCONTINUED | os.WNOHANG)  # WNOHANG: its state may have changed


def _hurry() -> None:
    """Raise this process's priority above all others."""
    with contextlib.suppress(OSError):  # only root may: late reports would be wrong times
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _report(report_fd: int, what: bytes, child: int, at_ns: int | None = None) -> None:
    try:
        os.write(report_fd, RECORD.pack(what, child, time.monotonic_ns() if at_ns is None else at_ns))
    except OSError:  # the judge is gone: the worker dies with this process
        os.kill(os.getpid(), signal.SIGKILL)


def others(child: int) -> set[int]:
    """The descendants of `child`. Orphans among them have become the waiter's children."""
    with contextlib.suppress(OSError, IndexError):
        parent = int(_fields(f"/proc/{child}/stat")[1])
        return _young(parent) - {child}
    return set()


def _young(pid: int) -> set[int]:
    """All descendants of `pid`. The kernel lists the children of each thread (proc_pid_task(5)), if it was built with
    that."""
    if not _LISTS_CHILDREN:
        return _young_by_parents(pid)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as children:
                    young = set(map(int, children.read().split())) - found
                    found |= young
                    waiting += young
    return found


def _young_by_parents(pid: int) -> set[int]:
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        with contextlib.suppress(OSError, IndexError):
            parents[int(name)] = int(_fields(f"/proc/{name}/stat")[1])
    found, before = {pid}, 0
    while len(found) > before:
        before = len(found)
        found |= {young for young, parent in parents.items() if parent in found}
    return found - {pid}


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped, or the process has ended."""
    return all(state in "TtZX" for state in _states(pid))


def has_ended(pid: int) -> bool:
    return all(state in "ZX" for state in _states(pid))


def _is_busy(pid: int) -> bool:
    """Whether a thread of a process computes or waits for a disk. A thread that waits for anything else does nothing
    before it stops."""
    return any(state in "RD" for state in _states(pid))


def _when_none_is_busy(child: int) -> int:
    """Wait until no descendant is busy, at most BUSY_S: the judge checks again. Returns the time, on
    time.monotonic_ns."""
    deadline = time.monotonic() + BUSY_S
    while any(map(_is_busy, others(child))) and time.monotonic() < deadline:
        time.sleep(_BETWEEN_LOOKS_S)
    return time.monotonic_ns()


def _states(pid: int) -> list[str]:
    """The state of each thread: proc_pid_stat(5)."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, IndexError):
                found.append(_fields(f"/proc/{pid}/task/{thread}/stat")[0])
    return found


def _fields(path: str) -> list[str]:
    """The fields from the third on: the name in parentheses may contain any character. Raises OSError."""
    with open(path, errors="replace") as state:
        return state.read().rpartition(")")[2].split()


def _end_as(wait_status: int) -> None:
    """End with the worker's status or signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # no core dump, not even to a program: privileges.NO_CORE
        with contextlib.suppress(OSError):  # fails for SIGKILL, and for 32 and 33, which the C library reserves
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


if __name__ == "__main__":
    main()
