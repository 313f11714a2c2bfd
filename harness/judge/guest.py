"""Calls of another project's code: each may take so long, and whoever owns the process learns which one runs.

SIGALRM ends a call that takes longer, wherever it is in Python. One that is stuck in C is ended GRACE_S later with the
whole process, by faulthandler, which prints where it was; what to say of that its owner knows (`custody`).
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
"""How soon it is ended again, where it has caught what ended it."""


class _TookTooLong(BaseException):
    """No Exception: the code that it ends may catch those."""


@contextlib.contextmanager
def limited(what: str, limit_s: float, again: bool = False) -> Iterator[None]:
    """Within it another project's code runs: `what`, for at most `limit_s` seconds. Raises Overtime if it takes longer.
    None may lie within another. Outside of the main thread nothing is limited. `again`: see `custody.doing`."""
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
