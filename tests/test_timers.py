"""What a timer reports is the time of the call and of nothing else; for a GPU, on a device clock made for it."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.worker import timers
from harness.worker.gates import SLEEP_US, AskingGate, SleepingGate
from harness.worker.timers import CpuTimer, Flusher, GpuTimer


class TestCpuTimer:
    def test_it_returns_the_output_and_the_time_of_the_call(self):
        sample = CpuTimer(1 << 10).sample(lambda: time.sleep(0.02) or "output")
        assert sample.output == "output" and sample.labels == ()
        assert 0.02e9 <= sample.latency_ns < 2e9

    def test_the_flush_is_before_the_interval_and_not_in_it(self, monkeypatch):
        events = []
        timer = CpuTimer(1 << 10)
        monkeypatch.setattr(Flusher, "flush", lambda self: events.append("flush"))
        monkeypatch.setattr(Flusher, "wake", lambda self: events.append("wake"))
        monkeypatch.setattr(timers, "_clock_ns", lambda: events.append("clock") or len(events))
        steps = (
            lambda: events.append("call"),
            lambda: events.append("page in"),
            lambda output: events.append("snapshot"),
        )
        timer.sample(*steps)
        assert events == ["flush", "page in", "flush", "clock", "call", "clock", "snapshot"], "at first to wake threads"
        events.clear()
        timer.sample(*steps, flush=False)
        assert events == ["flush", "page in", "wake", "clock", "call", "clock", "snapshot"]

    def test_nothing_is_paged_in_before_the_gate_opens(self):
        events = []
        timer = CpuTimer(1, AskingGate(lambda: events.append("gate")))
        timer.sample(lambda: events.append("call"), lambda: events.append("page in"))
        assert events == ["gate", "page in", "call"]

    def test_a_call_within_one_tick_took_one_tick(self, monkeypatch):
        timer = CpuTimer(1)
        monkeypatch.setattr(timers, "_clock_ns", lambda: 42)
        assert timer.sample(lambda: None).latency_ns == 1.0

    def test_an_exception_of_the_call_is_its_own(self):
        with pytest.raises(ZeroDivisionError):
            CpuTimer(1).sample(lambda: 1 // 0)

    def test_the_clock_is_the_one_of_before_the_submission_came(self, monkeypatch):
        timer = CpuTimer(1)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
        assert timer.sample(lambda: time.sleep(0.005)).latency_ns >= 5e6


class FakeGpu:
    """A device whose work queues up behind the host's, both on one clock in microseconds."""

    def __init__(self, cycles_per_us=1500.0, flush_us=40.0, record_us=0.0):
        self.now, self.free = 0.0, 0.0
        self.cycles_per_us, self.flush_us, self.record_us = cycles_per_us, flush_us, record_us
        self.sleeps, self.recorded = [], []
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                gpu.now += gpu.record_us
                self.at = gpu.free = max(gpu.free, gpu.now)
                gpu.recorded.append(self)

            def query(self):
                return self.at <= gpu.now

            def synchronize(self):
                gpu.now = max(gpu.now, self.at)

            def elapsed_time(self, end):
                return (end.at - self.at) / 1e3

        self.Event = Event

    def _sleep(self, cycles):
        assert isinstance(cycles, int)
        self.sleeps.append(cycles / self.cycles_per_us)
        self.idle_at_sleep = self.free <= self.now
        self.work(cycles / self.cycles_per_us)

    def synchronize(self):
        self.now = max(self.now, self.free)

    def work(self, us):
        self.free = max(self.free, self.now) + us

    def clock_ns(self):
        return int(self.now * 1e3)

    def kernel(self, host_us, device_us):
        """A call that keeps the host busy for so long, then enqueues so much."""

        def call():
            self.now += host_us
            self.work(device_us)
            return "output"

        return call


FAR_OFF_US = 1e9


class OnStream:
    """A gate on `gpu`'s stream: behind it nothing runs until it is released, as it is 50 µs after all is enqueued."""

    patience_us = 5000

    def __init__(self, gpu, told):
        self.gpu, self.told, self.released = gpu, told, False

    def shut(self, turn):
        self.shut_at = self.gpu.now
        self.gpu.free = FAR_OFF_US

    def release(self):
        """What is enqueued behind the gate runs from now on."""
        self.released = True
        waited = FAR_OFF_US - self.gpu.now
        self.gpu.free -= waited
        for event in self.gpu.recorded:
            event.at -= waited if event.at >= FAR_OFF_US else 0

    def enqueued(self):
        self.told.append(self.gpu.now - self.shut_at)
        self.gpu.now += 50
        if not self.released:
            self.release()

    def open(self):
        self.released = True


