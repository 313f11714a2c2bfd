"""The judge's clock on a CPU, with real workers: nothing that a submission does makes its calls seem shorter."""

import contextlib
import os
import platform
import signal
import textwrap
import time
from dataclasses import replace

import pytest
import torch
from test_sandbox import CPU

from harness import catalog
from harness.errors import InfrastructureError
from harness.judge import share
from harness.judge.caches import HostCaches
from harness.judge.calls import Caller, WrongTimedCall
from harness.judge.clock import StopClock, Void
from harness.judge.clocks import Clocks
from harness.judge.deadline import Deadline
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.seeds import Seeds, new_master_seed
from harness.judge.session import Session
from harness.judge.stage import Snapshot
from harness.machine.device import detect
from harness.model import NO_ISOLATION, Manner, Verdict
from harness.sandbox import tiers
from harness.sandbox.leash import Leash
from harness.sandbox.scratch import scratch

ACCEPTED, WRONG = Verdict.ACCEPTED, Verdict.WRONG_ANSWER


class Worker:
    """A worker with a submission loaded, whose calls of the toy problem's benchmark case the judge times."""

    def __init__(self, session, caller, series):
        self.session, self._caller, self._series = session, caller, series

    def call(self, everything=False):
        """The verdict on the outputs of one call, and what the clock says of it."""
        check, answer = self._caller.put(self.session, self._series, StopClock(), everything)
        return check.verdict, answer

    @property
    def printed(self):
        """What the worker has printed, once something of it has come: a thread of the judge's reads it."""
        until = time.monotonic() + 20
        while not self.session.printed and time.monotonic() < until:
            time.sleep(0.01)
        return self.session.printed

    def null(self):
        return self._caller.put_null(self.session, self._series, StopClock())


@pytest.fixture
def worker(toy_root):
    with contextlib.ExitStack() as stack:

        def worker(source):
            problem, device = catalog.load_problem(toy_root, "double"), detect(toy_root, "cpu")
            reference, case = Reference(problem, device), problem.cpu.benchmark[0]
            uid = tiers.strongest(device).new_uid()
            folder = stack.enter_context(scratch(textwrap.dedent(source).encode(), uid))
            session = Session(problem, device, folder, 2)
            stack.callback(session.kill)
            session.prepare()
            session.load(folder / "submission.py")
            caller = Caller(reference, "x.py", device, HostCaches())
            series = stack.enter_context(caller.series(Seeds(new_master_seed(), "test", case), case))
            return Worker(session, caller, series)

        yield worker


@pytest.mark.parametrize("short", [InfrastructureError("cannot allocate 9 bytes"), torch.OutOfMemoryError("9 bytes")])
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_if_a_gpu_s_memory_is_short_the_worker_frees_its_own_and_another_call_is_dealt(
    worker, monkeypatch, kind, short
):
    subject, steps = worker("def custom_kernel(data):\n    return data[0] * 2\n"), []
    caller, session, deal = subject._caller, subject.session, subject._series.dealer.deal
    caller._device = caller._device.model_copy(update={"kind": kind})
    trim = session.trim

    def dealt(*how):
        steps.append("deal")
        if "trim" not in steps:
            raise short
        return deal(*how)

    monkeypatch.setattr(subject._series.dealer, "deal", dealt)
    monkeypatch.setattr(session, "trim", lambda: [steps.append("trim"), trim()])
    if kind == "cpu":
        with pytest.raises(InfrastructureError, match="9 bytes"):
            caller.put(session, subject._series, StopClock(), everything=True)
        assert steps == ["deal"]
        return
    check, _ = caller.put(session, subject._series, StopClock(), everything=True)
    assert steps == ["deal", "trim", "deal"] and check.verdict is Verdict.ACCEPTED
    steps.clear()
    subject._series.call = None
    assert subject.null().void is None and steps == ["deal", "trim", "deal"], "a null call's inputs need memory too"


