"""One worker process, from its birth to the death of all its group.

    session = Session(...)
    session.load(path)
    session.call(request, arena) ─► CallReply        raises Fault with the verdict that the failure earns
    session.finish()                                 in good order
    session.kill()                                   always: here all that the worker ever started is dead

The worker's word is untrusted: replies are validated to the last field, each must echo the nonce of its request,
nothing may arrive unasked, and the process must end with status 0 when told to.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.arena import Arena
from harness.model import Device, Ending, Problem, Verdict
from harness.protocol import Channel, ChannelClosed, Message, ProtocolViolation, ReplyTimeout
from harness.sandbox import tiers
from harness.sandbox.enclosure import Enclosure

OUTPUT_KEPT_BYTES = 32 << 10
"""Of what a worker prints, this much of the beginning and as much of the end is kept."""

EXIT_GRACE_S = 10.0


class Fault(Exception):
    """The evaluation ends here, with this verdict and this sentence."""

    def __init__(self, verdict: Verdict, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.ending = Ending(verdict=verdict, message=message, detail=detail)


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class OutputDescription(_Reply):
    """What the worker says that one returned value is."""

    type: str
    dtype: str | None = None
    shape: list[int] | None = None
    stride: list[int] | None = None
    device: str | None = None
    offset: int | None = None


class CallReply(_Reply):
    """The worker's answer to a call. `latency_ns` is its claim, to be held against other clocks."""

    latency_ns: float = Field(ge=1, lt=1e15)
    host_ns: int = Field(ge=0, lt=10**15)
    labels: list[Literal["host-bound"]] = Field(max_length=1)
    several: bool
    returned: int = Field(ge=0)
    outputs: list[OutputDescription] = Field(max_length=16)
    state: list[int | None] = Field(max_length=256)
    overrun: list[int] = Field(max_length=256)
    more_threads: int = Field(ge=0)
    left: list[Annotated[str, Field(max_length=200)]] = Field(max_length=8)
    interpreted: bool


class _Failure(_Reply):
    kind: str
    message: str
    detail: str


class Session:
    """A worker process for one submission on one device, confined as well as this machine can.

    `scratch` is a directory made by `sandbox.scratch`: it holds the submission and its caches.
    """

    def __init__(self, problem: Problem, device: Device, scratch: Path, threads: int) -> None:
        self._limits = problem.limits
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._arena: Arena | None = None
        with theirs:
            self._enclosure = Enclosure(
                _command(theirs.fileno(), device, threads),
                tiers.strongest(device),
                device,
                scratch,
                hidden=problem.folder.parents[1:2],  # the root, with all problems, submissions and results
                environment=_environment(device, threads),
                pass_fds=(theirs.fileno(),),
            )
        self._printed = _Printed(self._enclosure.stdout)

    @property
    def printed(self) -> str:
        """What the worker has printed so far, the middle left out where it is long."""
        return self._printed.text()

    def load(self, path: Path | None) -> None:
        """Have the worker import the submission at `path`, or nothing: then it can make idle calls only."""
        self._ask({"op": "load", "path": None if path is None else str(path)}, self._limits.load_s, "loading")

    def call(self, request: Message, arena: Arena, case_label: str) -> CallReply:
        """Have the worker make one call, its inputs lying in `arena`."""
        if arena is not self._arena:
            mapping = {"op": "arena", "size": arena.size, "on_device": arena.on_device}
            self._ask(mapping, self._limits.call_s, "mapping memory", (arena.fd,))
            self._arena = arena
        answer = self._ask({"op": "call", **request}, self._limits.call_s, f"a call with {case_label}")
        try:
            return CallReply.model_validate(answer)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise _violation(f"the worker's reply is malformed: {where}: {fault['msg']}") from None

    def finish(self) -> None:
        """End the worker in good order. Raises Fault if it sent anything unasked or does not end with status 0."""
        if not self._channel.is_quiet():
            raise _violation("the worker sent a message that nobody had asked for")
        self._ask({"op": "quit"}, EXIT_GRACE_S, "quitting")
        try:
            status = self._enclosure.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            raise Fault(Verdict.TIMEOUT, "the worker did not end when told to") from None
        if status != 0:
            raise Fault(Verdict.RUNTIME_ERROR, f"the worker {_how_it_ended(status)} after its last call")
        if not self._channel.is_quiet():
            raise _violation("the worker sent a message that nobody had asked for")

    def kill(self) -> None:
        """Kill whatever is left of the worker and of all that it started. Raises InfrastructureError if it cannot."""
        try:
            self._enclosure.kill()
        finally:
            self._channel.close()
            self._printed.close()
            self._enclosure.close()

    def _ask(self, request: Message, timeout_s: float, doing: str, fds: tuple[int, ...] = ()) -> Any:
        nonce = secrets.token_hex(8)
        try:
            self._channel.send({"nonce": nonce, **request}, fds, timeout_s)
            answer = self._channel.receive(timeout_s)
        except ReplyTimeout:
            raise Fault(Verdict.TIMEOUT, f"{doing} took longer than the limit of {timeout_s:g} s") from None
        except ProtocolViolation as error:
            raise _violation(f"the worker broke the protocol: {error}") from None
        except ChannelClosed:
            raise self._death(doing) from None
        if answer.get("nonce") != nonce or len(answer) != 2:
            raise _violation("the worker answered a request that was not put to it")
        if "failure" in answer:
            raise _failure(answer["failure"])
        if "reply" not in answer:
            raise _violation("the worker's answer is neither a reply nor a failure")
        return answer["reply"]

    def _death(self, doing: str) -> Fault:
        try:
            status = self._enclosure.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return _violation(f"the worker closed its channel while {doing}")
        excess = self._enclosure.excess()
        if excess is not None:
            return Fault(Verdict.RUNTIME_ERROR, f"the submission {excess} during {doing}, and was ended")
        hint = ""
        if status == -signal.SIGSEGV:
            hint = ": a load or store out of bounds, perhaps one without a mask, does this"
        if status == -signal.SIGKILL:
            hint = ": the system kills a process that takes too much memory"
        return Fault(Verdict.RUNTIME_ERROR, f"the process {_how_it_ended(status)} during {doing}{hint}")


