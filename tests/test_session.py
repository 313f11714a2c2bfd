"""A worker process from its birth to its death, and what the judge makes of what it says."""

import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_clock import worker  # noqa: F401

from harness.judge.deadline import Allowance
from harness.judge.reply import Fault, reported_failure
from harness.judge.session import MAX_REPLY_BYTES, Session
from harness.model import NO_ISOLATION, Limits, Verdict
from harness.sandbox import syscalls, tiers
from harness.sandbox.leash import SETTLING_NS
from harness.wire.protocol import Channel

REPLY = {"several": False, "returned": 0, "outputs": [], "interpreted": False}
HONEST = "def custom_kernel(data):\n    return data[0] * 2\n"


class ByHand(Session):
    """The judge's end of a session; what the worker says is given by hand."""

    def __init__(self, channel):
        self._channel, self.limits, self.deadline = channel, Limits(call_s=1), None
        self.allowance = Allowance(None)
        self.leash = SimpleNamespace(
            stopped=False, told=False, resume=lambda: None, fileno=channel.fileno, note=lambda: None
        )
        self._turn, self._doing, self._nonce = 0, "a call with a case", ""


@pytest.fixture
def by_hand():
    ours, theirs = socket.socketpair()
    session, far = ByHand(Channel(ours)), Channel(theirs)
    yield session, far
    ours.close()
    theirs.close()


def test_a_call_is_begun_when_the_worker_says_that_it_is_ready(by_hand):
    session, far = by_hand
    far.send({"nonce": "guessed", "ready": True})
    with pytest.raises(Fault, match="answered a request that was not put to it"):
        session.begin({"state": []}, "a case")
    asked = far.receive(1)
    assert asked["op"] == "call" and asked["turn"] == 1 and asked["state"] == []


@pytest.mark.parametrize(
    ("message", "verdict", "words"),
    [
        ({"reply": REPLY, "more": 1}, Verdict.INTEGRITY_VIOLATION, "not put to it"),
        ({"ready": True}, Verdict.INTEGRITY_VIOLATION, "neither a reply nor a failure"),
        ({"reply": {**REPLY, "score": 1}}, Verdict.INTEGRITY_VIOLATION, "malformed: score"),
        ({"reply": {**REPLY, "returned": "0"}}, Verdict.INTEGRITY_VIOLATION, "malformed: returned"),
        ({"reply": {**REPLY, "outputs": [{"type": "Tensor", "region": "elsewhere"}]}},
         Verdict.INTEGRITY_VIOLATION, "malformed: outputs.0.region"),
        ({"reply": {**REPLY, "outputs": [{"type": "x"}] * 17}}, Verdict.INTEGRITY_VIOLATION, "malformed: outputs"),
        ({"reply": {**REPLY, "outputs": [{"type": "x" * MAX_REPLY_BYTES}]}},
         Verdict.INTEGRITY_VIOLATION, "bytes, over 16,384"),
        ({"failure": {"kind": "runtime_error", "message": "m", "detail": "d"}}, Verdict.RUNTIME_ERROR, "m"),
        ({"failure": {"kind": "accepted", "message": "m", "detail": "d"}}, Verdict.INTEGRITY_VIOLATION, "malformed"),
    ],
)  # fmt: skip
def test_a_reply_is_looked_at_to_the_last_field(by_hand, message, verdict, words):
    session, far = by_hand
    session._nonce = "n"
    far.send({"nonce": "n", **message})
    with pytest.raises(Fault, match=words) as caught:
        session.reply()
    assert caught.value.ending.verdict is verdict


def test_one_that_has_stopped_must_have_answered_before(by_hand):
    session, far = by_hand
    session._nonce, session.leash.stopped = "n", True
    with pytest.raises(Fault, match="the submission stopped its own process during a call with a case"):
        session.reply()
    far.send({"nonce": "n", "reply": REPLY})
    assert session.reply().returned == 0