@pytest.mark.parametrize("of_what", ["dealing", "checking"])
def test_a_memory_that_a_submission_keeps_full_is_an_error_that_is_reported_and_no_crash(worker, monkeypatch, of_what):
    subject = worker("def custom_kernel(data):\n    return data[0] * 2\n")
    caller, session = subject._caller, subject.session
    caller._device = caller._device.model_copy(update={"kind": "cuda"})

    def none_left(*what, **how):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 bytes")

    monkeypatch.setattr(share, "free_bytes", lambda device: 0)  # as full when the worker has ended
    if of_what == "dealing":
        monkeypatch.setattr(subject._series.dealer, "deal", none_left)
    else:
        monkeypatch.setattr(caller, "_check", none_left)
    with pytest.raises(InfrastructureError, match=r"^the device's memory is full: CUDA out of memory\n"):
        caller.put(session, subject._series, StopClock(), everything=True)


@pytest.mark.parametrize("time_is_up", [False, True])
def test_a_null_call_that_fails_is_nobodys_fault_unless_the_evaluations_time_is_up(worker, time_is_up):
    subject = worker("def custom_kernel(data):\n    return data[0] * 2\n")
    subject._caller._deadline = Deadline(0.0 if time_is_up else 60.0)
    os.kill(subject.session.leash.pid, signal.SIGKILL)
    if time_is_up:
        with pytest.raises(Fault) as caught:
            subject.null()
        assert caught.value.ending.verdict is Verdict.TIMEOUT
    else:
        with pytest.raises(InfrastructureError, match="a call that computes nothing failed: the process was killed"):
            subject.null()


@pytest.mark.parametrize("mends", [True, False])
def test_a_call_that_is_wrong_at_its_end_and_right_a_little_later_was_not_over_and_is_void(worker, mends):
    subject = worker("def custom_kernel(data):\n    return data[0] * 2\n")

    class Early:
        """A clock whose snapshot is of outputs that are not yet there."""

        manner, clock = StopClock.manner, StopClock()

        def time(self, session, stage, call, label, null=None):
            answer = self.clock.time(session, stage, call, label, null)
            nothing = Snapshot({"arena": call.arena}, {})
            return replace(answer, snapshot=nothing, later=lambda: answer.snapshot if mends else nothing)

    check, answer = subject._caller.put(subject.session, subject._series, Early(), everything=False)
    assert check.verdict is WRONG and answer.void is (Void.CUT if mends else None)
    assert answer.snapshot is None and answer.later is None, "they hold the call's inputs, which may fill a GPU"
    if not mends:
        with pytest.raises(WrongTimedCall):
            subject._caller.put_timed(subject.session, subject._series, Early())


def test_what_lies_in_shared_memory_is_in_no_cache_when_a_call_begins(worker, monkeypatch):
    subject, emptied = worker("def custom_kernel(data):\n    return data[0] * 2\n"), []
    monkeypatch.setattr(HostCaches, "empty", lambda self, memory: emptied.append(memory.clone()))
    check, _ = subject._caller.put(subject.session, subject._series, Clocks(CPU).of(Manner.STOPPED), everything=True)
    [memory], call = emptied, subject._series.call
    assert check.verdict is ACCEPTED and memory.nbytes == call.arena.size
    assert all(torch.equal(spec.over(memory[spec.offset :][: spec.nbytes]), tensor) for tensor, spec in call.places)


PATCHED = {
    "nothing": "",
    "Python's clocks": """
        import time
        for name in ("time", "monotonic", "perf_counter", "process_time"):
            setattr(time, name, lambda: 0.0)
            setattr(time, name + "_ns", lambda: 0)
        time.clock_gettime_ns = time.clock_gettime = lambda which: 0
    """,
    "the C library's clocks": """
        import mmap
        stubs = b"\\x31\\xc0\\xc3"  # xor eax, eax; ret
        for name in ("clock_gettime", "gettimeofday", "time"):
            address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
            page = address & -mmap.PAGESIZE
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), 7) == 0:
                ctypes.memmove(address, stubs, len(stubs))
                print("patched", name)
    """,
    "the worker": """
        import signal, sys
        calls = sys.modules["harness.worker.calls"]
        between_stops = calls.Calls.between_stops
        def with_a_claim(self, *arguments):
            return {**between_stops(self, *arguments), "inside_ns": 1.0}
        calls.Calls.between_stops = with_a_claim
        calls._synchronize = lambda: None
    """,
}


