"""The process between the judge and the worker: nothing that the worker starts outlives it.

    python keeper.py SETTINGS COMMAND...

It starts COMMAND as the leader of a process group, watches it and ends as it ended: with the same status or by the
same signal. Before that it has killed all that COMMAND started. It is told to end by SIGTERM, which it also gets when
the judge dies. SIGUSR1 stops all of the group, SIGUSR2 lets it go on. When the worker takes more than its share of
memory, tasks or disk, it says so on `report_fd`.

Killing must be one act, or a fork bomb outruns it: in a process namespace the kernel kills all with the first process,
elsewhere with the process group, which the system call filter lets nobody leave. Where there is no filter, whoever lost
its parent has become the keeper's child (PR_SET_CHILD_SUBREAPER) and is found by its descent.

Runs as a script of its own, on the standard library alone, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Iterator

PERIOD_S = 0.25
MAX_SHARE_OF_A_CORE = 0.05
"""Among thousands of processes or files a look takes long: then they are rarer. Of its own processor time, since on a
machine with much to do it also waits, and must not be late for that."""

MAX_OPEN_FILES = 100_000
"""Of all processes together. Each is looked at, which takes 12 us (AMD EPYC, 2026-11-21): millions would
take minutes."""

SHARED_MEMORY = "/dev/shm"
BLOCK_BYTES = 512  # of st_blocks: stat(2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RELAYED = {signal.SIGUSR1: signal.SIGSTOP, signal.SIGUSR2: signal.SIGCONT}
_HANDLED = {signal.SIGCHLD, signal.SIGTERM, *_RELAYED}

Table = dict[int, list[int]]


def main() -> None:
    settings, command = json.loads(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with contextlib.suppress(OSError):  # root's may: a fork bomb leaves no time to others
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != settings["judge_pid"]:
        sys.exit("the judge is gone")
    os.set_inheritable(settings["report_fd"], False)
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        try:
            os.execv(command[0], command)
        except OSError as error:
            print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
            os._exit(127)
    _let_go_of_everything_but(settings["report_fd"])
    try:
        _watch(child, settings)
    finally:
        # As long as nobody has taken leave of it, the group's number is no other group's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        _kill_descendants()
    _end_as(status, settings["signals_are_statuses"])


def _let_go_of_everything_but(report_fd: int) -> None:
    """The judge sees the end of the worker's pipes and sockets only when nobody else holds them."""
    os.closerange(0, report_fd)
    os.closerange(report_fd + 1, os.sysconf("SC_OPEN_MAX"))


def _watch(child: int, settings: dict[str, int | str]) -> None:
    """Return when `child` has ended, or must end."""
    next_look = time.monotonic() + PERIOD_S
    while True:
        received = signal.sigtimedwait(_HANDLED, max(next_look - time.monotonic(), 0.0))
        if received is not None and received.si_signo == signal.SIGTERM:
            return
        if received is not None and received.si_signo in _RELAYED:
            os.killpg(child, _RELAYED[signal.Signals(received.si_signo)])
        if _reap_all_but(child):
            return
        if time.monotonic() < next_look:
            continue
        started = time.process_time()
        excess = _excess(settings)
        if excess:
            os.write(int(settings["report_fd"]), excess.encode())
            return
        next_look = time.monotonic() + max(PERIOD_S, (time.process_time() - started) / MAX_SHARE_OF_A_CORE)


def _reap_all_but(child: int) -> bool:
    """Take leave of those that have died; whether `child` has, of which leave is not taken."""
    while True:
        # The oldest comes first: as long as `child` has not ended, it hides nobody.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None or ended.si_pid == child:
            return ended is not None
        os.waitpid(ended.si_pid, 0)


