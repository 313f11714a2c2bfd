"""A call to a worker whose device waits for a word in memory, as on CUDA; the worker, a thread, answers by hand."""

import ctypes
import socket
import threading
import time

import pytest
from test_judging import HONEST, judge

from harness.arena import FLAG_BYTES, Arena
from harness.judge import trial
from harness.judge.reply import reported_failure
from harness.judge.session import Session
from harness.model import Limits, Verdict
from harness.protocol import Channel

REPLY = {
    "latency_ns": 5.0,
    "labels": [],
    "several": False,
    "returned": 0,
    "outputs": [],
    "state": [],
    "interpreted": False,
}
ARENA = object()


class SeenChannel(Channel):
    """Notes for each message whether it was waited for awake, and whether the word had been written by then."""

    def __init__(self, connection, flag):
        super().__init__(connection)
        self.flag, self.seen = flag, []

    def receive(self, timeout_s=None, awake=False):
        opened = ctypes.c_uint32.from_address(self.flag.address).value > 0
        message = super().receive(timeout_s, awake)
        self.seen.append((message.keys() - {"nonce"}, opened, awake))
        return message


class ByHand(Session):
    def __init__(self, channel, flag):
        self._channel, self._flag, self._arena, self._calls, self._limits = channel, flag, ARENA, 0, Limits()


@pytest.mark.parametrize("waits_for_the_device", [True, False])
def test_all_that_comes_when_the_clock_runs_is_waited_for_awake(waits_for_the_device):
    ours, theirs = socket.socketpair()
    flag = Arena.create(FLAG_BYTES)
    judge, worker = SeenChannel(ours, flag), Channel(theirs)

    def answer():
        nonce = worker.receive(60)["nonce"]
        word = ctypes.c_uint32.from_address(flag.address)

        def opened():
            while word.value == 0:
                time.sleep(0.001)

        steps = [opened, lambda: worker.send({"nonce": nonce, "ready": True})]
        for step in steps if waits_for_the_device else steps[::-1]:
            step()
        worker.send({"nonce": nonce, "reply": REPLY})
        worker.send({"nonce": nonce, "aftermath": {"overrun": [], "more_threads": 0, "left": []}})

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        patience_s = 0.01 if waits_for_the_device else 60
        found = ByHand(judge, flag).call({}, ARENA, "a case", lambda: 0.0, patience_s)
    finally:
        thread.join()
        flag.close()
        ours.close()
        theirs.close()
    assert found.was_ready is not waits_for_the_device
    assert judge.seen == [({"ready"}, True, True), ({"reply"}, True, True), ({"aftermath"}, True, False)]


@pytest.mark.parametrize("waits_for_the_device", [True, False])
def test_idle_calls_wait_for_the_device_where_the_submission_s_calls_do(toy_root, monkeypatch, waits_for_the_device):
    asked = []
    call = Session.call

    def on_a_cpu(self, request, *arguments, **named):
        if "idle" in request:
            asked.append(request["waits"])
        return call(self, {**request, "waits": False} if "idle" in request else request, *arguments, **named)

    monkeypatch.setattr(Session, "call", on_a_cpu)
    monkeypatch.setattr(trial, "waits_for_device", lambda was_ready: waits_for_the_device)
    assert judge(toy_root, HONEST, quick=True).ending.verdict is Verdict.ACCEPTED
    assert set(asked) == {waits_for_the_device}


def test_a_failure_is_told_in_so_many_words_and_no_more():
    fault = reported_failure({"kind": "runtime_error", "message": "m" * 10**6, "detail": "d" * 10**6})
    assert fault.ending.message == "m" * 2000 and fault.ending.detail == "d" * 100_000