@pytest.mark.parametrize("what", PATCHED)
def test_a_call_is_never_timed_as_shorter_than_it_is_whatever_was_patched(worker, what):
    if what == "the C library's clocks" and platform.machine() != "x86_64":
        pytest.skip("the stub is x86's")
    source = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        + textwrap.dedent(PATCHED[what])
        + "def custom_kernel(data):\n    libc.usleep(20_000)\n    return data[0] * 2\n"
    )
    subject = worker(source)
    for _ in range(3):
        verdict, answer = subject.call()
        assert verdict is ACCEPTED and answer.void is None and answer.elapsed_ns >= 20e6
    if what.startswith("the C"):
        assert "patched clock_gettime" in subject.printed


def test_nothing_of_the_inputs_is_there_until_the_worker_stands_still_and_all_when_it_goes_on(worker, monkeypatch):
    subject = worker("def custom_kernel(data):\n    return data[0] * 2\n")
    seen, leash = [], subject.session.leash

    def looking(name):
        act = getattr(leash, name)

        def look(*arguments):
            call = subject._series.call
            seen.append((name, [torch.equal(call.arena.view(spec), tensor) for tensor, spec in call.places]))
            return act(*arguments)

        return look

    for name in ("await_others", "resume"):
        monkeypatch.setattr(leash, name, looking(name))
    for _ in range(3):
        seen.clear()
        assert subject.call()[0] is ACCEPTED
        stopped = seen.index(("await_others", [False]))
        assert seen[stopped + 1] == ("resume", [True])
        assert all(there == [False] for _, there in seen[:stopped])


def test_a_null_call_goes_the_way_of_the_others_and_computes_nothing(worker):
    subject = worker("def custom_kernel(data):\n    raise RuntimeError\n")
    with pytest.raises(Fault):
        subject.call()
    answer = subject.null()
    assert answer.void is None and answer.elapsed_ns > 0 and answer.reply.outputs == []


LATE = """
    import ctypes, mmap, os, threading, time, torch
    usleep = ctypes.CDLL(None).usleep
    def custom_kernel(data):
        x = data[0]
        y = torch.frombuffer(mmap.mmap(-1, x.nbytes), dtype=x.dtype).view_as(x)  # a child's as well
        def compute():
            usleep(LATE)
            torch.mul(x, 2, out=y)
        START
        return y
"""
IN_A_THREAD = "threading.Thread(target=compute, daemon=True).start()"
IN_A_CHILD = "pid = os.fork()\n        if pid == 0:\n            compute()\n            os._exit(0)"


@pytest.mark.parametrize("how", [IN_A_THREAD, IN_A_CHILD], ids=["thread", "child"])
def test_what_is_computed_when_the_worker_has_stopped_is_not_there(worker, how):
    subject = worker(LATE.replace("LATE", "100_000").replace("START", how))
    assert subject.call()[0] is WRONG


@pytest.mark.parametrize(
    "how",
    [
        "thread = threading.Thread(target=compute)\n        thread.start()\n        thread.join()",
        f"{IN_A_CHILD}\n        os.waitpid(pid, 0)",
    ],
    ids=["thread", "child"],
)
def test_what_is_waited_for_is_there_and_its_time_counts(worker, how):
    """The control: the same work, within the call."""
    verdict, answer = worker(LATE.replace("LATE", "30_000").replace("START", how)).call()
    assert verdict is ACCEPTED and answer.elapsed_ns >= 30e6


IN_PLACE = """
    def custom_kernel(data):
        x = data[0]
        y = x * 2
        CHANGE
        return y
"""


