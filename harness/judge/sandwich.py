"""The judge's clock on a CUDA GPU: two stamps of its own on the device, A and B, with the call between them.

    judge   hold ─────────────────── pour │ flush │ A                        B │ snapshot
    worker       enqueue, "armed"                  └ switch ─ call ─ switch ─┘
    judge's CPU       stop the worker ........................................ let it go on

Two processes share a GPU by time slices. Only the kernels of one run at a time. The other's begin when the first has
nothing more to do. So the judge's kernels, the call, and the judge's next kernels follow each other in a fixed order. B
- A is the call plus two switches. The switches take the same time in every call. The judge measures them with null
calls (`null_calls`) and subtracts them.

Manners of timing:

    sandwich     as above
    gated        pour and flush do not fit into a time slice: nothing is held, and the call waits at a gate on its
                 stream, which the judge's stream opens between the flush and A
    long         the call does not fit into a time slice: the judge asks for B when the worker's stream has written a
                 word after the call
    gated long   both
    stopped      the call waits for the device itself, so its inputs must be there when it is enqueued: the worker is
                 stopped before the pour, goes on at A, and stops itself when it is done
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from harness.judge.clock import Answer, Void, request
from harness.judge.hold import Hold
from harness.judge.inputs import Call
from harness.judge.reply import CallReply, Fault
from harness.judge.session import Session
from harness.judge.share import DeviceFull
from harness.judge.stage import Snapshot, Stage, spans_of
from harness.model import Manner, Verdict
from harness.sandbox.leash import Ended
from harness.wire.device_arena import CudaMemory, DeviceArena
from harness.wire.words import Words

STOP_S = 0.3e-3
"""How much longer than a worker may take to enqueue its call the device is held: by then it is stopped."""

ARM_GATED_S = 50e-3
"""The same limit if nothing is held: a hundred times longer than most hosts need."""

ASK_AFTER_S = 40e-6
"""How long after A the judge asks for B: the device has begun to switch by then. Any moment before the end of the call
will do, and that is at least 0.14 ms later. Asking takes 20 to 70 us (two H200s of one busy host, 2026-11-22). Calls
took the same time when asked for 15 to 100 us after A or after the gate was opened (H200, 2026-11-22)."""

STILL_S = 2.0
"""The longest time that the worker stands still while its call runs. Calls that need longer are timed as `stopped`."""

POOL_ROOM, POOL_FACTOR = 64 << 20, 3
"""Room for a call's own allocations: POOL_ROOM bytes for workspaces, and POOL_FACTOR times the size of each output,
because torch rounds sizes and keeps freed memory."""

_clock = time.perf_counter


class Stamps:
    """Events on the judge's stream: start of the pour, A, B, and end of the snapshot."""

    def __init__(self) -> None:
        self.poured_from, self.a, self.b, self.taken = (torch.cuda.Event(enable_timing=True) for _ in range(4))

    def elapsed_ns(self) -> float:
        return self.a.elapsed_time(self.b) * 1e6

    def pour_ns(self) -> float:
        return self.poured_from.elapsed_time(self.a) * 1e6


