"""The process between the judge and the worker. It makes sure that nothing started by the worker outlives the worker.

    python keeper.py SETTINGS COMMAND...

The keeper starts COMMAND as the leader of a process group and watches it. It ends as COMMAND ended: with the same
status or by the same signal. Before that it kills everything that COMMAND started. SIGTERM tells it to end; it also
gets SIGTERM when the judge dies. If the worker exceeds its limit on memory, tasks or disk, the keeper writes that to
`report_fd`.

Killing must be one act, or a fork bomb is faster. In a process namespace the kernel kills all processes with the first.
Elsewhere the keeper kills process groups, which the system call filter lets nobody leave: COMMAND's own, and that of
the worker which COMMAND started in a group of its own. Without a filter, orphans become the keeper's children
(PR_SET_CHILD_SUBREAPER) and are found among its descendants.

It runs as a script, with the standard library and `footprint` only, so that it starts in milliseconds; or in a fork of
the fork server.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

if __package__:
    from harness.sandbox import footprint
else:  # run by its path, in a Python that knows no other
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import footprint  # type: ignore[import-not-found, no-redef]


PERIOD_S = 0.25
MAX_SHARE_OF_A_CORE = 0.05
"""Limit on the keeper's own processor time, as a share of a core. With thousands of processes or files a check takes
long, and then checks are rarer. Processor time is counted because waiting on a busy machine must not delay the next
check."""

MAX_SHARE_WHEN_COUNTING = 0.5
"""The same limit while a family may have too much memory: counting pages is slowest, and the family must not gain
time."""

MAX_OPEN_FILES = 100_000
"""Limit on the open files of all processes together. Checking each takes 12 us (AMD EPYC, 2026-11-21), so millions
would take minutes."""

MAX_MAPPINGS = 1_000_000
"""Limit on the mappings of all processes together. The kernel keeps some 0.7 KB for each, and reading one takes 0.5
us (AMD EPYC, 2026-11-28). A process with torch has 350."""

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36  # linux/prctl.h
_HANDLED = {signal.SIGCHLD, signal.SIGTERM}


def main() -> None:
    settings, command = json.loads(sys.argv[1]), sys.argv[2:]
    keep(settings, lambda: _execute(command))


def keep(settings: dict[str, Any], start: Callable[[], object]) -> None:
    """Fork a child that runs `start`, and be its keeper until both end. Returns in the child only."""
    libc = ctypes.CDLL(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):  # only root may: a fork bomb leaves no time to others
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != settings["parent_pid"]:
        sys.exit("the judge is gone")
    child = os.fork()
    if child == 0:
        os.setsid()
        with contextlib.suppress(OSError):  # SCHED_RESET_ON_FORK has reset this too
            os.setpriority(os.PRIO_PROCESS, 0, priority)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.close(settings["report_fd"])
        start()
        return
    libc.prctl(_PR_SET_NAME, b"podium-keeper", 0, 0, 0)
    _let_go_of_everything_but(settings["report_fd"])
    try:
        _watch(child, settings)
    finally:
        _kill_groups(child)
        status = os.waitpid(child, 0)[1]
        _kill_descendants()
    _end_as(status, settings["signals_are_statuses"])


def _execute(command: list[str]) -> None:
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        os._exit(127)


def _let_go_of_everything_but(report_fd: int) -> None:
    """Close all other descriptors: the judge sees the end of the worker's pipes only if no other process holds them."""
    os.closerange(0, report_fd)
    os.closerange(report_fd + 1, os.sysconf("SC_OPEN_MAX"))


def _watch(child: int, settings: dict[str, Any]) -> None:
    """Return when `child` has ended or must end."""
    next_look = time.monotonic() + PERIOD_S
    while True:
        received = signal.sigtimedwait(_HANDLED, max(next_look - time.monotonic(), 0.0))
        if received is not None and received.si_signo == signal.SIGTERM:
            return
        if _reap_all_but(child):
            return
        if time.monotonic() < next_look:
            continue
        started = time.process_time()
        excess, share = _excess(settings)
        if excess:
            os.write(int(settings["report_fd"]), excess.encode())
            return
        next_look = time.monotonic() + max(PERIOD_S, (time.process_time() - started) / share)


def _reap_all_but(child: int) -> bool:
    """Reap dead processes except `child`. Returns whether `child` is dead."""
    while True:
        # waitid reports the oldest first. While `child` lives, it hides no dead process.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None or ended.si_pid == child:
            return ended is not None
        os.waitpid(ended.si_pid, 0)


