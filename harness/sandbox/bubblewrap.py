"""bubblewrap: run the worker in namespaces of its own. Paths that are not mounted do not exist there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from harness.errors import InfrastructureError
from harness.sandbox.policy import Policy

_NAMESPACES = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
_BY_BUBBLEWRAP = ("/proc", "/dev")
_KERNEL_SETTINGS = (
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
    "/proc/acpi",
    "/proc/scsi",
)


def program() -> str | None:
    """The path of bubblewrap, or None if it is not installed."""
    return shutil.which("bwrap")


def command(inner: Sequence[str], policy: Policy, work: Path) -> list[str]:
    """The command that runs `inner` with `policy.read` readable and `work` writable, without the host's processes and
    network.

    /dev/shm is the directory shm beside `work`: it is private, and limited together with `work`. Raises
    InfrastructureError without bubblewrap.
    """
    found = program()
    if found is None:
        raise InfrastructureError("bubblewrap has disappeared since this process started", "install it again")
    words = [found, *_NAMESPACES, "--die-with-parent", "--cap-drop", "ALL"]
    if policy.uid is not None:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]  # given up by confine()
    words += ["--proc", "/proc", "--dev", "/dev"]
    # The namespace's first process, bubblewrap's own, has no system call filter. A worker with its user id could write
    # code to its memory: tried, it then made a user namespace.
    words += ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    for path in _KERNEL_SETTINGS:  # a process with uid 0 can write these without any capability
        words += ["--ro-bind-try", path, path]
    for node in policy.devices:
        words += ["--dev-bind", node, node]
    shared = work.parent / "shm"
    places = [path for path in policy.read if path not in _BY_BUBBLEWRAP]
    # Parent directories that bubblewrap makes by itself are closed to other users.
    for folder in sorted({str(parent) for path in (*places, str(work)) for parent in Path(path).parents} - {"/"}):
        words += ["--dir", folder]
    for path in places:
        # The target of a link is among the places; further links on the way there are not.
        link = os.path.islink(path)
        words += ["--symlink", os.path.realpath(path), path] if link else ["--ro-bind", path, path]
    words += ["--bind", str(work), str(work), "--bind", str(shared), "/dev/shm"]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--", *inner]
