"""Confine the process that will run the submission, from the inside and irrevocably."""

from __future__ import annotations

import os
import sys

from harness.sandbox import landlock, privileges, seccomp
from harness.sandbox.policy import Policy


def confine_as_told(hidden: bool = False) -> None:
    """Apply the policy that the judge wrote to this process's stdin. Afterwards stdin is empty.

    `hidden`: another process of the same submission may run, so its user must not reach this one until
    `privileges.show`.
    Must be called before the first thread starts: each layer holds for the calling thread and its descendants. Raises
    OSError.
    """
    policy = Policy.from_json(sys.stdin.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    confine(policy, hidden)


def confine(policy: Policy, hidden: bool = False) -> None:
    """Apply `policy`. No step of the order removes a right that a later step needs. Raises OSError."""
    if sys.platform != "linux":
        return
    if len(os.listdir("/proc/self/task")) != 1:
        raise OSError("a thread was started before the process was confined")
    privileges.take_name("podium-worker")
    privileges.limit(policy.max_tasks, policy.max_data_bytes)
    rules = _paths(policy) if policy.landlock else None
    if policy.uid is not None:
        privileges.take_uid(policy.uid, policy.groups)
    privileges.drop_all(but_search=policy.search)
    (privileges.hide if hidden else privileges.show)()
    os.chdir(policy.work)
    if rules is not None:
        landlock.enforce(rules)
    if policy.seccomp:
        abi = landlock.abi() if policy.landlock else 0
        seccomp.restrict(policy.exposed, policy.judge_pids, abi)


def _paths(policy: Policy) -> int:
    """Build Landlock's rules. CUDA writes to its own files in /proc, so these are allowed. Other processes' files there
    must be protected otherwise: by the user id, or by a mount namespace in which the kernel's settings are read-only.
    Without either, the rules allow only /proc/self, so child processes cannot use their own files there."""
    own = "/proc/self" if policy.exposed else "/proc"
    return landlock.ruleset(policy.read, policy.listed, policy.write, (*policy.devices, own))
