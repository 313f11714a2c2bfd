"""Measures the cost of the sandbox per evaluation, per worker and per call, for each isolation that holds here.

    python bench/sandbox_cost.py [--device auto] [--repeats 10]

`try`: trying the isolation, once per evaluation. `empty`: a Python program that does nothing, from its start until it
and the keeper are gone. `worker`: a real worker, until it has imported torch and the smallest submission. `forked`: the
same, forked from a process that has imported torch; bubblewrap does not do this. `kill`: its end.

The last four columns are the cost per call. They are: stopping the worker's group and continuing it, as the judge sees
it, which happens once per call on a GPU and two or three times on a CPU; a message of 300 bytes to the process and back
over the worker's channel; and two system calls inside, one that seccomp checks (getppid) and one that Landlock checks
too (open and close).

All values are medians. The isolation `none` is the same worker and keeper with limits only. Prints a table, then one
line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import catalog  # noqa: E402
from harness.judge.session import Session  # noqa: E402
from harness.machine import device  # noqa: E402
from harness.model import (  # noqa: E402
    NO_ISOLATION,
    Device,
    Isolation,
)
from harness.sandbox import tiers  # noqa: E402
from harness.sandbox.enclosure import Enclosure  # noqa: E402
from harness.sandbox.scratch import scratch  # noqa: E402
from harness.wire.protocol import Channel  # noqa: E402

SUBMISSION = b"def custom_kernel(data):\n    return data\n"
CONFINED = "from harness.sandbox.confinement import confine_as_told\nconfine_as_told()\n"
ECHO = """
import os, socket, sys, time
from harness.wire.protocol import Channel
channel = Channel(socket.socket(fileno=int(sys.argv[1])), accepts_fds=True)
def cost_ns(call, times):
    start = time.perf_counter_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - start) / times
while (message := channel.receive())["op"] == "echo":
    channel.send(message)
opened = cost_ns(lambda: os.close(os.open("/usr/bin/env", os.O_RDONLY)), 20000)
channel.send({"getppid_ns": cost_ns(os.getppid, 200000), "open_ns": opened})
"""
HEADERS = [
    "isolation",
    "try ms",
    "empty ms",
    "worker ms",
    "forked ms",
    "kill ms",
    "stop µs",
    "round trip µs",
    "getppid ns",
    "open ns",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    here = device.detect(ROOT, options.device)
    rows = []
    for isolation in (*tiers.candidates(here), NO_ISOLATION):
        if isolation.confines == (isolation == NO_ISOLATION) or not tiers.holds(isolation, here):
            continue
        rows.append({"isolation": _name(isolation), **measure(isolation, here, options.repeats)})
        print(rows[-1], file=sys.stderr, flush=True)
    print(tabulate([[f"{v:.1f}" if isinstance(v, float) else v for v in row.values()] for row in rows], HEADERS))
    print(json.dumps({"device": here.name, "repeats": options.repeats, "isolations": rows}))


def measure(isolation: Isolation, here: Device, repeats: int) -> dict[str, float]:
    """Medians: the first four in milliseconds, then microseconds, then nanoseconds."""
    tried = _median_ms(lambda: tiers.holds(isolation, here), 3)
    empty = _median_ms(lambda: _run_nothing(isolation, here), repeats)
    workers = max(repeats // 2, 3)
    ready, killed, stopped = zip(*(_worker_ms(isolation, here, fresh=True) for _ in range(workers)))
    _worker_ms(isolation, here, fresh=False)  # starts the server
    forked = [_worker_ms(isolation, here, fresh=False)[0] for _ in range(workers)]
    return {
        "try_ms": tried,
        "empty_ms": empty,
        "worker_ms": statistics.median(ready),
        "forked_ms": statistics.median(forked),
        "kill_ms": statistics.median(killed),
        "stop_us": 1e3 * statistics.median(stopped),
        **_inside(isolation, here),
    }


def _run_nothing(isolation: Isolation, here: Device) -> None:
    with scratch(SUBMISSION, isolation.new_uid()) as folder, _ended(_start(isolation, here, folder, "")) as enclosure:
        assert enclosure.wait(60) == 0


def _worker_ms(isolation: Isolation, here: Device, fresh: bool) -> tuple[float, float, float]:
    """Milliseconds until the worker is loaded, for its end, and for a stop and a continuation."""
    problem = catalog.load_problem(ROOT, catalog.problem_names(ROOT)[0])
    tiers._found[here.torch_device] = isolation  # a session takes this for the strongest isolation
    with scratch(SUBMISSION, isolation.new_uid()) as folder:
        started = time.perf_counter()
        session = Session(problem, here, folder, 1, fresh=fresh)
        try:
            session.prepare()
            session.load(folder / "submission.py")
            ready = time.perf_counter()
            stop_ms = _median_ms(lambda: _stop_and_continue(session), 200)
        finally:
            ending = time.perf_counter()
            session.kill()
        return 1e3 * (ready - started), 1e3 * (time.perf_counter() - ending), stop_ms


def _stop_and_continue(session: Session) -> None:
    session.leash.stop()
    session.leash.resume()


def _inside(isolation: Isolation, here: Device, messages: int = 3000) -> dict[str, float]:
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    channel = Channel(ours)
    message = {"op": "echo", "text": "x" * 260}

    def there_and_back() -> None:
        channel.send(message, (), 10)
        channel.receive(10)

    with (
        scratch(SUBMISSION, isolation.new_uid()) as folder,
        _ended(_start(isolation, here, folder, ECHO, str(fd), pass_fds=(fd,))),
    ):
        theirs.close()
        for _ in range(100):
            there_and_back()
        round_trip = 1e3 * _median_ms(there_and_back, messages)
        channel.send({"op": "measure"}, (), 10)
        found = channel.receive(60)
        channel.close()
    return {"round_trip_us": round_trip, **found}


def _start(isolation: Isolation, here: Device, folder: Path, program: str, *arguments: str, pass_fds=()) -> Enclosure:
    command = [sys.executable, "-s", "-P", "-B", "-c", CONFINED + program, *arguments]
    return Enclosure(command, isolation, here, folder, pass_fds=pass_fds)


@contextlib.contextmanager
def _ended(enclosure: Enclosure):
    try:
        yield enclosure
    finally:
        enclosure.kill()
        enclosure.close()
        enclosure.stdout.close()


def _median_ms(action: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        taken.append(1e3 * (time.perf_counter() - started))
    return statistics.median(taken)


def _name(isolation: Isolation) -> str:
    return (
        ("none" if not isolation.confines else isolation.tier)
        + ", own uid" * isolation.own_uid
        + ", one GPU" * isolation.one_gpu
    )


if __name__ == "__main__":
    main()
