"""The steps of a call between two stamps on a GPU, in their order, and what voids it: on a device of which only the
order of what is asked of it is known."""

import ctypes
import gc
import itertools
import time
import typing
from types import SimpleNamespace

import pytest
import torch

from harness.errors import InfrastructureError
from harness.judge import sandwich
from harness.judge.clock import Void
from harness.judge.clocks import Clocks
from harness.judge.entrant import Entrant
from harness.judge.null_calls import Constants, Unusable
from harness.judge.pace import next_manner
from harness.judge.reply import Aftermath, CallReply, Fault
from harness.judge.sandwich import Sandwich
from harness.judge.stage import Span
from harness.model import ClockOwner, Device, Limits, Manner, Verdict
from harness.sandbox.leash import Ended
from harness.wire.arena import FLAG_BYTES, Arena, TensorSpec
from harness.wire.words import DONE, GATE, Words

TURN = 5
GPU = Device(
    kind="cuda", name="x", slug="x", arch="sm_90", torch_device="cuda:0", memory_bytes=1 << 37, flush_bytes=1 << 28
)


class World:
    """Judge, device and worker in one log."""

    def __init__(self):
        self.log, self.arms_after, self.failure = [], 0, None
        self.hold_expired = self.hold_taken = self.stop_fails = self.ran = self.others_ran_on = False
        self.rest, self.arm_s = "at rest", 1.2e-3
        self.times_ns = {("a", "b"): 293e3, ("poured_from", "a"): 100e3}
        self.outputs, self.asked, self.opened = [], {}, {}
        self.flag = Arena.create(FLAG_BYTES)
        self.words = Words(Driver(self), self.flag)
        self.pools, self.stopped, self.looked = [SimpleNamespace(size=1 << 40)], False, 0
        self.limits, self.leash, self.where = Limits(call_s=0.2), self, "elsewhere"

    def _say(self, what, result=None):
        self.log.append(what)
        self.opened[what] = self.word(GATE)
        return result

    def word(self, offset):
        return ctypes.c_uint32.from_address(self.flag.address + offset).value

    # the hold
    def holds(self):
        return self.log[-1] == "hold"

    def release(self):
        return self._say("release", not self.hold_expired)

    def look_behind(self):
        self._say("look behind the hold")

    def was_taken(self):
        assert "b" in self.log  # it has ended by then
        return self.hold_taken

    # the session
    def map(self, arena, region="arena"):
        assert region in ("arena", "pool")

    def begin(self, request=None, label=""):
        if request is None or isinstance(request, int):  # the hold's
            self.held_ns = request
            return self._say("hold")
        self.asked = request
        return self._say("ready", TURN)

    def go(self):
        self._say("go")

    def has_answered(self):
        self.looked += 1
        return self.looked > self.arms_after

    def reply(self):
        self._say("reply")
        if self.failure is not None:
            raise Fault(*self.failure)
        answer = {"several": False, "returned": len(self.outputs), "outputs": self.outputs, "interpreted": False}
        return CallReply.model_validate(answer)

    def aftermath(self):
        return self._say("collect", Aftermath(inside_ns=9.0))

    def await_stop(self):
        self._say("stops itself")

    def trim(self):
        self._say("trim")

    # its leash
    def stop(self):
        self._say("stop")
        if self.stop_fails:
            raise self.stop_fails

    def resume(self):
        self._say("continue")

    def ran_while_stopped(self):
        return self.ran

    def await_others(self):
        return self.rest

    def others_ran(self, rest):
        assert rest == "at rest"
        return self.others_ran_on

    def alive(self):
        return gc_untouched()

    # the stage
    def set_up(self, arena, places):
        self._say("set up")

    def pour(self):
        self._say("pour")

    def flush(self):
        self._say("flush")

    def snapshot(self, regions, spans):
        self.spans, self.regions = spans, regions
        if any(span.spec.offset < 0 for span in spans):
            raise ValueError
        return self._say("snapshot", "what lay there")

    def look(self, read_only):
        assert read_only == (0,)
        self._say("look")


