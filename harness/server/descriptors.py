"""How many files may be open at once, and how many connections that leaves room for.

A connection that idles holds a file. Judges, databases and pages need some whatever comes over the network, so
connections beyond a part of what the system permits are turned away.
"""

from __future__ import annotations

import logging
import resource
import time

from harness.server.guard import MOST_CONNECTIONS

BACKLOG = 128
"""Connections that are taken in one go, before the first of them can be turned away."""

RESERVED = 256 + 2 * BACKLOG
"""Open files that connections never take: judges, databases, pages, and those that are about to be turned away."""

SAME_S = 60.0
"""For which the log does not repeat what the event loop complains of."""


def connections() -> int:
    """Raise the limit on open files as far as is needed and permitted; how many connections fit below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else most_of(soft)


def most_of(files: int) -> int:
    """Of so many open files those that connections may be."""
    return min(MOST_CONNECTIONS, max(files - RESERVED, files // 4))


class Seldom(logging.Filter):
    """Lets the same message through once in SAME_S seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one is written."""
        said, now_s = str(record.msg)[:200], time.monotonic()
        if now_s - self._told_s.get(said, -SAME_S) < SAME_S:
            return False
        if len(self._told_s) > 100:
            self._told_s.clear()
        self._told_s[said] = now_s
        return True
