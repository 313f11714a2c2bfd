"""The judge's clock on a CUDA GPU: two stamps of its own on the device, and the call between them.

    judge   hold ─────────────────── pour │ flush │ A                        B │ snapshot
    worker       enqueue, "armed"                  └ switch ─ call ─ switch ─┘
    judge's CPU       stop the worker ........................................ let it go on

Two processes share a GPU by time slices: only one's kernels run at a time, and the other's begin when it has nothing
more to do. So the judge's kernels, the call and the judge's kernels again follow each other in a fixed order, and B - A
is the call and two switches, which take the same time in every call. They are measured with calls that compute nothing
(`null_calls`) and subtracted.

Manners: `sandwich` as above. `gated`: the pour does not fit into a slice, so nothing is held, and the call waits at a
gate that the judge opens at A. `long`: the call does not fit into a slice, so the judge asks for B when the worker's
stream has written a word behind the call. `gated long`: both. `stopped`: the call waits for the device itself, so its
inputs must be there when it is enqueued; the worker is stopped before the pour, goes on at A and stops itself when it
is done.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.errors import InfrastructureError
from harness.judge.clock import Answer, Void, request
from harness.judge.hold import Hold
from harness.judge.inputs import Call
from harness.judge.reply import CallReply, Fault
from harness.judge.session import Session
from harness.judge.stage import Snapshot, Stage, spans_of
from harness.model import Manner, Verdict
from harness.sandbox.leash import Ended
from harness.wire.arena import DONE, GATE
from harness.wire.device_arena import CudaMemory, DeviceArena

ARM_S = 1.2e-3
"""How long the worker may take to enqueue its call while the device is held. Holds of 1.85 ms were clean (H200)."""

ARM_GATED_S = 50e-3
"""The same where nothing is held: a hundred times what most hosts take."""

ASK_AFTER_S = 40e-6
"""When the judge asks for B after it has seen A: when the device has begun to switch. Any time before the call's end
will do, and that is 0.14 ms later at the least. Asking takes 20 to 70 us (two H200s of one busy host, 2026-11-22).
Asked for 15 to 100 us after A, or after its gate was opened, calls took the same (H200, 2026-11-22)."""

STILL_S = 2.0
"""How long the worker stands still at most while its call runs. Longer calls are timed between its own stops."""

POOL_ROOM, POOL_FACTOR = 64 << 20, 3
"""Bytes for a call's own allocations: for workspaces, and for each output as torch rounds it and keeps it back."""

_clock = time.perf_counter


class Stamps:
    """Three events on the judge's stream."""

    def __init__(self) -> None:
        self.poured_from, self.a, self.b, self.taken = (torch.cuda.Event(enable_timing=True) for _ in range(4))

    def elapsed_ns(self) -> float:
        return self.a.elapsed_time(self.b) * 1e6

    def pour_ns(self) -> float:
        return self.poured_from.elapsed_time(self.a) * 1e6


