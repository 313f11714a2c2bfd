"""Stopping the worker and letting it go on, and being sure of it.

    judge ── SIGSTOP, SIGCONT ──► worker's process group
    judge ◄── stopped, continued, ended ── waiter (waiter.py), the worker's parent

A worker that is stopped computes nothing, on any thread. That it stays so is looked at twice: the waiter would report
that it went on, and its processor clock would have moved.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from harness.sandbox import footprint
from harness.sandbox.waiter import ENDED, RECORD, STARTED, STOP_S, STOPPED, has_ended, is_stopped, others

SETTLING_NS = 50_000
"""The processor time that the kernel may still book to the worker, or to all others, after their stop was seen."""

_clock_ns = time.monotonic_ns


class Ended(Exception):
    """The worker has ended."""


@dataclass(frozen=True)
class AtRest:
    """Processes that stood still: the processor time of each in ns, and which of them had ended."""

    spent_ns: dict[int, int]
    ended: frozenset[int]


class Leash:
    """The judge's hold on one worker. `report_fd` is the end of the waiter's pipe that is read from; `keeper_pid` the
    process from which the worker stems.

    With `spins` the judge waits awake, which is quicker and takes a processor.
    """

    def __init__(self, report_fd: int, keeper_pid: int, spins: bool = False) -> None:
        self._fd, self._keeper_pid, self._spins = report_fd, keeper_pid, spins
        self._poll = select.poll()
        self._poll.register(report_fd, select.POLLIN)
        self.pid = 0
        self.stopped = self.told = False  # `told` to stop by the judge
        self._clock_at_stop_ns = self._stopped_at_ns = 0

    def fileno(self) -> int:
        return self._fd

    def attach(self, timeout_s: float) -> None:
        """Learn which process the worker is, before it runs a submission. Raises Ended, TimeoutError."""
        what, number, _ = self._next(time.monotonic() + timeout_s)
        if what != STARTED:
            raise Ended
        self.pid = _host_pid(self._keeper_pid, number)

    def note(self) -> None:
        """Read what the waiter reports next: whether the worker has stopped. Raises Ended."""
        what, _, at_ns = self._next(time.monotonic())
        if what == ENDED:
            raise Ended
        if what == STOPPED:
            self.stopped, self._stopped_at_ns = True, at_ns
            self._clock_at_stop_ns = self.processor_ns()

    def await_stop(self, timeout_s: float) -> int:
        """Wait until the worker has stopped; when that was, on time.monotonic_ns. Raises Ended, TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not self.stopped:
            while not self._poll.poll(0 if self._spins else max(deadline - time.monotonic(), 0) * 1e3):
                if time.monotonic() >= deadline:
                    raise TimeoutError
            self.note()
        return self._stopped_at_ns

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop the whole group and wait until the worker is stopped. Raises Ended; TimeoutError: it stops later."""
        self.told = True
        self._signal(signal.SIGSTOP)
        self.await_stop(timeout_s)

    def resume(self) -> int:
        """Let the group go on; the time just before, on time.monotonic_ns."""
        self.stopped = self.told = False
        at_ns = _clock_ns()
        self._signal(signal.SIGCONT)
        return at_ns

    def ran_while_stopped(self) -> bool:
        """Whether the worker, which should be stopped, has gone on meanwhile, and be it for a moment."""
        return bool(self._poll.poll(0)) or self.processor_ns() - self._clock_at_stop_ns > SETTLING_NS

    def processor_ns(self) -> int:
        """Processor time of the worker's threads so far; 0 once it has ended."""
        with contextlib.suppress(OSError):
            # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of linux/posix-timers.h: it needs no privilege.
            return time.clock_gettime_ns((~self.pid << 3) | 2)
        return 0

    def others(self) -> dict[int, int]:
        """The processor time in ns of each process that the worker has started and that has not been forgotten."""
        found = {}
        for pid in others(self.pid):
            with contextlib.suppress(OSError):
                found[pid] = time.clock_gettime_ns((~pid << 3) | 2)
        return found

    def others_at_rest(self) -> AtRest | None:
        """Those processes as they stand still, all of them at one look; None if one of them does not."""
        spent_ns = self.others()
        return AtRest(spent_ns, frozenset(filter(has_ended, spent_ns))) if all(map(is_stopped, spent_ns)) else None

    def await_others(self, timeout_s: float = STOP_S) -> AtRest | None:
        """Wait until those, too, are stopped; None if one is not in time. The group must have been told to."""
        deadline = time.monotonic() + timeout_s
        while (rest := self.others_at_rest()) is None and time.monotonic() <= deadline:
            pass
        return rest

    def others_ran(self, rest: AtRest) -> bool:
        """Whether one of those has gone on since they were at `rest`: it does not stand still, has ended or is new, or
        all of them together have computed for longer than the kernel takes to book their stop."""
        now = self.others_at_rest()
        if now is None or now.spent_ns.keys() - rest.spent_ns.keys() or now.ended - rest.ended:
            return True
        gone = rest.spent_ns.keys() - now.spent_ns.keys() - rest.ended
        spent_ns = sum(now.spent_ns[pid] - rest.spent_ns[pid] for pid in now.spent_ns)
        return bool(gone) or spent_ns > SETTLING_NS

    def close(self) -> None:
        os.close(self._fd)

    def _signal(self, which: signal.Signals) -> None:
        try:
            os.killpg(self.pid, which)
        except ProcessLookupError:
            raise Ended from None

    def _next(self, deadline: float) -> tuple[bytes, int, int]:
        """The waiter's next record. Raises Ended at the end of the pipe, TimeoutError."""
        if not self._poll.poll(max(deadline - time.monotonic(), 0) * 1e3):
            raise TimeoutError
        record = os.read(self._fd, RECORD.size)
        if len(record) < RECORD.size:
            raise Ended
        what, number, at_ns = RECORD.unpack(record)
        return what, number, at_ns


def _host_pid(ancestor: int, number: int) -> int:
    """The process below `ancestor` that calls itself `number`: in a process namespace it has two numbers."""
    if not Path("/proc/self/status").exists():
        return number
    for pid in footprint.descendants(ancestor, footprint.process_table()):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("NSpid:") and int(line.split()[-1]) == number and _leads_a_group(pid):
                    return pid
    raise Ended


def _leads_a_group(pid: int) -> bool:
    return os.getpgid(pid) == pid
