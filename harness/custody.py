"""Who answers for a process in which another project's code runs, should the process end in there.

    owner ── forks or starts ──► the process that judges
          ◄────── Note ────────  which function of that code runs, for how long it may, and at last the exit code

A problem's Python can end its process by os._exit or by a crash; no `finally` runs then, and the status may be that of
success. The note lies in a file without a name, which outlives the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import INTERRUPTED_EXIT_CODE, InfrastructureError, PodiumError, ProblemError

ROOM = 8192
"""Bytes of a note, all of which are had from the disk when it is made."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BY_THE_KERNEL = 0x80  # SI_KERNEL of asm-generic/siginfo.h: a terminal's Ctrl-C, which all its processes get
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Note:
    """What a process says of itself. `fd`: of a note that another process has made (default: a new one). Raises OSError
    where there is no room for one."""

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
        """Empty where nothing of the problem's code runs."""
        text = os.pread(self.fd, ROOM, 0).rstrip(b"\0")
        return json.loads(text) if text else {}


@dataclass
class _Here:
    """What is known of this process: whether it is the command's own, and its note if somebody reads one."""

    is_command: bool = False
    note: Note | None = None


_here = _Here()


def keep(note: Note) -> None:
    """Write from now on what this process is at to `note`."""
    _here.note = note


@contextlib.contextmanager
def doing(what: str, limit_s: float) -> Iterator[None]:
    """Within it the problem's own code runs, `what` of it, and may for `limit_s` seconds."""
    note = _here.note
    if note is None:
        yield
        return
    note.write(what=what, limit_s=limit_s, until_s=time.monotonic() + limit_s)
    try:
        yield
    finally:
        note.write()


@contextlib.contextmanager
def of_the_command() -> Iterator[None]:
    """Within it this process is the command's own: `watched` may have another one judge."""
    _here.is_command = True
    try:
        yield
    except BaseException as ended:
        over(INTERRUPTED_EXIT_CODE if isinstance(ended, KeyboardInterrupt) else 1)
        raise


def over(code: int) -> None:
    """This process is about to end by itself, with exit code `code`."""
    if _here.note is not None:
        _here.note.write(over=code)


def watched(path: Path) -> None:
    """Go on in a process of its own, which judges by another project's files at `path`; this one waits for it, and ends
    as it does. Raises, in this one, PodiumError if that ends without having come to its end. Does nothing where Podium
    is not run as a command, where it is watched already, and on systems other than Linux."""
    if not _here.is_command or _here.note is not None or sys.platform != "linux":
        return
    try:
        note = Note()
    except OSError as error:
        raise InfrastructureError(f"no temporary file can be made in {tempfile.gettempdir()}: {error}") from error
    sys.stdout.flush()
    sys.stderr.flush()
    own = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != own:  # it was killed before that
            os._exit(InfrastructureError.exit_code)
        keep(note)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    status = _waited_for(pid)
    code = note.read().get("over")
    if code is not None:
        os._exit(code or (status if status >= 0 else 128 - status))
    if -status in (signal.SIGTERM, signal.SIGHUP):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.kill(own, -status)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    raise without_verdict(note, status, path)


def _waited_for(pid: int) -> int:
    """How the child ended, as subprocess has it. What this process is told by a signal the child is told as well."""
    while True:
        told = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if told.si_signo != signal.SIGCHLD:
            if told.si_code != _BY_THE_KERNEL:
                os.kill(pid, told.si_signo)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def without_verdict(note: Note, status: int, path: Path | None = None) -> PodiumError:
    """What to say of a process that has ended with `status`, as subprocess has it, and gave no verdict. `path`: where
    the problem lies, if it is another project's."""
    said = note.read()
    what, how = said.get("what"), _how(status)
    if what is None:
        whose = f" by {path}" if path is not None else ""
        return InfrastructureError(
            f"the process that judges{whose} has ended with {how}, and there is no verdict",
            "its last words are on stderr; judge again",
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


def _how(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return f"status {status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"status {status}"
