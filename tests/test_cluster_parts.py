"""The parts of a cluster that need neither Ray nor a second machine: attempts, pins, facts, parcels, the job itself."""

import contextlib
import datetime
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import cluster_throughput
from harness import catalog
from harness.cluster import census, driver, engine, facts, job, link, node, parcel, placement, prospects, watching
from harness.cluster.attempts import Attempts
from harness.cluster.census import Node
from harness.cluster.facts import Card, Inventory
from harness.cluster.link import ClusterLost, Link
from harness.cluster.pins import Pins, agreed, differences, labels
from harness.cluster.watching import JobEnded
from harness.command import ROOT
from harness.errors import InfrastructureError, UsageError
from harness.library.request import Request
from harness.model import Device, Pinned
from tests.test_comparison import run

DEVICE = Device(
    kind="cuda", name="Card", slug="card", arch="sm_90", torch_device="cuda:0", memory_bytes=1, flush_bytes=1
)


def found(cards=1, **changes):
    fields = {
        "host": "box",
        "root": "/",
        "podium": "1",
        "code": "a" * 64,
        "python": "3.11",
        "torch": "2.13.0+cu130",
        "triton": "3.7.1",
        "driver": "580.1",
        "sandbox": "bubblewrap",
        "cards": cards if isinstance(cards, tuple) else tuple(Card(id=f"GPU-{n}", device=DEVICE) for n in range(cards)),
        "calibrated": ("card",),
    }
    return Inventory(**(fields | changes))


def test_a_result_counts_once_and_only_that_of_the_present_attempt():
    attempts = Attempts()
    first = attempts.begin()
    assert attempts.lost(first, "killed")
    second = attempts.begin()
    assert not attempts.settle(first, run("old"))
    assert attempts.run is None
    assert attempts.settle(second, run("new"))
    assert not attempts.settle(second, run("again"))
    assert attempts.run.submission == "new"


def test_a_lost_attempt_cannot_settle_before_the_next_begins():
    attempts = Attempts()
    attempts.lost(attempts.begin(), "silent")
    assert not attempts.settle(1, run())


def test_after_three_attempts_there_is_no_further_one():
    attempts = Attempts()
    for number in (1, 2, 3):
        assert attempts.begin() == number
        assert attempts.lost(number, f"reason {number}")
        assert not attempts.lost(number, "twice")
    assert attempts.spent and attempts.reasons == ("reason 1", "reason 2", "reason 3")
    with pytest.raises(ValueError):
        attempts.begin()


def test_an_attempt_begins_only_when_the_one_before_is_lost():
    attempts = Attempts()
    attempts.begin()
    with pytest.raises(ValueError):
        attempts.begin()


def test_a_node_says_each_pin_that_it_does_not_meet():
    pins = Pins(code="b" * 64, torch="2.12.0", driver="580.1")
    said = differences(pins, found(sandbox=None))
    assert [sentence.split(":")[0] for sentence in said] == [
        "its Podium is another",
        "its torch is 2.13.0+cu130, pinned is 2.12.0",
        "no sandbox holds there",
    ]
    assert differences(Pins(code="a" * 64, torch="2.13.0+cu130", driver="580.1"), found()) == []


def test_the_labels_of_a_node_meet_the_selector_of_the_pins_that_it_meets():
    pins = Pins(code="a" * 64, torch="2.13.0+cu130", triton="3.7.1", driver="580.1")
    assert pins.selector.items() <= labels(found()).items()
    assert not pins.selector.items() <= labels(found(torch="2.13.0+cpu")).items()
    assert not pins.selector.items() <= labels(found(sandbox=None)).items()


def test_versions_are_pinned_to_those_of_most_cards_with_this_code():
    other = {"torch": "2.12.0"}
    nodes = [found(1), found(4, **other), found(8, code="b" * 64, torch="2.11.0")]
    assert agreed(nodes, "a" * 64, "card").torch == "2.12.0"
    assert agreed(nodes, "a" * 64, "elsewhere").torch is None


def test_what_a_competition_pins_holds_and_the_rest_is_that_of_most_cards_that_have_it():
    nodes = [found(1, torch="2.12.0", triton="3.6.0"), found(4)]
    pins = agreed(nodes, "a" * 64, "card", pinned=Pinned(torch="2.12.0"))
    assert (pins.torch, pins.triton) == ("2.12.0", "3.6.0")
    assert differences(pins, nodes[1]) and not differences(pins, nodes[0])
    nowhere = agreed(nodes, "a" * 64, "card", pinned=Pinned(torch="2.11.0"))
    assert all(differences(nowhere, node) == [f"its torch is {node.torch}, pinned is 2.11.0"] for node in nodes)


def test_the_board_of_nodes_says_which_competition_a_node_may_not_judge():
    nodes = [census.Node("1", "10.0.0.1", True, found(torch="2.12.0")), census.Node("2", "10.0.0.2", True, found())]
    pinned = {"winter": Pinned(torch="2.12.0"), "summer": Pinned()}
    first, second = (node.wrong for node in census.judged(nodes, "a" * 64, pinned))
    assert not [line for line in first if "may not judge" in line]
    (line,) = [line for line in second if "may not judge" in line]
    assert line == "it may not judge winter: its torch is 2.13.0+cu130, pinned is 2.12.0"


def test_cards_are_resources_by_model_and_each_by_itself():
    words = node.arguments(found(2), True, None, "10.0.0.1")
    assert '--resources={"card": 2, "card-GPU-0": 1, "card-GPU-1": 1}' in words
    assert {"--num-gpus=2", "--num-cpus=0", "--node-ip-address=10.0.0.1"} <= set(words)


def test_cards_whose_long_names_begin_alike_are_different_resources():
    one, two = (f"cpu of {'long-' * 12}{number}" for number in (1, 2))
    assert facts.resource_of(one) != facts.resource_of(two)
    assert facts.resource_of("GPU-0") == "card-GPU-0"


