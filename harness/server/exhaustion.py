"""What the system says where something has run out that others give back: it tells nothing of what was judged."""

from __future__ import annotations

import errno

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)


def exhausted(error: BaseException) -> bool:
    """Whether the machine had no more open files, memory or room on a disk just then; also where that is the cause of
    `error`."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in EXHAUSTED:
            return True
        seen = seen.__cause__
    return False
