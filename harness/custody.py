"""Who reports the end of a process that runs another project's code, if the process ends in that code.

    owner ── forks or starts ──► the process that judges
          ◄────── Note ────────  the function of that code that runs, its time limit, and at last the exit code

A problem's Python can end its process by os._exit or by a crash. Then no `finally` runs, and the status may even be
that of success. The note is a file without a name, which outlives the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import INTERRUPTED_EXIT_CODE, InfrastructureError, PodiumError, ProblemError

AGAIN = "the problem's checker ended the process that judges: judging again, with the checker in a child process"

ROOM = 8192
"""Bytes of a note. All of them are reserved on the disk when the note is made."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BY_THE_KERNEL = 0x80  # SI_KERNEL of asm-generic/siginfo.h: a terminal's Ctrl-C, which all its processes get
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Note:
    """A process's report about itself. `fd`: the file descriptor of an existing note (default: create a new note).
    Raises OSError if there is no room for one."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
            weakref.finalize(self, os.close, fd)
            os.pwrite(fd, bytes(ROOM), 0)
        self.fd = fd

    def write(self, **said: Any) -> None:
        text = json.dumps(said).encode()
        os.pwrite(self.fd, text.ljust(ROOM, b"\0") if len(text) <= ROOM else bytes(ROOM), 0)

    def read(self) -> dict[str, Any]:
        """The contents of the note. Empty if no code of the problem's runs."""
        text = os.pread(self.fd, ROOM, 0).rstrip(b"\0")
        return json.loads(text) if text else {}


@dataclass
class _Here:
    """The state of this process: whether it is the one that the user started, its note if another process reads one,
    and whether an earlier process ended in a checker."""

    is_command: bool = False
    note: Note | None = None
    careful: bool = False


_here = _Here()


def keep(note: Note) -> None:
    """From now on write to `note` what this process does. Its owner may have written `careful` there."""
    _here.note, _here.careful = note, bool(note.read().get("careful"))


def careful() -> bool:
    """Whether an earlier process for the same judgement ended in the problem's checker. Then the checker should run in
    a process that may end."""
    return _here.careful


@contextlib.contextmanager
def doing(what: str, limit_s: float, again: bool = False) -> Iterator[None]:
    """Mark within this block that the problem's own code runs. `what` names the code; it may run for `limit_s` seconds.
    `again`: if this process ends in the code, another should judge, and carefully."""
    note = _here.note
    if note is None:
        yield
        return
    note.write(what=what, limit_s=limit_s, until_s=time.monotonic() + limit_s, again=again and not _here.careful)
    try:
        yield
    finally:
        note.write()


@contextlib.contextmanager
def as_command() -> Iterator[None]:
    """Mark this process as the one that the user started. Only there may `watched` hand the judging to a child
    process."""
    _here.is_command = True
    try:
        yield
    except BaseException as ended:
        over(INTERRUPTED_EXIT_CODE if isinstance(ended, KeyboardInterrupt) else 1)
        raise


def over(code: int) -> None:
    """Record that this process is about to end by itself, with exit code `code`."""
    if _here.note is not None:
        _here.note.write(over=code)


def leave(code: int) -> None:
    """End this process now if another project's code has left threads in it: a normal end would wait for them."""
    left = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    if _here.note is not None and left:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def watched(path: Path) -> None:
    """Go on in a child process, which judges with another project's files at `path`. The parent waits for the child and
    ends as it does.

    Raises PodiumError, in the parent, if the child ends early. Does nothing if Podium is not run as a command, if this
    process is watched already, and on systems other than Linux.
    """
    if not _here.is_command or _here.note is not None or sys.platform != "linux":
        return
    try:
        note = Note()
    except OSError as error:
        raise InfrastructureError(f"cannot make a temporary file in {tempfile.gettempdir()}: {error}") from error
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    status = _by_another(note)
    if status is not None and -status not in (signal.SIGTERM, signal.SIGHUP) and begins_again(note):
        print(AGAIN, file=sys.stderr, flush=True)
        note.write(careful=True)
        status = _by_another(note)
    if status is None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    code = note.read().get("over")
    if code is not None:
        os._exit(code or (status if status >= 0 else 128 - status))
    if -status in (signal.SIGTERM, signal.SIGHUP):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.kill(os.getpid(), -status)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    raise without_verdict(note, status, path)


def _by_another(note: Note) -> int | None:
    """Fork. Return None in the child. In the parent, wait for the child and return its exit status."""
    own = os.getpid()
    pid = os.fork()
    if pid:
        return _waited_for(pid)
    end_with_its_parent()
    if os.getppid() != own:  # the parent was killed before prctl took effect
        os._exit(InfrastructureError.exit_code)
    keep(note)
    return None


def end_with_its_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _waited_for(pid: int) -> int:
    """Wait for the child and return its status in the form of subprocess. Signals to this process are passed on to the
    child."""
    while True:
        told = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if told.si_signo != signal.SIGCHLD:
            if told.si_code != _BY_THE_KERNEL:
                os.kill(pid, told.si_signo)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def begins_again(note: Note) -> bool:
    """Whether the ended process was running the problem's checker on an answer."""
    return bool(note.read().get("again"))


def without_verdict(note: Note, status: int, path: Path | None = None) -> PodiumError:
    """The error to report for a process that ended with `status`, in the form of subprocess, and gave no verdict.
    `path`: the place of the problem, if it is another project's."""
    said = note.read()
    what, how = said.get("what"), ended_with(status)
    if what is None:
        whose = f" by {path}" if path is not None else ""
        return InfrastructureError(
            f"the process that judges{whose} has ended with {how}, and there is no verdict",
            "stderr has its last output; judge again",
        )
    if time.monotonic() >= said["until_s"]:
        return ProblemError(*too_long(what, said["limit_s"]))
    if status == -signal.SIGKILL:
        return InfrastructureError(
            f"the process that judges was killed in {what}, and there is no verdict", "memory may have run out"
        )
    return ProblemError(
        f"{what} ended the process that judges, with {how}: there is no verdict",
        "a problem's own code runs in the judge: it must neither exit nor crash",
    )


def too_long(what: str, limit_s: float) -> tuple[str, str]:
    """The sentence and the hint for code that took longer than it may."""
    return f"{what} took longer than {limit_s:g} s: there is no verdict", "limits in podium.yml allow it more"


def ended_with(status: int) -> str:
    """Format a status of subprocess: `status 0`, `status -11 (SIGSEGV)`."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"status {status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"status {status}"