class Driver:
    """The driver's part in the words. What it is asked to write is there at once."""

    def __init__(self, world):
        self.world = world

    def cuMemHostRegister_v2(self, host, size, flags):
        assert (host.value, size.value) == (self.world.flag.address, FLAG_BYTES)
        return 0

    def cuMemHostGetDevicePointer_v2(self, found, host, flags):
        found._obj.value = host.value
        return 0

    def cuMemHostUnregister(self, host):
        assert host.value == self.world.flag.address
        return self.world._say("unmaps the words", 0)

    def cuCtxSynchronize(self):
        return self.world._say("waits for the device", 0)

    def cuStreamWriteValue32_v2(self, stream, place, value, flags):
        assert stream is None
        ctypes.c_uint32.from_address(place.value).value = value.value
        self.world._say("gate opens")
        return 0


class gc_untouched:
    def __enter__(self):
        assert not gc.isenabled()

    def __exit__(self, *_):
        pass


@pytest.fixture
def world(monkeypatch):
    world = World()
    names = itertools.cycle(["poured_from", "a", "b", "taken"])  # in the order of their making

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.name = next(names)

        def record(self):
            world._say(self.name)

        def query(self):
            return True

        def elapsed_time(self, end):
            return world.times_ns[self.name, end.name] / 1e6

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(sandwich.CudaMemory, "of_torch", lambda index=0: "memory")
    return world


def timed(world, manner=Manner.SANDWICH, state=(), due=(), null=None):
    call = SimpleNamespace(
        request={"tail": 1}, arena="arena", places=[], fresh_bytes=(), due=list(due),
        state_specs=dict(enumerate(state)), read_only=(0,),
    )  # fmt: skip
    world_as_hold = {name: getattr(world, name) for name in ("holds", "release", "look_behind", "was_taken")}
    hold = SimpleNamespace(begin=world.begin, **world_as_hold)
    return Sandwich("cuda:0", manner, hold).time(world, world, call, "a case", null)


END = ["reply", "b", "snapshot", "look", "taken"]


class TestTheSandwich:
    def test_the_device_is_held_while_the_call_is_enqueued_and_the_worker_stands_still_from_a_to_b(self, world):
        answer = timed(world)
        assert world.log == [
            *["set up", "ready", "hold", "go", "poured_from", "look behind the hold", "pour", "flush", "a"],
            *["stop", "release"],
            *END, "collect",
        ]  # fmt: skip
        assert answer.void is None and answer.snapshot == "what lay there" and answer.inside_ns == 9.0
        assert answer.elapsed_ns == pytest.approx(293e3) and answer.pour_ns == pytest.approx(100e3)
        assert world.asked == {
            "tail": 1,
            "sequence": "armed",
            "null": None,
            "gated": False,
            "long": False,
            "events": False,
        }

    def test_it_is_known_how_late_the_judge_asked_for_the_end(self, world, monkeypatch):
        monkeypatch.setattr(sandwich, "ASK_AFTER_S", 3e-3)
        assert 3e6 < timed(world).asked_after_ns < 60e9
        assert timed(world, Manner.GATED).asked_after_ns > 3e6
        assert timed(world, Manner.STOPPED).asked_after_ns == 0

    @pytest.mark.parametrize("arm_s", [0.5e-3, 30e-3])
    def test_one_that_is_late_for_its_stage_lets_the_device_go_and_is_void(self, world, arm_s):
        world.arms_after, world.arm_s = 10**9, arm_s
        began = time.perf_counter()
        answer = timed(world)
        assert time.perf_counter() - began >= arm_s
        assert answer.void is Void.SLOW_TO_ARM and "stop" not in world.log
        assert world.held_ns > arm_s * 1e9, "the device is held until the worker is stopped"
        assert world.log.index("release") < world.log.index("reply"), "it may wait for the device"

    @pytest.mark.parametrize("failure", [TimeoutError(), Ended()])
    def test_one_that_was_not_seen_stopped_is_void(self, world, failure):
        world.stop_fails = failure
        assert timed(world).void is Void.SLOW_TO_ARM and "release" in world.log

    def test_one_whose_hold_had_ended_before_it_was_stopped_is_void(self, world):
        world.hold_expired = True
        assert timed(world).void is Void.SLOW_TO_ARM

    @pytest.mark.parametrize("manner", [Manner.SANDWICH, Manner.LONG])
    def test_one_that_may_have_begun_during_the_hold_is_void(self, world, manner):
        world.hold_taken = True
        ctypes.c_uint32.from_address(world.flag.address + DONE).value = TURN
        assert timed(world, manner).void is Void.DISTURBED

    @pytest.mark.parametrize("manner", [Manner.GATED, Manner.STOPPED])
    def test_one_that_cannot_begin_during_the_hold_is_not(self, world, manner):
        world.hold_taken = True
        assert timed(world, manner).void is None

    def test_the_outputs_alone_can_be_looked_at_again_unless_the_judge_has_waited_for_the_end(self, world):
        answer = timed(world)
        assert world.log[-1] == "collect"
        assert answer.later() == "what lay there" and world.log[-2:] == ["snapshot", "taken"]
        ctypes.c_uint32.from_address(world.flag.address + DONE).value = TURN
        assert timed(world, Manner.LONG).later is None and timed(world, Manner.STOPPED).later is None

    @pytest.mark.parametrize("verdict", [Verdict.RUNTIME_ERROR, Verdict.COMPILE_ERROR])
    def test_one_that_fails_without_its_inputs_is_void_and_no_verdict(self, world, verdict):
        world.failure = verdict, "a length of 0"
        answer = timed(world)
        assert answer.void is Void.FAILED_ARMED and answer.reply is None and answer.snapshot is None
        assert "collect" not in world.log

    @pytest.mark.parametrize("verdict", [Verdict.INTEGRITY_VIOLATION, Verdict.TIMEOUT])
    def test_any_other_failure_is_one(self, world, verdict):
        world.failure = verdict, "words"
        with pytest.raises(Fault, match="words"):
            timed(world)
        assert gc.isenabled() and "release" in world.log

    def test_the_collector_is_still_meanwhile_and_not_afterwards(self, world, monkeypatch):
        seen = []
        monkeypatch.setattr(world, "pour", lambda: seen.append(gc.isenabled()))
        timed(world)
        assert seen == [False] and gc.isenabled()