def _excess(settings: dict[str, Any]) -> tuple[str | None, float]:
    """The exceeded limit in words, or None; and the share of a core that these checks may take."""
    share = MAX_SHARE_OF_A_CORE
    family = footprint.descendants(os.getpid(), footprint.process_table())
    if footprint.open_files(family, MAX_OPEN_FILES) > MAX_OPEN_FILES:
        return f"had more than {MAX_OPEN_FILES:,} files open at once", share
    if footprint.tasks(family) > int(settings["max_tasks"]):
        return f"had more than {settings['max_tasks']} processes and threads at once", share
    uid, max_bytes, max_files = (int(settings[name]) for name in ("own_uid", "max_memory_bytes", "max_files"))
    mappings, in_memory, elsewhere = footprint.mappings(family, uid, MAX_MAPPINGS)
    if mappings > MAX_MAPPINGS:
        return f"had more than {MAX_MAPPINGS:,} mappings of memory at once", share
    try:
        files, bytes_of_files = footprint.files_and_bytes_in_shared_memory(uid)
    except OSError as error:
        return _cannot_look(error), share
    rest = max_bytes - bytes_of_files
    mapped, counted = footprint.memory_bytes(family, int(settings["judge_pid"]), uid, rest, in_memory)
    if counted:
        share = MAX_SHARE_WHEN_COUNTING
    if bytes_of_files + mapped > max_bytes:
        return f"took more than {max_bytes / 1e9:.1f} GB of memory", share
    if files > max_files:
        return _too_many_files(max_files), share
    disk = os.stat(settings["folders"][0]).st_dev
    nameless = footprint.bytes_without_a_name(disk, family, uid, elsewhere)
    return _excess_on_disk(settings["folders"], int(settings["max_disk_bytes"]), max_files, nameless), share


def _excess_on_disk(folders: list[str], max_bytes: int, max_files: int, nameless_bytes: int) -> str | None:
    """Check the files in `folders`, which lie on one disk, with those without a name. They are counted each time: the
    free space of the file system shows nothing while other programs free some."""
    files, size = 0, nameless_bytes
    try:
        for folder in folders:
            for status in footprint.statuses(folder):
                files, size = files + 1, size + status.st_blocks * footprint.BLOCK_BYTES
                if files > max_files:
                    return _too_many_files(max_files)
    except OSError as error:
        return _cannot_look(error)
    return f"wrote more than {max_bytes / 1e9:.1f} GB to disk" if size > max_bytes else None


def _cannot_look(error: OSError) -> str:
    return f"made a directory that the judge cannot look into ({error.strerror})"


def _too_many_files(max_files: int) -> str:
    return f"made more than {max_files:,} files"


def _kill_groups(child: int) -> None:
    """Kill the process group of `child`, and those of its children, each in one act.

    `child` is stopped first. Then it neither starts processes nor reaps them. The number of a group is not reused until
    its leader is reaped.
    """
    _signal(child, signal.SIGSTOP)
    _signal_groups(child, signal.SIGKILL)
    _signal(child, signal.SIGKILL)  # it may not be a group leader yet


def _signal_groups(child: int, which: signal.Signals) -> None:
    """Signal the groups of the children first: then `child`'s group cannot start them again.

    If `child` has ended, its children are this process's.
    """
    children = footprint.process_table()
    young = [*children.get(child, []), *children.get(os.getpid(), [])]
    groups = {group for pid in young if (group := footprint.process_group(pid)) is not None}
    for group in (*(groups - {os.getpgrp(), child}), child):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, which)


def _kill_descendants() -> None:
    """Kill all descendants of this process, and wait until they are gone.

    They are stopped first, until no new one appears: a stopped process starts no other.
    """
    stopped: set[int] = set()
    while new := footprint.descendants(os.getpid(), footprint.process_table()) - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
        _reap_all()
    while found := footprint.descendants(os.getpid(), footprint.process_table()):
        for pid in found:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.001)
        _reap_all()


def _reap_all() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _signal(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def _end_as(wait_status: int, signals_are_statuses: bool) -> None:
    """End with the worker's status or signal. bubblewrap, like a shell, reports signal n as the status 128 + n."""
    code = os.waitstatus_to_exitcode(wait_status)
    if signals_are_statuses and 0 < code - 128 < signal.NSIG:
        code = 128 - code
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # no core dump, not even to a program: privileges.NO_CORE
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        with contextlib.suppress(OSError):  # fails for SIGKILL, and for 32 and 33, which the C library reserves
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


if __name__ == "__main__":
    main()