def test_ray_gives_cards_out_by_their_uuids_and_always_asks_for_the_token(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    given = node.environment(found(2))
    assert given["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert given["RAY_AUTH_MODE"] == "token"


def test_cuda_visible_devices_leaves_the_cards_that_it_names():
    rows = [["0", "GPU-aaaa"], ["1", "GPU-bbbb"], ["2", "GPU-cccc"]]
    assert facts.visible(rows, {}) == rows
    assert facts.visible(rows, {"CUDA_VISIBLE_DEVICES": "2,0"}) == [rows[2], rows[0]]
    assert facts.visible(rows, {"CUDA_VISIBLE_DEVICES": "GPU-bb"}) == [rows[1]]
    assert facts.visible(rows, {"CUDA_VISIBLE_DEVICES": ""}) == []


def test_a_job_to_which_ray_shows_one_card_knows_all_of_its_node_s_cards(tmp_path, monkeypatch, toy_root):
    """A job that is pinned to a card may get another from Ray, which counts cards only."""
    smi = tmp_path / "nvidia-smi"
    rows = "".join(f"{number}, GPU-{number}{number}, NVIDIA H200, 143771, 9.0, 580.1\\n" for number in range(3))
    smi.write_text(f"#!/bin/sh\ncase $1 in --query-gpu*) printf '{rows}';; esac\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00,GPU-11")
    monkeypatch.setenv(facts.NODE, facts.here(toy_root, sandbox=None).model_dump_json())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11")
    assert [card.id for card in facts.now().cards] == ["GPU-00", "GPU-11"] and facts.now().vanished == ()
    smi.write_text(smi.read_text().replace("GPU-11", "GPU-99"))
    assert [card.id for card in facts.now().cards] == ["GPU-00"] and facts.now().vanished == ("GPU-11",)


def test_a_job_does_not_take_the_card_of_a_pinned_one_that_ray_believes_to_be_free(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = found(2)
    fields = {"problem": "double", "submission": SimpleNamespace(name="mine"), "slug": "card", "attempt": 1}
    pinned, other = (job.ClusterJob.model_construct(**fields, kind="cuda", card=card) for card in ("GPU-0", None))
    assert job.card_for(pinned, "GPU-1", here) == "GPU-0" and job.card_for(other, "GPU-0", here) == "GPU-0"
    with job._noted(pinned, "GPU-0"):
        assert job.card_for(other, "GPU-0", here) == "GPU-1"
        assert job.card_for(other, "GPU-1", here) == "GPU-1"
        assert job.card_for(other, "GPU-0", found(1)) == "GPU-0"  # it waits for the card's lock
    assert job.card_for(other, "GPU-0", here) == "GPU-0"


def test_a_job_takes_neither_a_card_that_has_vanished_nor_one_on_which_it_was_lost(tmp_path, monkeypatch):
    """Ray believes such a card to be free, and would give it to each job that comes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = found(2)
    fields = {"problem": "double", "submission": SimpleNamespace(name="mine"), "slug": "card", "attempt": 2}
    fresh = job.ClusterJob.model_construct(**fields, kind="cuda")
    again = job.ClusterJob.model_construct(**fields, kind="cuda", lost_on=("GPU-0",))
    assert job.card_for(fresh, "GPU-9", here) == "GPU-0" and job.card_for(again, "GPU-0", here) == "GPU-1"
    with job._noted(fresh, "GPU-0"):
        assert job.card_for(fresh, "GPU-9", here) == "GPU-1"
    with job._noted(fresh, "GPU-1"):
        assert job.card_for(again, "GPU-0", here) == "GPU-1"  # it waits for the card's lock
    assert job.card_for(again, "GPU-0", found(1)) == "GPU-0"  # there is no other


def test_a_machine_does_not_take_the_jobs_of_another_for_its_own_where_they_share_a_home(tmp_path, monkeypatch):
    """Their processes may have the same numbers, as in containers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fields = {"problem": "double", "submission": SimpleNamespace(name="mine"), "slug": "card", "attempt": 1}
    monkeypatch.setattr(engine.platform, "node", lambda: "one")
    with job._noted(job.ClusterJob.model_construct(**fields, kind="cuda"), "GPU-0"):
        assert len(job.running()) == 1
        monkeypatch.setattr(engine.platform, "node", lambda: "two")
        assert job.running() == []
        monkeypatch.setattr(engine.platform, "node", lambda: "one")


def test_the_note_of_a_job_that_was_killed_is_not_that_of_a_later_process_with_its_number(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fields = {"problem": "double", "submission": SimpleNamespace(name="mine"), "slug": "card", "attempt": 1}
    with job._noted(job.ClusterJob.model_construct(**fields, kind="cuda"), "GPU-0"):
        (told,) = job.running()
        (note,) = job._notes().iterdir()
        note.write_text(json.dumps(told | {"began": told["began"] - 1}))
        assert job.running() == [] and not note.exists()


def test_a_machine_whose_torch_uses_none_of_its_cards_is_told_what_to_install(tmp_path, monkeypatch, toy_root):
    import torch

    smi = tmp_path / "nvidia-smi"
    row = "0, GPU-00, NVIDIA H200, 143771, 9.0, 580.1"
    smi.write_text(f"#!/bin/sh\ncase $1 in --query-gpu*) echo '{row}';; esac\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InfrastructureError, match=r"has GPUs, and torch .* uses none of them"):
        facts.here(toy_root)


@pytest.mark.parametrize(("gpu", "install"), [(True, "PODIUM_TORCH=cuda make problems"), (False, "make problems")])
def test_a_machine_without_torch_is_told_so_in_one_sentence(monkeypatch, gpu, install):
    card = Card(id="one", device=DEVICE if gpu else DEVICE.model_copy(update={"kind": "cpu"}))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InfrastructureError, match="torch is not installed here") as error:
        facts._check_torch([card])
    assert error.value.hint == install


def test_a_machine_with_a_driver_and_no_nvidia_smi_needs_torch_to_tell_its_cards(tmp_path, monkeypatch, toy_root):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(facts.machine, "driver_present", lambda: True)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InfrastructureError, match="torch is not installed here"):
        facts.here(toy_root)


def test_a_torch_that_cannot_be_imported_is_named_with_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13:\\n cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    said = "torch cannot be imported here: OSError: libcudart.so.13: cannot open shared object file"
    with pytest.raises(InfrastructureError, match=said):
        facts._check_torch([Card(id="one", device=DEVICE)])


def test_the_hash_of_the_code_changes_with_a_file_and_with_its_name(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = facts.code_sha256(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    assert facts.code_sha256(tmp_path) == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert facts.code_sha256(tmp_path) != before


def test_what_a_process_has_started_is_known_and_others_are_not():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        below = facts.descendants(os.getpid())
        assert {os.getpid(), child.pid} <= below and os.getppid() not in below
        child.communicate(b"\n")


def test_a_process_may_have_any_bytes_as_its_name_and_a_node_is_looked_over_all_the_same():
    rename = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'\\xff) R 1 1', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", rename], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert b"\xff" in Path(f"/proc/{child.pid}/comm").read_bytes()
        assert child.pid in facts.descendants(os.getpid())
        assert child.pid not in node._ours()
        child.communicate(b"\n")


def test_the_board_of_nodes_says_what_is_wrong_with_each():
    busy = Card(id="GPU-9", device=DEVICE, others=("python (17)",))
    nodes = [
        Node("1", "10.0.0.1", True, found((Card(id="GPU-1", device=DEVICE),), vanished=("GPU-2",))),
        Node("2", "10.0.0.2", True, found(host="rim", code="c" * 64, torch="2.12.0", sandbox=None, calibrated=())),
        Node("3", "10.0.0.3", True, found(host="hub", cards=(busy,))),
        Node("4", "10.0.0.4", False, silent="it is dead"),
    ]
    one, two, three, four = census.judged(nodes, "a" * 64)
    assert one.wrong == ("GPU-2 has vanished: it was there as `podium node` started",)
    assert [sentence.split(":")[0] for sentence in two.wrong] == [
        "other code than here",
        "torch is 2.12.0, most nodes have 2.13.0+cu130",
        "no sandbox holds",
        "card was never calibrated there",
    ]
    assert three.wrong == ("GPU-9 is busy with python (17)",)
    assert four.wrong == ("it is dead",)


def test_a_node_of_another_podium_that_tells_its_facts_in_another_form_is_named_and_ends_nothing():
    ours = {"facts": found().model_dump_json(), "running": [], "parcels": ["a"]}
    theirs = ours | {"facts": json.dumps(json.loads(ours["facts"]) | {"colour": "green"})}
    nodes = [census.answering(*each) for each in (("1", "10.0.0.1", ours), ("2", "10.0.0.2", theirs))]
    assert nodes[0].facts == found() and nodes[0].parcels == ("a",)
    assert nodes[1].alive and "in another form" in census.judged(nodes, "a" * 64)[1].wrong[0]
    assert census.answering("3", "10.0.0.3", ours | {"facts": None}).silent == "it was not started by `podium node`"


def test_a_card_of_two_nodes_is_named_at_both():
    nodes = [Node(str(n), f"10.0.0.{n}", True, found(cards, host=f"box{n}")) for n, cards in enumerate((1, 2, ()), 1)]
    nodes.append(Node("4", "10.0.0.4", False, silent="it is dead"))
    one, two, three, _ = census.judged(nodes, "a" * 64)
    assert one.wrong == ("GPU-0 is a card of box2 (10.0.0.2), too: each may give it to a job",)
    assert two.wrong == ("GPU-0 is a card of box1 (10.0.0.1), too: each may give it to a job",)
    assert not three.wrong


def test_a_node_that_has_joined_again_is_shown_once_and_one_that_died_until_then():
    def ray_s(number, host, alive):
        return {"NodeID": number, "NodeManagerAddress": host, "NodeManagerHostname": host, "Alive": alive}

    known = [ray_s("1", "a", False), ray_s("2", "b", False), ray_s("3", "b", False), ray_s("4", "c", True)]
    assert [node["NodeID"] for node in census.present(known)] == ["4", "1", "2"]
    again = [*known, ray_s("5", "a", True), ray_s("6", "a", True)]
    assert [node["NodeID"] for node in census.present(again)] == ["5", "6", "4", "2"]


def test_a_problem_s_files_have_the_same_hash_wherever_they_lie(toy_root, tmp_path_factory):
    problem = catalog.load_problem(toy_root, "double")
    packed = parcel.pack(toy_root, problem)
    cache = tmp_path_factory.mktemp("cache")
    there = parcel.unpack(parcel.sha256_of(packed), lambda: packed, cache)
    again = catalog.load_problem(there, "double")
    assert again.sha256 == problem.sha256
    assert parcel.pack(there, again) == packed
    (toy_root / "problems" / "double" / "reference.py").write_text("# another\n")
    assert parcel.sha256_of(parcel.pack(toy_root, problem)) != parcel.sha256_of(packed)


def test_what_is_there_already_is_not_fetched_and_what_is_spoilt_is_refused(toy_root, tmp_path_factory):
    packed = parcel.pack(toy_root, catalog.load_problem(toy_root, "double"))
    cache, sha256 = tmp_path_factory.mktemp("cache"), parcel.sha256_of(packed)
    with pytest.raises(InfrastructureError, match="arrived spoilt"):
        parcel.unpack(sha256, lambda: packed + b"x", cache)
    assert not list(cache.iterdir())
    parcel.unpack(sha256, lambda: packed, cache)
    assert parcel.unpack(sha256, lambda: pytest.fail("fetched again"), cache).is_dir()


@pytest.fixture
def asked(toy_root, monkeypatch):
    """A job of the toy problem for this machine, with the facts and the files that it takes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(toy_root / "cache"))
    problem = catalog.load_problem(toy_root, "double")
    packed = parcel.pack(toy_root, problem)
    here = facts.here(toy_root)

    def make(source, judge=job.Judge, **changes):
        fields = {
            "problem": "double",
            "problem_sha256": problem.sha256,
            "parcel": parcel.sha256_of(packed),
            "submission": catalog.submission_of(problem, source.encode(), "mine", "mine.py"),
            "slug": here.cards[0].device.slug,
            "kind": "cpu",
            "depth": "verdict",
            "pins": Pins(code=here.code, torch=here.torch, sandbox=False),
            "attempt": 1,
        }
        return job.perform(job.ClusterJob(**(fields | changes)), here, "cpu", lambda: packed, judge)

    return make


@pytest.mark.slow(ci=True)
def test_a_job_tells_that_it_begins_then_lines_and_last_the_run_with_its_source(asked):
    said = list(asked("def custom_kernel(data):\n    return data[0] * 2\n"))
    assert list(said[0]) == ["begun"] and "run" in said[-1]
    assert any("test 1 of 2" in item.get("told", "") for item in said)
    last = said[-1]
    assert last["run"]["ending"]["verdict"] == "accepted"
    assert last["source_sha256"] == last["run"]["submission_sha256"]
    assert last["run"]["environment"]["cluster"]["attempt"] == 1


def test_a_job_gives_a_sign_of_life_before_the_machine_is_looked_at(monkeypatch):
    context = SimpleNamespace(get_node_id=lambda: "n1")
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(facts, "now", lambda: pytest.fail("looked at"))
    said = next(job.judge_job("", []))
    assert "alive" in said and said["on"] == "n1"


def test_a_judge_that_does_not_find_its_card_is_a_fault_of_the_node_and_not_of_who_typed_eval(asked, monkeypatch):
    class Blind:
        def __init__(self, environment):
            pass

        def ask(self, request, narrate):
            raise UsageError("torch sees no GPU cuda:0 on this machine", "--device cpu")

        def close(self):
            pass

    *_, last = asked("", judge=Blind)
    assert last["error"]["kind"] == "InfrastructureError" and "sees no GPU" in last["error"]["message"]


def test_a_job_with_other_pins_is_refused_before_anything_is_started(asked):
    (said,) = asked("", pins=Pins(torch="1.0"))
    assert "pinned is 1.0" in said["refused"][0]


def test_a_job_whose_problem_has_another_hash_is_not_judged(asked):
    *_, last = asked("", problem_sha256="0" * 64)
    assert "their hash is not the job's" in last["error"]["message"]


def test_a_job_that_is_closed_ends_its_judge(asked, monkeypatch):
    monkeypatch.setattr(job, "ALIVE_S", 0.05)
    others = facts.descendants(os.getpid())  # fork servers of other tests
    going = asked("import time\ntime.sleep(300)\n")
    assert "begun" in next(going)
    judges, until = set(), time.monotonic() + 60
    while not judges and time.monotonic() < until:
        next(going)
        judges = facts.descendants(os.getpid()) - others
    assert judges
    going.close()
    until = time.monotonic() + 60
    while (left := judges & facts.descendants(os.getpid())) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


def test_the_judge_gets_neither_the_token_nor_what_the_node_was_told():
    given = job.clean({"RAY_AUTH_TOKEN": "x", "RAY_ADDRESS": "y", facts.NODE: "{}", "PATH": "/bin"})
    assert given == {"PATH": "/bin"}


def test_a_token_is_made_once_and_only_its_owner_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "ray" / "token"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with pytest.raises(InfrastructureError, match="there is no token here"):
        engine.check_token()
    made = engine.make_token()
    assert made.stat().st_mode & 0o777 == 0o600 and len(engine.token()) == 64
    assert engine.make_token() is None


@pytest.mark.parametrize(
    "address",
    ["", "here", "host:", ":6379", "http://host:1", "::1:6379", "[::1]", "[::1]6379", "[host]:1", "[::1:6379"],
)
def test_what_is_no_address_is_said_before_ray_is_asked_for(address):
    with pytest.raises(UsageError, match="is no address of a cluster"):
        engine.connect(address)


@pytest.mark.parametrize("address", ["auto", "host:1", "10.0.0.1:1", "ray://host:1", "[fd00::1]:1", "ray://[::1]:1"])
def test_what_node_prints_of_a_head_is_an_address_of_ipv6_too(address):
    engine.check_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_head_that_is_gone_is_said_at_once(monkeypatch, address):
    if address.startswith("ray://"):
        pytest.importorskip("grpc")
    monkeypatch.setattr(engine, "load", lambda: SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        port = free.getsockname()[1]
        with pytest.raises(InfrastructureError, match=f"no cluster answers at 127.0.0.1:{port}: Connection refused"):
            engine.connect(address.format(port))


def ray_at(found, folders=None):
    """Ray, which finds its node at the address `found`. `folders` is told where it connected."""
    inits = []

    def init(**given):
        inits.append(given.get("_node_ip_address"))
        if folders is not None:
            folders.append(os.getcwd())

    return inits, SimpleNamespace(
        is_initialized=lambda: False,
        init=init,
        shutdown=lambda: None,
        util=SimpleNamespace(get_node_ip_address=lambda: found),
    )


@pytest.fixture
def listening(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setattr(engine, "joined", lambda: "127.0.0.1:6379")
    monkeypatch.setattr(engine, "check_listens", lambda address: None)


@pytest.mark.parametrize(("found", "inits"), [("127.0.0.1", [None]), ("203.0.113.1", [None, "127.0.0.1"])])
def test_of_two_nodes_that_ray_sees_it_connects_to_the_one_with_an_address_of_this_machine(
    monkeypatch, listening, found, inits
):
    asked, ray = ray_at(found)
    monkeypatch.setattr(engine, "load", lambda: ray)
    monkeypatch.setattr(engine, "node_addresses", lambda address: ["203.0.113.1", "127.0.0.1"])
    engine.connect("auto")
    assert asked == inits


def test_where_no_node_runs_on_this_machine_that_is_said_before_ray_looks_for_one(monkeypatch, listening):
    asked, ray = ray_at("203.0.113.1")
    monkeypatch.setattr(engine, "load", lambda: ray)
    monkeypatch.setattr(engine, "node_addresses", lambda address: ["203.0.113.1", "203.0.113.2"])
    with pytest.raises(InfrastructureError) as error:
        engine.connect("203.0.113.1:6379")
    assert error.value.message == "no node of the cluster at 203.0.113.1:6379 runs on this machine"
    assert " node --address 203.0.113.1:6379" in error.value.hint and "ray://203.0.113.1:10001" in error.value.hint
    assert not asked


def test_nodes_get_no_folder_of_the_sender_s_to_find_another_podium_in(monkeypatch, listening, tmp_path):
    monkeypatch.chdir(tmp_path)
    folders = []
    monkeypatch.setattr(engine, "load", lambda: ray_at("127.0.0.1", folders)[1])
    monkeypatch.setattr(engine, "node_addresses", lambda address: ["127.0.0.1"])
    engine.connect("auto")
    assert folders == ["/"] and os.getcwd() == str(tmp_path)


def test_without_ray_one_sentence_says_what_to_type(podium, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    code, _, err = podium("cluster")
    assert code == 30
    assert "error: Ray is not installed here\n  in a checkout: .venv/bin/python -m pip install" in err


def test_a_node_that_neither_begins_nor_joins_is_asked_which(podium):
    code, _, err = podium("node")
    assert code == 2 and "--head, or --address HOST:PORT" in err


def test_a_node_in_another_network_is_another_machine_s_which_stop_leaves_alone():
    apart = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("network namespaces are not allowed here")
    sleeper = [sys.executable, "-c", "import time; print(flush=True); time.sleep(300)"]
    variables = {**os.environ, facts.NODE: "{}"}
    with subprocess.Popen([*apart, *sleeper], stdout=subprocess.PIPE, env=variables) as theirs:
        theirs.stdout.readline()
        try:
            assert theirs.pid not in node._ours()
        finally:
            theirs.kill()


def test_only_processes_that_node_has_started_are_ended_by_stop(monkeypatch):
    mine = {**os.environ, facts.NODE: "{}"}
    sleeper = [sys.executable, "-c", "import time; print(flush=True); time.sleep(300)"]
    with (
        subprocess.Popen(sleeper, stdout=subprocess.PIPE, env=mine) as ours,
        subprocess.Popen(sleeper, stdout=subprocess.PIPE) as theirs,
    ):
        ours.stdout.readline()
        theirs.stdout.readline()
        try:
            assert set(node._ours()) >= {ours.pid} and theirs.pid not in node._ours()
            monkeypatch.setattr(node, "_ours", lambda: {ours.pid} if ours.poll() is None else set())
            assert node.stop() == 1
            assert ours.wait(30) == -signal.SIGTERM and theirs.poll() is None
        finally:
            for each in (ours, theirs):
                each.kill()


@pytest.mark.parametrize(("cards", "refused"), [(1, True), ((Card(id="GPU-7", device=DEVICE),), False)])
def test_a_machine_is_a_node_once_unless_the_second_has_other_cards(tmp_path, monkeypatch, cards, refused):
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sh")
    words = [raylet, "-c", "echo; read line", "--gcs-address=10.0.0.1:6379"]
    runs = {**os.environ, facts.NODE: found(2).model_dump_json()}
    started = []

    def run(command, **given):
        started.append(command)
        return SimpleNamespace(returncode=0, stdout="")

    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=runs) as other:
        other.stdout.readline()
        monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(engine, "load", lambda: None)
        monkeypatch.setattr(facts, "here", lambda root: found(cards))
        monkeypatch.setattr(node.subprocess, "run", run)
        said = r"this machine is a node already, of the cluster at 10\.0\.0\.1:6379\n .* node --stop"
        with pytest.raises(InfrastructureError, match=said) if refused else contextlib.nullcontext():
            node.start(ROOT, True, None, "127.0.0.1", lambda line: None)
        assert bool(started) is not refused
        started.clear()
        node.start(ROOT, True, None, "127.0.0.1", lambda line: None, beside=True)
        assert started
        other.communicate(b"\n")


@pytest.mark.slow(ci=True)
def test_no_module_imports_ray_and_an_evaluation_without_a_cluster_imports_neither_it_nor_the_cluster(
    toy_root, forking
):
    source = toy_root / "submissions" / "double" / "mine.py"
    source.write_text("def custom_kernel(data):\n    return data[0] * 2\n")
    code = """
import importlib, pkgutil, sys
import harness.cli
code = harness.cli.main(["--root", sys.argv[1], "eval", "double", sys.argv[2], "--quick"])
evaluated = [name for name in sys.modules if name.startswith(("ray", "harness.cluster"))]
import harness.cluster
for module in pkgutil.walk_packages(harness.cluster.__path__, "harness.cluster."):
    importlib.import_module(module.name)
print(code, evaluated, "ray" in sys.modules, file=sys.stderr)
"""
    command = [sys.executable, "-c", code, str(toy_root), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "0 [] False"


@pytest.fixture
def request_of(toy_root):
    problem = catalog.load_problem(toy_root, "double")
    submission = catalog.submission_of(problem, b"# any\n", "mine", "mine.py")
    return Request(root=toy_root, problem="double", submission=submission, device="cpu", depth="quick")


def test_a_job_whose_process_of_ray_s_dies_is_told_so_in_one_sentence(toy_root, request_of):
    with (
        Link("auto", toy_root, driver="tests.dying_driver") as way,
        pytest.raises(ClusterLost, match=r"the cluster at auto is lost: .* ended with status 1"),
    ):
        way.judge(request_of)


def test_a_cluster_to_which_ray_does_not_connect_is_waited_for_with_a_word_and_not_for_ever(toy_root, monkeypatch):
    monkeypatch.setattr(link, "HINT_S", 0.0)
    monkeypatch.setattr(link, "CONNECT_S", 1.0)
    told = []
    with pytest.raises(InfrastructureError, match="Ray has not connected to the cluster at auto within 1 s"):
        Link("auto", toy_root, driver="tests.silent_driver", tell=told.append)
    assert told == ["waiting until Ray has connected to the cluster at auto"]


@pytest.fixture
def stuck(toy_root, monkeypatch):
    """What a cluster makes of a job that never says a word: the lines, and the error or the run. `free`: by Ray's
    books. `started`: Ray has given it a process."""

    def judged(request, free, started=False):
        number = SimpleNamespace(hex=lambda: "a1")
        actor = SimpleNamespace(next=SimpleNamespace(remote=lambda: "asked"), _actor_id=number)
        actors = SimpleNamespace(options=lambda **words: SimpleNamespace(remote=lambda *given: actor))
        here = facts.here(toy_root, sandbox=None)
        slug = here.cards[0].device.slug
        alive = {"Alive": True, "NodeID": "1", "Resources": {slug: 1}, "Labels": labels(here)}
        ray = SimpleNamespace(
            remote=lambda task: actors,
            put=lambda packed: "reference",
            nodes=lambda: [alive],
            available_resources=lambda: {slug: 1} if free else {},
            kill=lambda actor: None,
        )
        monkeypatch.setattr(engine, "connect", lambda address: ray)
        monkeypatch.setattr(census, "take", lambda ray: [Node("1", "10.0.0.1", True, here)])
        monkeypatch.setattr(census, "with_process", lambda: {"a1": "1"} if started else {})
        for name in ("HINT_S", "LOOK_AROUND_S"):
            monkeypatch.setattr(watching, name, 0.0)
        monkeypatch.setattr(prospects, "HINT_S", 0.0)
        told, pins = [], Pins(sandbox=False)
        place = placement.Placement("auto", toy_root, lonely_s=0.01, silent_s=0.1, pins=pins)

        looks = iter(range(200))

        def wait(asked, timeout):
            next(looks)
            time.sleep(0.02)
            if told and not free and not started:
                place._placed.copy().pop().close()
            return [], asked

        ray.wait = wait
        try:
            return told, place.judge(request.model_copy(update={"device": slug}), told.append)
        except InfrastructureError as error:
            return told, error

    return judged


def test_a_job_that_ray_does_not_start_on_a_free_node_ends_with_that_sentence(stuck, request_of):
    told, error = stuck(request_of, free=True)
    assert told == [told[0]] and "mine: waits until a node with a free" in told[0]
    assert "it answers and is free, and Ray does not start the job there" in error.hint


def test_a_job_whose_nodes_are_busy_waits_until_it_is_ended(stuck, request_of):
    told, error = stuck(request_of, free=False)
    assert isinstance(error, JobEnded) and "waits until a node" in told[0]


@pytest.mark.parametrize("free", [True, False])
def test_a_process_that_never_says_a_word_is_a_lost_attempt_and_the_job_is_placed_again(stuck, request_of, free):
    told, run = stuck(request_of, free, started=True)
    assert [line.partition(" is lost")[0] for line in told] == [f"mine: attempt {number}" for number in (1, 2, 3)]
    assert run.ending.verdict == "infrastructure_error" and "said nothing within 0.1 s" in run.ending.message


class TwoNodes:
    """Ray with a node 1, which loses the first attempt of a job and judges the next one, and a node 2, which begins
    none. `left`: it leaves as a job waits for it."""

    def __init__(self, here, run, left):
        self.slug, self.run, self.left = here.cards[0].device.slug, run, left
        fields = {"Alive": True, "Resources": {self.slug: 1}, "Labels": labels(here)}
        self.known = [{"NodeID": number, **fields} for number in "12"]
        self.avoided, self.killed, self.looks = [], [], 0

    def remote(self, task):
        return self

    def options(self, label_selector, **given):
        self.avoided.append(label_selector.get("ray.io/node-id"))
        return SimpleNamespace(remote=self.begun)

    def begun(self, task, asked, parcels):
        number, first = len(self.avoided), {"alive": 1.0, "on": "1"}
        lost = {"error": {"kind": "InfrastructureError", "message": "its disk is full", "hint": None}}
        words = {1: [first, lost], 2: [], 3: [first, {"run": self.run, "source_sha256": self.run["submission_sha256"]}]}
        call = SimpleNamespace(remote=lambda: words[number])
        return SimpleNamespace(number=number, next=call, end=call, _actor_id=SimpleNamespace(hex=lambda: str(number)))

    def wait(self, asked, timeout):
        time.sleep(0.01)
        self.looks += not asked[0]
        if self.left and self.looks == 3:
            self.known[1]["Alive"] = False
        assert self.looks < 200
        return (asked, []) if asked[0] else ([], asked)

    def get(self, words, timeout):
        return words.pop(0)

    def kill(self, actor):
        self.killed.append(actor.number)

    def put(self, packed):
        return "reference"

    def nodes(self):
        return self.known

    def available_resources(self):
        return {self.slug: 1}


@pytest.mark.parametrize("left", [True, False])
def test_a_job_goes_back_to_the_node_that_lost_it_where_no_other_begins_it(toy_root, monkeypatch, request_of, left):
    """The other has left, or is free and does not answer. A server's job would wait for ever."""
    here, problem = facts.here(toy_root, sandbox=None), catalog.load_problem(toy_root, "double")
    sha256, device = request_of.submission.sha256, here.cards[0].device
    good = run(submission="mine", submission_sha256=sha256, problem_sha256=problem.sha256, device=device)
    ray = TwoNodes(here, good.model_dump(mode="json"), left)
    monkeypatch.setattr(engine, "connect", lambda address: ray)
    monkeypatch.setattr(census, "take", lambda ray: [Node(n, f"10.0.0.{n}", True, here) for n in "12"])
    monkeypatch.setattr(census, "with_process", lambda: {})
    monkeypatch.setattr(watching, "LOOK_AROUND_S", 0.0)
    lonely_s, told = float("inf") if left else 0.01, []
    place = placement.Placement("auto", toy_root, lonely_s=lonely_s, pins=Pins(sandbox=False))
    judged = place.judge(request_of.model_copy(update={"device": device.slug}), told.append)
    assert judged.ending.verdict == "accepted"
    assert ray.avoided == [None, "!in(1)", None] and ray.killed[:2] == [1, 2]
    assert "mine: no other node may judge it; one that lost it may" in told


def test_a_node_that_a_job_avoids_is_named_with_that_reason_and_is_nobody_who_may_judge_it(toy_root, monkeypatch):
    place = _of_nodes(toy_root, monkeypatch, found(1))
    place.ray.available_resources = lambda: {}
    place.prospects.lonely_s = 0.0
    waiting = job.ClusterJob.model_construct(slug="card", card=None, pins=Pins(sandbox=False))
    assert place.prospects.anybody(waiting, set()) and not place.prospects.anybody(waiting, {"1"})
    said = place.prospects.why_nobody(waiting, {"1"}).hint
    assert said == "box (10.0.0.1): an attempt was lost or refused there, and the job avoids it"


def test_a_patient_link_has_another_process_judge_what_the_lost_one_had(toy_root, request_of, monkeypatch):
    monkeypatch.setattr(link, "AGAIN_S", 0.05)
    told = []
    with Link("auto", toy_root, patient=True, driver="tests.dying_driver") as way:
        assert way.judge(request_of, told.append).submission == "mine"
    assert len(told) == 1 and "it is judged anew when a cluster answers" in told[0]


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("patient", [True, False])
def test_a_process_of_ray_s_that_is_stopped_is_a_lost_cluster_and_not_waited_for_for_ever(
    toy_root, request_of, monkeypatch, patient
):
    monkeypatch.setattr(link, "AGAIN_S", 0.05)
    monkeypatch.setattr(link, "LOOK_S", 0.05)
    monkeypatch.setattr(link, "MUTE_S", 1.0)
    (toy_root / "stops").touch()
    with Link("auto", toy_root, patient=patient, driver="tests.dying_driver") as way:
        if patient:
            assert way.judge(request_of).submission == "mine"
        else:
            with pytest.raises(ClusterLost, match="is lost: Ray's process here said nothing for 1 s"):
                way.judge(request_of)


def test_ray_s_process_gives_signs_of_life_while_ray_answers_nothing(monkeypatch):
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(driver, "LOOK_S", 0.01)
    answers = driver._Answers(Connection(theirs.detach()))
    threading.Thread(target=driver._live, args=(answers,), daemon=True).start()
    with contextlib.closing(Connection(ours.detach())) as connection:
        assert [json.loads(connection.recv_bytes()) for _ in range(3)] == [{"id": 0, "alive": True}] * 3


def test_a_link_tells_a_log_of_nodes_and_of_what_happens_to_jobs_and_narrators_the_rest(toy_root, request_of):
    log, told = [], []

    class Narrator:
        def __call__(self, line):
            told.append(("told", line))

        def note(self, line):
            told.append(("noted", line))

    with Link("auto", toy_root, driver="tests.telling_driver", log=log.append) as way:
        way.judge(request_of, Narrator())
    assert log == ["the node box has left the cluster"]
    assert told == [("told", "mine: test 1 of 2"), ("noted", "mine: attempt 1 is lost: a reason")]


def test_a_server_s_log_has_that_its_cluster_is_lost_and_that_one_answers(toy_root, request_of, monkeypatch):
    monkeypatch.setattr(link, "AGAIN_S", 0.05)
    log = []
    with Link("auto", toy_root, patient=True, driver="tests.dying_driver", log=log.append) as way:
        way.judge(request_of)
        until = time.monotonic() + 30
        while len(log) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert log == ["the cluster at auto is lost; trying again until one answers", "a cluster answers at auto"]


def test_each_node_that_joins_or_leaves_is_one_line_with_why():
    def ray_s(number, alive, why=""):
        names = {"NodeManagerHostname": f"box{number}", "NodeManagerAddress": f"10.0.0.{number}"}
        return {"NodeID": number, "Alive": alive, "DeathReasonMessage": why, **names}

    first = [ray_s("1", True), ray_s("2", True)]
    assert driver.changes(None, first) == []
    then = [ray_s("1", True), ray_s("2", False, "its health\n check failed"), ray_s("3", True)]
    assert driver.changes(driver._alive(first), then) == [
        "the node box2 (10.0.0.2) has left the cluster: its health check failed",
        "the node box3 (10.0.0.3) has joined the cluster",
    ]
    assert driver.changes(driver._alive(then), then) == []


def asked_of(request, **changes):
    """A job that the runs of `run` answer."""
    told = run(submission="mine")
    fields = {"problem": told.problem, "problem_sha256": told.problem_sha256, "slug": told.device.slug, "attempt": 1}
    return SimpleNamespace(submission=request.submission, **(fields | changes))


def test_placements_losses_with_their_reason_and_dropped_results_are_for_logs_and_steps_are_not(request_of):
    noted = []

    class Narrator:
        def __call__(self, line):
            pass

        def note(self, line):
            noted.append(line)

    asked = asked_of(request_of)
    attempts = Attempts()
    attempts.begin()
    watched = watching.Watched(_placement(), None, attempts, Narrator())
    watched._take(asked, {"begun": {"node": "box", "card": "GPU-1"}})
    watched._take(asked, {"told": "test 1 of 2"})
    watched._take(asked, {"over": "its process has ended"})
    late = run(submission="mine").model_dump(mode="json") | {"submission_sha256": request_of.submission.sha256}
    watched._take(asked, {"run": late, "source_sha256": request_of.submission.sha256})
    assert noted == [
        "mine: judged on box, GPU-1",
        "mine: attempt 1 is lost: its process has ended",
        "mine: a result of attempt 1 is dropped: it is lost",
    ]
    assert attempts.run is None


def _placement(**prospects):
    return SimpleNamespace(ray=None, prospects=SimpleNamespace(**prospects))


@pytest.mark.parametrize(
    ("nodes", "lost_on", "avoided"),
    [("12", "1", [{"1"}]), ("1", "1", [set()]), ("12", "12", [{"1"}, {"2"}]), ("123", "12", [{"1"}, {"1", "2"}])],
)
def test_the_next_attempt_is_not_on_the_node_that_lost_one_unless_it_is_the_only_one(
    request_of, nodes, lost_on, avoided
):
    place = _placement(may_run=lambda job, avoid: bool(set(nodes) - avoid))
    asked = SimpleNamespace(submission=request_of.submission, attempt=1)
    watched, seen = watching.Watched(place, None, Attempts(), lambda line: None), []
    for node_id in lost_on:
        asked.attempt = watched._attempts.begin()
        watched._take(asked, {"alive": 1.0, "on": node_id})
        watched._take(asked, {"error": {"kind": "InfrastructureError", "message": "its disk is full", "hint": None}})
        seen.append(set(watched._avoid))
    assert seen == avoided


@pytest.mark.parametrize("ended", [True, False])
def test_a_node_whose_process_never_speaks_is_left_as_well(request_of, monkeypatch, ended):
    """It ends before its first word, as where Podium cannot be imported, or it is stopped."""

    def get(asked, timeout):
        raise type("ActorDiedError", (Exception,), {})

    tried = iter("12")
    place = _placement(
        heard=lambda: None,
        node_of=lambda actor: None if ended else actor,
        last_node_of=lambda actor: actor if ended else pytest.fail("asked"),
        may_run=lambda job, avoid: bool({"1", "2"} - avoid),
        lonely_s=float("inf"),
        hint_is_due=lambda: False,
    )
    place.silent_s, place.place = 0.02, lambda job, reference, avoid: Actor(next(tried))
    place.ray = SimpleNamespace(
        wait=lambda asked, timeout: (asked, []) if ended else time.sleep(0.01) or ([], asked),
        get=get,
        is_initialized=lambda: True,
        kill=lambda actor: None,
    )
    monkeypatch.setattr(watching, "LOOK_AROUND_S", 0.0)
    watched, seen = watching.Watched(place, watching.Placed(), Attempts(), lambda line: None), []
    for _ in "12":
        waiting = job.ClusterJob.model_construct(
            submission=request_of.submission, attempt=watched._attempts.begin(), slug="card"
        )
        watched.attempt(waiting, None)
        seen.append(watched._avoid)
    assert seen == [{"1"}, {"2"}]


class Actor(str):
    """One of Ray's, on the node of this number."""

    next = SimpleNamespace(remote=lambda: "asked")


def test_the_head_s_table_tells_the_node_of_an_actor_that_has_a_process_or_had_one(monkeypatch):
    def actor(process, node):
        return {"Pid": process, "Address": {"NodeID": node}}

    by_state = {"PENDING_CREATION": {"a": actor(0, ""), "b": actor(7, "n1")}, "ALIVE": {"c": actor(8, "n2")}}
    dead = {"d": actor(9, "n1")}
    known = by_state["PENDING_CREATION"] | by_state["ALIVE"] | dead

    def actors(number=None, actor_state_name=None):
        return by_state[actor_state_name] if number is None else known.get(number, {})

    private = SimpleNamespace(state=SimpleNamespace(actors=actors))
    for name, module in {"ray": SimpleNamespace(_private=private), "ray._private": private}.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert census.with_process() == {"b": "n1", "c": "n2"}
    assert [census.node_of(number) for number in "abde"] == [None, "n1", "n1", None]


@pytest.mark.parametrize(("address", "asked"), [("auto", 0), ("ray://10.0.0.1:10001", 2)])
def test_ray_s_client_asks_a_node_for_the_head_s_table(toy_root, monkeypatch, address, asked):
    sent = []

    class Task:
        def __init__(self, look):
            self.look = look

        def options(self, **given):
            return self

        def remote(self, *words):
            sent.append(words)
            return self.look(*words)

    ray = SimpleNamespace(remote=Task, get=lambda found, timeout: found)
    monkeypatch.setattr(engine, "connect", lambda address: ray)
    monkeypatch.setattr(census, "with_process", lambda: {"a1": "n1"})
    monkeypatch.setattr(census, "node_of", lambda number: {"a2": "n2"}[number])
    looking = placement.Placement(address, toy_root).prospects
    one, two, none = (SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda n=n: n)) for n in ("a1", "a2", "a3"))
    assert (looking.node_of(one), looking.node_of(two)) == ("n1", None)
    assert (looking.last_node_of(two), len(sent)) == ("n2", asked)
    assert looking.last_node_of(none) is None


def test_a_run_of_another_job_is_a_lost_attempt(request_of):
    attempts = Attempts()
    asked = SimpleNamespace(submission=request_of.submission, attempt=attempts.begin(), problem="double")
    other = run(submission="yours").model_dump(mode="json") | {"submission_sha256": request_of.submission.sha256}
    watching.Watched(_placement(), None, attempts, lambda line: None)._take(
        asked, {"run": other, "source_sha256": request_of.submission.sha256}
    )
    assert attempts.run is None and "another job" in attempts.reasons[0]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"problem_sha256": "1" * 64}, "it judged by other files of double: their hash is not the job's"),
        ({"slug": "nvidia-h200"}, f"it judged on {run().device.slug}, and the job is for nvidia-h200"),
    ],
)
def test_a_run_by_other_files_or_of_another_model_is_a_lost_attempt(request_of, changed, why):
    attempts = Attempts()
    asked = asked_of(request_of, attempt=attempts.begin(), **changed)
    said = run(submission="mine").model_dump(mode="json") | {"submission_sha256": request_of.submission.sha256}
    watched = watching.Watched(_placement(), None, attempts, lambda line: None)
    watched._take(asked, {"run": said, "source_sha256": request_of.submission.sha256})
    assert attempts.run is None and attempts.reasons == (why,)


