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
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import INTERRUPTED_EXIT_CODE, InfrastructureError, PodiumError, ProblemError

AGAIN = "the process that judges has ended in the problem's checker: begun again, with the checker in one of its own"

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
    """What is known of this process: whether it is the command's own, its note if somebody reads one, and whether one
    before it has ended in a checker."""

    is_command: bool = False
    note: Note | None = None
    careful: bool = False


_here = _Here()


def keep(note: Note) -> None:
    """Write from now on what this process is at to `note`. Its owner may have written there to be `careful`."""
    _here.note, _here.careful = note, bool(note.read().get("careful"))


def careful() -> bool:
    """Whether a process that judged the same has ended in the problem's checker: what is asked of that should be asked
    in a process that may end."""
    return _here.careful


@contextlib.contextmanager
def doing(what: str, limit_s: float, again: bool = False) -> Iterator[None]:
    """Within it the problem's own code runs, `what` of it, and may for `limit_s` seconds. `again`: whether another
    process should judge, and carefully, if this one ends in there."""
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


def leave(code: int) -> None:
    """End this process now, if another project's code has left threads in it that it would wait for."""
    left = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    if _here.note is not None and left:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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
    """In another process None; in this one, when that has ended, how it did."""
    own = os.getpid()
    pid = os.fork()
    if pid:
        return _waited_for(pid)
    end_with_its_parent()
    if os.getppid() != own:  # it was killed before that
        os._exit(InfrastructureError.exit_code)
    keep(note)
    return None


def end_with_its_parent() -> None:
    """Have the kernel end this process when the one that has forked it ends. On Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


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


def begins_again(note: Note) -> bool:
    """Whether the process that has ended was asking the problem's checker about an answer."""
    return bool(note.read().get("again"))


def without_verdict(note: Note, status: int, path: Path | None = None) -> PodiumError:
    """What to say of a process that has ended with `status`, as subprocess has it, and gave no verdict. `path`: where
    the problem lies, if it is another project's."""
    said = note.read()
    what, how = said.get("what"), ended_with(status)
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


def ended_with(status: int) -> str:
    """`status 0`, `status -11 (SIGSEGV)`, of a status as subprocess has it."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"status {status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"status {status}"
