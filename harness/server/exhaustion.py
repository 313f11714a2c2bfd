"""Whether an error means that a shared resource ran out. Such an error says nothing about the submission."""

from __future__ import annotations

import errno

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)


def exhausted(error: BaseException) -> bool:
    """Whether `error`, or one of its causes, means that the machine had no more open files, memory or disk space just
    then."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in EXHAUSTED:
            return True
        seen = seen.__cause__
    return False