def _of_nodes(toy_root, monkeypatch, *looks):
    """A placement to which the nodes are at each look the next of these; the last stays."""
    looks = [[Node("1", "10.0.0.1", True, each)] for each in looks]
    monkeypatch.setattr(engine, "connect", lambda address: SimpleNamespace(remote=lambda task: None))
    monkeypatch.setattr(census, "take", lambda ray: looks.pop(0) if len(looks) > 1 else looks[0])
    monkeypatch.setattr(placement, "AWAIT_S", 0.01)
    return placement.Placement("auto", toy_root, lonely_s=float("inf"))


def test_a_server_s_job_waits_for_a_node_that_has_not_joined_yet_and_keeps_its_card(toy_root, monkeypatch, request_of):
    other = found((Card(id="cpu of box", device=DEVICE.model_copy(update={"kind": "cpu", "slug": "cpu"})),))
    place = _of_nodes(toy_root, monkeypatch, other, other, found(1))
    for wanted, card in (("GPU-0", "GPU-0"), ("card", None)):
        request = request_of.model_copy(update={"device": wanted})
        assert place._awaited(request, watching.Placed(), lambda line: None) == (DEVICE, card)


def test_a_server_s_job_that_waits_says_why_and_says_so_again_as_soon_as_the_reason_is_another(
    toy_root, monkeypatch, request_of
):
    silent = [Node("1", "10.0.0.1", True, silent="its disk is full")]
    other = [Node("1", "10.0.0.1", True, found(1))]
    noted, placed = [], watching.Placed()
    place = _of_nodes(toy_root, monkeypatch, found(1))
    looks = iter([silent, silent, silent, other, other])

    def take(ray):
        if (look := next(looks, None)) is None:
            placed.close()
        return look or other

    monkeypatch.setattr(census, "take", take)
    with pytest.raises(JobEnded):
        place._awaited(request_of.model_copy(update={"device": "GPU-7"}), placed, noted.append)
    assert noted == [
        "mine: waits, because no node of the cluster says what it has",
        "mine: waits, because no node of the cluster has GPU-7",
    ]


