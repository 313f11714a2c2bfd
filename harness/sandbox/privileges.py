"""What the worker gives up before it reads anything of the submission's: a user id that owns files, capabilities,
and more memory, tasks and open files than its share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
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
"""Bytes of a core dump. Less than any has, so none is made; and where dumps go to a program of the system's (core(5)),
which would run outside the sandbox and outlive it, the kernel keeps to a limit of 1 alone, not to one of 0."""

_PRIORITIES = [getattr(resource, name) for name in ("RLIMIT_RTPRIO", "RLIMIT_NICE") if hasattr(resource, name)]
"""How far a process may come before others, the judge among them. Where sound is made these limits may not be 0."""

_libc = ctypes.CDLL(None, use_errno=True)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def take_name(name: str) -> None:
    """The name of this process, as ps shows it. Raises OSError."""
    text = ctypes.create_string_buffer(name.encode())
    if _libc.prctl(_PR_SET_NAME, text, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the process's name cannot be set")


def limit(max_tasks: int, max_data_bytes: int) -> None:
    """Limits on this process and what it starts. The kernel counts tasks by user id, and root's not at all."""
    resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE, NO_CORE))
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _lower(resource.RLIMIT_NPROC, max_tasks)
    # Private memory that can be written to; not RLIMIT_AS, for CUDA reserves addresses by the terabyte.
    _lower(resource.RLIMIT_DATA, max_data_bytes)
    for priority in _PRIORITIES:
        _lower(priority, 0)
    # If memory runs out all the same, the kernel takes this process first, not the judge.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def take_uid(uid: int, groups: Sequence[int]) -> None:
    """Become `uid`, in its own group and in `groups` (those of the GPU's device nodes). Raises OSError."""
    _prctl(_PR_SET_KEEPCAPS, 1)  # for drop_all to choose from
    os.setgroups(list(groups))
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_all(but_search: bool) -> None:
    """No capability is left, and no program can give any back. Raises OSError.

    `but_search` keeps the one to pass through and read directories of others, where Landlock allows it.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(_CAPABILITIES):
        with contextlib.suppress(OSError):  # beyond the last one, or not allowed: no_new_privs holds all the same
            _prctl(_PR_CAPBSET_DROP, capability)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    kept = 1 << _CAP_DAC_READ_SEARCH if but_search else 0
    sets = (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)  # effective, permitted, inheritable; the high halves
    if _libc.capset(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities cannot be given up")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if but_search:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH)
    # A process that changed its user cannot read its own /proc/self, as CUDA does, unless it says so.
    _prctl(_PR_SET_DUMPABLE, 1)


def _lower(which: int, value: int) -> None:
    """The limit becomes `value` where it was higher."""
    soft, hard = resource.getrlimit(which)
    hard = value if hard == resource.RLIM_INFINITY else min(value, hard)
    soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(which, (soft, hard))


def _prctl(option: int, first: int, second: int = 0) -> None:
    if _libc.prctl(option, first, second, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")
