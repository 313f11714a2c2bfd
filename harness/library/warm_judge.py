"""The process that judges for a program, one request after another: what it has imported it keeps, but for `reference`.

    python3 -m harness.library.warm_judge CONNECTION_FD

It ends when the program is gone or closes the connection, in the midst of an evaluation too.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from harness import catalog
from harness.catalog.config import EvalConfig, load_config
from harness.errors import PodiumError
from harness.judge.reference import import_anew
from harness.judge.spare import Spare
from harness.library.request import Request
from harness.machine import lock
from harness.machine.device import all_cards, detect
from harness.model import Run
from harness.progress import Narrate
from harness.records.store import Store
from harness.verbs import eval as evaluation


def main() -> None:
    """Answer until the other end is closed."""
    connection = Connection(int(sys.argv[1]))
    asked: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, asked), daemon=True).start()
    with contextlib.closing(Spare()) as spare, contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        while (request := asked.get()) is not None:
            connection.send_bytes(json.dumps(_answer(request, connection, spare)).encode())
            if asked.empty():
                spare.renew()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # on its way, perhaps: nothing is to be ended any more


def _listen(connection: Connection, asked: queue.Queue[dict[str, Any] | None]) -> None:
    """Put what is asked into the queue. Whoever closes the connection wants no verdict any more."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked.put(json.loads(connection.recv_bytes()))
    asked.put(None)
    thread = threading.main_thread().ident
    assert thread is not None
    signal.pthread_kill(thread, signal.SIGINT)


def _answer(request: dict[str, Any], connection: Connection, spare: Spare) -> dict[str, Any]:
    def narrate(line: str) -> None:
        connection.send_bytes(json.dumps({"told": line}).encode())

    try:
        if "cards" in request:
            return {"answer": all_cards()}
        run = judge(Request.model_validate(request["judge"]), narrate, spare)
        return {"answer": run.model_dump(mode="json")}
    except PodiumError as error:
        return {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}


def judge(request: Request, narrate: Narrate, spare: Spare) -> Run:
    """The run of `request`, stored if it asks for that. Raises PodiumError."""
    problem = catalog.load_problem(request.root, request.problem)
    import_anew(problem)
    device = detect(request.root, request.device)
    store = Store(request.root) if request.store else None
    if store is not None:
        store.check_writable()
    ranked = request.depth == "full" and request.sampling is None
    evaluation.isolation_tier(device, not ranked or request.allow_unsandboxed, narrate)
    with lock.hold_if_gpu(device, narrate, problem.limits.evaluation_s):
        run = evaluation.judge_one(
            problem,
            request.submission,
            device,
            _config(request),
            narrate,
            quick=not ranked,
            timed=request.depth != "verdict",
            stop_at_first=request.stop_at_first,
            allow_unsandboxed=request.allow_unsandboxed,
            spare=spare,
        )
    if store is not None:
        store.write(run, request.submission)
    return run


def _config(request: Request) -> EvalConfig:
    """Of configs/eval.yml, or with other counts: then all processes that these ask for, and no rank."""
    config, own = load_config(request.root), request.sampling
    if own is None:
        return config
    return config.model_copy(update={"cpu": own, "gpu": own, "quick_processes": own.processes})


if __name__ == "__main__":
    main()