def test_a_server_s_job_that_waits_for_a_node_can_be_ended_and_one_of_eval_says_what_is_missing(
    toy_root, monkeypatch, request_of
):
    place, placed = _of_nodes(toy_root, monkeypatch, found(1)), watching.Placed()
    placed.close()
    request = request_of.model_copy(update={"device": "GPU-7"})
    with pytest.raises(JobEnded):
        place.judge(request, started=lambda job: job.close())
    assert not place._placed
    place.prospects.lonely_s = 60.0
    with pytest.raises(UsageError, match="no node of the cluster has GPU-7"):
        place.judge(request)


def test_a_node_without_the_card_of_a_pinned_job_is_not_said_to_be_busy(toy_root, monkeypatch):
    place = _of_nodes(toy_root, monkeypatch, found(1))
    pinned = job.ClusterJob.model_construct(slug="card", card="GPU-7", pins=Pins(sandbox=False))
    assert "it has no card GPU-7" in place.prospects.why_nobody(pinned, set()).hint


def test_a_job_that_is_ended_while_there_is_no_cluster_waits_for_none(toy_root, request_of, monkeypatch):
    monkeypatch.setattr(link, "AGAIN_S", 3600.0)
    with Link("auto", toy_root, patient=True, driver="tests.dying_driver") as way:
        jobs = []

        def told(line):
            jobs[0].close()

        with pytest.raises(JobEnded):
            way.judge(request_of, told, jobs.append)


