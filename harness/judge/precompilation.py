"""Compile ahead. While test cases are judged on a GPU, further processes of the submission make a call of each case.

Everything that a submission compiles and keeps on disk is then ready for the judged process. Compiling is most of the
tests' time: 18 of 22 s, and 7 of the pilot's 8 s (mla/gluon_mxfp4, H200, 2026-11-24).

    judge's thread     deals the cases from the last to the first; the judged process goes from first to last
    a thread each      has its process load the submission, then make the calls that it gets

The answers of these processes do not count. None of them lives while anything is timed.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import torch

from harness.errors import InfrastructureError
from harness.judge.calls import Series
from harness.judge.clock import Clock
from harness.judge.inputs import Call
from harness.judge.session import Session
from harness.machine import processors
from harness.model import Case

PROCESSES = 3
"""Processes besides the judged one."""

AT_ONCE = 2
"""Cases that a process has: one that it compiles and one that waits. The judge deals between test cases only, and each
of these takes seconds to compile."""

COMPILERS = ("triton", "harness.hip", "load_inline", "torch.compile")
"""A source with one of these words probably compiles."""

COMPILES_S = 1.0
"""A case that takes longer probably compiled something, whatever the source says."""

SHARE_OF_MEMORY = 40
"""A case may move at most 1/40 of a device's memory: for each compiler, judge, process and arena each hold its inputs,
in all formats."""


def compilers(device_kind: str) -> int:
    """How many processes besides the judged one this card's share of the machine has room for."""
    return 0 if device_kind == "cpu" else max(min(PROCESSES, processors.share() // processors.EACH - 1), 0)


class Precompilation:
    """`new_session` starts a process. `cases` are taken from the end. `clock` has a call made. Nothing runs before
    `begin`. The thread that deals must call `feed` from time to time, after each test case, to keep the processes busy.

    `began`: other processes of the submission ran. A failed call may have lacked the memory that they took.
    """

    def __init__(
        self,
        count: int,
        new_session: Callable[[], Session],
        path: Path,
        cases: Sequence[Case],
        new_series: Callable[[str, Case], AbstractContextManager[Series]],
        clock: Clock,
        torch_device: str,
    ) -> None:
        self._cases, self._new_series = list(cases), new_series
        self._compilers: list[_Compiler] = []
        self.began = False
        with ExitStack() as stack:
            stack.callback(self.close)
            for _ in range(count if self._cases else 0):
                self._compilers.append(_Compiler(new_session(), path, clock, torch_device))
            stack.pop_all()

    def begin(self) -> None:
        for compiler in self._compilers if not self.began else ():
            compiler.start()
            self.began = True
        self.feed()  # each has a case when it has loaded the submission

    def feed(self) -> None:
        """Give a case to each process that has room for one."""
        for compiler in self._compilers if self.began else ():
            compiler.tidy()
            if compiler.has_room and self._cases:
                case = self._cases.pop()
                try:
                    compiler.give(self._new_series("precompilation", case))
                except (InfrastructureError, torch.OutOfMemoryError):  # leave the memory to the judged process
                    self._cases.clear()

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        with ExitStack() as stack:
            for compiler in self._compilers:
                stack.callback(compiler.close)
            self._compilers = []


class _Compiler:
    def __init__(self, session: Session, path: Path, clock: Clock, torch_device: str) -> None:
        self._session, self._path, self._clock, self._torch_device = session, path, clock, torch_device
        self._given: queue.SimpleQueue[tuple[Series, Call] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open: deque[ExitStack] = deque()
        self._all, self._done = 0, 0
        self.loaded = False

    @property
    def has_room(self) -> bool:
        return self._all - self._done < AT_ONCE

    def start(self) -> None:
        self._thread = threading.Thread(target=self._compile, daemon=True)
        self._thread.start()

    def give(self, series: AbstractContextManager[Series]) -> None:
        """Deal a call of this series. Raises InfrastructureError."""
        with ExitStack() as stack:
            opened = stack.enter_context(series)
            call = opened.deal(everything=False)
            self._open.append(stack.pop_all())
        self._all += 1
        self._given.put((opened, call))

    def tidy(self) -> None:
        """Close the series whose calls have been made."""
        while len(self._open) > self._all - self._done:
            self._open.popleft().close()

    def close(self) -> None:
        self._given.put(None)
        if self._thread is not None:
            self._session.end()  # ends the thread's wait for an answer
            self._thread.join()
        self._session.kill()
        for opened in self._open:
            opened.close()

    def _compile(self) -> None:
        # Failures here are ignored: the judged process will show them.
        with contextlib.suppress(Exception):
            if self._torch_device != "cpu":
                torch.cuda.set_device(self._torch_device)  # the current device is a setting of each thread
            self._session.prepare()
            self._session.load(self._path, alone=False)
            self.loaded = True
            for series, call in self._calls():
                self._clock.time(self._session, series.stage, call, call.case.label)
                self._done += 1

    def _calls(self) -> Iterator[tuple[Series, Call]]:
        while (given := self._given.get()) is not None:
            yield given
