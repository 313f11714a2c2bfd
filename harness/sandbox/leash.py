"""Stop the worker and continue it, and check that it stands still in between.

    judge ── SIGSTOP, SIGCONT ──► worker's process group
    judge ◄── stopped, continued, ended ── waiter (waiter.py), the worker's parent

A stopped worker computes nothing, on any thread. Two checks show that it stays stopped: the waiter would report that it
went on, and its processor clock would have moved.
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
"""Processor time that the kernel may still account to the worker, or to all others, after their stop was seen."""

_clock_ns = time.monotonic_ns


class Ended(Exception):
    """The worker has ended."""


@dataclass(frozen=True)
class AtRest:
    """Processes that stood still: the processor time of each in ns, and the ended ones."""

    spent_ns: dict[int, int]
    ended: frozenset[int]


class Leash:
    """The judge's control over one worker. `report_fd`: the reading end of the waiter's pipe. `keeper_pid`: an ancestor
    of the worker.

    With `spins` the judge polls without sleeping, which is faster and occupies a processor.
    """

    def __init__(self, report_fd: int, keeper_pid: int, spins: bool = False) -> None:
        self._fd, self._keeper_pid, self._spins = report_fd, keeper_pid, spins
        self._poll = select.poll()
        self._poll.register(report_fd, select.POLLIN)
        self.pid = 0
        self.stopped = self.told = False  # `told`: the judge has sent a stop
        self._clock_at_stop_ns = self._stopped_at_ns = 0

    def fileno(self) -> int:
        return self._fd

    def attach(self, timeout_s: float) -> None:
        """Learn the worker's process id, before it runs a submission. Raises Ended, TimeoutError."""
        what, number, _ = self._next(time.monotonic() + timeout_s)
        if what != STARTED:
            raise Ended
        self.pid = _host_pid(self._keeper_pid, number)

    def note(self) -> None:
        """Read the waiter's next report and note a stop. Raises Ended."""
        what, _, at_ns = self._next(time.monotonic())
        if what == ENDED:
            raise Ended
        if what == STOPPED:
            self.stopped, self._stopped_at_ns = True, at_ns
            self._clock_at_stop_ns = self.processor_ns()

    def await_stop(self, timeout_s: float) -> int:
        """Wait until the worker has stopped. Returns the time of the stop, on time.monotonic_ns. Raises Ended,
        TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not self.stopped:
            while not self._poll.poll(0 if self._spins else max(deadline - time.monotonic(), 0) * 1e3):
                if time.monotonic() >= deadline:
                    raise TimeoutError
            self.note()
        return self._stopped_at_ns

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop the whole group and wait until the worker has stopped. Raises Ended, and TimeoutError if it stops
        later."""
        self.told = True
        self._signal(signal.SIGSTOP)
        self.await_stop(timeout_s)

    def resume(self) -> int:
        """Continue the group. Returns the time just before, on time.monotonic_ns."""
        self.stopped = self.told = False
        at_ns = _clock_ns()
        self._signal(signal.SIGCONT)
        return at_ns

    def ran_while_stopped(self) -> bool:
        """Whether the worker, which should be stopped, has run meanwhile, even for a moment."""
        return bool(self._poll.poll(0)) or self.processor_ns() - self._clock_at_stop_ns > SETTLING_NS

    def processor_ns(self) -> int:
        """Processor time of the worker's threads so far; 0 once it has ended."""
        with contextlib.suppress(OSError):
            # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of linux/posix-timers.h: it needs no privilege.
            return time.clock_gettime_ns((~self.pid << 3) | 2)
        return 0

    def others(self) -> dict[int, int]:
        """The processor time in ns of each process that the worker has started and that still has a process id."""
        found = {}
        for pid in others(self.pid):
            with contextlib.suppress(OSError):
                found[pid] = time.clock_gettime_ns((~pid << 3) | 2)
        return found

    def others_at_rest(self) -> AtRest | None:
        """The state of those processes if all of them stand still at one look; None if one does not."""
        spent_ns = self.others()
        return AtRest(spent_ns, frozenset(filter(has_ended, spent_ns))) if all(map(is_stopped, spent_ns)) else None

    def await_others(self, timeout_s: float = STOP_S) -> AtRest | None:
        """Wait until those processes are stopped too; None if one is not in time. The group must have been sent a
        stop."""
        deadline = time.monotonic() + timeout_s
        while (rest := self.others_at_rest()) is None and time.monotonic() <= deadline:
            pass
        return rest

    def others_ran(self, rest: AtRest) -> bool:
        """Whether one of those processes has run since `rest`: it does not stand still, has ended or is new, or all
        together have computed for longer than SETTLING_NS."""
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
    """The process below `ancestor` whose own number is `number`: in a process namespace it has two numbers."""
    if not Path("/proc/self/status").exists():
        return number
    for pid in footprint.descendants(ancestor, footprint.process_table()):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():  # a name in it may have any bytes
                if line.startswith(b"NSpid:") and int(line.split()[-1]) == number and _leads_a_group(pid):
                    return pid
    raise Ended


def _leads_a_group(pid: int) -> bool:
    return os.getpgid(pid) == pid