class TestWhatIsTaken:
    output: typing.ClassVar = {"type": "Tensor", "dtype": "float32", "shape": [3], "region": "pool", "offset": 256}
    spec = TensorSpec("float32", (3,), 256)

    def test_state_and_outputs_where_the_worker_says_that_they_are(self, world):
        world.outputs = [self.output]
        state = TensorSpec("int64", (2,), 0)
        timed(world, state=[state], due=[("float32", (3,))])
        assert world.spans == [Span("arena", state), Span("pool", self.spec)]
        assert world.regions == {"arena": "arena", "pool": world.pools[0]}

    def test_nothing_of_another_shape_however_large_it_is_said_to_be(self, world):
        world.outputs = [{**self.output, "shape": [1 << 40]}]
        timed(world, due=[("float32", (3,))])
        assert world.spans == []

    def test_a_place_that_cannot_be_is_no_crash(self, world):
        world.outputs = [{**self.output, "offset": -256}]
        answer = timed(world, due=[("float32", (3,))])
        with pytest.raises(LookupError):
            answer.snapshot.view(Span("pool", TensorSpec("float32", (3,), -256)))

    def test_memory_for_a_call_s_own_allocations_grows_with_its_outputs(self, world, monkeypatch):
        made = []
        monkeypatch.setattr(
            sandwich.DeviceArena, "create_on", lambda memory, size: made.append(size) or SimpleNamespace(size=size)
        )
        world.pools.clear()
        timed(world)
        clock = Sandwich("cuda:0", Manner.SANDWICH, SimpleNamespace())
        call = SimpleNamespace(fresh_bytes=(1 << 30,))
        assert clock._pool(world, call) is clock._pool(world, call) is world.pools[-1]
        assert len(made) == 2 and made[1] >= 3 << 30 and made[0] < made[1]

    def test_memory_that_cannot_be_had_is_the_machine_s_fault(self, world, monkeypatch):
        def refused(memory, size):
            raise OSError("out of memory")

        monkeypatch.setattr(sandwich.DeviceArena, "create_on", refused)
        world.pools.clear()
        with pytest.raises(InfrastructureError, match="shared memory: out of memory"):
            timed(world)
        assert world.log[-1] == "trim"

    def test_the_worker_gives_back_what_torch_keeps_if_memory_is_short(self, world, monkeypatch):
        def short(memory, size):
            if "trim" not in world.log:
                raise OSError("out of memory")
            return SimpleNamespace(size=size)

        monkeypatch.setattr(sandwich.DeviceArena, "create_on", short)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: world._say("the judge's too"))
        world.pools.clear()
        assert timed(world).void is None
        assert world.log[world.log.index("trim") :][:3] == ["trim", "the judge's too", "ready"]

    def test_a_null_call_needs_no_such_memory(self, world):
        world.pools.clear()
        timed(world, null=1)
        assert world.pools == [] and world.regions == {"arena": "arena"}


