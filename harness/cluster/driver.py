"""The process that speaks with Ray for a `Link`: where its head is lost, Ray ends it without a word to Python.

    python3 -P -m harness.cluster.driver CONNECTION_FD ADDRESS ROOT LONELY_S

It reads one JSON object a message: `id` and one of judge (a request), end (the id of a job), device, cards, models. It
answers with the same id: told (a line), noted (one for logs, too), and last answer or error. The answer to id 0 says
that it is connected; what is noted to it, that a node has joined or left; alive, that it runs. It ends with its jobs as
soon as the connection ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.cluster.job import Task, judge_job
from harness.cluster.placement import SILENT_S, Placement
from harness.cluster.watching import Placed
from harness.errors import InfrastructureError, PodiumError
from harness.library.request import Request

LOOK_S = 2.0
"""Between two looks at the head. Ray notices one that has gone a minute after such a look, and one that was started
anew at the same address at the next."""


def main(task: Task = judge_job, silent_s: float = SILENT_S) -> None:
    """Answer until the connection ends. Tests of the cluster itself have a `task` and `silent_s` of their own."""
    number, address, root, lonely_s = sys.argv[1:]
    answers = _Answers(Connection(int(number)))
    with answers.errors_of(0):
        placement = Placement(address, Path(root), silent_s=silent_s, lonely_s=float(lonely_s), task=task)
        threading.Thread(target=_look, args=(placement, answers), daemon=True).start()
        threading.Thread(target=_live, args=(answers,), daemon=True).start()
        answers.send(0, answer=None)
        with contextlib.closing(placement):
            answers.serve(placement)


def _live(answers: _Answers) -> None:
    """Give a sign of life now and then, whatever Ray makes other threads wait for."""
    while True:
        answers.send(0, alive=True)
        time.sleep(LOOK_S)


def _look(placement: Placement, answers: _Answers) -> None:
    known: dict[str, str] | None = None
    while True:
        with contextlib.suppress(Exception):  # what matters is that Ray asks its head
            nodes = placement.ray.nodes()
            for line in changes(known, nodes):
                answers.send(0, noted=line)
            known = _alive(nodes)
        _end_if_lost(placement)
        time.sleep(LOOK_S)


def changes(known: dict[str, str] | None, nodes: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each of Ray's nodes that has joined or left since those `known` lived, by number with their names.
    None: nothing is known yet."""
    alive = _alive(nodes)
    if known is None:
        return []
    whys = {node["NodeID"]: " ".join(node.get("DeathReasonMessage", "").split())[:200] for node in nodes}
    left = [(name, whys.get(number)) for number, name in known.items() if number not in alive]
    lines = [f"the node {name} has left the cluster{f': {why}' if why else ''}" for name, why in left]
    return lines + [f"the node {name} has joined the cluster" for number, name in alive.items() if number not in known]


def _alive(nodes: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {
        node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node in nodes
        if node["Alive"]
    }


def _end_if_lost(placement: Placement | None) -> None:
    """Where Ray's client has lost its head, end as Ray itself ends a process on a node."""
    if placement is not None and not placement.ray.is_initialized():
        os._exit(1)


class _Telling:
    """A job's narrator: each line is a message to whoever asked for the job."""

    def __init__(self, answers: _Answers, number: int) -> None:
        self._answers, self._number = answers, number

    def __call__(self, line: str) -> None:
        self._answers.send(self._number, told=str(line))

    def note(self, line: str) -> None:
        self._answers.send(self._number, noted=str(line))


class _Answers:
    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending = connection, threading.Lock()
        self._jobs: dict[int, Placed] = {}
        self._ended: set[int] = set()  # also of jobs that are not placed yet: the nodes may be asked first

    def serve(self, placement: Placement) -> None:
        """Answer each message in a thread of its own until no more come."""
        while True:
            try:
                message = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            if "end" in message:
                self._ended.add(message["end"])
                if (job := self._jobs.get(message["end"])) is not None:
                    job.close()
            else:
                threading.Thread(target=self._answer, args=(placement, message), daemon=True).start()

    def send(self, number: int, **said: Any) -> None:
        """One message. Nobody may be there any more to read it."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps({"id": number, **said}).encode())

    @contextlib.contextmanager
    def errors_of(self, number: int, placement: Placement | None = None) -> Iterator[None]:
        """Within it, an error is the answer to this message."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, PodiumError):
                _end_if_lost(placement)
                # a bug of ours, or Ray's words: it must not be waited for in vain
                error = InfrastructureError(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            kind = type(error).__name__
            self.send(number, error={"kind": kind, "message": error.message, "hint": error.hint})

    def _answer(self, placement: Placement, message: dict[str, Any]) -> None:
        number = message["id"]
        with self.errors_of(number, placement):
            self.send(number, answer=self._found(placement, number, message))

    def _started(self, number: int, job: Placed) -> None:
        self._jobs[number] = job
        if number in self._ended:  # looked at after the job is noted, as `serve` does it the other way round
            job.close()

    def _found(self, placement: Placement, number: int, message: dict[str, Any]) -> Any:
        if "judge" in message:
            request = Request.model_validate(message["judge"])
            try:
                run = placement.judge(request, _Telling(self, number), lambda job: self._started(number, job))
            finally:
                self._jobs.pop(number, None)
                self._ended.discard(number)
            return run.model_dump(mode="json")
        if "device" in message:
            return placement.device(message["device"]).model_dump(mode="json")
        if "cards" in message:
            return placement.cards(message["cards"])
        return [[device.model_dump(mode="json"), count] for device, count in placement.models()]


if __name__ == "__main__":
    main()
