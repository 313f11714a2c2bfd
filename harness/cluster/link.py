"""The way to a cluster that outlives its head: Ray in a process of its own, and another one where that is lost.

    with Link(address, root) as link:
        link.judge(request, narrate, started) ─► Run        as `Placement.judge`, which the process calls

Where Ray loses its head, it ends the process that it is in. A patient link (a server's) then connects anew until a
cluster answers, and its jobs are placed again, from their first attempt. Another one (of `eval`) says so in a sentence.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.cluster import engine
from harness.cluster.placement import LONELY_S
from harness.cluster.watching import HINT_S, JobEnded, Placed
from harness.command import page
from harness.errors import InfrastructureError, PodiumError
from harness.library import judges
from harness.library.request import Request
from harness.model import Device, Run
from harness.progress import Narrate, note

AGAIN_S = 2.0
"""Between two tries to reach a cluster again."""

LOOK_S = 0.5

CONNECT_S = 120.0
"""How long Ray may take to connect. It takes seconds; where a firewall lets only some ports through it never ends."""

MUTE_S = 120.0
"""Without a sign of life for so long Ray's process is ended. It gives one every two seconds."""

DRIVER = "harness.cluster.driver"


class ClusterLost(InfrastructureError):
    """Ray's process has ended, and its jobs with it."""