@pytest.mark.parametrize("damaged", ["configs/eval.yml", "problems/double/problem.yml"])
@pytest.mark.parametrize("text", ["# changed\n", None])
def test_problem_files_that_were_damaged_in_the_cache_are_fetched_again(toy_root, tmp_path_factory, damaged, text):
    packed = parcel.pack(toy_root, catalog.load_problem(toy_root, "double"))
    cache, sha256 = tmp_path_factory.mktemp("cache"), parcel.sha256_of(packed)
    file = parcel.unpack(sha256, lambda: packed, cache) / damaged
    before = file.read_bytes()
    file.unlink() if text is None else file.write_text(text)
    assert (parcel.unpack(sha256, lambda: packed, cache) / damaged).read_bytes() == before
    assert [path.name for path in cache.iterdir()] == [sha256]


def test_a_job_that_is_pinned_to_a_card_that_is_not_here_is_refused(asked):
    (said,) = asked("", card="cpu of elsewhere")
    assert said == {"refused": ["it has no card cpu of elsewhere"]}


def test_a_job_that_is_ended_before_it_is_placed_is_ended_as_soon_as_it_is(request_of):
    ours, theirs = socket.socketpair()
    placing, ended = threading.Event(), threading.Event()

    class Slow:
        def judge(self, request, narrate, started):
            placing.wait(30)  # the nodes are asked what they have
            job = watching.Placed()
            started(job)
            assert job.closing.is_set()
            ended.set()
            raise JobEnded("ended")

    with contextlib.closing(Connection(ours.detach())) as connection:
        answers = driver._Answers(Connection(theirs.detach()))
        threading.Thread(target=answers.serve, args=(Slow(),), daemon=True).start()
        connection.send_bytes(json.dumps({"id": 1, "judge": request_of.model_dump(mode="json")}).encode())
        connection.send_bytes(json.dumps({"end": 1}).encode())
        until = time.monotonic() + 30
        while not answers._ended and time.monotonic() < until:
            time.sleep(0.01)
        placing.set()
        assert json.loads(connection.recv_bytes())["error"]["kind"] == "JobEnded"
    assert ended.is_set()