@pytest.mark.parametrize(
    ("change", "verdict"),
    [("x.view(-1)[-1] *= -1", WRONG), ("x.mul_(0.5)", WRONG), ("x.mul_(0.5).mul_(2)", ACCEPTED)],
    ids=["an element", "all", "put back in the call"],
)
def test_an_input_that_a_timed_call_leaves_changed_is_wrong_though_the_output_is_right(worker, change, verdict):
    assert worker(IN_PLACE.replace("CHANGE", change)).call()[0] is verdict


def test_an_input_that_is_put_back_when_the_call_is_over_was_changed(worker):
    source = """
        import ctypes, threading
        usleep = ctypes.CDLL(None).usleep
        def custom_kernel(data):
            x = data[0]
            y = x * 2
            x.mul_(0.5)
            threading.Thread(target=lambda: (usleep(20_000), x.mul_(2)), daemon=True).start()
            return y
    """
    assert worker(source).call()[0] is WRONG


@pytest.mark.parametrize("puts_it_back", [True, False])
def test_what_a_call_writes_beside_an_input_is_found_though_it_is_put_back_when_the_call_is_over(worker, puts_it_back):
    source = f"""
        import ctypes, sys
        outputs = sys.modules["harness.worker.outputs"].Outputs
        describe, beside = outputs.describe, None
        def put_back_and_describe(self, output):
            if {puts_it_back}:
                ctypes.memset(beside, 0xA5, 4)
            return describe(self, output)
        outputs.describe = put_back_and_describe
        def custom_kernel(data):
            global beside
            beside = data[0].data_ptr() + data[0].nbytes
            ctypes.memset(beside, 0, 4)
            return data[0] * 2
    """
    assert worker(source).call()[0] is WRONG


def test_a_child_that_goes_on_computing_ends_the_call_only_when_it_is_stopped(worker):
    source = """
        import os, threading
        if os.fork() == 0:
            while True:
                pass
        def custom_kernel(data):
            return data[0] * 2
    """
    subject = worker(source)
    for _ in range(3):
        verdict, answer = subject.call()
        assert verdict is ACCEPTED and answer.void is None
        assert subject.session.leash.await_others(10) is not None
        assert not subject.session.leash.ran_while_stopped()


def test_a_child_that_cannot_be_stopped_voids_the_call(worker):
    source = """
        import ctypes, os, platform, time
        number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
        if os.fork() == 0:
            if ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(0x4000 | 17), 0, 0, 0, 0) == 0:
                time.sleep(600)  # its parent waits as vfork's does, deaf to signals
            os._exit(0)
        time.sleep(0.2)
        def custom_kernel(data):
            return data[0] * 2
    """
    assert worker(source).call()[1].void is Void.NOT_STOPPED


def test_one_that_is_seen_to_have_run_while_it_stood_still_or_to_go_on_afterwards_voids_the_call(worker, monkeypatch):
    subject = worker("def custom_kernel(data):\n    return data[0] * 2\n")
    for seen in (1, 2):  # before it is let go on, and when its outputs have been read
        looks = iter((1, 2))
        monkeypatch.setattr(Leash, "ran_while_stopped", lambda leash, looks=looks, seen=seen: next(looks, 0) == seen)
        assert subject.call()[1].void is Void.RAN_WHILE_STOPPED
    monkeypatch.undo()
    stop = Session.stop
    monkeypatch.setattr(Session, "stop", lambda session: stop(session) and False)
    assert subject.call()[1].void is Void.NOT_STOPPED


WAKES = """
    import ctypes, signal
    libc, refused = ctypes.CDLL(None), 0
    signal.signal(signal.SIGCONT, lambda *_: None)  # a signal that is ignored does not set a timer again
    for number in range(1, 9):  # several: a signal that is on its way when it stops is lost, and its timer with it
        timer, event = (ctypes.c_void_p * 1)(), (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)
        if libc.timer_create(1, event, timer) != 0:
            refused += 1
        else:
            libc.timer_settime(timer[0], 0, (ctypes.c_long * 4)(0, 40_000_000, 0, number * 5_000_000), None)
    print("refused" if refused else "ticks", flush=True)
    def custom_kernel(data):
        return data[0] * 2
"""


