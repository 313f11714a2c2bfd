"""One worker process, from its start to the death of its whole process group.

    session = Session(...)
    session.prepare()                                from here on it can make null calls
    session.load(path)
    session.begin(request)                           returns when the worker is ready for the call
    session.leash                                    stops and continues the worker; the clocks use it
    session.reply() ─► CallReply                     raises Fault with the verdict for a failure
    session.finish()                                 orderly end
    session.kill()                                   always: afterwards everything that the worker started is dead

The worker's messages are untrusted. Every field of a reply is validated. Each reply must echo the nonce of its request.
Nothing may arrive unasked. The process must end with status 0 when told to.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.judge import worker_program
from harness.judge.deadline import Allowance, Deadline
from harness.judge.death import hint, how_it_ended, not_started
from harness.judge.emulation import EMULATION, Emulation
from harness.judge.printed import Printed
from harness.judge.reply import Aftermath, CallReply, Fault, ProfileReply, reported_failure, violation, well_formed
from harness.judge.whereabouts import Whereabouts, last_of, traceback_of
from harness.model import Device, Isolation, Problem, Verdict
from harness.sandbox import tiers
from harness.sandbox.enclosure import Enclosure
from harness.sandbox.leash import Ended, Leash
from harness.wire.arena import FLAG_BYTES, Arena
from harness.wire.device_arena import shareable_memory
from harness.wire.protocol import Channel, ChannelClosed, Message, PeerStopped, ProtocolViolation, ReplyTimeout
from harness.wire.words import Words

MAX_REPLY_BYTES = 16 << 10
"""Limit on the reply to a call, which is parsed while the clock runs. A reply with 16 outputs has 4 KiB."""

EXIT_GRACE_S, START_S = 10.0, 120.0
STOPPED_ITSELF = "the submission stopped its own process"


class Session:
    """A worker process for one submission on one device, confined by `isolation` (default: the strongest one).

    `scratch`: a directory made by `sandbox.scratch`; it holds the submission and its caches. Requests count against
    `deadline`. With `fresh` the worker is a new interpreter. Otherwise it may be forked from a process that has
    imported torch. `offset_ns`: how much longer a null call takes in it than the judge's constant (GPU only).
    """

    def __init__(
        self,
        problem: Problem,
        device: Device,
        scratch: Path,
        threads: int,
        deadline: Deadline | None = None,
        *,
        fresh: bool = False,
        emulation: Emulation = EMULATION,
        isolation: Isolation | None = None,
    ) -> None:
        self.limits = emulation.limits(problem.limits)
        self.deadline, self.allowance, self._foreign, self._killed = deadline, Allowance(None), problem.foreign, False
        self.set_up_for: str | None = None
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._arenas, self.pools = dict[str, Arena](), list[Arena]()
        self.on_the_smallest, self.offset_ns, self._nonce, self._turn, self._doing = False, 0.0, "", 0, "starting"
        shared = device.kind == "cuda" and shareable_memory(device.torch_device) is not None
        self.flag = Arena.create(FLAG_BYTES) if shared else None
        self.words: Words | None = None
        seen, reported = os.pipe()
        self._whereabouts, self._path, self._interprets = Whereabouts(), Path(), device.kind == "cpu"
        told_fd = self._whereabouts.told_fd
        with theirs:
            self._enclosure = Enclosure(
                worker_program.program(reported, theirs.fileno(), told_fd, device, threads),
                isolation or tiers.strongest(device),
                device,
                scratch,
                hidden=worker_program.hidden(problem),
                environment=worker_program.environment(device, threads, emulation, self.limits),
                pass_fds=(theirs.fileno(), reported, told_fd),
                warm=() if fresh or emulation.triton else worker_program.WARM[device.kind],
            )
        os.close(reported)
        self._whereabouts.hand_over()
        self.leash = Leash(seen, self._enclosure.pid, spins=device.kind == "cuda")
        self._printed = Printed(self._enclosure.stdout)

    @property
    def printed(self) -> str:
        """The worker's output so far. The middle is left out if it is long."""
        return self._printed.text()

    @property
    def processor_s(self) -> float:
        """Processor seconds of the worker and everything that it started, so far."""
        return self._enclosure.processor_s()

    def alive_at_rest(self) -> bool:
        """Whether a worker without a request so far still runs and has sent nothing."""
        return self._enclosure.lives() and self._channel.is_quiet()

    def prepare(self) -> None:
        """Have the worker set up its device. It can make null calls then. Raises Fault, or InfrastructureError if the
        worker did not get this far."""
        try:
            self.leash.attach(START_S)
        except (Ended, TimeoutError):
            raise not_started(self._enclosure, self._printed, EXIT_GRACE_S) from None
        self._ask({"op": "prepare"}, self.limits.load_s, "starting", () if self.flag is None else (self.flag.fd,))

    def load(self, path: Path, alone: bool = True) -> None:
        """Have the prepared worker import the submission at `path`. `alone`: no other process of it runs. Raises
        Fault."""
        self._path = path
        request = {"op": "load", "path": str(path), "alone": alone, **worker_program.public(self._foreign)}
        with self.allowance.spent():
            self._ask(request, self.limits.load_s, "loading")

    def map(self, arena: Arena, region: str = "arena") -> None:
        """Have the worker map `arena` once as `region`: "arena" for inputs, "pool" for allocations in a call."""
        if self._arenas.get(region) is not arena:
            mapping = {"op": "map", "region": region, "size": arena.size, "on_device": arena.on_device}
            self._ask(mapping, self.limits.call_s, "mapping memory", (arena.fd,))
            self._arenas[region] = arena

    def trim(self) -> None:
        """Have the worker give back the device memory that torch keeps for later. Raises Fault."""
        with self.allowance.spent():
            self._ask({"op": "trim"}, self.limits.call_s, "giving memory back")

    def set_up(self, arena: Arena, request: Message, key: str) -> None:
        """Have the worker build the data that its calls need from `request`, whose tensors lie in `arena`."""
        self.map(arena)
        with self.allowance.spent():
            self._ask({"op": "set up", **request}, self.limits.load_s, "setting up")
        self.set_up_for = key

    def begin(self, request: Message, case_label: str) -> int:
        """Ask for a call and wait until the worker is ready for it. Returns the call's turn, an increasing number."""
        self._turn += 1
        self.allowance.begin()
        self._doing = f"a call with {case_label}"
        self._nonce = self._send({"op": "call", "turn": self._turn, **request}, self.limits.call_s)
        if self._receive_within(self._nonce, "ready", self.limits.call_s) is not True:
            raise violation("the worker's answer is neither ready nor a failure")
        return self._turn

    def go(self) -> None:
        """Tell the worker to make the call that it is ready for."""
        with self._faults(self.limits.call_s):
            self._channel.send({"nonce": self._nonce, "op": "go"}, (), self.limits.call_s)

    def has_answered(self) -> bool:
        """Whether a message from the worker waits to be read."""
        return self._channel.awaits(0.0)

    def await_stop(self) -> int:
        """Wait until the worker has stopped itself. Returns the time of the stop, on time.monotonic_ns."""
        limit_s = self._limit_s(self.limits.call_s)
        with self.alive():
            try:
                return self.leash.await_stop(limit_s)
            except TimeoutError:
                raise self._took_too_long(self.limits.call_s) from None

    @contextmanager
    def alive(self) -> Iterator[None]:
        """While this is entered, the worker's death raises a Fault with the verdict for it."""
        try:
            yield
        except Ended:
            raise self._death() from None

    def stop(self) -> bool:
        """Stop the worker, however long it takes, and its descendants. False if one of these does not stop in time."""
        with self._faults(self.limits.call_s):
            self.leash.stop(self._limit_s(self.limits.call_s))
        return self.leash.await_others() is not None

    def reply(self) -> CallReply:
        """Return the worker's answer to the call. A worker that has stopped must have sent it before."""
        if self.leash.stopped and not self.has_answered():
            raise Fault(Verdict.RUNTIME_ERROR, f"{STOPPED_ITSELF} during {self._doing}")
        answer = self._receive_within(self._nonce, "reply", self.limits.call_s)
        if self._channel.received_bytes > MAX_REPLY_BYTES:
            raise violation(f"the worker's reply has {self._channel.received_bytes:,} bytes, over {MAX_REPLY_BYTES:,}")
        self.allowance.end()
        with well_formed("reply"):
            return CallReply.model_validate(answer)

    def profile(self, request: Message, case_label: str) -> ProfileReply:
        """Have the worker make a call under its profiler, on inputs that are in the arena."""
        with self.allowance.spent(), well_formed("profile"):
            doing = f"a profiled call with {case_label}"
            return ProfileReply.model_validate(self._ask({"op": "profile", **request}, self.limits.call_s, doing))

    def aftermath(self) -> Aftermath:
        """Have the worker wait until the device has finished its call. Returns the worker's report."""
        with well_formed("aftermath"):
            return Aftermath.model_validate(self._ask({"op": "collect"}, self.limits.call_s, self._doing))

    def rest(self) -> None:
        """Have the worker stand still until the next request. Raises Fault if it has ended."""
        if not self.leash.told:
            with self.alive(), contextlib.suppress(TimeoutError):
                self.leash.stop()

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
            raise Fault(Verdict.RUNTIME_ERROR, f"the worker {how_it_ended(status)} after its last call")
        if not self._channel.is_quiet():
            raise violation("the worker sent a message that nobody had asked for")

    def end(self) -> None:
        """Kill the worker. A thread that waits for it notices. `kill` must still be called."""
        self._enclosure.kill()

    def kill(self) -> None:
        """Kill the rest of the worker and its descendants. Raises InfrastructureError if that fails."""
        if self._killed:
            return
        self._killed = True
        try:
            self.end()
        finally:
            self._channel.close()
            self.leash.close()
            self._whereabouts.close()
            self._printed.close()
            self._enclosure.close()
            if self.words is not None:
                self.words.close()
            for arena in filter(None, (*self.pools, self.flag)):
                arena.close()
            self.pools = []

    def _ask(self, request: Message, timeout_s: float, doing: str, fds: tuple[int, ...] = ()) -> Any:
        self._doing = doing
        return self._receive_within(self._send(request, timeout_s, fds), "reply", timeout_s)

    def _send(self, request: Message, timeout_s: float, fds: tuple[int, ...] = ()) -> str:
        """Send a request and return its nonce."""
        nonce = os.urandom(8).hex()
        with self._faults(timeout_s):
            if self.leash.told:
                self.leash.await_stop(timeout_s)  # a late stop would look like a stop of the worker's own
            if self.leash.stopped:
                self.leash.resume()
            self._channel.send({"nonce": nonce, **request}, fds, timeout_s)
        return nonce

    def _receive_within(self, nonce: str, kind: str, limit_s: float) -> Any:
        """Return the entry `kind` of the worker's next message."""
        with self._faults(limit_s):
            answer = self._channel.receive(self._limit_s(limit_s), watch=self.leash)
        if answer.get("nonce") != nonce or len(answer) != 2:
            raise violation("the worker answered a request that was not put to it")
        if "failure" in answer:
            raise reported_failure(answer["failure"])
        if kind not in answer:
            raise violation(f"the worker's answer is neither a {kind} nor a failure")
        return answer[kind]

    def _limit_s(self, limit_s: float) -> float:
        return min(limit_s, self.allowance.left_s(), limit_s if self.deadline is None else self.deadline.left_s())

    def _took_too_long(self, limit_s: float) -> Fault:
        message = f"{self._doing} took longer than the limit of {limit_s:g} s"
        if self.allowance.left_s() == 0.0:
            whole_s = self.allowance.limit_s
            message = f"in {self._doing} the process took longer than the limit of {whole_s:g} s on all its calls"
        own = self._own_frames()
        try:
            if self.deadline is not None:
                self.deadline.check()
        except Fault as fault:
            message = fault.ending.message
        if not own:
            return Fault(Verdict.TIMEOUT, message)
        where = last_of(own, self._path, self._interprets, self.on_the_smallest)
        return Fault(Verdict.TIMEOUT, f"{message}; {where}", traceback_of(own, self._path))

    def _own_frames(self) -> list[tuple[int, str]]:
        """The submission's frames on the worker's stack, if the worker is running."""
        if self.leash.stopped or self.leash.told or not self.leash.pid:
            return []
        return self._whereabouts.ask(self.leash.pid, self._path)

    @contextmanager
    def _faults(self, limit_s: float) -> Iterator[None]:
        try:
            yield
        except (ReplyTimeout, TimeoutError):
            raise self._took_too_long(limit_s) from None
        except PeerStopped:
            raise Fault(Verdict.RUNTIME_ERROR, f"{STOPPED_ITSELF} during {self._doing}") from None
        except ProtocolViolation as error:
            raise violation(f"the worker broke the protocol: {error}") from None
        except (ChannelClosed, Ended):
            raise self._death() from None

    def _death(self) -> Fault:
        doing = self._doing
        try:
            status = self._enclosure.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return violation(f"the worker closed its channel while {doing}")
        excess = self._enclosure.excess()
        if excess is not None:
            return Fault(Verdict.RUNTIME_ERROR, f"the submission {excess} during {doing}, and was ended")
        return Fault(Verdict.RUNTIME_ERROR, f"the process {how_it_ended(status)} during {doing}{hint(status)}")
