"""Landlock: the kernel refuses this process and its descendants every path that no rule allows. linux/landlock.h

The rights depend on the kernel's version of Landlock (the ABI): 1 files (5.13), 2 links across directories (5.19), 3
truncation (6.2), 4 TCP (6.7), 5 ioctl on devices (6.10), 6 signals and abstract sockets out of the domain (6.12).
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_BIND_AND_CONNECT_TCP = 0b11
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32)]


def abi() -> int:
    """The kernel's version of Landlock, 0 if it has none."""
    version = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _CREATE_RULESET_VERSION)
    return max(version, 0)


def ruleset(read: Sequence[str], listed: Sequence[str], write: Sequence[str], devices: Sequence[str]) -> int:
    """A file descriptor for the rules: these paths, no TCP, and signals only within the domain. Raises OSError.

    In `listed` directories only the names may be read.
    """
    version = abi()
    known = _FS_RIGHTS[min(version, 5)] if version else 0
    attributes = _RulesetAttr(known, _BIND_AND_CONNECT_TCP, _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    writing = known & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
    using = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
    for paths, rights in ((read, _READ), (listed, _READ_DIR), (write, writing), (devices, using)):
        for path in paths:
            _allow(rules, path, rights & known)
    return rules


def enforce(rules: int) -> None:
    """Apply `rules` to this thread and its descendants, and close them. Needs no_new_privs. Raises OSError."""
    try:
        _syscall(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _ON_FILES
        _syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(_PathBeneathAttr(rights, fd)), 0)
    finally:
        os.close(fd)


def _syscall(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