def test_one_that_stops_in_the_midst_of_its_answer_has_given_none(by_hand):
    session, far = by_hand
    session._nonce, session.leash.stopped = "n", True
    far._connection.send(b"\0\0\0\x30{")
    with pytest.raises(Fault, match="the submission stopped its own process"):
        session.reply()


def test_a_worker_does_as_it_is_told_and_ends_in_good_order(worker):  # noqa: F811
    subject = worker(HONEST + "sum(range(5_000_000))\nprint('loaded')\n")  # processor time is told in hundredths
    assert subject.call()[0] is Verdict.ACCEPTED
    assert subject.session.processor_s > 0
    subject.session.finish()
    assert subject.session.printed == "loaded\n"


def test_one_that_rests_stands_still_until_it_is_asked(worker):  # noqa: F811
    source = """
        import threading
        def spin():
            while True:
                pass
        threading.Thread(target=spin, daemon=True).start()
        def custom_kernel(data):
            return data[0] * 2
    """
    subject = worker(source)
    leash = subject.session.leash
    for _ in range(2):
        subject.session.rest()
        time.sleep(0.01)
        before = leash.processor_ns()
        time.sleep(0.1)
        assert leash.processor_ns() - before <= SETTLING_NS and not leash.ran_while_stopped()
        assert subject.call()[0] is Verdict.ACCEPTED


def test_one_that_stops_late_for_the_judge_has_not_stopped_itself(worker, monkeypatch):  # noqa: F811
    """It waits for a child as after a vfork, deaf to signals; where nothing confines, that one leaves the group."""
    monkeypatch.setattr(tiers, "strongest", lambda device: NO_ISOLATION)
    source = f"""
        import ctypes, os, threading, time
        def wait_in_the_kernel():
            time.sleep(0.3)
            number, vfork = {syscalls.number("clone")}, 0x4000 | 17  # CLONE_VFORK, SIGCHLD
            if ctypes.PyDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(vfork), 0, 0, 0, 0) == 0:
                os.setsid()
                time.sleep(1.5)
                os._exit(0)
        threading.Thread(target=wait_in_the_kernel, daemon=True).start()
        def custom_kernel(data):
            return data[0] * 2
    """
    subject = worker(source)
    time.sleep(0.6)
    subject.session.rest()
    assert not subject.session.leash.stopped
    for _ in range(2):
        assert subject.call()[0] is Verdict.ACCEPTED


def test_whoever_says_something_unasked_before_it_quits_is_found_out(worker):  # noqa: F811
    source = """
        import os, socket
        def custom_kernel(data):
            for fd in range(3, 256):
                try:
                    with socket.socket(fileno=os.dup(fd)) as s:
                        if s.family == socket.AF_UNIX:
                            found = fd
                except OSError:
                    pass
            if os.fork() == 0:
                import time
                time.sleep(0.3)
                os.write(found, b"unasked")
                os._exit(0)
            return data[0] * 2
    """
    subject = worker(source)
    assert subject.call()[0] is Verdict.ACCEPTED
    subject.session.leash.resume()
    assert subject.session._channel.awaits(30)
    with pytest.raises(Fault, match="a message that nobody had asked for"):
        subject.session.finish()


@pytest.mark.parametrize("op", ["load", "set up", "trim"])
def test_whatever_runs_a_submissions_code_counts_against_the_time_of_its_process(by_hand, op):
    """A submission may have replaced what frees memory."""
    session, far = by_hand
    clock = iter(range(0, 1000, 10))
    session.allowance = Allowance(25.0, lambda: next(clock))
    session._receive_within, session._foreign, session.map = (lambda *what: {}), None, lambda arena: None
    asks = {
        "load": lambda: session.load(Path("x.py")),
        "set up": lambda: session.set_up(None, {}, "a case"),
        "trim": session.trim,
    }
    asks[op]()
    assert far.receive(1)["op"] == op and session.allowance.left_s() == 15.0


def test_a_failure_is_told_in_so_many_words_and_no_more():
    fault = reported_failure({"kind": "runtime_error", "message": "m" * 10**6, "detail": "d" * 10**6})
    assert fault.ending.message == "m" * 2000 and fault.ending.detail == "d" * 100_000
