"""A process that has imported the worker's modules and forks a worker for each request. Importing torch takes a second
or two, a fork milliseconds.

    python3 -m harness.sandbox.fork_server CHANNEL_FD MODULE...

    judge ── {"op": "start", ...} and descriptors ──►  server ── fork ──►  keeper ─► waiter ─► worker
    judge ◄── {"pid": the keeper's} ──                  each answer has the "turn" of its request
    judge ── {"op": "collect", "pid": ...} ──►         after the keeper ended; until then its number is not reused
    judge ◄── {"status": as from os.waitpid} ──

It runs no submission and receives no seed. Its forks are confined like a worker with an interpreter of its own: the
same keeper, waiter and `confine_as_told`. All workers of a server share one layout of memory and one seed of Python's
hashes. When the judge is gone, the server ends, and the death of their parent ends the keepers.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import socket
import sys
import tempfile

from harness.sandbox import keeper
from harness.sandbox.program import Program
from harness.wire.protocol import Channel, ChannelClosed, Message


def main() -> None:
    """Raises SystemExit, in the server and in its forks."""
    channel_fd, *modules = sys.argv[1:]
    gc.disable()  # imports make no garbage
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):  # Triton may be missing
            importlib.import_module(module)
    gc.freeze()  # so that garbage collection in a fork copies no page
    gc.enable()
    request, fds = _serve(Channel(socket.socket(fileno=int(channel_fd)), accepts_fds=True))
    _become(request, fds)


def _serve(channel: Channel) -> tuple[Message, list[int]]:
    """Answer requests until the judge is gone, then end. Returns in each fork, with its request and descriptors."""
    with contextlib.suppress(ChannelClosed):  # the judge may also go before it has its answer
        while True:
            request = channel.receive()
            if request["op"] == "collect":
                channel.send({"turn": request["turn"], "status": os.waitpid(request["pid"], 0)[1]})
                continue
            fds = [channel.fds.pop(0) for _ in request["targets"]]
            pid = os.fork()
            if pid == 0:
                channel.close()
                return request, fds
            for fd in fds:
                os.close(fd)
            channel.send({"turn": request["turn"], "pid": pid})
    sys.exit()


def _become(request: Message, fds: list[int]) -> None:
    """Set up the state that Popen would give a new process, then start the keeper: session, descriptors, directory and
    environment."""
    os.setsid()
    above = max(request["targets"]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(above, *fds) + 1) for fd in fds]
    os.closerange(0, min(moved))
    for fd, target in zip(moved, request["targets"]):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    keeper.keep(request["settings"], Program.of_message(request["program"]).run)


if __name__ == "__main__":
    main()
