"""One worker process, from its birth to the death of all its group.

    session = Session(...)
    session.load(path)
    session.call(request, arena, ...) ─► Answer      raises Fault with the verdict that the failure earns
    session.finish()                                 in good order
    session.kill()                                   always: here all that the worker ever started is dead

The worker's word is untrusted: replies are validated to the last field, each must echo the nonce of its request,
nothing may arrive unasked, and the process must end with status 0 when told to.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from harness.arena import FLAG_BYTES, Arena
from harness.device_arena import shareable_memory
from harness.judge.reply import Aftermath, Answer, CallReply, Fault, reported_failure, violation, well_formed
from harness.model import Device, Problem, Verdict
from harness.protocol import Channel, ChannelClosed, Message, ProtocolViolation, ReplyTimeout
from harness.sandbox import tiers
from harness.sandbox.enclosure import Enclosure

OUTPUT_KEPT_BYTES = 32 << 10
"""Of what a worker prints, this much of the beginning and as much of the end is kept."""

MAX_REPLY_BYTES = 16 << 10
"""Of a call's reply, which is looked through while the clock runs: that of 16 outputs and 256 inputs has 5.5 KiB."""

EXIT_GRACE_S = 10.0

_clock_ns = time.perf_counter_ns


class Session:
    """A worker process for one submission on one device, confined as well as this machine can.

    `scratch` is a directory made by `sandbox.scratch`: it holds the submission and its caches.
    """

    def __init__(self, problem: Problem, device: Device, scratch: Path, threads: int) -> None:
        self._limits = problem.limits
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._arena: Arena | None = None
        self._calls = 0
        shared = device.kind == "cuda" and shareable_memory(device.torch_device) is not None
        self._flag = Arena.create(FLAG_BYTES) if shared else None
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

    @property
    def processor_s(self) -> float:
        """Processor time of the worker and all that it started, so far, in seconds."""
        return self._enclosure.processor_s()

    def load(self, path: Path | None) -> None:
        """Have the worker import the submission at `path`, or nothing: then it can make idle calls only."""
        fds = () if self._flag is None else (self._flag.fd,)
        self._ask({"op": "load", "path": None if path is None else str(path)}, self._limits.load_s, "loading", fds)

    def call(
        self,
        request: Message,
        arena: Arena,
        case_label: str,
        reveal: Callable[[], float],
        patience_s: float,
        read: Callable[[CallReply], Any] = lambda reply: None,
    ) -> Answer:
        """Have the worker make one call. `reveal` pours its inputs into `arena`, and says for how many nanoseconds some
        of them had been there when it returned. `read` reads the snapshot, as soon as the reply is there: a worker that
        goes on writing has no time.

        Inputs are revealed when the worker is ready for them. Where its stream waits for them, that is when all of the
        call is enqueued, or `patience_s` later.
        """
        if arena is not self._arena:
            mapping = {"op": "arena", "size": arena.size, "on_device": arena.on_device}
            self._ask(mapping, self._limits.call_s, "mapping memory", (arena.fd,))
            self._arena = arena
        self._calls += 1
        doing, limit_s = f"a call with {case_label}", self._limits.call_s
        nonce = self._send({"op": "call", "turn": self._calls, **request}, limit_s, doing)
        was_ready = self._flag is None or self._channel.awaits(patience_s)
        if self._flag is None:
            self._expect_ready(nonce, doing)
        visible_ns = reveal()
        asked_ns = _clock_ns() - visible_ns
        if self._flag is None:
            self._send({"op": "go"}, limit_s, doing)
        else:
            ctypes.c_uint32.from_address(self._flag.address).value = self._calls
            self._expect_ready(nonce, doing, awake=True)  # a call that waits for the device is ready only now
        answer = self._receive(nonce, "reply", limit_s, doing, awake=self._flag is not None)
        if self._channel.received_bytes > MAX_REPLY_BYTES:
            raise violation(f"the worker's reply has {self._channel.received_bytes:,} bytes; {MAX_REPLY_BYTES:,} do")
        with well_formed("reply"):
            reply = CallReply.model_validate(answer)
        # The clock runs until the snapshot is read: what a worker does while its reply is looked through is in time.
        turnaround_ns = float(_clock_ns() - asked_ns)
        read(reply)
        with well_formed("aftermath"):
            aftermath = Aftermath.model_validate(self._receive(nonce, "aftermath", limit_s, doing))
        return Answer(reply, aftermath, turnaround_ns, was_ready)

    def pause(self) -> None:
        """Stop the worker, which must not be asked anything until it is resumed, and then must be before it is stopped
        again: of two wishes at once the one to go on wins."""
        self._enclosure.pause()

    def resume(self) -> None:
        self._enclosure.resume()

    def finish(self) -> None:
        """End the worker in good order. Raises Fault if it sent anything unasked or does not end with status 0."""
        if not self._channel.is_quiet():
            raise violation("the worker sent a message that nobody had asked for")
        self._ask({"op": "quit"}, EXIT_GRACE_S, "quitting")
        try:
            status = self._enclosure.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            raise Fault(Verdict.TIMEOUT, "the worker did not end when told to") from None
        if status != 0:
            raise Fault(Verdict.RUNTIME_ERROR, f"the worker {_how_it_ended(status)} after its last call")
        if not self._channel.is_quiet():
            raise violation("the worker sent a message that nobody had asked for")

    def kill(self) -> None:
        """Kill whatever is left of the worker and of all that it started. Raises InfrastructureError if it cannot."""
        try:
            self._enclosure.kill()
        finally:
            self._channel.close()
            self._printed.close()
            self._enclosure.close()
            if self._flag is not None:
                self._flag.close()

    def _ask(self, request: Message, timeout_s: float, doing: str, fds: tuple[int, ...] = ()) -> Any:
        return self._receive(self._send(request, timeout_s, doing, fds), "reply", timeout_s, doing)

    def _send(self, request: Message, timeout_s: float, doing: str, fds: tuple[int, ...] = ()) -> str:
        """The request's nonce."""
        nonce = secrets.token_hex(8)
        with self._faults_of_the_channel(timeout_s, doing):
            self._channel.send({"nonce": nonce, **request}, fds, timeout_s)
        return nonce

    def _expect_ready(self, nonce: str, doing: str, awake: bool = False) -> None:
        if self._receive(nonce, "ready", self._limits.call_s, doing, awake) is not True:
            raise violation("the worker's answer is neither ready nor a failure")

    def _receive(self, nonce: str, kind: str, timeout_s: float, doing: str, awake: bool = False) -> Any:
        """What the worker's next message holds under `kind`."""
        with self._faults_of_the_channel(timeout_s, doing):
            answer = self._channel.receive(timeout_s, awake)
        if answer.get("nonce") != nonce or len(answer) != 2:
            raise violation("the worker answered a request that was not put to it")
        if "failure" in answer:
            raise reported_failure(answer["failure"])
        if kind not in answer:
            raise violation(f"the worker's answer is neither a {kind} nor a failure")
        return answer[kind]

    @contextmanager
    def _faults_of_the_channel(self, timeout_s: float, doing: str) -> Iterator[None]:
        try:
            yield
        except ReplyTimeout:
            raise Fault(Verdict.TIMEOUT, f"{doing} took longer than the limit of {timeout_s:g} s") from None
        except ProtocolViolation as error:
            raise violation(f"the worker broke the protocol: {error}") from None
        except ChannelClosed:
            raise self._death(doing) from None

    def _death(self, doing: str) -> Fault:
        try:
            status = self._enclosure.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return violation(f"the worker closed its channel while {doing}")
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


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"was killed by {_name_of_signal(-status)}"
    return f"exited with status {status}"


def _name_of_signal(number: int) -> str:
    """`SIGSEGV`; a real-time signal has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