@pytest.fixture
def timer_on(monkeypatch):
    def timer_on(gpu, gate=None):
        monkeypatch.setattr(
            timers, "Flusher", lambda size, device: SimpleNamespace(flush=lambda: gpu.work(gpu.flush_us))
        )
        timer = GpuTimer(1 << 10, gate, gpu)
        gpu.sleeps.clear()
        return timer

    return timer_on


class TestGpuTimer:
    def test_it_reports_the_device_s_time_in_nanoseconds_whatever_the_host_takes(self, timer_on):
        for host_us in (0, 1, 150, 250):
            gpu = FakeGpu()
            sample = timer_on(gpu).sample(gpu.kernel(host_us, 12.5))
            assert sample.latency_ns == pytest.approx(12_500) and sample.labels == () and sample.output == "output"

    def test_a_gap_between_a_submission_s_own_kernels_counts(self, timer_on):
        gpu = FakeGpu()

        def two_kernels_with_a_wait():
            gpu.work(5)
            gpu.synchronize()
            gpu.now += 30
            gpu.work(5)

        assert timer_on(gpu).sample(two_kernels_with_a_wait).latency_ns == pytest.approx(40_000)

    def test_work_left_over_from_before_is_not_in_the_interval(self, timer_on):
        gpu = FakeGpu()
        timer = timer_on(gpu)
        gpu.work(10_000)
        assert timer.sample(gpu.kernel(1, 7)).latency_ns == pytest.approx(7_000)
        assert gpu.idle_at_sleep, "the sleep starts when it is enqueued, and so covers the host's time"

    @pytest.mark.parametrize("cycles_per_us", [100.0, 1500.0, 2100.0])
    def test_the_sleep_is_calibrated_on_the_device_s_own_clock(self, timer_on, cycles_per_us):
        gpu = FakeGpu(cycles_per_us)
        timer_on(gpu).sample(gpu.kernel(1, 1))
        assert gpu.sleeps == [pytest.approx(SLEEP_US, rel=1e-3)]

    def test_the_first_sleep_after_waking_is_not_what_calibrates(self, monkeypatch):
        gpu = FakeGpu(1000.0)
        asleep = gpu._sleep
        monkeypatch.setattr(
            gpu, "_sleep", lambda cycles: (asleep(cycles), gpu.work(50_000 if len(gpu.sleeps) == 1 else 0))
        )
        monkeypatch.setattr(timers, "Flusher", lambda size, device: SimpleNamespace(flush=lambda: None))
        assert SleepingGate(gpu=gpu)._cycles == pytest.approx(1000 * SLEEP_US)

    @pytest.mark.parametrize("sleep_us", [20, 150.5, 5000])
    def test_the_device_sleeps_as_long_as_it_is_told(self, timer_on, sleep_us):
        gpu = FakeGpu()
        timer_on(gpu, SleepingGate(gpu=gpu, sleep_us=sleep_us)).sample(gpu.kernel(1, 5))
        assert gpu.sleeps == [pytest.approx(sleep_us, rel=1e-3)]

    def test_without_a_flush_the_call_follows_the_inputs_at_once(self, timer_on):
        gpu = FakeGpu()
        timer, at = timer_on(gpu), {}
        began = gpu.now
        timer.sample(lambda: at.update(call=gpu.free - began), lambda: gpu.work(10), flush=False)
        assert at["call"] == pytest.approx(SLEEP_US + 10, rel=1e-3)

    def test_all_is_enqueued_before_the_judge_is_told_and_waited_for_after(self, timer_on):
        gpu, told = FakeGpu(), []
        timer = timer_on(gpu, OnStream(gpu, told))
        sample = timer.sample(gpu.kernel(80, 5), lambda: gpu.kernel(10, 3)(), lambda output: gpu.kernel(7, 2)())
        assert told == [97] and sample.labels == () and sample.latency_ns == pytest.approx(5_000)

    def test_a_call_that_waits_for_the_device_is_let_in_when_patience_ends_and_labelled(self, timer_on):
        gpu, told = FakeGpu(), []
        gate = OnStream(gpu, told)

        def waits_for_the_device():
            gpu.now += gate.patience_us
            gate.release()
            gpu.synchronize()
            gpu.work(5)

        assert timer_on(gpu, gate).sample(waits_for_the_device).labels == ("host-bound",)

    def test_a_call_that_fails_leaves_no_stream_waiting(self, timer_on):
        gpu = FakeGpu()
        gate = OnStream(gpu, [])
        with pytest.raises(ZeroDivisionError):
            timer_on(gpu, gate).sample(lambda: 1 // 0)
        assert gate.released

    def test_inputs_come_after_the_sleep_and_the_snapshot_right_after_the_call_on_one_stream(self, timer_on):
        gpu = FakeGpu()
        at = {}
        timer = timer_on(gpu)
        began = gpu.now

        def note(what, us):
            at[what] = max(gpu.free, gpu.now) - began
            gpu.work(us)

        timer.sample(lambda: note("call", 5), lambda: note("page in", 10), lambda output: note("snapshot", 3))
        assert at == {k: pytest.approx(v, rel=1e-3) for k, v in {"page in": 500, "call": 550, "snapshot": 555}.items()}

    def test_a_snapshot_that_waits_for_the_device_does_not_pass_for_a_late_host(self, timer_on):
        gpu = FakeGpu()
        assert timer_on(gpu).sample(gpu.kernel(1, 5), snapshot=lambda output: gpu.synchronize()).labels == ()

    def test_a_call_that_the_sleep_did_not_hide_is_labelled_and_counted_as_it_is(self, timer_on):
        gpu = FakeGpu()
        sample = timer_on(gpu).sample(gpu.kernel(1000, 5))
        assert sample.labels == ("host-bound",)
        assert sample.latency_ns == pytest.approx((1000 - 500 - 40 + 5) * 1e3), "the gap is in it"

    def test_a_call_within_one_tick_of_the_device_took_some_time(self, timer_on):
        gpu = FakeGpu()
        assert timer_on(gpu).sample(lambda: None).latency_ns > 0


def test_a_flush_writes_one_buffer_and_reads_another():
    flusher = Flusher(4096, "cpu")
    assert flusher._written.nbytes == flusher._read.nbytes == 4096
    assert flusher._written.data_ptr() != flusher._read.data_ptr()
    flusher._written.fill_(7)
    flusher._read.fill_(3)
    flusher.flush()
    assert not flusher._written.any() and (flusher._read == 3).all() and flusher._total.item() == 3 * 512


def test_both_buffers_have_pages_of_their_own():
    """Those that were never written are all one page of zeros on a CPU."""
    flusher = Flusher(4096, "cpu")
    assert flusher._written.all() and flusher._read.all()


def test_a_mode_that_a_submission_left_active_is_not_asked():
    class Nosy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    flusher = Flusher(4096, "cpu")
    with Nosy():
        flusher.flush()
    assert not flusher._written.any()


def test_a_flush_takes_as_many_threads_as_at_first_and_leaves_those_that_are_set(monkeypatch):
    threads, taken = torch.get_num_threads(), []
    monkeypatch.setattr(timers, "_sum", lambda *_, **__: taken.append(torch.get_num_threads()))
    try:
        torch.set_num_threads(2)
        flusher = Flusher(4096, "cpu")
        torch.set_num_threads(1)
        flusher.flush()
        assert taken == [2] and torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)


def test_to_wake_is_to_have_all_threads_do_something():
    """Each of a flusher's threads takes processor time while it is asked for nothing but to be awake."""

    def ticks():
        stats = {task: Path(f"/proc/self/task/{task}/stat").read_text() for task in os.listdir("/proc/self/task")}
        return {task: sum(map(int, stat.rpartition(")")[2].split()[11:13])) for task, stat in stats.items()}

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        flusher = Flusher(1 << 20, "cpu")
        before, deadline, busy = ticks(), time.monotonic() + 30, 0
        while busy < 2 and time.monotonic() < deadline:
            for _ in range(1000):
                flusher.wake()
            busy = sum(now > before.get(task, 0) for task, now in ticks().items())
        assert busy >= 2
    finally:
        torch.set_num_threads(threads)
