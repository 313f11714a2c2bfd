"""Run another project's code with a time limit, and record which code runs (`custody`).

SIGALRM ends a call that takes longer, wherever it is in Python. If it is stuck in C, faulthandler ends the whole
process GRACE_S later and prints the stack. The owner of the process then reports what was running (`custody`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from harness import custody
from harness.errors import Overtime

GRACE_S = 10.0
AGAIN_S = 1.0
"""If the code catches the exception that ends it, the exception is raised again after this many seconds."""


class _TookTooLong(BaseException):
    """Not an Exception: the code that it ends may catch those."""


@contextlib.contextmanager
def limited(what: str, limit_s: float, again: bool = False) -> Iterator[None]:
    """Run another project's code within this block for at most `limit_s` seconds. `what` names it. Raises Overtime if
    it takes longer. These blocks must not be nested. Outside the main thread there is no limit. `again`: see
    `custody.doing`."""
    if threading.current_thread() is not threading.main_thread():
        with custody.doing(what, limit_s, again):
            yield
        return
    before = signal.signal(signal.SIGALRM, _end)
    try:
        with custody.doing(what, limit_s, again):
            try:
                faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True, file=sys.__stderr__ or 2)
                signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                faulthandler.cancel_dump_traceback_later()
    except _TookTooLong:
        raise Overtime(*custody.too_long(what, limit_s)) from None
    finally:
        signal.signal(signal.SIGALRM, before)


def _end(number: int, frame: FrameType | None) -> None:
    raise _TookTooLong