class Link:
    """The way to a cluster. Threads may share it; closing it ends its jobs. Raises as `engine.connect`.

    `patient`: jobs wait while there is no cluster, or no node that may judge them. `driver`: the module that is run as
    the process; tests of the cluster itself have one whose judge answers at once. `tell` is told what the other calls
    wait for where that takes long; `judge` has its own `narrate`. `log` is told that a node joins or leaves, and that
    the cluster is lost or answers again.
    """

    def __init__(
        self,
        address: str,
        root: Path,
        patient: bool = False,
        driver: str = DRIVER,
        tell: Narrate = lambda line: None,
        log: Narrate = lambda line: None,
    ) -> None:
        engine.check_address(address)
        self._patient, self._words = patient, [driver, address, str(root), str(math.inf if patient else LONELY_S)]
        self._closing, self._tell, self._log = threading.Event(), tell, log
        self._ray = _RayProcess(self._words, self._lost, tell, log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all jobs, wait until their judges have ended, and leave the cluster."""
        self._closing.set()
        self._ray.close()

    def judge(
        self,
        request: Request,
        narrate: Narrate = lambda line: None,
        started: Callable[[Placed], None] = lambda placed: None,
    ) -> Run:
        """The run of `request`. `started` is told what ends the job. Raises as `Placement.judge`; ClusterLost where
        the link is not patient."""
        job = Placed()
        started(job)
        name = request.submission.name
        while True:
            if job.closing.is_set():
                raise JobEnded(f"{name} was ended before it had a verdict")
            try:
                return Run.model_validate(self._ray.ask({"judge": request.model_dump(mode="json")}, narrate, job))
            except ClusterLost as error:
                if not self._patient or self._closing.is_set():
                    raise
                note(narrate, f"{name}: {error.message}; it is judged anew when a cluster answers")
            while self._ray.lost and not job.closing.wait(LOOK_S):
                pass

    def device(self, wanted: str = "auto") -> Device:
        """As `Placement.device`."""
        return Device.model_validate(self._ray.ask({"device": wanted}, self._tell))

    def cards(self, slug: str) -> list[str]:
        """As `Placement.cards`."""
        found: list[str] = self._ray.ask({"cards": slug}, self._tell)
        return found

    def models(self) -> list[tuple[Device, int]]:
        """As `Placement.models`."""
        return [(Device.model_validate(device), count) for device, count in self._ray.ask({"models": None}, self._tell)]

    def _lost(self) -> None:
        """Connect anew, however long that takes. Runs in the thread that read what the lost process said."""
        if self._patient and not self._closing.is_set():
            self._log(f"the cluster at {self._words[1]} is lost; trying again until one answers")
        while self._patient and not self._closing.wait(AGAIN_S):
            with contextlib.suppress(PodiumError):
                found = _RayProcess(self._words, self._lost, log=self._log)
                self._ray = found
                if self._closing.is_set():
                    found.close()
                else:
                    self._log(f"a cluster answers at {self._words[1]}")
                return


class _RayProcess:
    """A process of the driver. Raises what connecting raises there. `lost` is called when it ends."""

    def __init__(
        self,
        words: list[str],
        lost: Callable[[], None],
        tell: Narrate = lambda line: None,
        log: Narrate = lambda line: None,
    ) -> None:
        ours, theirs = socket.socketpair()
        code = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([code, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", words[0], str(theirs.fileno()), *words[1:]],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # Ray's own words, which its session's folder keeps
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for this process, which then ends it
            )
        self._socket, self._connection, self._sending = ours, Connection(os.dup(ours.fileno())), threading.Lock()
        self._address, self._numbers = words[1], itertools.count(1)
        self._asked: dict[int, queue.Queue[dict[str, Any]]] = {0: queue.Queue()}
        self._then, self._connected, self._tried, self._log = lost, False, threading.Event(), log
        self.lost, self._heard, self._mute = False, True, False
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._answer(0, tell, hint=f"waiting until Ray has connected to the cluster at {self._address}")
            self._connected = True
            threading.Thread(target=self._watch, daemon=True).start()
        except BaseException:
            self.close()
            raise
        finally:
            self._tried.set()

    def ask(self, what: dict[str, Any], narrate: Narrate = lambda line: None, job: Placed | None = None) -> Any:
        """Its answer. Raises the error that it raised, or ClusterLost. `job` is ended there when it is closed here."""
        number = next(self._numbers)
        self._asked[number] = queue.Queue()
        try:
            self._send({"id": number, **what})
            return self._answer(number, narrate, job, "" if job else "waiting until the nodes say what they have")
        finally:
            del self._asked[number]

    def _answer(self, number: int, narrate: Narrate, job: Placed | None = None, hint: str = "") -> Any:
        ended, began = False, time.monotonic()
        while True:
            waited = time.monotonic() - began
            if hint and waited > HINT_S:
                narrate(hint)
                hint = ""
            if number == 0 and waited > CONNECT_S:
                raise InfrastructureError(
                    f"Ray has not connected to the cluster at {self._address} within {CONNECT_S:g} s",
                    f"see whether a firewall keeps one of Ray's ports shut: {page('cluster')} names them",
                )
            if job is not None and job.closing.is_set() and not ended:
                ended = True
                self._send({"end": number})
            try:
                said = self._asked[number].get(timeout=LOOK_S)
            except queue.Empty:
                if not self.lost or not self._asked[number].empty():
                    continue
                status = self._process.wait()
                how = f"said nothing for {MUTE_S:g} s" if self._mute else f"has ended with status {status}"
                raise ClusterLost(
                    f"the cluster at {self._address} is lost: Ray's process here {how}",
                    "see whether its head lives: python3 -m harness cluster; eval goes on with what has no verdict",
                ) from None
            if "told" in said:
                narrate(said["told"])
            elif "noted" in said:
                note(narrate, said["noted"])
            elif "error" in said:
                raise judges.as_raised(**said["error"])
            else:
                return said["answer"]

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending, contextlib.suppress(OSError):  # it has ended: whoever waits for the answer is told
            self._connection.send_bytes(json.dumps(message).encode())

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                said = json.loads(self._connection.recv_bytes())
                self._heard = True
                if "alive" in said:
                    continue
                if said["id"] == 0 and "noted" in said:
                    self._log(said["noted"])
                elif (waiting := self._asked.get(said["id"])) is not None:
                    waiting.put(said)
        self.lost = True
        self._tried.wait()
        if self._connected:
            self._then()

    def _watch(self) -> None:
        """End it where it is stopped or stuck: its callers would wait for ever. Looks are counted, and not seconds, in
        which this process may have been stopped itself."""
        silent = 0
        while not self.lost and silent * LOOK_S < MUTE_S:
            time.sleep(LOOK_S)
            silent, self._heard = 0 if self._heard else silent + 1, False
        if not self.lost:
            self._mute = True
            self._process.kill()

    def close(self) -> None:
        """End it, with its jobs."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)  # it reads the end, and may still say what comes of its jobs
        try:
            self._process.wait(2 * judges.END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