class TestBehindAGate:
    def test_nothing_is_held_and_the_device_opens_the_gate_between_the_flush_and_a(self, world):
        answer = timed(world, Manner.GATED)
        assert world.log == [
            *["set up", "ready", "go", "stop", "hold", "poured_from", "look behind the hold", "pour", "flush"],
            *["gate opens", "a", "release", *END, "collect"],
        ]  # fmt: skip
        assert answer.void is None and world.asked["gated"] is True
        assert world.opened["flush"] == 0 and world.opened["a"] == TURN

    @pytest.mark.parametrize("manner", [Manner.SANDWICH, Manner.LONG, Manner.STOPPED])
    def test_without_a_gate_none_is_opened(self, world, manner):
        ctypes.c_uint32.from_address(world.flag.address + DONE).value = TURN
        timed(world, manner)
        assert "gate opens" not in world.log

    def test_one_that_waits_for_the_device_is_let_through_before_the_pour_and_void(self, world, monkeypatch):
        monkeypatch.setattr(sandwich, "ARM_GATED_S", 1e-3)
        world.arms_after = 10**9
        assert timed(world, Manner.GATED).void is Void.SLOW_TO_ARM
        assert world.opened["poured_from"] == TURN

    def test_one_that_fails_behind_it_leaves_it_open(self, world):
        world.failure = Verdict.RUNTIME_ERROR, "words"
        assert timed(world, Manner.GATED).void is Void.FAILED_ARMED
        assert world.word(GATE) == TURN


@pytest.mark.parametrize("manner", [Manner.GATED, Manner.LONG, Manner.GATED_LONG])
def test_the_words_are_mapped_before_a_call_and_not_while_it_runs(world, monkeypatch, manner):
    def mapped(flag):
        world._say("maps the words")
        return Words(Driver(world), flag)

    monkeypatch.setattr(sandwich.Words, "of_cuda", mapped)
    ctypes.c_uint32.from_address(world.flag.address + DONE).value = TURN
    world.words = None
    timed(world, manner)
    assert world.log.count("maps the words") == 1 and world.log.index("maps the words") < world.log.index("ready")


def test_the_words_stay_mapped_until_the_device_has_written_what_is_enqueued(world):
    world.words.close()
    assert world.log == ["waits for the device", "unmaps the words"]


class TestLongCalls:
    def test_the_judge_asks_for_the_end_when_the_word_is_there(self, world, monkeypatch):
        seen = []
        reply = world.reply

        def writes_meanwhile():
            seen.append("b" in world.log)
            ctypes.c_uint32.from_address(world.flag.address + DONE).value = TURN
            return reply()

        monkeypatch.setattr(world, "reply", writes_meanwhile)
        assert timed(world, Manner.LONG).void is None and seen == [False] and world.asked["long"] is True

    @pytest.mark.parametrize("word", [0, TURN - 1])
    def test_one_whose_word_never_comes_times_out(self, world, word):
        ctypes.c_uint32.from_address(world.flag.address + DONE).value = word
        with pytest.raises(Fault) as caught:
            timed(world, Manner.LONG)
        assert caught.value.ending.verdict is Verdict.TIMEOUT and "b" not in world.log

    def test_one_whose_stream_waits_for_a_thread_of_its_own_goes_on_and_is_void(self, world, monkeypatch):
        def goes_on():
            world._say("continue")
            ctypes.c_uint32.from_address(world.flag.address + DONE).value = TURN

        monkeypatch.setattr(world, "resume", goes_on)
        answer = timed(world, Manner.LONG)
        assert answer.void is Void.NEEDS_ITS_HOST and world.log.index("continue") < world.log.index("b")
        assert next_manner(Manner.LONG, [answer], [True], 0.0) is Manner.STOPPED

    def test_one_that_failed_has_no_word_to_wait_for(self, world):
        world.failure = Verdict.RUNTIME_ERROR, "words"
        assert timed(world, Manner.LONG).void is Void.FAILED_ARMED


