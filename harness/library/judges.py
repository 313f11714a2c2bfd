"""The judging processes: one for each card, started by the first call that needs it and kept for later calls.

    judge(request) ─► Judge ── a length and JSON ──►  harness.library.warm_judge
                            ◄── lines and steps, then the run or the error ──

A kept judge has already imported torch, and on a CPU its next worker is ready. It reads the problem's files again for
each request. It ends with this process, or when `close` is called.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness import custody, errors
from harness.errors import PodiumError
from harness.library.request import Request
from harness.machine.device import driver_present
from harness.model import CaseCheck, Run
from harness.progress import Narrate, Step, tell

NICE = 5
"""Added to a judge's niceness, so that it yields. It gets a third of the processor time of another process that
competes for the same processor."""

END_S = 30.0
"""The seconds that a judge has to end its workers."""

_judges: dict[str, Judge] = {}
_cards: list[str] = []
_starting, _counting = threading.Lock(), threading.Lock()


class Judge:
    """A process that judges one source at a time. Calls from several threads wait for each other.

    `environment`: the variables of the process (default: those of this process). `gives_way`: run the process and its
      children at a lower priority than this process. If the process ends inside a problem's own checker, a second
      process judges again, once (`custody.careful`).
    """

    def __init__(self, environment: Mapping[str, str] | None = None, gives_way: bool = False) -> None:
        self._environment = os.environ if environment is None else environment
        self._gives_way, self._owner = gives_way, os.getpid()
        self._asking, self._closing, self._closed = threading.Lock(), threading.Lock(), False
        self._start(custody.Note())

    def _start(self, note: custody.Note) -> None:
        ours, theirs = socket.socketpair()
        harness = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([harness, *filter(None, self._environment.get("PYTHONPATH", "").split(os.pathsep))])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.library.warm_judge", str(theirs.fileno()), str(note.fd)],
                env={**self._environment, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), note.fd),
                start_new_session=True,  # Ctrl-C reaches the caller, who then ends the judge
            )
        if self._gives_way:  # the process has no threads or children yet
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        self._note, self._socket, self._connection = note, ours, Connection(os.dup(ours.fileno()))

    @property
    def usable(self) -> bool:
        """Whether the process lives and is a child of this process, not of the process that forked this one."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, request: dict[str, Any], narrate: Narrate) -> Any:
        """Send a request and return the answer. Raises the PodiumError that the judge raised, InfrastructureError if
        the judge has ended, and any exception that `narrate` raises."""
        with self._asking:
            try:
                answer = self._answered(request, narrate)
                if answer is None:
                    narrate(custody.AGAIN)
                    self._start_carefully()
                    answer = self._answered(request, narrate)
                    self.close()  # later requests need no such care
            except BaseException:  # such as Ctrl-C: a later answer must not be taken for another request's
                self.close()
                raise
        assert answer is not None, "it does not end so twice"
        if "error" in answer:
            raise as_raised(**answer["error"])
        return answer["answer"]

    def _answered(self, request: dict[str, Any], narrate: Narrate) -> dict[str, Any] | None:
        """Return the answer, or None if the process ended in a checker."""
        answer = self._told(request)
        while answer is not None and ("told" in answer or "step" in answer):
            if "told" in answer:
                narrate(answer["told"])
            else:
                tell(narrate, _step(**answer["step"]))
            answer = self._told(None)
        return answer

    def _told(self, request: dict[str, Any] | None) -> dict[str, Any] | None:
        """Send a request, if given, and return the next message. Return None if the process ended in a checker."""
        try:
            if request is not None:
                self._connection.send_bytes(json.dumps(request).encode())
            said: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._end()
            if custody.begins_again(self._note) and not self._closed:
                return None
            raise custody.without_verdict(self._note, self._process.returncode) from None
        return said

    def _start_carefully(self) -> None:
        note = custody.Note()
        note.write(careful=True)
        with self._closing:
            if self._closed:
                raise custody.without_verdict(self._note, self._process.returncode)
            self._start(note)

    def close(self) -> None:
        """End the process and everything that it started."""
        if self._owner == os.getpid():
            self._closed = True
            self._end()

    def _end(self) -> None:
        with self._closing:  # two threads may call this at once
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # close alone would not end a blocked read
            self._socket.close()
            self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session, so its children are killed too
            self._process.wait()


def judge_apart(request: Request, narrate: Narrate, started: Callable[[Judge], None] = lambda judge: None) -> Run:
    """Judge `request` in a process that ends afterwards. On a CPU the process yields to this one, which may serve
    others; if that affects a run's times, the run counts as crowded. `started` receives the process, which another
    thread may close. Raises as `harness.evaluate` does."""
    judge = Judge(gives_way=request.device == "cpu")
    try:
        started(judge)
        return Run.model_validate(judge.ask({"judge": request.model_dump(mode="json")}, narrate))
    finally:
        judge.close()


def judge(request: Request, narrate: Narrate) -> Run:
    """Judge `request`. Raises as `harness.evaluate` does."""
    answer = _judge_for(request.device).ask({"judge": request.model_dump(mode="json")}, narrate)
    return Run.model_validate(answer)


def cards() -> list[str]:
    """Return torch's names for the cards of this machine, or ["cpu"] if there are none."""
    if not driver_present():
        return ["cpu"]
    with _counting:
        if not _cards:
            found = _judge_for("cuda:0").ask({"cards": None}, lambda line: None)
            if found == ["cpu"]:  # there is a driver, but torch sees no card
                _judges["cpu"] = _judges.pop("cuda:0")
            _cards.extend(found)
        return list(_cards)


def names(root: Path) -> list[tuple[str, str]]:
    """Return torch's names for the cards of this machine, each with its model's name, or ("cpu", "CPU") if there are
    none. If there may be a GPU, this starts a process and ends it."""
    if not driver_present():
        return [("cpu", "CPU")]
    judge = Judge()
    try:
        found = judge.ask({"names": str(root)}, lambda line: None)
    finally:
        judge.close()
    return [(card, "CPU" if card == "cpu" else name) for card, name in found]


def end(devices: list[str]) -> None:
    """End the judges of these devices, even in the middle of an evaluation."""
    with _starting:
        for judge in filter(None, (_judges.pop(device, None) for device in devices)):
            judge.close()


def close() -> None:
    """End the kept judges and free their memory, a card's included. The next call starts new ones."""
    end(list(_judges))


def _judge_for(device: str) -> Judge:
    with _starting:
        found = _judges.get(device)
        if found is None or not found.usable:
            found = _judges[device] = Judge()
        return found


def _step(*, sample: list[int] | None, check: dict[str, Any] | None, **told: Any) -> Step:
    judged = CaseCheck.model_validate(check) if check is not None else None
    return Step(check=judged, sample=(sample[0], sample[1]) if sample else None, **told)


def as_raised(kind: str, message: str, hint: str | None) -> PodiumError:
    """Recreate the error that another process raised, from its class name, message and hint."""
    found = getattr(errors, kind, None)
    return found(message, hint) if isinstance(found, type) and issubclass(found, PodiumError) else PodiumError(message)


atexit.register(close)
