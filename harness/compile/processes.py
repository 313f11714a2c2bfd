"""Confined processes that run a submission's code to compile it, several at a time as memory and processors allow.

    with Processes(hidden=[root]) as processes:
        processes.start([Job("gfx942", ("harness.compile.cross_compile", ...), source)])  now, or when there is room
        processes.results() ─► ("gfx942", Finished(status, printed, said))                waits for all of them
        processes.doing()   ─► {"gfx942": "kernel decode (BLOCK=64)"}                     the current step of each

Each process runs in the same kind of sandbox as a worker (harness.sandbox), with its own scratch directory, user id and
environment, and sees no GPU. It can write only to its work/, so it cannot reach another process, the cache or stored
results. When a process counts as finished, everything that it started is dead. The same holds when the block is left,
even by an exception. Its files in work/ are read and copied, but not trusted: see `leavings`.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from harness.compile import telling
from harness.judge.death import name_of_signal
from harness.model import Device, Isolation
from harness.sandbox import leavings, tiers
from harness.sandbox.confined import PRINTED
from harness.sandbox.enclosure import Enclosure
from harness.sandbox.program import Program
from harness.sandbox.scratch import scratch

MEMORY_EACH_BYTES = 2 << 30
"""The peak memory of one process: torch, Triton and LLVM with a large kernel."""

_WARM = ("torch", "triton.compiler", "triton.language", "harness.compile.compilation")
"""Modules that compilers import. Importing them takes most of the time of a small kernel."""

TIMEOUT_S = 300.0
"""The limit on a process's processor time, and on the time for one step. Beside other work, the same kernels take
several times as long by the clock."""

LONGEST_S = 1800.0
POLL_S = 0.02
TELL_S = 10.0
SAID_BYTES = 8000
MAX_PRINTED_BYTES = 16 << 20
"""The limit of a document. A kernel takes 1 KiB, and a submission has some thousand at most, counting all variants."""

NO_DEVICE = Device(kind="cpu", name="cpu", slug="cpu", arch="", torch_device="cpu", memory_bytes=0, flush_bytes=0)
"""The device for compiling: no GPU of this machine is used."""


SUBMISSION = Path("../submission.py")
"""The submission's path, relative to work/."""


@dataclass(frozen=True)
class Job:
    """A module to run in work/, with its arguments.

    `source`: the content of SUBMISSION. `given`: directories of files that the job gets in work/, by name. `collect`:
      directories in work/ whose files are copied afterwards, and where to. `interpreted`: whether to set
      TRITON_INTERPRET.
    """

    name: str
    words: tuple[str, ...]
    source: bytes = b""
    given: Mapping[str, Path] = field(default_factory=dict)
    collect: Mapping[str, Path] = field(default_factory=dict)
    interpreted: bool = False


@dataclass(frozen=True)
class Finished:
    """The end of a process. `status`: as in subprocess, or None if it was killed for taking too long.

    `excess`: the resource that it used beyond its limit. `submission`: the submission's path in the sandbox.
      `given_up`: the process was ended or never begun, because its submission seems to hang.
    """

    status: int | None
    printed: str
    said: str
    excess: str | None = None
    submission: str = ""
    given_up: bool = False

    @property
    def trouble(self) -> str | None:
        """One sentence on what went wrong with the process itself, or None."""
        if self.excess is not None:
            return f"the compiler {self.excess}, and was ended"
        if self.status == 0:
            return None
        if self.given_up:
            where = f", and here at {self.said}" if self.said else ""
            return f"given up: the submission hangs in its test cases{where}"
        if self.status is None:
            return f"the compiler took too long, {TIMEOUT_S:g} s of a processor or at one thing, and was stopped"
        if self.status == -signal.SIGKILL:
            return "the compiler was killed: the system does that to a process that takes too much memory"
        how = f"by {name_of_signal(-self.status)}" if self.status < 0 else f"with status {self.status}"
        last = self.said.strip().splitlines()
        return f"the compiler crashed ({how})" + (f": {last[-1].strip()[:200]}" if last else "")


def isolation() -> Isolation:
    """Return the isolation of these processes. It is detected once, which takes tenths of a second."""
    return tiers.strongest(NO_DEVICE)


