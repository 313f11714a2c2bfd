"""Confined processes that run a submission's code to compile it: several at a time, as memory and processors allow.

    with Processes(hidden=[root]) as processes:
        processes.start([Job("gfx942", ("harness.compile.cross_compile", ...), source)])  at once, or when there is room
        processes.results() ─► ("gfx942", Finished(status, printed, said))                waits for all of them
        processes.doing()   ─► {"gfx942": "kernel decode (BLOCK=64)"}                     what each is at

Each is in the sandbox that a worker is in (harness.sandbox), with a scratch directory, a user id and an environment of
its own and no GPU to see. It can write to its work/ and nowhere else, so that nothing that it does reaches another
process, what is kept, or what is stored. All that it started is dead when it counts as finished, and when the block is
left, however it is left. What it leaves in work/ is read and copied here, never trusted: see `leavings`.
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
"""What one of them may need at its peak: torch, Triton and LLVM with a large kernel."""

_WARM = ("torch", "triton.compiler", "triton.language", "harness.compile.compilation")
"""What compilers import, which takes most of their time where a kernel is small."""

TIMEOUT_S = 300.0
"""So much processor time one may take, and so long it may be at one thing. Beside other work the same kernels take
several times as long by the clock."""

LONGEST_S = 1800.0
POLL_S = 0.02
TELL_S = 10.0
SAID_BYTES = 8000
MAX_PRINTED_BYTES = 16 << 20
"""Of a document. A kernel takes 1 KiB of it, and a submission has some thousand at most, every variant counted."""

NO_DEVICE = Device(kind="cpu", name="cpu", slug="cpu", arch="", torch_device="cpu", memory_bytes=0, flush_bytes=0)
"""The GPUs that are here are not for compiling."""


SUBMISSION = Path("../submission.py")
"""Seen from work/."""


@dataclass(frozen=True)
class Job:
    """A module to run in work/ with its arguments. `source` becomes SUBMISSION, directories of files are `given` to it
    there by these names, and from those in work/ that `collect` names files are copied. `interpreted`: Triton is to be
    its interpreter in there."""

    name: str
    words: tuple[str, ...]
    source: bytes = b""
    given: Mapping[str, Path] = field(default_factory=dict)
    collect: Mapping[str, Path] = field(default_factory=dict)
    interpreted: bool = False


@dataclass(frozen=True)
class Finished:
    """How a process ended: `status` as subprocess has it, None for one that was killed for taking too long.

    `excess`: of what it had taken more than its share. `submission`: the path that the submission had there.
    `given_up`: it was ended, or never begun, because its submission seems to hang.
    """

    status: int | None
    printed: str
    said: str
    excess: str | None = None
    submission: str = ""
    given_up: bool = False

    @property
    def trouble(self) -> str | None:
        """What went wrong with the process itself, in a sentence, or None."""
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
    """What confines these processes here; found out once, which takes tenths of a second."""
    return tiers.strongest(NO_DEVICE)


class Processes:
    """At most `limit` at once (default: see `room`); the others wait for their turn. They can read nothing `hidden`."""

    def __init__(self, hidden: Iterable[Path] = (), limit: int | None = None) -> None:
        self._hidden = tuple(hidden)
        self._limit = limit or room()
        self._waiting: deque[Job] = deque()
        self._running: dict[str, _Running] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.ExitStack() as stack:  # one that cannot be killed keeps no other alive
            for running in self._running.values():
                stack.callback(running.end)

    def start(self, jobs: Sequence[Job]) -> None:
        self._waiting.extend(jobs)
        self._fill()

    def results(
        self, told: Callable[[], None] = lambda: None, patience_s: float = math.inf
    ) -> Iterator[tuple[str, Finished]]:
        """Each job's name and result, as they end; `told` is called every TELL_S. One that has not got on for
        `patience_s` is given up, and so are those that have not begun. Raises OSError for a disk that is full,
        InfrastructureError."""
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
        """What each that runs says that it is at."""
        return {name: running.doing() for name, running in self._running.items()}

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            job = self._waiting.popleft()
            self._running[job.name] = _Running(job, self._hidden)


class _Running:
    """A process, its scratch directory and the end of what it said. `finished` or `end` must be called."""

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
        """Whether it has ended, or must."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._status = self._enclosure.wait(0)
            return True
        took_s = time.monotonic() - self._since
        if took_s <= TIMEOUT_S:
            return False
        return took_s > LONGEST_S or max(self.stands_s(), self._enclosure.processor_s()) > TIMEOUT_S

    def stands_s(self) -> float:
        """How long ago it was that it got on."""
        return time.monotonic() - max(self._said.told_at, self._since)

    def doing(self) -> str:
        return self._said.told

    def given_up(self) -> Finished:
        doing = self.doing()
        self.end()
        return Finished(None, "", doing, given_up=True)

    def finished(self) -> Finished:
        """What it left, once all that it started is dead."""
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
        """End it, with all that it started. What it had taken too much of."""
        try:
            self._enclosure.kill()
            return self._enclosure.excess()
        finally:
            self._enclosure.close()


def _give(folder: Path, to: Path) -> None:
    """Copy a directory of files for another user to read, whatever this one's umask."""
    to.mkdir()
    to.chmod(0o755)
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
        (to / path.name).chmod(0o444)


class _Tail:
    """Drains a pipe in the background, however much comes, and keeps its end. `told`: what its writer is at."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._kept = pipe, b""
        self.told, self.told_at = "its start", 0.0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def text(self) -> str:
        self._thread.join(1.0)  # all who could write to it are dead
        return self._kept.decode(errors="replace")

    def _drain(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), 1 << 16):
                self._kept = (self._kept + data)[-SAID_BYTES:]
                if telling.MARK.encode() in data:
                    told = telling.told_last(self._kept.decode(errors="replace"))
                    self.told, self.told_at = told, time.monotonic()


def room() -> int:
    """How many processes this machine has processors and free memory for, at least one."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        free = MEMORY_EACH_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), free // MEMORY_EACH_BYTES))
