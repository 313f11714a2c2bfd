"""Run the profiled program under a profiler, end it with everything that it started, and read its outcome."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from harness.errors import InfrastructureError, PodiumError
from harness.model import Verdict
from harness.profiling.program import OUTCOME, Outcome, Settings

LIMIT_S = 1800.0
"""The time limit of a profile. ncu launches each kernel some ten times, so a thousand kernels take minutes."""

COUNTED = "`--tool emulator` counts the instructions that an AMD chip would execute"

PRINTED = "printed.txt"
PRINTED_LINES = 6


class Unprofiled(PodiumError):
    """The submission failed under the profiler, in `case` if one is named. The exit code is the verdict's."""

    def __init__(self, verdict: Verdict, message: str, detail: str | None, case: str = "") -> None:
        here = verdict is Verdict.INFRASTRUCTURE_ERROR
        what = "not profiled here" if here else f"{verdict.words} under the profiler"
        super().__init__(f"{what}: {message}", detail or None)
        self.exit_code, self.case = verdict.exit_code, case

    def name(self, copy: Path, path: str) -> None:
        """Name the author's file at `path` instead of the `copy` that was run."""
        self.message = self.message.replace(f"({copy.name}, line", f"({Path(path).name}, line")
        self.hint = self.hint and self.hint.replace(str(copy), path)


def words(settings: Settings) -> list[str]:
    return [sys.executable, "-m", "harness.profiling.program", settings.model_dump_json()]


def run(command: Sequence[str], settings: Settings, tool: str, remedies: dict[str, str]) -> Outcome:
    """Run the program under a profiler and return its outcome. Raises Unprofiled and InfrastructureError."""
    path = settings.folder / OUTCOME
    path.unlink(missing_ok=True)
    checkout = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([checkout, *_inherited()]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if settings.device.kind == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    with (settings.folder / PRINTED).open("ab") as printed:
        process = subprocess.Popen(
            command,
            cwd=settings.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with _ended_by_sigterm():
            try:
                status = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                raise Unprofiled(Verdict.TIMEOUT, f"it took longer than {LIMIT_S:g} s", None) from None
            finally:
                _end(process)
    try:
        outcome = Outcome.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise failed(settings, f"{tool} ended with status {status} and profiled nothing", remedies) from None
    if outcome.failure is not None:
        kind = outcome.failure["kind"]
        verdict = Verdict.INFRASTRUCTURE_ERROR if kind == "cannot_judge" else Verdict(kind)
        raise Unprofiled(verdict, outcome.failure["message"], outcome.failure["detail"].rstrip(), outcome.failed_in)
    if status != 0:
        raise failed(settings, f"{tool} ended with status {status}", remedies)
    if outcome.interpreted:
        raise InfrastructureError(
            "a profile on a CPU would show Triton's interpreter and not the kernels",
            f"profile on a machine with the GPU; `check` shows what the compilers make of the kernels\n  {COUNTED}",
        )
    return outcome


def _inherited() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the program is ended too: it runs in a session of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and everything that it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def failed(settings: Settings, what: str, remedies: dict[str, str]) -> InfrastructureError:
    path = settings.folder / PRINTED
    printed = re.sub(r"[^\n\t -~]", "?", path.read_text(errors="replace")) if path.exists() else ""
    remedy = next((remedy for sign, remedy in remedies.items() if sign in printed), None)
    last = "\n  ".join(printed.strip().splitlines()[-PRINTED_LINES:])
    return InfrastructureError(what, remedy or f"all that it printed is in {path}; the last of it:\n  {last}")
