"""The processes that judge: one for each card, started by the first call that needs it and kept for the next ones.

    judge(request) ─► Judge ── a length and JSON ──►  harness.library.warm_judge
                            ◄── lines and steps, then the run or what went wrong ──

A judge that is kept has imported torch, and on a CPU it has the next worker ready. It reads the problem anew for each
request. It ends with this process, or by `close`.
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
"""By which a judge gives way: it gets a third of what another process gets that wants the same processor."""

END_S = 30.0
"""How long a judge that is told to end may take to end its workers."""

_judges: dict[str, Judge] = {}
_cards: list[str] = []
_starting, _counting = threading.Lock(), threading.Lock()


class Judge:
    """A process that judges one source at a time. Calls from several threads wait for each other.

    `environment`: the variables that it is started with (default: this process's own). `gives_way`: at a lower priority
    than this process, with all that it starts. If it ends in a problem's own checker, a second process answers in its
    place, once (`custody.careful`)."""

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
                start_new_session=True,  # Ctrl-C is for the caller, who then ends it
            )
        if self._gives_way:  # it has no thread yet, and has started nothing
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        self._note, self._socket, self._connection = note, ours, Connection(os.dup(ours.fileno()))

    @property
    def usable(self) -> bool:
        """Whether it lives, and is a child of this process rather than of one that has forked it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, request: dict[str, Any], narrate: Narrate) -> Any:
        """What it answers. Raises the PodiumError that it raised; InfrastructureError if it has ended; what `narrate`
        raises."""
        with self._asking:
            try:
                answer = self._answered(request, narrate)
                if answer is None:
                    narrate(custody.AGAIN)
                    self._start_carefully()
                    answer = self._answered(request, narrate)
                    self.close()  # what is asked next need not be done so
            except BaseException:  # Ctrl-C, say: what it answers later must not be taken for another's
                self.close()
                raise
        assert answer is not None, "it does not end so twice"
        if "error" in answer:
            raise as_raised(**answer["error"])
        return answer["answer"]

    def _answered(self, request: dict[str, Any], narrate: Narrate) -> dict[str, Any] | None:
        """None if it has ended in a checker."""
        answer = self._told(request)
        while answer is not None and ("told" in answer or "step" in answer):
            if "told" in answer:
                narrate(answer["told"])
            else:
                tell(narrate, _step(**answer["step"]))
            answer = self._told(None)
        return answer

    def _told(self, request: dict[str, Any] | None) -> dict[str, Any] | None:
        """What it says next, after a request if there is one; None if it has ended in a checker."""
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
        """End it, and by that all that it has started."""
        if self._owner == os.getpid():
            self._closed = True
            self._end()

    def _end(self) -> None:
        with self._closing:  # two threads may
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # closing it alone would not end a read that waits
            self._socket.close()
            self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session: what it started goes with it
            self._process.wait()


def judge_apart(request: Request, narrate: Narrate, started: Callable[[Judge], None] = lambda judge: None) -> Run:
    """The run of `request`, by a process that ends with it. On a CPU it gives way to this one, which may have others to
    answer; where that shows in a run's times, it counts as crowded. `started` is told the process, which another thread
    may close. Raises what `harness.evaluate` raises."""
    judge = Judge(gives_way=request.device == "cpu")
    try:
        started(judge)
        return Run.model_validate(judge.ask({"judge": request.model_dump(mode="json")}, narrate))
    finally:
        judge.close()


def judge(request: Request, narrate: Narrate) -> Run:
    """The run of `request`. Raises what `harness.evaluate` raises."""
    answer = _judge_for(request.device).ask({"judge": request.model_dump(mode="json")}, narrate)
    return Run.model_validate(answer)


def cards() -> list[str]:
    """What torch calls the cards of this machine; of one without any, its processors: cpu."""
    if not driver_present():
        return ["cpu"]
    with _counting:
        if not _cards:
            found = _judge_for("cuda:0").ask({"cards": None}, lambda line: None)
            if found == ["cpu"]:  # a driver without a card that torch sees
                _judges["cpu"] = _judges.pop("cuda:0")
            _cards.extend(found)
        return list(_cards)


def names(root: Path) -> list[tuple[str, str]]:
    """The cards of this machine as torch calls them, each with its model's name; of one without any, ("cpu", "CPU").
    Starts a process where there may be a GPU, and ends it."""
    if not driver_present():
        return [("cpu", "CPU")]
    judge = Judge()
    try:
        found = judge.ask({"names": str(root)}, lambda line: None)
    finally:
        judge.close()
    return [(card, "CPU" if card == "cpu" else name) for card, name in found]


def end(devices: list[str]) -> None:
    """End the judges of these devices, whatever they are at."""
    with _starting:
        for judge in filter(None, (_judges.pop(device, None) for device in devices)):
            judge.close()


def close() -> None:
    """End the judges that are kept: their memory, a card's included, is free then. The next call starts them anew."""
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
    """The error that another process raised, of which it told these."""
    found = getattr(errors, kind, None)
    return found(message, hint) if isinstance(found, type) and issubclass(found, PodiumError) else PodiumError(message)


atexit.register(close)
