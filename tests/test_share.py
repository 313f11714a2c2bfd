"""Who is named if a GPU's memory is full. There is no GPU here: what is free is made up, by which workers are alive."""

import random
import secrets
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from test_clock import worker  # noqa: F401
from test_duel import HONEST, fight  # noqa: F401

from harness.errors import InfrastructureError
from harness.judge import share
from harness.judge.clock import StopClock
from harness.judge.duel import Disqualified
from harness.judge.entrant import Entrant
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.session import Session
from harness.judge.share import DeviceFull
from harness.model import Verdict

GB = 10**9
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 bytes")


def free_by(keeps, monkeypatch):
    """Have the device's free memory be what live workers leave of it. `keeps`: bytes of a worker, by its session."""
    ended, end = [], Session.end

    def noted(session):
        end(session)
        ended.append(session)

    monkeypatch.setattr(Session, "end", noted)
    monkeypatch.setattr(share, "has_memory", lambda device: True)
    monkeypatch.setattr(share, "free_bytes", lambda device: GB + sum(map(keeps, set(ended))))
    return ended


@pytest.mark.parametrize(
    ("kept", "blamed"), [(1 / 3 + 0.01, True), (1 / 3 - 0.01, False)], ids=["more than its share", "less"]
)
@pytest.mark.parametrize("where", ["dealing", "checking", "an arena"])
def test_a_submission_that_keeps_more_than_its_share_is_the_one_that_failed(
    worker,  # noqa: F811
    monkeypatch,
    where,
    kept,
    blamed,
):
    subject = worker(HONEST)
    caller, session = subject._caller, subject.session
    device = caller._device = caller._device.model_copy(update={"kind": "cuda", "memory_bytes": 90 * GB})
    ended = free_by(lambda one: int(kept * device.memory_bytes), monkeypatch)
    monkeypatch.setattr(Reference, "holders", 3)

    def none_left(*what, **how):
        raise DeviceFull("cannot allocate 9 bytes") if where == "an arena" else FULL

    if where == "checking":
        monkeypatch.setattr(caller, "_check", none_left)
    else:
        monkeypatch.setattr(subject._series.dealer, "deal", none_left)
    with pytest.raises(Fault if blamed else DeviceFull) as caught:
        caller.put(session, subject._series, StopClock(), everything=True)
    assert ended == [session], "it is ended either way: nothing else tells what it kept"
    if blamed:
        assert caught.value.ending.verdict is Verdict.RUNTIME_ERROR
        said = "the submission keeps 30.9 GB of the device's memory after its call; at most 30.0 GB are its share"
        assert caught.value.ending.message == said
    else:
        assert isinstance(caught.value, InfrastructureError)


def test_what_torch_keeps_for_later_in_a_worker_does_not_count(worker, monkeypatch):  # noqa: F811
    subject = worker(HONEST)
    session, steps, trim = subject.session, [], Session.trim
    monkeypatch.setattr(Session, "trim", lambda self: [steps.append("trim"), trim(self)])
    monkeypatch.setattr(share, "has_memory", lambda device: True)
    monkeypatch.setattr(share, "free_bytes", lambda device: steps.append("look") or GB)
    share.blame(session, subject._caller._device, 2)
    assert steps == ["trim", "look", "look"]


def test_a_worker_that_cannot_be_asked_to_trim_is_not_named(worker, monkeypatch):  # noqa: F811
    """Such as one within a call. What it holds then is not what it keeps."""
    subject = worker(HONEST)
    subject.session.end()
    monkeypatch.setattr(share, "has_memory", lambda device: True)
    monkeypatch.setattr(share, "free_bytes", lambda device: pytest.fail("nobody looks"))
    share.blame(subject.session, subject._caller._device, 2)