@pytest.mark.slow(ci=True)
def test_a_worker_that_wakes_itself_is_refused_its_timer_and_without_a_filter_found_out(worker, limited, monkeypatch):
    if tiers.strongest(CPU).seccomp:
        subject = worker(WAKES)
        assert subject.call()[1].void is None and subject.printed.startswith("refused")
    monkeypatch.setattr(tiers, "strongest", lambda device: NO_ISOLATION)
    limited(call_s=5)  # it may wake itself before anybody has seen it stop, and is then waited for
    subject = worker(WAKES)
    monkeypatch.setattr(HostCaches, "empty", lambda self, memory: time.sleep(0.1))  # so that its timer ticks meanwhile
    # Where it goes on too soon it has no answer when the judge looks, which ends it.
    with contextlib.suppress(Fault):
        assert subject.call()[1].void is Void.RAN_WHILE_STOPPED
    assert subject.printed.startswith("ticks")


STOPS = "import os, signal, threading, time\nstop = lambda: os.kill(os.getpid(), signal.SIGSTOP)\n"


@pytest.mark.parametrize(
    ("source", "doing"),
    [
        (STOPS + "stop()\n", "loading"),
        (STOPS + "def custom_kernel(data):\n    stop()\n    return data[0] * 2\n", "a call with rows=64 cols=64"),
        (
            STOPS + "def custom_kernel(data):\n    t = threading.Thread(target=stop)\n    t.start()\n    t.join()\n"
            "    return data[0] * 2\n",
            "a call with rows=64 cols=64",
        ),
        (
            STOPS + "def custom_kernel(data):\n    os.kill(0, signal.SIGSTOP)\n    return data[0] * 2\n",
            "a call with rows=64 cols=64",
        ),
    ],
    ids=["import", "call", "thread", "group"],
)
def test_one_that_stops_its_own_process_is_told_so_at_once(worker, source, doing):
    """No limit has passed: it would be a timeout."""
    with pytest.raises(Fault) as caught:
        worker(source).call()
    assert caught.value.ending.verdict is Verdict.RUNTIME_ERROR
    assert caught.value.ending.message == f"the submission stopped its own process during {doing}"


def test_one_that_is_killed_while_it_is_stopped_has_ended_and_the_judge_has_not(worker):
    """By its own child, or by the keeper because of what it took."""
    source = """
        import os, signal, time
        def custom_kernel(data):
            parent = os.getpid()
            if os.fork() == 0:
                try:  # a child of an earlier call may have been quicker
                    while open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[0] != "T":
                        pass
                    os.kill(parent, signal.SIGKILL)
                finally:
                    os._exit(0)
            return data[0] * 2
    """
    subject = worker(source)
    with pytest.raises(Fault) as caught:
        for _ in range(20):  # its child may be stopped with it
            subject.call()
    assert caught.value.ending.verdict is Verdict.RUNTIME_ERROR and "SIGKILL" in caught.value.ending.message


@pytest.mark.parametrize("moment", ["stopped", "resumed"])
def test_whenever_the_worker_s_group_vanishes_it_is_a_fault(worker, monkeypatch, moment):
    subject = worker("def custom_kernel(data):\n    return data[0] * 2\n")
    leash = subject.session.leash
    method = {"stopped": "ran_while_stopped", "resumed": "others"}[moment]
    whole = getattr(leash, method)

    def killed_before(*arguments):
        with contextlib.suppress(ProcessLookupError):
            os.kill(leash.pid, signal.SIGKILL)
        deadline = time.monotonic() + 300
        while os.path.exists(f"/proc/{leash.pid}") and time.monotonic() < deadline:
            time.sleep(0.001)
        return whole(*arguments)

    monkeypatch.setattr(leash, method, killed_before)
    with pytest.raises(Fault, match="SIGKILL"):
        subject.call()
