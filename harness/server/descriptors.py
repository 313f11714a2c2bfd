"""The limit on open files, and the number of connections that fit below it.

An idle connection holds a file descriptor. Judges, databases and pages always need some. So connections beyond a part
of the system's limit are turned away.
"""

from __future__ import annotations

import logging
import resource
import time

from harness.server.guard import MOST_CONNECTIONS

BACKLOG = 128
"""Connections accepted at once, before the first of them can be turned away."""

RESERVED = 256 + 2 * BACKLOG
"""File descriptors that connections never take. They are for judges, databases, pages, and connections about to be
turned away."""

SAME_S = 60.0
"""Within this time the log does not repeat a message of the event loop."""


def connections() -> int:
    """Raise the limit on open files as far as needed and permitted. Return how many connections fit below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else most_of(soft)


def most_of(files: int) -> int:
    """Return how many of this many file descriptors connections may take."""
    return min(MOST_CONNECTIONS, max(files - RESERVED, files // 4))


class Seldom(logging.Filter):
    """Passes the same message once in SAME_S seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write this record."""
        said, now_s = str(record.msg)[:200], time.monotonic()
        if now_s - self._told_s.get(said, -SAME_S) < SAME_S:
            return False
        if len(self._told_s) > 100:
            self._told_s.clear()
        self._told_s[said] = now_s
        return True