def test_on_a_cpu_nobody_keeps_a_device_s_memory_and_the_worker_goes_on(worker):  # noqa: F811
    subject = worker(HONEST)
    share.blame(subject.session, subject._caller._device, 2)
    assert subject.call()[0] is Verdict.ACCEPTED


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("hog", ["second", "first", None])
@pytest.mark.parametrize(
    "who_runs_out",
    ["the judge", *(pytest.param(who, marks=pytest.mark.slow) for who in ("first", "first as it loads"))],
)
def test_in_a_duel_the_one_that_keeps_the_memory_is_named(fight, monkeypatch, hog, who_runs_out):  # noqa: F811
    """`first` runs out of memory, or the judge does in a call of `first`."""
    owners, prepared, take, load = {}, Entrant.prepared, Entrant.take, Session.load
    its_own = Fault(Verdict.RUNTIME_ERROR, "OutOfMemoryError: CUDA out of memory. Tried to allocate 9 bytes")
    free_by(lambda session: 10**15 if owners.get(session) == hog is not None else 0, monkeypatch)

    @contextmanager
    def owned(self, timed=False):
        with prepared(self, timed) as session:
            if timed:
                owners[session] = self.caller._path.rpartition("/")[2].removesuffix(".py")
            yield session

    def taken(self, session, *what):
        if owners[session] == "first" and who_runs_out == "first":
            raise its_own
        if owners[session] == "first":
            monkeypatch.setattr(self.caller, "_check", lambda *what: (_ for _ in ()).throw(FULL))
        return take(self, session, *what)

    def loaded(session, *what):
        if owners.get(session) == "first" and who_runs_out == "first as it loads":
            raise its_own
        return load(session, *what)

    monkeypatch.setattr(Session, "load", loaded)
    monkeypatch.setattr(Entrant, "prepared", owned)
    monkeypatch.setattr(Entrant, "take", taken)
    if hog is None and who_runs_out == "the judge":
        with pytest.raises(DeviceFull, match="the device's memory is full"):
            fight(HONEST, HONEST, 1)
        return
    with pytest.raises(Disqualified) as caught:
        fight(HONEST, HONEST, 1)
    said = "runtime error: the submission keeps" if hog else "runtime error: OutOfMemoryError"
    assert str(caught.value).startswith(f"{hog or 'first'}: {said}"), str(caught.value)


def test_in_a_duel_what_one_frees_while_the_other_is_ended_is_not_laid_to_the_other(fight, monkeypatch):  # noqa: F811
    """`first` says that memory is full, and runs on. It would free what it holds just as `second` is ended."""
    owners, prepared, take, seen = {}, Entrant.prepared, Entrant.take, []
    ended = free_by(lambda session: 0, monkeypatch)

    class SecondLooksFirst(random.SystemRandom):
        def sample(self, what, count):
            return list(reversed(what))

    @contextmanager
    def owned(self, timed=False):
        with prepared(self, timed) as session:
            if timed:
                owners[self.caller._path.rpartition("/")[2].removesuffix(".py")] = session
            yield session

    def taken(self, session, *what):
        if session is not owners.get("first"):
            return take(self, session, *what)
        session.leash.resume()
        raise Fault(Verdict.RUNTIME_ERROR, "RuntimeError: out of memory")

    def looked(device):
        if owners["first"] not in ended:
            state = Path(f"/proc/{owners['first'].leash.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
            seen.append(state)
        return GB

    monkeypatch.setattr(share, "free_bytes", looked)
    monkeypatch.setattr(secrets, "SystemRandom", SecondLooksFirst)
    monkeypatch.setattr(Entrant, "prepared", owned)
    monkeypatch.setattr(Entrant, "take", taken)
    with pytest.raises(Disqualified, match="first: runtime error: RuntimeError: out of memory"):
        fight(HONEST, HONEST, 1)
    before_and_after_the_end_of_second, its_own = seen[:2], seen[2:]
    assert before_and_after_the_end_of_second == [b"T", b"T"] and len(its_own) == 1
