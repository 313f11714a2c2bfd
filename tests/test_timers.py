"""What the worker's own timer reports, on a device clock made for it; and what empties the caches."""

from types import SimpleNamespace

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from harness.wire.flusher import Flusher
from harness.worker import timers
from harness.worker.timers import SLEEP_US, GpuTimer


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


@pytest.fixture
def timer_on(monkeypatch):
    def timer_on(gpu, **options):
        monkeypatch.setattr(
            timers, "Flusher", lambda size, device: SimpleNamespace(flush=lambda: gpu.work(gpu.flush_us))
        )
        timer = GpuTimer(1 << 10, gpu, **options)
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

    def test_the_first_sleep_after_waking_is_not_what_calibrates(self, timer_on, monkeypatch):
        gpu = FakeGpu(1000.0)
        asleep, sleeps = gpu._sleep, []

        def slow_at_first(cycles):
            sleeps.append(cycles)
            asleep(cycles)
            gpu.work(50_000 if len(sleeps) == 1 else 0)

        monkeypatch.setattr(gpu, "_sleep", slow_at_first)
        timer_on(gpu).sample(gpu.kernel(1, 1))
        assert sleeps[-1] == pytest.approx(1000 * SLEEP_US)

    @pytest.mark.parametrize("sleep_us", [20, 150.5, 5000])
    def test_the_device_sleeps_as_long_as_it_is_told(self, timer_on, sleep_us):
        gpu = FakeGpu()
        timer_on(gpu, sleep_us=sleep_us).sample(gpu.kernel(1, 5))
        assert gpu.sleeps == [pytest.approx(sleep_us, rel=1e-3)]

    def test_inputs_are_there_before_the_sleep_and_the_call_comes_right_after_the_flush(self, timer_on):
        gpu, at = FakeGpu(), {}
        timer = timer_on(gpu)
        began = gpu.now

        def note(what, us):
            at[what] = max(gpu.free, gpu.now) - began
            gpu.work(us)

        timer.sample(lambda: note("call", 5), lambda: note("page in", 10))
        assert at == {"page in": 0, "call": pytest.approx(10 + 500 + 40, rel=1e-3)}

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
    assert not flusher._written.any() and (flusher._read == 3).all() and flusher._total.item() == 3 * 1024


def test_a_mode_that_a_submission_left_active_is_not_asked():
    class Nosy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    flusher = Flusher(4096, "cpu")
    with Nosy():
        flusher.flush()
    assert not flusher._written.any()
