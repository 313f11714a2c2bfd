"""The program of a judging process. It answers one request after another and keeps its imports, except `reference`.

    python3 -m harness.library.warm_judge CONNECTION_FD NOTE_FD

It ends when the calling program ends or closes the connection, even in the middle of an evaluation.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
import threading
import time
from dataclasses import fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness import catalog, custody
from harness.catalog.config import EvalConfig, load_config
from harness.errors import InfrastructureError, PodiumError
from harness.judge.reference import import_anew
from harness.judge.spare import Spare
from harness.library.request import Request
from harness.machine import environment, lock
from harness.machine.device import all_cards, detect
from harness.model import Run
from harness.progress import Narrate, Step
from harness.records.store import Store
from harness.sandbox import tiers
from harness.verbs import eval as evaluation

STEP_S = 0.1
"""The least time between two steps that are passed on. A viewer would not see more."""


def main() -> None:
    """Answer requests until the other end is closed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `_listen` ends this process by SIGINT, which its parent
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # may ignore or block, as Ray and a shell's & do
    connection = Connection(int(sys.argv[1]))
    custody.keep(custody.Note(int(sys.argv[2])))
    asked: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, asked), daemon=True).start()
    with contextlib.closing(Spare()) as spare, contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        while (request := asked.get()) is not None:
            connection.send_bytes(json.dumps(_answer(request, connection, spare)).encode())
            if asked.empty():
                spare.renew()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one may be on its way, but there is nothing left to end


def _listen(connection: Connection, asked: queue.Queue[dict[str, Any] | None]) -> None:
    """Put requests into the queue. A closed connection means that no verdict is wanted any more, so it interrupts the
    main thread."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked.put(json.loads(connection.recv_bytes()))
    asked.put(None)
    thread = threading.main_thread().ident
    assert thread is not None
    signal.pthread_kill(thread, signal.SIGINT)


def _answer(request: dict[str, Any], connection: Connection, spare: Spare) -> dict[str, Any]:
    narrate = _Told(connection)
    try:
        if "cards" in request:
            return {"answer": all_cards()}
        if "names" in request:
            return {"answer": [[card, detect(Path(request["names"]), card).name] for card in all_cards()]}
        run = judge(Request.model_validate(request["judge"]), narrate, spare)
        return {"answer": run.model_dump(mode="json")}
    except PodiumError as error:
        return {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}


class _Told:
    """Passes on every line, and steps without a line at most every STEP_S."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sent_s = connection, 0.0

    def __call__(self, line: str) -> None:
        self._connection.send_bytes(json.dumps({"told": line}).encode())

    def step(self, step: Step) -> None:
        if step.line is None and step.check is None and time.monotonic() - self._sent_s < STEP_S:
            return
        self._sent_s = time.monotonic()
        check = step.check.model_dump(mode="json") if step.check is not None else None
        told = {field.name: getattr(step, field.name) for field in fields(step)} | {"check": check}
        self._connection.send_bytes(json.dumps({"step": told}).encode())


def judge(request: Request, narrate: Narrate, spare: Spare) -> Run:
    """Judge `request`, and store the run if the request asks for that. Raises PodiumError."""
    problem = catalog.load_problem(request.root, request.problem)
    import_anew(problem)
    device = detect(request.root, request.device)
    store = Store(request.root) if request.store else None
    if store is not None:
        store.check_writable()
    if request.confined:
        tiers.require(device)
    if refused := request.pinned.versions and request.pinned.differences(environment.versions(device)):
        raise InfrastructureError(f"this machine may not judge it: {'; '.join(refused)}", "judge it where they agree")
    ranked = request.depth == "full" and request.sampling is None
    evaluation.isolation_tier(device, not ranked or request.allow_unsandboxed, narrate)
    with lock.hold_if_gpu(device, narrate, problem.limits.evaluation_s) as expect:
        run = evaluation.judge_one(
            problem,
            request.submission,
            device,
            _config(request),
            narrate,
            quick=not ranked,
            timed=request.depth in ("quick", "full"),
            profiles=request.depth == "profile",
            stop_at_first=request.stop_at_first,
            allow_unsandboxed=request.allow_unsandboxed,
            spare=spare,
            expect=expect,
        )
    if store is not None:
        store.write(run, request.submission)
    return run


def _config(request: Request) -> EvalConfig:
    """Return the configuration of configs/eval.yml, or one with the request's own counts. With these all processes are
    timed, and the run is not ranked."""
    config, own = load_config(request.root), request.sampling
    if own is None:
        return config
    return config.model_copy(update={"cpu": own, "gpu": own, "quick_processes": own.processes})


if __name__ == "__main__":
    main()
