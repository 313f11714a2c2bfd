"""Several cards in one server. None is needed: a stand-in judges, or the real judge does on the processor instead."""

import threading
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi")

import torch
from served import DOUBLE, RIGHT, Server, saying, until

from bench.stand_in import run_of
from harness.errors import InfrastructureError
from harness.library import judges, warm_judge
from harness.model import Verdict
from harness.server import dispatcher as dispatching
from harness.server.failures import Failures
from harness.server.program import cards

TWO_KINDS = {"H200": ("cuda:0", "cuda:1"), "CPU": ("cpu",)}


class Cards:
    """Stands in for the judges of several cards: on each a judge begins and waits until it `may` end. `broken` ones
    have no run."""

    def __init__(self):
        self.begun, self.at_once, self.most = [], Counter(), Counter()
        self.may, self.broken, self.changing = threading.Semaphore(0), set(), threading.Lock()
        self.ended = threading.Event()

    def __call__(self, request, narrate, started):
        with self.changing:
            self.begun.append((request.device, request.submission.name))
            self.at_once[request.device] += 1
            self.most[request.device] = max(self.most[request.device], self.at_once[request.device])
        try:
            if request.device in self.broken:
                raise InfrastructureError(f"{request.device} no longer answers")
            while not self.may.acquire(timeout=0.02):
                if self.ended.is_set():
                    raise InfrastructureError("the process that judges has ended")
            return run_of(request)
        finally:
            with self.changing:
                self.at_once[request.device] -= 1

    @property
    def busy(self):
        return sorted(card for card, count in self.at_once.items() if count)


@pytest.fixture
def started(toy_root, monkeypatch):
    """Starts a server with these cards; it is closed at the end of the test."""
    monkeypatch.setattr(dispatching, "AGAIN_S", 0.01)
    monkeypatch.setattr(dispatching, "IDLE_S", 0.05)
    servers = []

    def start(found, judge, **competitions):
        server = Server(toy_root, judging=False, **competitions)
        server.serving.cards, server.dispatcher._judge_apart = found, judge
        server.dispatcher.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        getattr(server.dispatcher._judge_apart, "ended", threading.Event()).set()
        server.close()


def test_each_card_judges_one_at_a_time_in_the_order_of_acceptance_and_no_kind_waits_for_another(started):
    judge = Cards()
    server = started(TWO_KINDS, judge)
    client = server.person("ada")
    assert server.ask("GET", "/gpus/double") == (200, ["H200", "CPU"])
    numbers = [server.sent(client, saying(score_ns=ns), name=f"h{ns}.py", gpu="h200") for ns in range(1, 5)]
    until(lambda: judge.busy == ["cuda:0", "cuda:1"])
    numbers.append(server.sent(client, saying(score_ns=9), name="c9.py", gpu="CPU"))
    until(lambda: judge.busy == ["cpu", "cuda:0", "cuda:1"])
    assert server.ask("GET", "/runner_queue/H200")[1] | {"runner": ""} == {
        "runner": "", "gpu": "H200", "queued_jobs": 2, "running_jobs": 2, "available_runners": 0,
        "status": "online", "error": None,
    }  # fmt: skip
    judge.may.release(5)
    assert {server.over(client, number)["job"]["status"] for number in numbers} == {"succeeded"}
    assert set(judge.most.values()) == {1}
    on_gpus = [name for card, name in judge.begun if card.startswith("cuda")]
    assert sorted(on_gpus[:2]) == ["ada.h1", "ada.h2"] and sorted(on_gpus[2:]) == ["ada.h3", "ada.h4"]
    assert ("cpu", "ada.c9") in judge.begun


def test_what_ran_on_two_cards_as_the_server_ended_is_judged_once_by_the_next(started, toy_root):
    judge = Cards()
    first = started({"H200": ("cuda:0", "cuda:1")}, judge)
    client = first.person("ada")
    numbers = [first.sent(client, saying(score_ns=ns), gpu="H200") for ns in (1, 2, 3)]
    until(lambda: judge.busy == ["cuda:0", "cuda:1"])
    first.dispatcher._stopping.set()
    judge.ended.set()
    first.close()
    assert len(judge.begun) == 2
    judge = Cards()
    judge.may.release(10)
    again = started({"H200": ("cuda:0", "cuda:1")}, judge)
    found = [again.over(client, number) for number in numbers]
    assert {each["job"]["status"] for each in found} == {"succeeded"}
    assert {len(each["podium"]["run_ids"]) for each in found} == {1}
    assert len(list(toy_root.glob("results/local/double/*/*.json"))) == 3


def test_a_broken_card_costs_no_submission_where_another_of_its_kind_works(started):
    judge = Cards()
    judge.broken.add("cuda:1")
    server = started({"H200": ("cuda:0", "cuda:1")}, judge)
    client = server.person("ada")
    numbers = [server.sent(client, saying(score_ns=ns), name=f"h{ns}.py", gpu="H200") for ns in range(1, 7)]
    until(lambda: {card for card, _ in judge.begun} == {"cuda:0", "cuda:1"})
    judge.may.release(6)
    assert {server.over(client, number)["job"]["status"] for number in numbers} == {"succeeded"}
    failed = Counter(name for card, name in judge.begun if card == "cuda:1")
    assert failed and set(failed.values()) == {1}


