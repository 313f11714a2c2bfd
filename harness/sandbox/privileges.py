"""The rights that the worker gives up before it reads the submission: the user id that owns files, capabilities, and
memory, tasks and open files above its limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.sandbox.policy import MAX_FILE_BYTES, MAX_OPEN_FILES

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NAME = 4, 8, 15  # linux/prctl.h
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_CAPABILITIES = 64

NO_CORE = 1
"""Bytes of a core dump. No dump is that small, so none is made. If dumps go to a program of the system (core(5)), it
would run outside the sandbox and outlive it. The kernel starts that program with a limit of 0, but not with a limit of
1."""

_PRIORITIES = [getattr(resource, name) for name in ("RLIMIT_RTPRIO", "RLIMIT_NICE") if hasattr(resource, name)]
"""The limits on raising priority above other processes, such as the judge. On audio machines they may not be 0 by
default."""

_libc = ctypes.CDLL(None, use_errno=True)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def take_name(name: str) -> None:
    """Set the name of this process, as ps shows it. Raises OSError."""
    text = ctypes.create_string_buffer(name.encode())
    if _libc.prctl(_PR_SET_NAME, text, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the process's name cannot be set")


def limit(max_tasks: int, max_data_bytes: int) -> None:
    """Set limits on this process and its descendants. The kernel counts tasks by user id, and does not count root's."""
    resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE, NO_CORE))
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _lower(resource.RLIMIT_NPROC, max_tasks)
    # Limits private writable memory. RLIMIT_AS does not work: CUDA reserves terabytes of addresses.
    _lower(resource.RLIMIT_DATA, max_data_bytes)
    for priority in _PRIORITIES:
        _lower(priority, 0)
    # If memory runs out nevertheless, the kernel kills this process before the judge.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def take_uid(uid: int, groups: Sequence[int]) -> None:
    """Change to `uid`, in its own group and in `groups` (those of the GPU's device nodes). Raises OSError."""
    _prctl(_PR_SET_KEEPCAPS, 1)  # keeps the capabilities for drop_all
    os.setgroups(list(groups))
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_all(but_search: bool) -> None:
    """Drop all capabilities, so that no program can regain any. Raises OSError.

    `but_search` keeps the capability to pass through and read other users' directories, where Landlock allows it.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(_CAPABILITIES):
        with contextlib.suppress(OSError):  # no such capability, or not allowed: no_new_privs holds anyway
            _prctl(_PR_CAPBSET_DROP, capability)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    kept = 1 << _CAP_DAC_READ_SEARCH if but_search else 0
    sets = (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)  # effective, permitted, inheritable; the high halves
    if _libc.capset(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities cannot be given up")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if but_search:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH)


def hide() -> None:
    """Keep processes of the same user from this one's memory and from its files in /proc. A program that it executes is
    not hidden. Raises OSError."""
    _prctl(_PR_SET_DUMPABLE, 0)


def show() -> None:
    """Undo `hide`. CUDA reads /proc/self. A process that is hidden, or that changed its user, may not. Raises
    OSError."""
    if sys.platform == "linux":
        _prctl(_PR_SET_DUMPABLE, 1)


def _lower(which: int, value: int) -> None:
    """Lower the limit to `value` if it is higher."""
    soft, hard = resource.getrlimit(which)
    hard = value if hard == resource.RLIM_INFINITY else min(value, hard)
    soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(which, (soft, hard))


def _prctl(option: int, first: int, second: int = 0) -> None:
    if _libc.prctl(option, first, second, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")