def test_auto_is_the_cluster_that_node_has_joined_whatever_other_processes_say(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    spoof = ["raylet", "-c", "read line", "--gcs-address=203.0.113.1:6379"]
    with subprocess.Popen(spoof, executable="/bin/sh", stdin=subprocess.PIPE) as other:
        with pytest.raises(InfrastructureError, match="`podium node` has started no node on this machine"):
            engine.joined()
        node._note("10.0.0.1:6379", None, 0, pytest.fail)
        assert engine.joined() == "10.0.0.1:6379"
        other.communicate(b"\n")


@pytest.mark.parametrize(
    ("address", "ip", "said"),
    [
        ("ray://10.0.0.1:10001", None, "no address of a head"),
        ("10.0.0.1", None, "no address of a head"),
        (None, "203.0.113.7", "no address of this machine"),
        (None, "0.0.0.0", "stands for every address"),
        (None, "::1", "Ray does not listen at ::1"),
        ("10.0.0.1:6379", "0:0:0:0:0:0:0:1", "Ray does not listen at 0:"),
    ],
)
def test_a_node_with_an_address_that_cannot_be_right_is_refused_before_ray_starts(monkeypatch, address, ip, said):
    monkeypatch.setattr(engine, "is_here", lambda ip: ip != "203.0.113.7")  # a machine may have no IPv6
    monkeypatch.setattr(engine, "load", lambda: pytest.fail("begun"))
    with pytest.raises(UsageError, match=said):
        node.start(ROOT, address is None, address, ip, pytest.fail)


@pytest.mark.parametrize(("ip", "warns"), [("127.0.0.1", True), ("10.0.0.1", False), ("fd00::1", False)])
def test_a_head_says_how_others_join_and_that_a_loopback_address_is_of_no_use_to_them(tmp_path, monkeypatch, ip, warns):
    said = []
    monkeypatch.setattr(engine, "joined_file", lambda: tmp_path / "joined" / "here")
    node._note(None, ip, 6379, said.append)
    where = f"[{ip}]:6379" if ":" in ip else f"{ip}:6379"
    (line,) = said
    assert engine.joined_file().read_text() == where
    assert "--ip takes another" in line if warns else f"node --address {where}" in line.replace("'", "")
    assert ("open at every address even so" in line) == warns, "Ray binds all of them, whatever --ip says"
    node._note("10.0.0.9:6379", ip, 6379, pytest.fail)  # who joins knows it already
    assert engine.joined_file().read_text() == "10.0.0.9:6379"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ActorDiedError", "its process has ended, or its node (ActorDiedError)"),
        ("ValueError", "ValueError: a long text of Ray's"),
    ],
)
def test_the_reason_of_a_lost_attempt_says_what_ended_and_else_what_ray_says(name, said):
    def get(asked, timeout):
        raise type(name, (Exception,), {})("a long text\n  of Ray's")

    ray = SimpleNamespace(get=get, is_initialized=lambda: True)
    watched = watching.Watched(SimpleNamespace(ray=ray, silent_s=1.0), None, None, pytest.fail)
    assert watched._next("asked") == {"over": said}