def test_where_every_card_fails_a_submission_is_given_up_after_three_times(started):
    judge = Cards()
    judge.broken.update(("cuda:0", "cuda:1"))
    server = started({"H200": ("cuda:0", "cuda:1")}, judge)
    client = server.person("ada")
    found = server.judged(client, gpu="H200")
    assert found["job"]["status"] == "failed" and "it could not be judged here: cuda:" in found["job"]["error"]
    assert len(judge.begun) == 3 and {card for card, _ in judge.begun} == {"cuda:0", "cuda:1"}


def test_a_card_leaves_a_job_to_those_that_have_not_failed_at_it():
    failures = Failures()
    failures.note(1, "cuda:0")
    assert failures.left_by("cuda:0", ("cuda:0", "cuda:1")) == [1]
    assert failures.left_by("cuda:1", ("cuda:0", "cuda:1")) == []
    assert failures.left_by("cuda:0", ("cuda:0",)) == []
    assert failures.left_by("h200", ("h200", "h200")) == []
    failures.note(1, "cuda:1")
    assert failures.left_by("cuda:0", ("cuda:0", "cuda:1")) == []
    failures.forget(1)
    failures.forget(2)
    assert failures.left_by("cuda:0", ("cuda:0", "cuda:1", "cuda:2")) == []


def test_cards_that_join_later_judge_too_and_those_that_are_there_are_not_taken_twice(started):
    judge = Cards()
    server = started({"H200": ("cuda:0",)}, judge)
    client = server.person("ada")
    numbers = [server.sent(client, saying(score_ns=ns), gpu="H200") for ns in (1, 2, 3)]
    until(lambda: judge.busy == ["cuda:0"])
    server.dispatcher.have({"H200": ("cuda:0", "cuda:1")})
    until(lambda: judge.busy == ["cuda:0", "cuda:1"])
    server.dispatcher.have({"H200": ("cuda:0", "cuda:1")})
    judge.may.release(3)
    assert {server.over(client, number)["job"]["status"] for number in numbers} == {"succeeded"}
    assert set(judge.most.values()) == {1} and server.serving.cards == {"H200": ("cuda:0", "cuda:1")}


def test_a_competition_is_judged_on_the_cards_that_its_file_names_however_they_are_spelt(started):
    judge = Cards()
    judge.may.release(10)
    server = started(TWO_KINDS, judge, fast=f"{DOUBLE}gpus: [h200]\n", elsewhere=f"{DOUBLE}gpus: [MI300X]\n")
    client = server.person("ada")
    assert server.ask("GET", "/gpus/fast") == (200, ["H200"])
    status, said = server.send(client, board="fast", gpu="CPU")
    assert (status, said["detail"]) == (400, "fast is not judged on CPU: it is judged on H200")
    assert server.judged(client, board="fast", gpu="h200")["podium"]["gpu"] == "H200"
    status, said = server.send(client, board="elsewhere", gpu="H200")
    assert (status, said["detail"]) == (400, "elsewhere is not judged on H200: at present it is judged nowhere")


@pytest.fixture
def three_cards(monkeypatch):
    """A torch that sees two cards of one model and one of another; nothing can be computed on them."""
    names = ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    found = [SimpleNamespace(name=name, total_memory=80 << 30, major=9, minor=0, gcnArchName="sm_90") for name in names]
    monkeypatch.setattr("harness.machine.device.driver_present", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
    monkeypatch.setattr(torch.cuda, "get_device_properties", found.__getitem__)


def test_the_cards_of_a_machine_are_named_as_people_type_them_and_those_of_a_model_are_one_gpu(three_cards, toy_root):
    known = [tuple(each) for each in warm_judge._answer({"names": str(toy_root)}, None, None)["answer"]]
    assert known == [
        ("cuda:0", "NVIDIA H200"), ("cuda:1", "NVIDIA H100 80GB HBM3"), ("cuda:2", "NVIDIA H200"),
    ]  # fmt: skip
    assert cards(known, ()) == {"H200": ("cuda:0", "cuda:2"), "H100": ("cuda:1",)}
    assert cards(known, ("cuda:2", "cuda:2", "cpu", "cpu")) == {"H200": ("cuda:2",), "CPU": ("cpu",)}


@pytest.mark.slow(ci=True)
def test_two_real_judges_work_at_once_and_each_run_is_the_real_ones(started):
    """The real judge, asked for a card that is not here, is given the processor."""
    working, most = set(), []

    def judge(request, narrate, begun):
        working.add(request.device)
        most.append(len(working))
        try:
            return judges.judge_apart(request.model_copy(update={"device": "cpu"}), narrate, begun)
        finally:
            working.discard(request.device)

    server = started({"H200": ("cuda:0", "cuda:1")}, judge)
    client = server.person("ada")
    right = server.sent(client, RIGHT, gpu="H200", mode="test")
    wrong = server.sent(client, RIGHT.replace("* 2", "* 3"), gpu="H200", mode="test")
    assert server.over(client, right)["podium"]["verdict"] == Verdict.ACCEPTED.value
    assert server.over(client, wrong)["podium"]["verdict"] == Verdict.WRONG_ANSWER.value
    assert max(most) == 2