class Processes:
    """Runs at most `limit` jobs at once (default: see `room`); the others wait. Jobs cannot read the `hidden`
    folders."""

    def __init__(self, hidden: Iterable[Path] = (), limit: int | None = None) -> None:
        self._hidden = tuple(hidden)
        self._limit = limit or room()
        self._waiting: deque[Job] = deque()
        self._running: dict[str, _Running] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.ExitStack() as stack:  # a process that cannot be killed must not keep the others alive
            for running in self._running.values():
                stack.callback(running.end)

    def start(self, jobs: Sequence[Job]) -> None:
        self._waiting.extend(jobs)
        self._fill()

    def results(
        self, told: Callable[[], None] = lambda: None, patience_s: float = math.inf
    ) -> Iterator[tuple[str, Finished]]:
        """Yield each job's name and result as the jobs end. `told` is called every TELL_S. A job that makes no progress
        for `patience_s` is given up, together with all jobs that have not begun. Raises InfrastructureError, and
        OSError if the disk is full."""
        next_told = time.monotonic() + TELL_S
        while self._running or self._waiting:
            over = [name for name, running in self._running.items() if running.is_over()]
            for name in over:
                yield name, self._running.pop(name).finished()
            for name in [name for name, running in self._running.items() if running.stands_s() > patience_s]:
                yield name, self._running.pop(name).given_up()
                yield from ((job.name, Finished(None, "", "", given_up=True)) for job in self._waiting)
                self._waiting.clear()
            self._fill()
            if time.monotonic() > next_told and self._running:
                told()
                next_told = time.monotonic() + TELL_S
            if not over:
                time.sleep(POLL_S)

    def doing(self) -> dict[str, str]:
        """Return the current step of each running process, as it reports it."""
        return {name: running.doing() for name, running in self._running.items()}

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            job = self._waiting.popleft()
            self._running[job.name] = _Running(job, self._hidden)


class _Running:
    """A process, its scratch directory and the end of its output. `finished`, `given_up` or `end` must be called."""

    def __init__(self, job: Job, hidden: tuple[Path, ...]) -> None:
        self._job = job
        self._status: int | None = None
        self._since = time.monotonic()
        found = isolation()
        with contextlib.ExitStack() as stack:
            self._scratch = stack.enter_context(scratch(job.source, found.new_uid()))
            self._work = self._scratch / "work"
            for name, folder in job.given.items():
                _give(folder, self._work / name)
            self._enclosure = Enclosure(
                Program("harness.sandbox.confined", tuple(job.words)),
                found,
                NO_DEVICE,
                self._scratch,
                hidden=hidden,
                environment={"OMP_NUM_THREADS": "1", **({"TRITON_INTERPRET": "1"} if job.interpreted else {})},
                warm=_WARM,
            )
            self._said = _Tail(self._enclosure.stdout)
            self._resources = stack.pop_all()

    def is_over(self) -> bool:
        """Whether the process has ended or must be ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._status = self._enclosure.wait(0)
            return True
        took_s = time.monotonic() - self._since
        if took_s <= TIMEOUT_S:
            return False
        return took_s > LONGEST_S or max(self.stands_s(), self._enclosure.processor_s()) > TIMEOUT_S

    def stands_s(self) -> float:
        """The seconds since the process last made progress."""
        return time.monotonic() - max(self._said.told_at, self._since)

    def doing(self) -> str:
        return self._said.told

    def given_up(self) -> Finished:
        doing = self.doing()
        self.end()
        return Finished(None, "", doing, given_up=True)

    def finished(self) -> Finished:
        """Return the process's result. First everything that it started is killed."""
        with self._resources:
            excess = self._kill()
            printed = leavings.text(self._work, PRINTED, MAX_PRINTED_BYTES)
            for name, destination in self._job.collect.items():
                leavings.copy(self._work, name, destination)
            submission = str((self._scratch / SUBMISSION.name).resolve())
            return Finished(self._status, printed, telling.rest(self._said.text()), excess, submission)

    def end(self) -> None:
        with self._resources:
            self._kill()

    def _kill(self) -> str | None:
        """Kill the process and everything that it started. Return the resource that it overused, or None."""
        try:
            self._enclosure.kill()
            return self._enclosure.excess()
        finally:
            self._enclosure.close()


def _give(folder: Path, to: Path) -> None:
    """Copy a directory of files so that another user can read it, whatever this user's umask."""
    to.mkdir()
    to.chmod(0o755)
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
        (to / path.name).chmod(0o444)


class _Tail:
    """Drains a pipe in the background, whatever the amount, and keeps its end. `told`: the writer's current step."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._kept = pipe, b""
        self.told, self.told_at = "its start", 0.0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def text(self) -> str:
        self._thread.join(1.0)  # all processes that could write to it are dead
        return self._kept.decode(errors="replace")

    def _drain(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), 1 << 16):
                self._kept = (self._kept + data)[-SAID_BYTES:]
                if telling.MARK.encode() in data:
                    told = telling.told_last(self._kept.decode(errors="replace"))
                    self.told, self.told_at = told, time.monotonic()


def room() -> int:
    """Return how many processes fit in this machine's processors and free memory, at least one."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        free = MEMORY_EACH_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), free // MEMORY_EACH_BYTES))