class TestHostBoundCalls:
    def test_the_worker_stands_still_until_a_and_its_own_stop_is_the_end(self, world):
        answer = timed(world, Manner.STOPPED)
        assert world.log == [
            *["set up", "ready", "stops itself", "stop"],
            *["hold", "poured_from", "look behind the hold", "pour", "flush", "a", "release"],
            *["continue", "stops itself", "stop"], *END,
        ]  # fmt: skip
        assert answer.void is None and answer.inside_ns is None and world.asked["sequence"] == "awaited"

    @pytest.mark.parametrize(
        ("what", "reason"),
        [
            ({"ran": True}, Void.RAN_WHILE_STOPPED),
            ({"others_ran_on": True}, Void.RAN_WHILE_STOPPED),
            ({"rest": None}, Void.NOT_STOPPED),
        ],
    )
    def test_one_that_ran_meanwhile_or_whose_children_did_is_void(self, world, what, reason):
        vars(world).update(what)
        assert timed(world, Manner.STOPPED).void is reason


class Unmeasured:
    asks_events = False

    def __init__(self, device, manner=Manner.SANDWICH):
        self.manner = manner

    def in_manner(self, manner):
        return Unmeasured("", manner)


class TestWhereItDoesNotWork:
    def test_the_worker_times_its_calls_where_the_judge_s_kernel_is_not_taken(self, monkeypatch):
        def refused(device):
            raise OSError("loading the judge's own kernel failed with status 209")

        monkeypatch.setattr("harness.judge.clocks.Sandwich", refused)
        clocks = Clocks(GPU)
        assert clocks.whose is ClockOwner.WORKER and "status 209" in clocks.why_not and not clocks.encloses
        assert clocks.for_checks.manner is Manner.WORKER

    def test_on_rocm_it_has_not_been_measured(self):
        clocks = Clocks(GPU.model_copy(update={"kind": "rocm"}))
        assert clocks.whose is ClockOwner.WORKER and "ROCm" in clocks.why_not

    def test_a_probe_that_finds_the_device_unusable_leaves_it_to_the_worker(self, monkeypatch):
        monkeypatch.setattr("harness.judge.clocks.Sandwich", Unmeasured)
        clocks = Clocks(GPU)
        assert clocks.encloses and clocks.for_checks.manner is Manner.STOPPED
        assert clocks.with_events(Manner.LONG).asks_events and not clocks.of(Manner.LONG).asks_events
        entrant = Entrant.__new__(Entrant)
        entrant.clocks, entrant.caller, entrant._narrate = clocks, None, lambda line: None
        entrant._device = GPU
        entrant.benchmarks = entrant.tests = []  # nothing can be measured without a case
        entrant.calibrate(SimpleNamespace(ready=lambda: None))
        assert clocks.whose is ClockOwner.WORKER and "too few calls" in clocks.why_not and not clocks.encloses
        assert clocks.for_checks.manner is clocks.with_events(Manner.WORKER).manner is Manner.WORKER

    @pytest.mark.parametrize(("disturbed", "whose"), [(1, ClockOwner.JUDGE), (2, ClockOwner.WORKER)])
    def test_a_host_that_was_busy_for_a_moment_is_measured_again(self, monkeypatch, disturbed, whose):
        reasons = [Unusable("something else uses it")] * disturbed
        known = Constants()

        def measure(*_):
            if reasons:
                raise reasons.pop()
            return known

        monkeypatch.setattr("harness.judge.clocks.Sandwich", Unmeasured)
        monkeypatch.setattr("harness.judge.clock_calibration.measure", measure)
        told = []
        entrant = Entrant.__new__(Entrant)
        entrant.clocks, entrant.caller, entrant._narrate = Clocks(GPU), SimpleNamespace(constants=None), told.append
        entrant._device, entrant.benchmarks, entrant.tests = GPU, [], []
        entrant.calibrate(SimpleNamespace(ready=lambda: None))
        assert entrant.clocks.whose is whose and (entrant.caller.constants is known) == (whose is ClockOwner.JUDGE)
        assert told[1].endswith("not work on this device now: something else uses it") and len(told) == 1 + disturbed