def _excess(settings: dict[str, int | str]) -> str | None:
    tasks = 0
    family = descendants(os.getpid(), process_table())
    if _too_many_are_open(family):
        return f"had more than {MAX_OPEN_FILES:,} files open at once"
    the_judge_s = dict(_files_in_memory(int(settings["judge_pid"])))
    try:
        shared_files, shared_bytes = _files_and_bytes_in_shared_memory(int(settings["own_uid"]))
    except OSError as error:
        return _cannot_look(error)
    memory_bytes = shared_bytes + _bytes_of_files_in_memory(family, the_judge_s)
    for pid in family:
        try:
            with open(f"/proc/{pid}/statm", "rb") as statm, open(f"/proc/{pid}/stat", "rb") as state:
                fields = statm.read().split()
                # The judge's memory is left out: inputs and outputs lie in it. What several share counts several times.
                memory_bytes += (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
                memory_bytes += max(_shared_bytes(pid) - sum(the_judge_s.values()), 0)
                tasks += int(state.read().rpartition(b")")[2].split()[17])
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    if memory_bytes > int(settings["max_memory_bytes"]):
        return f"took more than {int(settings['max_memory_bytes']) / 1e9:.1f} GB of memory"
    if tasks > int(settings["max_tasks"]):
        return f"had more than {settings['max_tasks']} processes and threads at once"
    if shared_files > int(settings["max_files"]):
        return _too_many_files(int(settings["max_files"]))
    return _excess_on_disk(str(settings["work"]), int(settings["max_disk_bytes"]), int(settings["max_files"]), family)


def _shared_bytes(pid: int) -> int:
    """That a process maps of memory without a file on disk which others may map as well. Raises OSError."""
    with open(f"/proc/{pid}/status", "rb") as status:  # the name in it may hold anything
        return next((int(line.split()[1]) << 10 for line in status if line.startswith(b"RssShmem:")), 0)


def _bytes_of_files_in_memory(family: set[int], the_judge_s: dict[int, int]) -> int:
    """Of the memfds that these processes hold and the judge does not, mapped or not."""
    sizes = {number: size for pid in family for number, size in _files_in_memory(pid) if number not in the_judge_s}
    return sum(sizes.values())


def _files_and_bytes_in_shared_memory(uid: int) -> tuple[int, int]:
    """Of what this user keeps in /dev/shm: an empty file takes memory too, the kernel's. Raises OSError for a directory
    of this user's that cannot be read."""
    files = size = 0
    try:
        names = os.listdir(SHARED_MEMORY)
    except OSError:  # there is none
        return 0, 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            top = os.lstat(path := f"{SHARED_MEMORY}/{name}")
            if top.st_uid == uid:
                for status in (top, *(_statuses(path) if stat.S_ISDIR(top.st_mode) else ())):
                    files, size = files + 1, size + status.st_blocks * BLOCK_BYTES
    return files, size


def _files_in_memory(pid: int) -> list[tuple[int, int]]:
    """The inode and the bytes of each memfd that is open in a process."""
    found = []
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                path = f"/proc/{pid}/fd/{fd}"
                if os.readlink(path).startswith("/memfd:"):
                    status = os.stat(path)
                    found.append((status.st_ino, status.st_blocks * BLOCK_BYTES))
    return found


def _excess_on_disk(folder: str, max_bytes: int, max_files: int, family: set[int]) -> str | None:
    """Counted each time: by the free room of the file system nothing is seen while others give some back."""
    files = size = 0
    try:
        for status in _statuses(folder):
            files, size = files + 1, size + status.st_blocks * BLOCK_BYTES
            if files > max_files:
                return _too_many_files(max_files)
    except OSError as error:
        return _cannot_look(error)
    size += _bytes_without_a_name(os.stat(folder).st_dev, family)
    return f"wrote more than {max_bytes / 1e9:.1f} GB to disk" if size > max_bytes else None


def _too_many_are_open(family: set[int]) -> bool:
    count = 0
    for pid in family:
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/fd"))
        if count > MAX_OPEN_FILES:
            return True
    return False


def _cannot_look(error: OSError) -> str:
    return f"made a directory that the judge cannot look into ({error.strerror})"


def _too_many_files(max_files: int) -> str:
    return f"made more than {max_files:,} files"


def _statuses(folder: str) -> Iterator[os.stat_result]:
    """Of each file and directory in `folder`, but for what vanishes meanwhile. Raises OSError for a directory that
    cannot be read."""
    waiting = [folder]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield status


def _bytes_without_a_name(device: int, family: set[int]) -> int:
    """Of the files on `device` that are removed and still open in one of these processes."""
    total = 0
    for pid in family:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    total += status.st_blocks * BLOCK_BYTES if status.st_nlink == 0 and status.st_dev == device else 0
    return total


def _kill_descendants() -> None:
    """Kill whoever stems from this process, and wait until they are gone.

    They are stopped first, until no unknown one appears: what is stopped does not start another.
    """
    stopped: set[int] = set()
    while new := descendants(os.getpid(), process_table()) - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
        _reap_all()
    while found := descendants(os.getpid(), process_table()):
        for pid in found:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.001)
        _reap_all()


def _reap_all() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def process_table() -> Table:
    """The children of every process, by its id."""
    children: Table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as state:
                # The name in parentheses may hold anything; after it come the state and the parent.
                parent = int(state.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(name))
    return children


def processor_s(pid: int) -> float:
    """Processor time of a process and all its descendants, so far, in seconds; those included that have ended and were
    waited for."""
    ticks = 0
    for each in {pid} | descendants(pid, process_table()):
        with contextlib.suppress(OSError), open(f"/proc/{each}/stat", "rb") as state:  # it may have ended meanwhile
            ticks += sum(map(int, state.read().rpartition(b")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def descendants(pid: int, children: Table) -> set[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        young = [child for child in children.get(waiting.pop(), []) if child not in found]
        found.update(young)
        waiting += young
    return found


def _signal(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def _end_as(wait_status: int, signals_are_statuses: bool) -> None:
    """End with the status or by the signal that the worker did. Of bubblewrap, as of a shell, 128 + n is a signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    if signals_are_statuses and code - 128 in signal.valid_signals():
        code = 128 - code
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


if __name__ == "__main__":
    main()