def test_where_no_node_says_what_it_has_that_is_said_with_each_node_s_reason(toy_root, monkeypatch):
    monkeypatch.setattr(engine, "connect", lambda address: SimpleNamespace(remote=lambda task: task))
    monkeypatch.setattr(census, "take", lambda ray: [Node("1", "10.0.0.1", True, silent="its disk is full")])
    with pytest.raises(InfrastructureError, match="no node of the cluster says what it has") as error:
        placement.Placement("auto", toy_root).device("auto")
    assert error.value.hint == "10.0.0.1: its disk is full"


@pytest.mark.parametrize(
    "host", ["", ".", "..", "../../x", "a/b", "b\N{LATIN SMALL LETTER U WITH DIAERESIS}ro", "\udcff"]
)
def test_whatever_a_machine_is_called_it_is_a_node_and_its_file_is_in_the_folder(toy_root, monkeypatch, host):
    monkeypatch.setattr(facts.platform, "node", lambda: host)
    monkeypatch.setenv("XDG_CACHE_HOME", str(toy_root / "cache"))
    node._note("10.0.0.1:6379", None, 0, pytest.fail)
    assert engine.joined() == "10.0.0.1:6379"
    assert engine.joined_file().parent == toy_root / "cache" / "podium" / "joined"
    here = facts.here(toy_root, sandbox=None)
    given = node.environment(here)[facts.NODE].encode()  # as Ray's processes get it
    assert Inventory.model_validate_json(given) == here
    for word in node.arguments(here, True, None, None):
        word.encode()


