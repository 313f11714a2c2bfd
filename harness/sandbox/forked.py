"""The judge's side of a fork server: processes that it starts, with the necessary part of Popen's interface."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from harness.errors import InfrastructureError
from harness.sandbox.program import Program
from harness.wire.protocol import Channel, ChannelClosed, Message, ReplyTimeout

END_S = 10.0
ANSWER_S = 120.0
"""How long a server may take to answer. Before its first answer it imports torch."""

MOST_SERVERS = 4
"""The most servers at once, not counting busy ones. Each has an environment of its own and 0.2 GB of memory, mostly
files that the servers share."""

_servers: dict[tuple[object, ...], ForkServer] = {}
_starting = threading.Lock()


class ForkServer:
    """A process that has imported `modules` in `environment` and forks workers. Raises OSError."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            words = ["-s", "-P", "-B", "-u", "-m", "harness.sandbox.fork_server", str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(
                [sys.executable, *words],
                cwd="/",
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._channel, self._asking, self._owner = Channel(ours), threading.Lock(), os.getpid()
        self._turn = 0
        self.leases = 0  # users that are about to request a fork
        self.forks: set[int] = set()  # forked processes whose status was not collected

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_usable(self) -> bool:
        return self._process.poll() is None and self._owner == os.getpid()

    def ask(self, request: Message, fds: tuple[int, ...] = ()) -> Any:
        """Send a request and return the answer. Raises InfrastructureError if the server has ended or does not answer.
        Then it is ended."""
        with self._asking:
            self._turn += 1
            try:
                self._channel.send({**request, "turn": self._turn}, fds)
                while True:
                    answer = self._channel.receive(ANSWER_S)
                    if answer["turn"] == self._turn:  # skip the answer to a request that was interrupted
                        return answer
            except (ChannelClosed, ReplyTimeout) as error:
                self._process.kill()  # by its end its forks end, too
                what = "has ended" if isinstance(error, ChannelClosed) else f"gave no answer within {ANSWER_S:g} s"
                raise InfrastructureError(
                    f"the process that workers are forked from (process {self.pid}) {what}", "run this again"
                ) from None

    def close(self) -> None:
        """End the server. Its forks end by that. One that has forked nothing may still be importing."""
        self._channel.close()
        if self._owner == os.getpid():
            if self._turn == 0:
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
                return
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def server(modules: Sequence[str], environment: Mapping[str, str]) -> Iterator[ForkServer]:
    """Yield the server for these modules and this environment. It is started if there is none, is not ended within the
    block, and ends with this process.

    Raises OSError.
    """
    key = (tuple(modules), *sorted(environment.items()))
    with _starting:
        found = _servers.pop(key, None)
        if found is None or not found.is_usable():
            found = ForkServer(modules, environment)
        _servers[key] = found  # the least recently used server is closed first
        for old in list(_servers)[:-MOST_SERVERS]:
            if not _servers[old].leases and not _servers[old].forks:
                _servers.pop(old).close()
        found.leases += 1
    try:
        yield found
    finally:
        with _starting:
            found.leases -= 1


def pids() -> tuple[int, ...]:
    """The process ids of all servers."""
    return tuple(each.pid for each in list(_servers.values()))


def _close_all() -> None:
    for each in _servers.values():
        each.close()
    _servers.clear()


atexit.register(_close_all)


class Forked:
    """A keeper that `server` has forked, with `program` below it. `pass_fds` keep their numbers. Raises
    InfrastructureError."""

    def __init__(
        self,
        server: ForkServer,
        program: Program,
        settings: Mapping[str, Any],
        folder: Path,
        environment: Mapping[str, str],
        pass_fds: tuple[int, ...],
    ) -> None:
        self._server = server
        policy, stdin = os.pipe()
        seen, stdout = os.pipe()
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb", 0)
        self.stdout: IO[bytes] = os.fdopen(seen, "rb")
        request = {
            "op": "start",
            "program": program.as_message(),
            "settings": {**settings, "parent_pid": server.pid},
            "folder": str(folder),
            "environment": dict(environment),
            "targets": [0, 1, 2, *pass_fds],
        }
        try:
            self.pid: int = server.ask(request, (policy, stdout, stdout, *pass_fds))["pid"]
        except BaseException:
            self.stdin.close()
            self.stdout.close()
            raise
        finally:
            os.close(policy)
            os.close(stdout)
        server.forks.add(self.pid)
        self._ended = os.pidfd_open(self.pid)  # the number stays this process's until its status is collected
        weakref.finalize(self, os.close, self._ended)
        self.returncode: int | None = None
        # Two threads may wait for one process: that which awaits its answer, and that which ends it.
        self._collecting = threading.Lock()

    def poll(self) -> int | None:
        """The status as of Popen if it has ended, else None."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the status. Raises subprocess.TimeoutExpired; InfrastructureError, once, if it
        ended with its server."""
        if self.returncode is None and not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        with self._collecting:
            if self.returncode is None:
                self.returncode = -signal.SIGKILL  # in case the server cannot tell
                self._server.forks.discard(self.pid)
                status = self._server.ask({"op": "collect", "pid": self.pid})["status"]
                self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def send_signal(self, which: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, which)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
