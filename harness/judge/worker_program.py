"""How a worker starts: its program, its environment, the modules it imports, and the files hidden from it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from harness.errors import ProblemError
from harness.judge.emulation import Emulation
from harness.machine import processors
from harness.machine.device import nvidia_driver_present
from harness.model import Device, Foreign, Limits, Problem
from harness.sandbox import bubblewrap, waiter
from harness.sandbox.enclosure import warm_up
from harness.sandbox.program import Program
from harness.wire.protocol import MAX_FRAME_BYTES, Message

WARM = {
    "cpu": ("harness.worker.main", "harness.interpreter.installation", "triton.language"),
    "cuda": ("harness.worker.main", "triton.language"),
    "rocm": (),  # a fork of torch for ROCm is untried
}
"""The modules that a worker imports on each kind of device. They take most of its start time."""


KEPT_IN_A_ROOT = ("problems", "reference", "submissions", "configs", "results")


def program(report_fd: int, channel_fd: int, stack_fd: int, device: Device, threads: int) -> Program:
    """The worker's program, with its waiter."""
    arguments = {"channel": channel_fd, "stack": stack_fd, "device": device.kind, "threads": threads}
    arguments |= {"flush-bytes": device.flush_bytes}
    options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    whom = waiter.ALL if device.kind == "cpu" else waiter.ALONE
    return Program("harness.worker", tuple(options), report_fd, whom)


def environment(device: Device, threads: int, emulation: Emulation, limits: Limits) -> dict[str, str]:
    """Environment variables: those of `_computing`, and on a CPU how kernels that need a GPU are run."""
    return _computing(threads) | (emulation.environment(limits) if device.kind == "cpu" else {})


def begin_to_import() -> None:
    """Start the process that a GPU's first worker will be forked from. It imports torch while the judge does, which
    takes each of them seconds. Nothing is done without an NVIDIA GPU, or where bubblewrap may start the workers."""
    if nvidia_driver_present() and bubblewrap.program() is None:
        with contextlib.suppress(OSError):  # the first worker's start reports it
            warm_up(WARM["cuda"], _computing(threads=1))


def _computing(threads: int) -> dict[str, str]:
    """Environment variables: the numbers of threads and of torch's compiling processes.

    By itself torch.compile starts up to 32 processes, as many as there are processors, in each process of a submission.
    """
    silent = {"KINETO_LOG_LEVEL": "99"}  # otherwise torch's profiler prints into the submission's output
    compiling = {"TORCHINDUCTOR_COMPILE_THREADS": str(min(processors.EACH, processors.share()))}
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **compiling, **silent}


def hidden(problem: Problem) -> list[Path]:
    """The files hidden from a worker: those that the problem names, and the folders of the root that it was loaded for,
    if that is another one. This is the current directory for a bundled problem, Podium's own root for one of another
    project."""
    own = list(problem.hidden)
    if problem.root is None or problem.root in own:
        return own
    return [*own, *(problem.root / name for name in KEPT_IN_A_ROOT)]


def public(foreign: Foreign | None) -> Message:
    """The texts of the modules that a submission to another project's problem may import. They hold no seed."""
    if foreign is None:
        return {}
    texts = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in foreign.modules.items()}
    if sum(map(len, texts.values())) > MAX_FRAME_BYTES // 4:
        raise ProblemError(f"{foreign.path}: its modules have more than {MAX_FRAME_BYTES // 4:,} characters together")
    return {"modules": texts, "form": foreign.form}
