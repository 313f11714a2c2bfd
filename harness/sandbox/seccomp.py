"""seccomp: system calls that no kernel needs are refused before they reach the kernel's code. linux/seccomp.h

What is refused: every socket that leads out of the process's own family, looking into other processes, new namespaces
and mounts, and the parts of the kernel that are attacked most. Landlock does not cover metadata and priorities, so
where the worker has the judge's user id those go too. A call with arguments that decide is looked at by its arguments.
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
    # the sockets of other programs; what may be a socket at all is below
    "connect "
    # other processes
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd "
    # what would outlive the worker: objects without a path
    "shmget semget msgget mq_open "
    # namespaces, mounts, and file handles, which go round paths
    "unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick "
    "mount_setattr name_to_handle_at open_by_handle_at fanotify_init "
    # large and often attacked parts of the kernel
    "bpf perf_event_open userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register "
    # what wakes a stopped process, or works for it meanwhile
    "timer_create io_setup pidfd_send_signal "
    # the machine
    "kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl quotactl_fd "
    "settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname iopl ioperm syslog vhangup"
)

_METADATA = (
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat "
    "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr"
)

_SIGNALS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}
"""What sends a signal, and which of its arguments the signal is."""
_SIGCONT, _EXIT_SIGNAL = 18, 0xFF  # asm-generic/signal.h; CSIGNAL, the part of clone's flags, linux/sched.h
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _PR_SET_PDEATHSIG = 8, 10, 15, 1  # asm-generic/fcntl.h, linux/prctl.h
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
    """Refuse the calls from here on, to this thread and all that comes of it.

    `exposed` says that the worker's user id is the judge's and no namespace is between them; `landlock_abi` what
    Landlock holds off already. Needs no_new_privs. Raises OSError.
    """
    steps = program(exposed, judge_pids, landlock_abi, os.getppid())
    packed = b"".join(struct.pack("=HBBI", *step) for step in steps)
    filter_ = _Program(len(packed) // 8, packed)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the seccomp filter was not taken")


def program(exposed: bool, judge_pids: tuple[int, ...], landlock_abi: int, parent_pid: int) -> list[Instruction]:
    """The filter in classic BPF: rule after rule, each of which ends the program or leaves the number loaded.

    `parent_pid` is the waiter's: nobody may signal it.
    """
    steps: list[Instruction] = [(_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[platform.machine()])]
    steps += [_refuse(errno.ENOSYS), (_LOAD, 0, 0, _NUMBER)]  # 32-bit calls are numbered otherwise
    if platform.machine() == "x86_64":
        steps += [(_JUMP_AT_LEAST, 0, 1, _X32), _refuse(errno.ENOSYS)]
    for name in _REFUSED.split():
        steps += _on(name, _refuse(errno.EPERM))
    steps += _on("clone3", _refuse(errno.ENOSYS))  # its flags lie in memory; the C library falls back on clone
    steps += _on("clone", *_argument(0), (_JUMP_ANY_BIT, 0, 1, _CLONE_NEW), _refuse(errno.EPERM))
    # CUDA listens on a local socket of its own; without connect none leads anywhere. One that sends datagrams would.
    for name in "socket", "socketpair":
        steps += _on(name, *_argument(0), (_JUMP_EQUAL, 1, 0, _AF_UNIX), _refuse(errno.EPERM))
        kind = [*_argument(1), (_AND, 0, 0, _SOCK_TYPE_MASK), (_JUMP_EQUAL, 2, 0, _SOCK_STREAM)]
        steps += _on(name, *kind, (_JUMP_EQUAL, 1, 0, _SOCK_SEQPACKET), _refuse(errno.EPERM))
    # Whoever touches a page of shared memory waits while a hole is made there or it is written out: the judge, too.
    steps += _on("fallocate", *_argument(1), (_JUMP_ANY_BIT, 0, 1, ~_KEEP_SIZE & 0xFFFFFFFF), _refuse(errno.EOPNOTSUPP))
    for advice in _MADV_REMOVE, _MADV_PAGEOUT:
        steps += _on("madvise", *_argument(2), (_JUMP_EQUAL, 0, 1, advice), _refuse(errno.EPERM))
    for name in "setsid", "setpgid":  # the judge stops and the keeper kills by the process group
        steps += _on(name, _refuse(0))
    # A stopped process must not arrange for its own waking: by a child's end, a pipe that fills, its parent's death.
    steps += _on(
        "clone", *_argument(0), (_AND, 0, 0, _EXIT_SIGNAL), (_JUMP_EQUAL, 0, 1, _SIGCONT), _refuse(errno.EPERM)
    )
    # Nor have a file send signals, which go to whom it likes: before Linux 6.12 nothing else holds those back.
    for command in _F_SETOWN, _F_SETSIG, _F_SETOWN_EX:
        steps += _on("fcntl", *_argument(1), (_JUMP_EQUAL, 0, 1, command), _refuse(errno.EPERM))
    for command in _FIOSETOWN, _SIOCSPGRP:
        steps += _on("ioctl", *_argument(1), (_JUMP_EQUAL, 0, 1, command), _refuse(errno.EPERM))
    steps += _on(
        "prctl", *_argument(0), (_JUMP_EQUAL, 0, 3, _PR_SET_PDEATHSIG),
        *_argument(1), (_JUMP_EQUAL, 0, 1, _SIGCONT), _refuse(errno.EPERM),
    )  # fmt: skip
    for name, argument in _SIGNALS.items():
        # A child that sends itself SIGCONT without end loses the SIGSTOP that it is sent, and goes on.
        steps += _on(name, *_argument(argument), (_JUMP_EQUAL, 0, 1, _SIGCONT), _refuse(errno.EPERM))
        for pid in (parent_pid, 2**32 - parent_pid, 2**32 - 1):  # its group, and everybody
            steps += _on(name, *_argument(0), (_JUMP_EQUAL, 0, 1, pid), _refuse(errno.EPERM))
    if exposed:
        steps += _with_the_judges_uid(judge_pids, landlock_abi)
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _with_the_judges_uid(judge_pids: tuple[int, ...], landlock_abi: int) -> Iterator[Instruction]:
    """What a process may do to files and processes of its own user, Landlock or not."""
    for name in _METADATA.split():
        # Copying programs take a refusal for a failure; a file keeps its mode and times instead.
        yield from _on(name, _refuse(0))
    for name, argument in (("prlimit64", 0), ("setpriority", 1), ("ioprio_set", 1), ("sched_setscheduler", 0),
                           ("sched_setattr", 0), ("sched_setparam", 0), ("sched_setaffinity", 0)):  # fmt: skip
        yield from _on(name, *_argument(argument), (_JUMP_EQUAL, 1, 0, 0), _refuse(errno.EPERM))
    for name, whose in (("setpriority", _PRIO_USER), ("ioprio_set", _IOPRIO_WHO_USER)):  # of user 0: of one's own
        yield from _on(name, *_argument(0), (_JUMP_EQUAL, 0, 1, whose), _refuse(errno.EPERM))
    if landlock_abi < 6:
        for name in _SIGNALS:
            for pid in judge_pids:
                yield from _on(name, *_argument(0), (_JUMP_EQUAL, 0, 1, pid), _refuse(errno.EPERM))
    if landlock_abi < 3:
        yield from _on("truncate", _refuse(errno.EPERM))


def _on(name: str, *body: Instruction) -> Iterator[Instruction]:
    """`body` for the call `name` alone; after a body that does not end the program the number is loaded again."""
    number = syscalls.number(name)
    if number is None:
        return
    after: tuple[Instruction, ...] = () if len(body) == 1 else ((_LOAD, 0, 0, _NUMBER),)
    yield (_JUMP_EQUAL, 0, len(body) + len(after), number)
    yield from body
    yield from after


def _argument(index: int) -> tuple[Instruction]:
    """Load the low half of an argument: all that the kernel reads of an int."""
    return ((_LOAD, 0, 0, _ARGUMENTS + 8 * index),)


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)