class _Printed:
    """Drains a pipe in the background, however much comes, and keeps its head and its tail."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def text(self) -> str:
        head = self._head.decode("utf-8", errors="replace")
        tail = bytes(self._tail).decode("utf-8", errors="replace")
        left_out = self._total - len(self._head) - len(self._tail)
        return head + (f"\n[... {left_out:,} bytes left out ...]\n" if left_out > 0 else "") + tail

    def close(self) -> None:
        # A process that left the group may still hold the pipe; its output is nobody's concern any more.
        self._thread.join(1.0)

    def _drain(self) -> None:
        fd = self._pipe.fileno()
        while data := os.read(fd, 1 << 16):
            self._total += len(data)
            room = OUTPUT_KEPT_BYTES - len(self._head)
            self._head += data[:room]
            self._tail = (self._tail + data[room:])[-OUTPUT_KEPT_BYTES:]
        self._pipe.close()


def _command(channel_fd: int, device: Device, threads: int) -> list[str]:
    flags = ["-s", "-P", "-B", "-u"]  # no user site, no implicit path, no .pyc files, unbuffered output
    arguments = {"channel": channel_fd, "device": device.kind, "threads": threads, "flush-bytes": device.flush_bytes}
    options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    return [sys.executable, *flags, "-m", "harness.worker", *options]


def _environment(device: Device, threads: int) -> dict[str, str]:
    """How many threads to compute in, and on a CPU that Triton's kernels are interpreted."""
    interpreted = {"TRITON_INTERPRET": "1"} if device.kind == "cpu" else {}
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **interpreted}


def _violation(message: str) -> Fault:
    return Fault(Verdict.INTEGRITY_VIOLATION, message)


def _failure(fields: Any) -> Fault:
    try:
        failure = _Failure.model_validate(fields)
    except ValidationError:
        return _violation("the worker's report of a failure is malformed")
    verdicts = {
        "compile_error": Verdict.COMPILE_ERROR,
        "runtime_error": Verdict.RUNTIME_ERROR,
        "cannot_judge": Verdict.INFRASTRUCTURE_ERROR,
    }
    if failure.kind not in verdicts:
        return _violation("the worker's report of a failure is malformed")
    return Fault(verdicts[failure.kind], failure.message, failure.detail)


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"