@pytest.mark.parametrize("token", ["a" * 40 + "\n" + "b" * 40, "a" * 40 + " b", "ü" * 40, "short"])
@pytest.mark.parametrize("by_variable", [True, False])
def test_a_token_that_ray_does_not_take_is_said_with_where_it_is(tmp_path, monkeypatch, token, by_variable):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_text("c" * 64 if by_variable else token)
    monkeypatch.setenv("RAY_AUTH_TOKEN", token if by_variable else "")
    with pytest.raises(InfrastructureError) as error:
        engine.check_token()
    where, other = "RAY_AUTH_TOKEN", str(tmp_path / "token")
    said = f"{error.value.message} {error.value.hint}"
    assert (where in said) is by_variable and (other in said) is not by_variable


def test_the_throughput_of_cards_is_also_told_without_the_wait_for_the_slowest(toy_root, request_of):
    took_s = {"GPU-0": 0.05, "GPU-1": 0.4}

    def judge(request):
        time.sleep(took_s[request.device])
        return run()

    way = SimpleNamespace(judge=judge)
    found = cluster_throughput.judged(way, toy_root, request_of.submission, list(took_s), 2)
    assert found.own_s["GPU-0"] < found.own_s["GPU-1"] <= found.seconds
    assert found.an_hour == pytest.approx(3600 * 4 / found.seconds)
    assert found.an_hour_each == pytest.approx(sum(3600 * 2 / each for each in found.own_s.values()))
    assert found.an_hour_each > 1.5 * found.an_hour
    assert found.words.endswith(f"its judge {run().duration_s:.1f} s")


def test_a_run_is_dated_by_the_clock_of_who_placed_it_and_not_by_its_node_s(request_of):
    attempts, asked = Attempts(), asked_of(request_of)
    attempts.begin()
    sha256, odd = request_of.submission.sha256, "2001-01-01T00:00:00.000+00:00"
    said = run(submission="mine").model_dump(mode="json")
    said |= {"submission_sha256": sha256, "started_at": odd, "id": "20010101T000000-abcdef-mine", "duration_s": 60.0}
    watched = watching.Watched(_placement(), None, attempts, pytest.fail)
    watched._take(asked, {"run": said, "source_sha256": sha256})
    began = datetime.datetime.fromisoformat(attempts.run.started_at)
    assert 59 < (datetime.datetime.now(datetime.UTC) - began).total_seconds() < 120
    assert attempts.run.id == f"{began:%Y%m%dT%H%M%S}-abcdef-mine"


def test_the_folder_that_ray_s_session_is_to_lie_in_is_made_for_its_owner_alone(tmp_path):
    node._make_private(str(tmp_path / "of" / "mine"))
    assert (tmp_path / "of" / "mine").stat().st_mode & 0o777 == 0o700
    node._make_private(str(tmp_path / "of" / "mine"))
    node._make_private(None)
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="which is RAY_TMPDIR, cannot be made"):
        node._make_private(str(tmp_path / "file" / "below"))
