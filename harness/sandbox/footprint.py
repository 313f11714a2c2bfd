"""The resources that a family of processes uses: tasks, memory, files, processor time. Read from /proc and from
directories. Processes and files that vanish meanwhile are left out.

    family = descendants(pid, process_table())
    tasks(family)                 processes and threads
    mappings(family, ...)         how many, and the removed files that they hold
    memory_bytes(family, ...)     pages in memory, each counted once
    statuses(folder)              every file and directory

Uses only the standard library and no import of the project's, because the keeper loads this file by its path.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType

SHARED_MEMORY = "/dev/shm"
BLOCK_BYTES = 512  # of st_blocks: stat(2)
_IN_MEMORY = (b"/memfd:", b"/dev/zero", b"/dev/shm/")  # /dev/zero: shared memory without a file, mmap(2)
LONGEST_COUNT_S = 5.0
"""Processor seconds that counting single pages may take: 16 us for a mapped megabyte (AMD EPYC, 2026-11-22)."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KIB = 1 << 10
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2  # linux/prctl.h

Table = dict[int, list[int]]
Removed = dict[tuple[int, int], int]  # the bytes of files, by device and inode


def process_table() -> Table:
    """The children of every process, by its id."""
    children: Table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            parent = int(_state(int(name))[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(name))
    return children


def descendants(pid: int, children: Table) -> set[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        young = [child for child in children.get(waiting.pop(), []) if child not in found]
        found.update(young)
        waiting += young
    return found


def processor_s(pid: int) -> float:
    """Processor seconds of a process and its descendants so far, including those that ended and were waited for."""
    ticks = 0
    for each in {pid} | descendants(pid, process_table()):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _state(each)[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def process_group(pid: int) -> int | None:
    """The id of its process group, or None if the process is gone."""
    with contextlib.suppress(OSError, IndexError):
        return int(_state(pid)[2])
    return None


def tasks(family: set[int]) -> int:
    """The number of processes and threads."""
    count = 0
    for pid in family:
        with contextlib.suppress(OSError, IndexError):
            count += int(_state(pid)[17])
    return count


def open_files(family: set[int], enough: int) -> int:
    """The number of open files. Counting ends above `enough`."""
    count = 0
    for pid in family:
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/fd"))
        if count > enough:
            break
    return count


def mappings(family: set[int], uid: int, enough: int) -> tuple[int, dict[int, int], Removed]:
    """The number of mappings, and the removed files that they hold, in memory (by inode) and elsewhere: such a file
    stays when nobody has it open. Reading ends above `enough`. Shared memory without a file is a removed file.

    Files are left out where this process may not look at them: that takes root (proc_pid_map_files(5)). `uid`: the
    family's own user id, or negative.
    """
    count, in_memory, elsewhere, known = 0, dict[int, int](), Removed(), set[tuple[bytes, bytes]]()
    for pid in family:
        with contextlib.suppress(OSError), _rights_to_look(pid, uid), open(f"/proc/{pid}/maps", "rb") as lines:
            for line in lines:
                count += 1
                if not line.endswith(b" (deleted)\n"):
                    continue
                place, _, _, device, inode, path = line.split(maxsplit=5)
                if (device, inode) not in known:
                    start, end = (int(address, 16) for address in place.split(b"-"))
                    with contextlib.suppress(OSError):
                        status = os.stat(f"/proc/{pid}/map_files/{start:x}-{end:x}")
                        known.add((device, inode))
                        size = status.st_blocks * BLOCK_BYTES if status.st_nlink == 0 else 0
                        if path.startswith(_IN_MEMORY):
                            in_memory[status.st_ino] = size
                        else:
                            elsewhere[status.st_dev, status.st_ino] = size
        if count > enough:
            break
    return count, in_memory, elsewhere


def memory_bytes(
    family: set[int], judge_pid: int, uid: int, limit_bytes: int, removed: Mapping[int, int] = MappingProxyType({})
) -> tuple[int, bool]:
    """Bytes of memory without a file on disk that the family maps or keeps in memfds, and whether its pages were
    counted. Page tables count too.

    Pages are counted only if the family may have more than `limit_bytes`, because that is slow. Otherwise the result is
    an upper bound: a page counts for each process that maps it. The mapped part of a memfd counts twice either way. The
    judge's own memfds are left out: they hold inputs and outputs. `uid`: the family's own user id, or negative.
    `removed`: the bytes of files in memory that are mapped, by inode. Their pages need not be in any page table.
    """
    the_judge_s = dict(_files_in_memory(judge_pid, -1))
    files = {number: size for pid in family for number, size in _files_in_memory(pid, uid) if number not in the_judge_s}
    unmapped, not_theirs = sum(files.values()), sum(the_judge_s.values())
    closed = sum(size for number, size in removed.items() if number not in files and number not in the_judge_s)
    bounds = {pid: bound for pid in family if (bound := _mapped_bound_bytes(pid, not_theirs)) is not None}
    at_most = unmapped + closed + sum(bounds.values())
    if at_most <= limit_bytes:
        return at_most, False
    return unmapped + _mapped_bytes(bounds, not_theirs, uid, limit_bytes - unmapped, closed), True


def files_and_bytes_in_shared_memory(uid: int) -> tuple[int, int]:
    """The number and bytes of this user's files in /dev/shm. An empty file counts because it takes kernel memory.
    Raises OSError for a directory of this user that cannot be read."""
    files = size = 0
    try:
        names = os.listdir(SHARED_MEMORY)
    except OSError:  # no such directory
        return 0, 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # the file was removed meanwhile
            top = os.lstat(path := f"{SHARED_MEMORY}/{name}")
            if top.st_uid == uid:
                for status in (top, *(statuses(path) if stat.S_ISDIR(top.st_mode) else ())):
                    files, size = files + 1, size + status.st_blocks * BLOCK_BYTES
    return files, size


def statuses(folder: str) -> Iterator[os.stat_result]:
    """Yield the status of each file and directory in `folder`; those removed meanwhile are left out. Raises OSError for
    a directory that cannot be read."""
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


def bytes_without_a_name(device: int, family: set[int], uid: int, mapped: Removed | None = None) -> int:
    """Bytes of removed files on `device` that are still open in one of these processes, or `mapped`. Each counts once.
    `uid`: their own user id, or negative."""
    found = Removed(mapped or {})
    for pid in family:
        with contextlib.suppress(OSError), _rights_to_look(pid, uid):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    if status.st_nlink == 0:
                        found[status.st_dev, status.st_ino] = status.st_blocks * BLOCK_BYTES
    return sum(size for (where, _), size in found.items() if where == device)


def _state(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third on, proc_pid_stat(5). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as state:
        # The name in parentheses may contain any character. State, parent and group follow it.
        return state.read().rpartition(b")")[2].split()


def _mapped_bound_bytes(pid: int, not_theirs: int) -> int | None:
    """An upper bound on the memory without a file on disk that a process maps, shared or not. Of the shared part,
    `not_theirs` bytes may be the judge's and are subtracted. None if the process is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            fields = statm.read().split()
        private = (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
        status = _read(f"/proc/{pid}/status")  # bytes: the name in it may contain any character
    except (OSError, ValueError, IndexError):
        return None
    shared, tables = (_kib(status, name) or 0 for name in (b"RssShmem:", b"VmPTE:"))
    return private + tables + max(shared - not_theirs, 0)


def _mapped_bytes(bounds: dict[int, int], not_theirs: int, uid: int, enough: int, closed: int) -> int:
    """The memory that these processes map together, each page counted once. Counting ends above `enough`. `closed`:
    bytes of shared memory that are mapped, in a page table or not.

    The upper bound is used for processes whose pages may not be counted, and for those that time does not allow for.
    """
    private = shared = bound = 0
    began = time.process_time()
    for pid, at_most in bounds.items():
        pages = None
        if time.process_time() - began < LONGEST_COUNT_S and signal.SIGTERM not in signal.sigpending():
            pages = _proportional_bytes(pid, uid)
        if pages is None:
            bound += at_most
        else:
            private, shared = private + pages[0], shared + pages[1]
        if private + max(shared - not_theirs, closed) + bound > enough:
            break
    return private + max(shared - not_theirs, closed) + bound


def _proportional_bytes(pid: int, uid: int) -> tuple[int, int] | None:
    """Private and shared memory without a file on disk. Page tables are private. A page mapped by several processes
    counts with its share: Pss_Anon and Pss_Shmem, proc_pid_smaps(5). None if unknown: the process is gone or forbids
    it, or Linux is older than 5.4."""
    path = f"/proc/{pid}/smaps_rollup"
    try:
        try:
            text = _read(path)
        except PermissionError:
            if uid < 0:
                return None
            with _looking_as(uid):
                text = _read(path)
        tables = _kib(_read(f"/proc/{pid}/status"), b"VmPTE:") or 0
    except OSError:
        return None
    private, shared = _kib(text, b"Pss_Anon:"), _kib(text, b"Pss_Shmem:")
    return None if private is None or shared is None else (private + tables, shared)


def _rights_to_look(pid: int, uid: int) -> contextlib.AbstractContextManager[None]:
    """Where only `uid` may look into a process, the rights of `uid`; otherwise the own ones."""
    try:
        os.readlink(f"/proc/{pid}/cwd")  # allowed to whom its open files are
    except PermissionError:
        if uid >= 0:
            return _looking_as(uid)
    except OSError:
        pass
    return contextlib.nullcontext()


@contextlib.contextmanager
def _looking_as(uid: int) -> Iterator[None]:
    """Use another user's rights on files, setfsuid(2). Root without CAP_SYS_PTRACE, as in most containers, may not read
    another user's processes, but that user may. That user gains no access to this process.

    The change cancels the signal at the parent's death (commit_creds, kernel/cred.c), so it is requested again.
    """
    libc, own_uid, own_gid, parent = ctypes.CDLL(None), os.geteuid(), os.getegid(), os.getppid()
    told_by = ctypes.c_int()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(told_by), 0, 0, 0)
    libc.setfsgid(uid)
    libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(own_uid)
        libc.setfsgid(own_gid)
        libc.prctl(_PR_SET_PDEATHSIG, told_by.value, 0, 0, 0)
        if told_by.value and os.getppid() != parent:
            os.kill(os.getpid(), told_by.value)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _kib(text: bytes, name: bytes) -> int | None:
    """The value in bytes of the line `name`, which /proc gives in KiB."""
    return next((int(line.split()[1]) * _KIB for line in text.splitlines() if line.startswith(name)), None)


def _files_in_memory(pid: int, uid: int) -> list[tuple[int, int]]:
    """The inode and the bytes of each memfd and each removed file of /dev/shm that is open in a process."""
    found = []
    with contextlib.suppress(OSError), _rights_to_look(pid, uid):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                path = f"/proc/{pid}/fd/{fd}"
                name, status = os.readlink(path), os.stat(path)
                if name.startswith("/memfd:") or (name.startswith(f"{SHARED_MEMORY}/") and status.st_nlink == 0):
                    found.append((status.st_ino, status.st_blocks * BLOCK_BYTES))
    return found