class Sandwich:
    """The judge's clock for one manner of timing on a CUDA GPU. Raises OSError if the device cannot be held."""

    def __init__(self, torch_device: str, manner: Manner = Manner.SANDWICH, hold: Hold | None = None) -> None:
        self._device, self.manner = torch_device, manner
        self._hold = hold or Hold(torch_device)
        self._memory = CudaMemory.of_torch(int(torch_device.partition(":")[2] or 0))
        self._stamps = Stamps()
        self.asks_events = False

    def in_manner(self, manner: Manner) -> Sandwich:
        """Return the same clock for calls of another manner."""
        return Sandwich(self._device, manner, self._hold)

    def time(self, session: Session, stage: Stage, call: Call, label: str, null: int | None = None) -> Answer:
        session.map(call.arena)
        stage.set_up(call.arena, call.places)
        if self.manner is Manner.STOPPED:
            return self._stopped(session, stage, call, label, null)
        # A null call allocates nothing. Its worker lives through the run and must not hold memory of its largest cases.
        regions = {"arena": call.arena, **({"pool": self._pool(session, call)} if null is None else {})}
        gated, long = self.manner.gated, self.manner.long
        if gated or long:
            _words(session)  # mapped now: while a long call runs, the judge asks the device for nothing
        asked = request(call, "armed", null, gated=gated, long=long, events=self.asks_events)
        turn = session.begin(asked, label)
        with _no_collection():
            late = self._gate_and_pour(session, stage, turn) if gated else self._hold_and_pour(session, stage)
            reply, fault = _answer(session)
            last_unseen = until(self._stamps.a.query)
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
            void = Void.DISTURBED  # part of a call longer than a slice may have run, on other inputs
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
        """Hold the device while the worker arms its call, stop the worker, then pour and flush. Returns whether the
        worker was late."""
        hold = self._hold
        hold.begin(int((stage.arm_s + STOP_S) * 1e9))
        until(hold.holds)
        began = _clock()
        session.go()
        self._pour(stage)  # enqueued behind the hold, while the worker enqueues its call
        while not session.has_answered() and _clock() < began + stage.arm_s:
            pass
        armed = session.has_answered()
        stopped = armed and _stop(session)
        return not (hold.release() and stopped)

    def _gate_and_pour(self, session: Session, stage: Stage, turn: int) -> bool:
        """Let the worker arm its call behind the gate, stop the worker, then pour and flush. Returns whether it was
        late."""
        words = _words(session)
        session.go()
        deadline = _clock() + ARM_GATED_S
        while not session.has_answered() and _clock() < deadline:
            pass
        stopped = session.has_answered() and _stop(session)
        if not stopped:
            words.open(turn)  # otherwise a worker that waits for the device would hang at the gate
        self._pour_at_once(stage, partial(words.open_behind, turn))
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

    def _pour_at_once(self, stage: Stage, behind: Callable[[], None] | None = None) -> None:
        """Enqueue pour and flush behind a hold. Without it the measured time would include the host's own pauses."""
        self._hold.begin()
        self._pour(stage, behind)
        self._hold.release()

    def _pour(self, stage: Stage, behind: Callable[[], None] | None = None) -> None:
        """`behind`: enqueues what the device does between the flush and A."""
        self._stamps.poured_from.record()
        self._hold.look_behind()  # after the stamp: one of the two shows whether another process took the device
        stage.pour()
        stage.flush()
        if behind is not None:
            behind()
        self._stamps.a.record()

    def _snapshot(
        self,
        stage: Stage,
        regions: dict[str, Any],
        call: Call,
        reply: CallReply | None,
        counts: bool,
    ) -> Snapshot:
        """Take the snapshot now. If it `counts`, this is directly after stamp B, and inputs and guards are checked
        too."""
        outputs = reply.outputs if reply is not None else []
        try:
            snapshot = stage.snapshot(regions, spans_of(outputs, list(call.state_specs.values()), call.due))
        except (LookupError, ValueError):
            snapshot = Snapshot(regions, {})  # the worker claims an impossible place: wrong whatever the values are
        if counts:
            stage.look(call.read_only)
        self._stamps.taken.record()
        until(self._stamps.taken.query)
        return snapshot

    def _pool(self, session: Session, call: Call) -> Any:
        """Return memory for the call's own allocations. Raises InfrastructureError if none is left."""
        grain = 2 << 20
        needed = POOL_ROOM + POOL_FACTOR * sum(-(-size // grain) * grain for size in call.fresh_bytes)
        if not session.pools or session.pools[-1].size < needed:
            session.pools.append(self._memory_for(session, needed))
            session.map(session.pools[-1], "pool")
        return session.pools[-1]

    def _memory_for(self, session: Session, needed: int) -> DeviceArena:
        """New memory. If there is not enough, what the worker's calls so far have left to torch is freed first: later
        calls allocate in this memory. So is what the judge's own torch keeps, which no other may use."""
        try:
            return DeviceArena.create_on(self._memory, needed)
        except OSError:
            session.trim()
            torch.cuda.empty_cache()
        try:
            return DeviceArena.create_on(self._memory, needed)
        except OSError as error:
            raise DeviceFull(f"cannot allocate {needed:,} bytes of shared memory: {error}") from error


def until(true: Any) -> float:
    """Poll until `true()` holds: the shortest sleep takes longer than a call. Returns the last time at which it did not
    hold."""
    last = _clock()
    while not true():
        last = _clock()
    return last


def pause(seconds: float) -> None:
    limit = _clock() + seconds
    until(lambda: _clock() > limit)


def _answer(session: Session) -> tuple[CallReply | None, Fault | None]:
    """Return the worker's reply to its armed call, or its failure. A call that fails without inputs may be right with
    them."""
    try:
        return session.reply(), None
    except Fault as fault:
        if fault.ending.verdict in (Verdict.RUNTIME_ERROR, Verdict.COMPILE_ERROR):
            return None, fault
        raise


def _stop(session: Session) -> bool:
    """Stop the worker. Returns whether it stopped in time."""
    try:
        session.leash.stop()
    except (Ended, TimeoutError):
        return False
    return True


def _await_word(session: Session, turn: int) -> bool:
    """Wait until the worker's stream has written this turn's number after the call. Returns whether that happened while
    the worker stood still. After STILL_S the worker is continued: the stream may wait for one of its threads. Raises
    Fault if the number never comes."""
    words, limit_s = _words(session), session.limits.call_s
    began = _clock()
    while not words.marked(turn) and _clock() < began + min(STILL_S, limit_s / 2):
        pass
    if words.marked(turn):
        return True
    session.leash.resume()
    while not words.marked(turn):
        if _clock() > began + limit_s:
            raise Fault(Verdict.TIMEOUT, f"a call took longer than the limit of {limit_s:g} s")
    return False


def _words(session: Session) -> Words:
    assert session.flag is not None
    session.words = session.words or Words.of_cuda(session.flag)
    return session.words


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's garbage collector from running during a timed call."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