class Sandwich:
    """Raises OSError where the device cannot be held."""

    def __init__(self, torch_device: str, manner: Manner = Manner.SANDWICH, hold: Hold | None = None) -> None:
        self._device, self.manner = torch_device, manner
        self._hold = hold or Hold(torch_device)
        self._memory = CudaMemory.of_torch(int(torch_device.partition(":")[2] or 0))
        self._stamps = Stamps()
        self.asks_events = False

    def in_manner(self, manner: Manner) -> Sandwich:
        """The same clock for calls of another manner."""
        return Sandwich(self._device, manner, self._hold)

    def time(self, session: Session, stage: Stage, call: Call, label: str, null: int | None = None) -> Answer:
        session.map(call.arena)
        stage.set_up(call.arena, call.places)
        if self.manner is Manner.STOPPED:
            return self._stopped(session, stage, call, label, null)
        regions = {"arena": call.arena, "pool": self._pool(session, call)}
        gated, long = self.manner.gated, self.manner.long
        asked = request(call, "armed", null, gated=gated, long=long, events=self.asks_events)
        turn = session.begin(asked, label)
        with _no_collection():
            late = self._gate_and_pour(session, stage, turn) if gated else self._hold_and_pour(session, stage)
            reply, fault = _answer(session)
            last_unseen = until(self._stamps.a.query)
            if gated:
                _open_gate(session, turn)
            still = not long or fault is not None or _await_word(session, turn)
            pause(0.0 if long else ASK_AFTER_S)
            self._stamps.b.record()
            asked_after_ns = 0.0 if long else (_clock() - last_unseen) * 1e9
            snapshot = self._snapshot(stage, regions, call, reply, counts=True)
        if fault is not None:
            return Answer(None, None, 0.0, Void.FAILED_ARMED)
        aftermath = session.aftermath()
        void = Void.SLOW_TO_ARM if late else None if still else Void.NEEDS_ITS_HOST
        if not gated and self._hold.was_taken():
            void = Void.DISTURBED  # some of a call that is longer than a slice has then run, on other inputs
        return Answer(
            reply,
            snapshot,
            self._stamps.elapsed_ns(),
            void,
            aftermath.inside_ns,
            self._stamps.pour_ns(),
            asked_after_ns,
            later=None if long else lambda: self._snapshot(stage, regions, call, reply, counts=False),
        )

    def _hold_and_pour(self, session: Session, stage: Stage) -> bool:
        """The call armed while the device is held, the worker stopped, the pour under way; whether it was late."""
        hold = self._hold
        hold.begin()
        until(hold.holds)
        began = _clock()
        session.go()
        self._pour(stage)  # behind the hold, while the worker enqueues its call
        while not session.has_answered() and _clock() < began + ARM_S:
            pass
        armed = session.has_answered()
        stopped = armed and _stop(session)
        return not (hold.release() and stopped)

    def _gate_and_pour(self, session: Session, stage: Stage, turn: int) -> bool:
        """The call armed behind its gate, the worker stopped, pour and flush under way; whether it was late."""
        session.go()
        deadline = _clock() + ARM_GATED_S
        while not session.has_answered() and _clock() < deadline:
            pass
        stopped = session.has_answered() and _stop(session)
        if not stopped:
            _open_gate(session, turn)  # it waits for the device, which waits at the gate
        self._pour_at_once(stage)
        return not stopped

    def _stopped(self, session: Session, stage: Stage, call: Call, label: str, null: int | None) -> Answer:
        leash, stamps = session.leash, self._stamps
        session.begin(request(call, "awaited", null), label)
        with _no_collection(), session.alive():
            session.await_stop()
            leash.stop()
            rest = leash.await_others()
            self._pour_at_once(stage)
            until(stamps.a.query)
            ran = leash.ran_while_stopped() or (rest is not None and leash.others_ran(rest))
            leash.resume()
            session.await_stop()
            leash.stop()
            reply = session.reply()
            regions = {"arena": call.arena, **({"pool": session.pools[-1]} if session.pools else {})}
            self._stamps.b.record()
            snapshot = self._snapshot(stage, regions, call, reply, counts=True)
        void = Void.RAN_WHILE_STOPPED if ran else Void.NOT_STOPPED if rest is None else None
        return Answer(reply, snapshot, stamps.elapsed_ns(), void, None, stamps.pour_ns())

    def _pour_at_once(self, stage: Stage) -> None:
        """Enqueued behind a hold: without one the host's own pauses would be in what it takes."""
        self._hold.begin()
        self._pour(stage)
        self._hold.release()

    def _pour(self, stage: Stage) -> None:
        self._stamps.poured_from.record()
        self._hold.look_behind()  # behind the stamp: whoever takes the device in between is seen by one of them
        stage.pour()
        stage.flush()
        self._stamps.a.record()

    def _snapshot(
        self,
        stage: Stage,
        regions: dict[str, Any],
        call: Call,
        reply: CallReply | None,
        counts: bool,
    ) -> Snapshot:
        """As things are now. When it counts this is right behind stamp B, and then inputs and guards are looked at."""
        outputs = reply.outputs if reply is not None else []
        try:
            snapshot = stage.snapshot(regions, spans_of(outputs, list(call.state_specs.values()), call.due))
        except (LookupError, ValueError):
            snapshot = Snapshot(regions, {})  # it lies where nothing can: wrong whatever it holds
        if counts:
            stage.look(call.read_only)
        self._stamps.taken.record()
        until(self._stamps.taken.query)
        return snapshot

    def _pool(self, session: Session, call: Call) -> Any:
        """Memory for the call's own allocations. Raises InfrastructureError if there is none left."""
        grain = 2 << 20
        needed = POOL_ROOM + POOL_FACTOR * sum(-(-size // grain) * grain for size in call.fresh_bytes)
        if not session.pools or session.pools[-1].size < needed:
            try:
                session.pools.append(DeviceArena.create_on(self._memory, needed))
            except OSError as error:
                raise InfrastructureError(f"no shared memory of {needed:,} bytes can be had: {error}") from error
            session.map(session.pools[-1], "pool")
        return session.pools[-1]


def until(true: Any) -> float:
    """Wait awake: a sleep of the shortest takes longer than a call. When it was last known not to be `true`."""
    last = _clock()
    while not true():
        last = _clock()
    return last


def pause(seconds: float) -> None:
    limit = _clock() + seconds
    until(lambda: _clock() > limit)


def _answer(session: Session) -> tuple[CallReply | None, Fault | None]:
    """What the worker has said of its armed call. One that fails without inputs may be right with them."""
    try:
        return session.reply(), None
    except Fault as fault:
        if fault.ending.verdict in (Verdict.RUNTIME_ERROR, Verdict.COMPILE_ERROR):
            return None, fault
        raise


def _stop(session: Session) -> bool:
    """Stop the worker; whether it was seen stopped in time."""
    try:
        session.leash.stop()
    except (Ended, TimeoutError):
        return False
    return True


def _await_word(session: Session, turn: int) -> bool:
    """Wait until the worker's stream has written this turn's number behind the call; whether it did while the worker
    stood still. If it has not for long, the worker goes on: the stream may wait for one of its threads. Raises Fault
    if it never does."""
    assert session.flag is not None
    word = ctypes.c_uint32.from_address(session.flag.address + DONE)
    limit_s = session.limits.call_s
    began = _clock()
    while word.value != turn and _clock() < began + min(STILL_S, limit_s / 2):
        pass
    if word.value == turn:
        return True
    session.leash.resume()
    while word.value != turn:
        if _clock() > began + limit_s:
            raise Fault(Verdict.TIMEOUT, f"a call took longer than the limit of {limit_s:g} s")
    return False


def _open_gate(session: Session, turn: int) -> None:
    assert session.flag is not None
    ctypes.c_uint32.from_address(session.flag.address + GATE).value = turn


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector would run in the midst of it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
