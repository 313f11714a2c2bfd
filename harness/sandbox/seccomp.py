"""seccomp: refuse system calls that no submission needs, before the operating system runs them. linux/seccomp.h

Refused are all sockets out of the process's own family, access to other processes, new namespaces and mounts, and the
most attacked parts of the operating system. Landlock does not cover metadata and priorities, so these are refused too
if the worker has the judge's user id. For some calls the arguments decide.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator

from harness.sandbox import syscalls

_REFUSED = (
    # the sockets of other programs; the allowed kinds of sockets are below
    "connect "
    # other processes
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd "
    # objects without a path, which would outlive the worker
    "shmget semget msgget mq_open "
    # namespaces, mounts, and file handles, which bypass paths
    "unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick "
    "mount_setattr name_to_handle_at open_by_handle_at fanotify_init "
    # large and often attacked parts of the kernel
    "bpf perf_event_open userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register "
    # calls that wake a stopped process, or work for it meanwhile: a timer of timerfd_create that expires then wakes
    # thousands of epolls within an interrupt, and slows the judge's null calls by that
    "timer_create timerfd_create io_setup pidfd_send_signal "
    # the machine
    "kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl quotactl_fd "
    "settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname iopl ioperm syslog vhangup"
)

_METADATA = (
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat "
    "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr"
)

_SIGNALS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}
"""The calls that send a signal, with the index of their argument for the signal."""
_SIGCONT, _EXIT_SIGNAL = 18, 0xFF  # asm-generic/signal.h; CSIGNAL, the part of clone's flags, linux/sched.h
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15  # asm-generic/fcntl.h
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4  # linux/prctl.h
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902  # asm-generic/sockios.h
_PRIO_USER, _IOPRIO_WHO_USER = 2, 3  # sys/resource.h, linux/ioprio.h

_CLONE_NEW = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}, linux/sched.h
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 1, 5, 0xF

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE, linux/falloc.h
_MADV_REMOVE, _MADV_PAGEOUT = 9, 21  # asm-generic/mman-common.h

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_X32 = 0x40000000
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # linux/filter.h
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def restrict(exposed: bool, judge_pids: tuple[int, ...], landlock_abi: int) -> None:
    """Refuse the calls from here on, for this thread and its descendants.

    `exposed`: the worker has the judge's user id and no namespace separates them. `landlock_abi`: tells which calls
    Landlock already refuses. Needs no_new_privs. Raises OSError.
    """
    steps = program(exposed, judge_pids, landlock_abi, os.getppid())
    packed = b"".join(struct.pack("=HBBI", *step) for step in steps)
    filter_ = _Program(len(packed) // 8, packed)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel did not accept the seccomp filter")


def program(exposed: bool, judge_pids: tuple[int, ...], landlock_abi: int, parent_pid: int) -> list[Instruction]:
    """The filter in classic BPF: a sequence of rules. Each either ends the program or leaves the call's number loaded.

    `parent_pid`: the waiter, which nobody may signal.
    """
    steps: list[Instruction] = [(_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[platform.machine()])]
    steps += [_refuse(errno.ENOSYS), (_LOAD, 0, 0, _NUMBER)]  # 32-bit calls have other numbers
    if platform.machine() == "x86_64":
        steps += [(_JUMP_AT_LEAST, 0, 1, _X32), _refuse(errno.ENOSYS)]
    for name in _REFUSED.split():
        steps += _on(name, _refuse(errno.EPERM))
    steps += _on("clone3", _refuse(errno.ENOSYS))  # its flags are out of reach; the C library falls back to clone
    steps += _on("clone", *_argument(0), (_JUMP_ANY_BIT, 0, 1, _CLONE_NEW), _refuse(errno.EPERM))
    # CUDA listens on a local socket. Without connect it reaches nobody. A datagram socket needs no connect.
    for name in "socket", "socketpair":
        steps += _on(name, *_argument(0), (_JUMP_EQUAL, 1, 0, _AF_UNIX), _refuse(errno.EPERM))
        kind = [*_argument(1), (_AND, 0, 0, _SOCK_TYPE_MASK), (_JUMP_EQUAL, 2, 0, _SOCK_STREAM)]
        steps += _on(name, *kind, (_JUMP_EQUAL, 1, 0, _SOCK_SEQPACKET), _refuse(errno.EPERM))
    # A process that touches shared memory waits while a hole is punched or it is paged out. So would the judge.
    steps += _on("fallocate", *_argument(1), (_JUMP_ANY_BIT, 0, 1, ~_KEEP_SIZE & 0xFFFFFFFF), _refuse(errno.EOPNOTSUPP))
    for advice in _MADV_REMOVE, _MADV_PAGEOUT:
        steps += _on("madvise", *_argument(2), (_JUMP_EQUAL, 0, 1, advice), _refuse(errno.EPERM))
    for name in "setsid", "setpgid":  # the judge stops, and the keeper kills, the whole group
        steps += _on(name, _refuse(0))
    # A stopped process must not arrange to be woken: by the end of a child, a pipe that fills, its parent's death.
    steps += _on(
        "clone", *_argument(0), (_AND, 0, 0, _EXIT_SIGNAL), (_JUMP_EQUAL, 0, 1, _SIGCONT), _refuse(errno.EPERM)
    )
    # Nor may it have a file send signals to any process: before Linux 6.12 nothing else prevents that.
    for command in _F_SETOWN, _F_SETSIG, _F_SETOWN_EX:
        steps += _on("fcntl", *_argument(1), (_JUMP_EQUAL, 0, 1, command), _refuse(errno.EPERM))
    for command in _FIOSETOWN, _SIOCSPGRP:
        steps += _on("ioctl", *_argument(1), (_JUMP_EQUAL, 0, 1, command), _refuse(errno.EPERM))
    steps += _on(
        "prctl", *_argument(0), (_JUMP_EQUAL, 0, 3, _PR_SET_PDEATHSIG),
        *_argument(1), (_JUMP_EQUAL, 0, 1, _SIGCONT), _refuse(errno.EPERM),
    )  # fmt: skip
    # A judge that is not root cannot look into a process that is hidden: its memfds and removed files would not count.
    steps += _on(
        "prctl", *_argument(0), (_JUMP_EQUAL, 0, 3, _PR_SET_DUMPABLE),
        *_argument(1), (_JUMP_EQUAL, 0, 1, 0), _refuse(errno.EPERM),
    )  # fmt: skip
    for name, argument in _SIGNALS.items():
        # A child that sends itself SIGCONT in a loop would cancel the judge's SIGSTOP and go on.
        steps += _on(name, *_argument(argument), (_JUMP_EQUAL, 0, 1, _SIGCONT), _refuse(errno.EPERM))
        for pid in (parent_pid, 2**32 - parent_pid, 2**32 - 1):  # also its group, and all processes
            steps += _on(name, *_argument(0), (_JUMP_EQUAL, 0, 1, pid), _refuse(errno.EPERM))
    if exposed:
        steps += _with_the_judges_uid(judge_pids, landlock_abi)
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _with_the_judges_uid(judge_pids: tuple[int, ...], landlock_abi: int) -> Iterator[Instruction]:
    """Refuse calls on files and processes of the same user that Landlock does not cover."""
    for name in _METADATA.split():
        # Programs that copy files would fail on a refusal. So the calls succeed and change nothing.
        yield from _on(name, _refuse(0))
    for name, argument in (("prlimit64", 0), ("setpriority", 1), ("ioprio_set", 1), ("sched_setscheduler", 0),
                           ("sched_setattr", 0), ("sched_setparam", 0), ("sched_setaffinity", 0)):  # fmt: skip
        yield from _on(name, *_argument(argument), (_JUMP_EQUAL, 1, 0, 0), _refuse(errno.EPERM))
    for name, whose in (("setpriority", _PRIO_USER), ("ioprio_set", _IOPRIO_WHO_USER)):  # user 0 means the own user
        yield from _on(name, *_argument(0), (_JUMP_EQUAL, 0, 1, whose), _refuse(errno.EPERM))
    if landlock_abi < 6:
        for name in _SIGNALS:
            for pid in (*judge_pids, *(2**32 - pid for pid in judge_pids)):  # also their groups
                yield from _on(name, *_argument(0), (_JUMP_EQUAL, 0, 1, pid), _refuse(errno.EPERM))
    if landlock_abi < 3:
        yield from _on("truncate", _refuse(errno.EPERM))


def _on(name: str, *body: Instruction) -> Iterator[Instruction]:
    """`body` for the call `name` only. The number is loaded again after a body that does not end the program."""
    number = syscalls.number(name)
    if number is None:
        return
    after: tuple[Instruction, ...] = () if len(body) == 1 else ((_LOAD, 0, 0, _NUMBER),)
    yield (_JUMP_EQUAL, 0, len(body) + len(after), number)
    yield from body
    yield from after


def _argument(index: int) -> tuple[Instruction]:
    """Load the low half of an argument: the part that the kernel reads of an int."""
    return ((_LOAD, 0, 0, _ARGUMENTS + 8 * index),)


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)
