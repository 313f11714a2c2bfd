"""Ctrl-C at any moment: one KeyboardInterrupt that neither half imports a module nor gets lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130
MESSAGE = "interrupted: the unfinished run is not stored, earlier runs are kept"
LOOKS_AGAIN_S = 0.02  # how often an interrupt that waits for an import looks whether it is done


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt; in the midst of an import it waits until that is done, since torch imports numpy,
    and goes on without it, half imported, where that is interrupted. A second Ctrl-C does not wait.

    Python drops what a callback or a `__del__` raises, a KeyboardInterrupt as well: one that hit there comes again.
    Does nothing in other threads, and where Ctrl-C has a handler already.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before, tell = signal.signal(signal.SIGALRM, _interrupt), sys.unraisablehook

    def come_again(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, LOOKS_AGAIN_S)
        else:
            tell(dropped)

    sys.unraisablehook = come_again
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = tell


def no_longer_wait() -> None:
    """Raises KeyboardInterrupt if one waits, for what comes next may be over before it has come again."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if not _imports(frame):
        raise KeyboardInterrupt
    if signum == signal.SIGINT and signal.getitimer(signal.ITIMER_REAL)[0]:
        os.write(2, f"{MESSAGE}\n".encode())
        os._exit(EXIT_CODE)
    signal.setitimer(signal.ITIMER_REAL, LOOKS_AGAIN_S)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
