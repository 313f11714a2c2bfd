"""Processes that run a submission's code to compile it: several at a time, as memory and processors allow.

    with Processes(scratch, triton_cache) as processes:
        processes.start(Job("gfx942", ["harness.offline.cross_compile", ...]))      at once, or when there is room
        processes.results() ─► {"gfx942": Finished(status, printed, said)}          waits for all of them

Each has an environment of its own, without a GPU to see, and a process group that is dead when the block is left,
however it is left. What a process prints goes to files in `scratch`: no pipe to fill, no thread to drain it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY_EACH_BYTES = 2 << 30
"""What one of them may need at its peak: torch, Triton and LLVM with a large kernel."""

TIMEOUT_S = 300.0
POLL_S = 0.02
SAID_CHARS = 2000
_ROOT = Path(__file__).resolve().parents[2]
_PASSED_ON = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "ROCM_HOME")


@dataclass(frozen=True)
class Job:
    """A module to run with its arguments. `interpreted`: Triton is to be its interpreter in there."""

    name: str
    words: tuple[str, ...]
    interpreted: bool = False


@dataclass(frozen=True)
class Finished:
    """How a process ended: `status` as subprocess has it, None for one that was killed for taking too long."""

    status: int | None
    printed: str
    said: str

    @property
    def trouble(self) -> str | None:
        """What went wrong with the process itself, in a sentence, or None."""
        if self.status == 0:
            return None
        if self.status is None:
            return f"the compiler took longer than {TIMEOUT_S:g} s and was stopped"
        if self.status == -signal.SIGKILL:
            return "the compiler was killed: the system does that to a process that takes too much memory"
        how = f"by {signal.Signals(-self.status).name}" if self.status < 0 else f"with status {self.status}"
        last = self.said.strip().splitlines()
        return f"the compiler crashed ({how})" + (f": {last[-1].strip()[:200]}" if last else "")


class Processes:
    """At most `limit` at once (default: see `room`); the others wait for their turn."""

    def __init__(self, scratch: Path, triton_cache: Path, limit: int | None = None) -> None:
        self._scratch, self._triton_cache = scratch, triton_cache
        self._limit = limit or room()
        self._waiting: deque[Job] = deque()
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self._finished: dict[str, Finished] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: Any) -> None:
        for process, _ in self._running.values():
            _kill(process)

    def start(self, jobs: Sequence[Job]) -> None:
        self._waiting.extend(jobs)
        self._fill()

    def results(self) -> Iterator[tuple[str, Finished]]:
        """Each job's name and result, as they end."""
        while self._running or self._waiting:
            ended = [name for name, (process, _) in self._running.items() if process.poll() is not None]
            late = [name for name, (_, since) in self._running.items() if time.monotonic() - since > TIMEOUT_S]
            for name in dict.fromkeys([*ended, *late]):
                process, _ = self._running.pop(name)
                _kill(process)
                folder = self._scratch / name
                yield (
                    name,
                    Finished(
                        process.returncode if name in ended else None,
                        (folder / "printed").read_text(errors="replace"),
                        (folder / "said").read_text(errors="replace")[-SAID_CHARS:],
                    ),
                )
            self._fill()
            if not ended:
                time.sleep(POLL_S)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            job = self._waiting.popleft()
            self._running[job.name] = (self._spawn(job), time.monotonic())

    def _spawn(self, job: Job) -> subprocess.Popen[bytes]:
        folder = self._scratch / job.name
        folder.mkdir(parents=True)
        with open(folder / "printed", "wb") as printed, open(folder / "said", "wb") as said:
            return subprocess.Popen(
                [sys.executable, "-s", "-P", "-B", "-m", "harness.offline.processes", str(os.getpid()), *job.words],
                cwd=folder,
                env=self._environment(job, folder),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=said,
                start_new_session=True,
            )

    def _environment(self, job: Job, folder: Path) -> dict[str, str]:
        inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        return {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *inherited]),
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TRITON_CACHE_DIR": str(self._triton_cache),
            "CUDA_VISIBLE_DEVICES": "",
            "HIP_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            **({"TRITON_INTERPRET": "1"} if job.interpreted else {}),
        }


def room() -> int:
    """How many processes this machine has processors and free memory for, at least one."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        free = MEMORY_EACH_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), free // MEMORY_EACH_BYTES))


def main() -> None:
    """In the process: run the module that is asked for, and die with whoever started this."""
    _die_with_parent()
    if os.getppid() != int(sys.argv[1]):
        sys.exit("whoever started this is gone already")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process's group, and wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
