"""What the server's dispatcher makes of a judge's runs, and of judges, disks and databases that fail."""

import asyncio
import errno
import json
import os
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi")

from databases import Postgres, programs
from served import DOUBLE, TOKEN, Server, saying, until

from bench.stand_in import run_of
from harness import catalog
from harness.cluster.watching import JobEnded
from harness.errors import InfrastructureError
from harness.library import judges
from harness.library.request import Request
from harness.model import Ending, Pinned, Verdict
from harness.records.store import Store
from harness.server import dispatcher as dispatching
from harness.server import recall
from harness.server.events import MOST_WAITING, Event, Hub, TooManyListeners
from harness.server.exhaustion import exhausted
from harness.server.program import by_name, cards, gpu_name
from harness.server.store.rows import JobState


def test_a_ranked_run_lies_where_those_of_eval_do_under_an_id_of_job_and_attempt(server):
    found = server.judged(server.person("ada"))
    (run_id,) = found["podium"]["run_ids"]
    assert run_id.endswith("-j1a1-ada.mine")
    run = Store(server.root).read(run_id)
    assert (run.id, run.submission, run.problem) == (run_id, "ada.mine", "double")
    assert run.submission_path == "double/ada/mine.py"
    assert [path for path, _ in server.judge.judged] == ["mine.py"], "reports name the file as its author does"
    with Store(server.root).index() as index:
        assert [entry.id for entry in index.runs()] == [run_id]


def test_the_log_has_every_state_of_a_submission_and_nobodys_id(server, capfd):
    client = server.person("ada")
    server.judged(client, saying(unranked="crowded,", detail="the_trick"))
    server.judge.failures = 1
    server.judged(client, saying(verdict="wrong_answer"), mode="test")
    lines = [line[20:] for line in capfd.readouterr().err.splitlines() if "submission" in line]
    assert lines == [
        "submission 1 to double: leaderboard on CPU, pending",
        "submission 1, attempt 1: running",
        "submission 1, attempt 1: waits again: other processes took the processors meanwhile: it is judged again",
        "submission 1, attempt 2: running",
        "submission 1, attempt 2: succeeded",
        "submission 2 to double: test on CPU, pending",
        "submission 2, attempt 1: running",
        "submission 2, attempt 1: waits again: the judge failed: RuntimeError: the judge has a bug",
        "submission 2, attempt 2: running",
        "submission 2, attempt 2: failed",
    ]


def test_the_log_has_what_happens_to_a_submission_on_a_cluster_and_a_result_that_is_dropped(server, capfd):
    client = server.person("ada")
    server.judge.notes = ["ada.mine: judged on box, GPU-1", "ada.mine: attempt 1 is lost: its process\nhas ended"]
    server.judge.free.clear()
    number = server.sent(client, saying(score_ns=1))
    until(lambda: server.judge.judged)
    (job,) = server.serving.database.queue.running()
    server.serving.database.queue.put_back(job.job_id, job.attempt, "another server took it over")
    server.judge.free.set()
    assert server.over(client, number)["job"]["status"] == "succeeded"
    lines = [line[20:] for line in capfd.readouterr().err.splitlines() if line.endswith(("GPU-1", "over", "ended"))]
    assert lines[:3] == [
        "submission 1, attempt 1: on the cluster: ada.mine: judged on box, GPU-1",
        "submission 1, attempt 1: on the cluster: ada.mine: attempt 1 is lost: its process has ended",
        "submission 1, attempt 1: its result is dropped: the attempt is over",
    ]
    assert stored(server) == server.over(client, number)["podium"]["run_ids"], "a board of results/ shows no other"


def stored(server):
    return sorted(path.stem for path in server.root.glob("results/*/double/*/*.json"))


def test_a_run_that_judged_nothing_is_not_stored_beside_the_one_that_counts(server, monkeypatch):
    monkeypatch.setattr(dispatching, "AGAIN_S", 0.01)
    judge, lost = server.judge, [Verdict.INFRASTRUCTURE_ERROR] * 2

    def losing(request, narrate, started):
        run = judge(request, narrate, started)
        return run if not lost else run.model_copy(update={"ending": Ending(verdict=lost.pop(), message="lost")})

    server.dispatcher._judge_apart = losing
    found = server.judged(server.person("ada"))
    assert (found["job"]["status"], found["podium"]["attempt"], lost) == ("succeeded", 3, [])
    assert stored(server) == found["podium"]["run_ids"] and len(stored(server)) == 1


def test_tests_and_quick_looks_are_on_no_board(server):
    client = server.person("ada")
    for mode in ("test", "benchmark"):
        server.judged(client, mode=mode)
    with Store(server.root).index() as index:
        assert index.runs() == []
    assert len(list(server.root.glob("results/trials/double/*/*.json"))) == 2


def test_what_a_competition_pins_goes_with_each_of_its_submissions(toy_root):
    server = Server(toy_root, double=f"{DOUBLE}pins: {{torch: 2.11.0+cu128, driver: '580.1'}}\ncard: GPU-1\n")
    try:
        server.judged(server.person("ada"))
        (request,) = server.judge.requests
        assert (request.device, request.pinned) == ("GPU-1", Pinned(torch="2.11.0+cu128", driver="580.1"))
    finally:
        server.close()


def test_the_real_judge_refuses_a_machine_with_other_versions_than_are_pinned(server):
    source = catalog.submission_of(catalog.load_problem(server.root, "double"), b"", "mine", "mine.py")
    request = Request(root=server.root, problem="double", submission=source, device="cpu", depth="verdict")
    pinned = request.model_copy(update={"pinned": Pinned(torch="1.0")})
    with pytest.raises(InfrastructureError, match=r"may not judge it: its torch is \S+, pinned is 1\.0"):
        judges.judge_apart(pinned, lambda line: None, lambda judge: None)


def test_a_crowded_run_is_judged_again_at_most_twice_and_each_is_kept(server):
    client = server.person("ada")
    ranked = server.judged(client, saying(unranked="crowded,", score_ns=1))
    assert (ranked["job"]["status"], len(ranked["podium"]["run_ids"])) == ("succeeded", 2)
    never = server.judged(client, saying(unranked="crowded", score_ns=2))
    assert (never["podium"]["attempt"], never["podium"]["unranked"]) == (3, "crowded")
    assert never["job"]["status"] == "failed" and "not ranked" in never["job"]["error"]
    quick = server.judged(client, saying(unranked="crowded", score_ns=3), mode="benchmark")
    assert quick["podium"]["attempt"] == 1


def test_a_run_that_is_judged_again_is_told_as_another_attempt_and_not_as_the_first_begun_anew(server):
    client, held = server.person("ada"), threading.Event()

    def wait(limit_s):
        return len(server.judge.judged) == 1 or held.wait(limit_s)

    server.judge.free = SimpleNamespace(wait=wait, set=held.set)
    number = server.sent(client, saying(unranked="crowded,", score_ns=1))
    until(lambda: len(server.judge.judged) == 2)
    assert server.ask("GET", f"/user/submissions/{number}", client)[1]["job"]["status"].startswith("running, attempt 2")
    held.set()
    assert server.over(client, number)["job"]["status"] == "succeeded"


def test_a_judge_that_fails_is_tried_three_times_and_the_next_one_has_its_turn(server, monkeypatch):
    monkeypatch.setattr(dispatching, "AGAIN_S", 0.01)
    client = server.person("ada")
    server.judge.failures = 2
    assert server.judged(client)["job"]["status"] == "succeeded"
    server.judge.failures = 3
    found = server.judged(client, saying(score_ns=7))
    assert found["job"]["status"] == "failed"
    assert found["job"]["error"] == "it could not be judged here: RuntimeError: the judge has a bug"
    assert server.judged(client, saying(score_ns=8))["job"]["status"] == "succeeded"


def test_a_machine_that_has_run_out_of_something_is_waited_for_and_no_submission_fails(server, monkeypatch, capfd):
    monkeypatch.setattr(dispatching, "AGAIN_S", 0.01)
    errors = [
        OSError(errno.EMFILE, "too many open files"),
        OSError(errno.ENOSPC, "no room"),
    ] * dispatching.MOST_FAILURES
    judge = server.judge

    def starved(request, narrate, started):
        if errors:
            raise errors.pop()
        return judge(request, narrate, started)

    server.dispatcher._judge_apart = starved
    found = server.judged(server.person("ada"))
    assert (found["job"]["status"], found["podium"]["attempt"], errors) == ("succeeded", 1, [])
    assert capfd.readouterr().err.count("trying again until it works") == 1


def test_only_what_runs_out_is_waited_for():
    caused = InfrastructureError("no worker")
    caused.__cause__ = OSError(errno.ENFILE, "too many open files in system")
    assert exhausted(caused) and exhausted(OSError(errno.ENOMEM, "no memory"))
    assert not exhausted(OSError(errno.EACCES, "no")) and not exhausted(RuntimeError("a bug"))


def test_one_that_is_removed_while_it_is_judged_never_reaches_a_board(server):
    client = server.person("ada")
    server.judge.free.clear()
    number = server.sent(client)
    until(lambda: server.judge.judged)
    server.ask("DELETE", f"/user/submissions/{number}", client)
    server.judge.free.set()
    until(lambda: server.serving.database.queue.submission(number).state.over)
    until(lambda: list(server.root.glob("results/removed/double/*/*.json")))
    assert not list(server.root.glob("results/local/double/*/*.json"))


@pytest.fixture
def endless(server, monkeypatch):
    """A judge without a verdict; it is told here that it is ended."""
    monkeypatch.setattr(recall, "LOOK_S", 0.02)
    ended = threading.Event()
    ended.close = ended.set

    def judge(request, narrate, started):
        started(ended)
        server.judge.judged.append((request.submission.path, request.submission.sha256))
        if not ended.wait(2):
            return run_of(request, 0)
        raise JobEnded("it was ended")

    server.dispatcher._judge_apart = judge
    return ended


@pytest.mark.parametrize(("mode", "token"), [("test", None), ("benchmark", None), ("leaderboard", TOKEN)])
def test_a_judge_ends_when_its_submission_is_deleted_or_an_administrator_removes_it(server, endless, mode, token):
    client = server.person("ada")
    number = server.sent(client, mode=mode)
    until(lambda: server.judge.judged)
    who = ("user", client, None) if token is None else ("admin", None, token)
    assert server.ask("DELETE", f"/{who[0]}/submissions/{number}", who[1], token=who[2])[0] == 200
    until(lambda: server.serving.database.queue.submission(number).state.over)
    found = server.serving.database.queue.submission(number)
    assert endless.is_set() and (found.state, found.attempt) == ("failed", 1)
    assert "deleted it" in found.error or "it was removed" in found.error
    assert not list(server.root.glob("results/*/double/*/*.json"))


def test_one_that_is_to_be_ranked_is_judged_to_its_end_although_its_author_deletes_it(server, endless):
    client = server.person("ada")
    number = server.sent(client)
    until(lambda: server.judge.judged)
    server.ask("DELETE", f"/user/submissions/{number}", client)
    until(lambda: server.serving.database.queue.submission(number).state.over)
    until(lambda: list(server.root.glob("results/removed/double/*/*.json")))  # it is moved after that is stored
    assert not endless.is_set()


def test_results_that_cannot_be_written_hold_the_run_up_and_lose_nothing(server, monkeypatch):
    monkeypatch.setattr(dispatching, "AGAIN_S", 0.01)
    (server.root / "results" / "local").write_text("in the way")
    client = server.person("ada")
    number = server.sent(client)
    until(lambda: server.judge.judged)
    time.sleep(0.1)
    assert server.serving.database.queue.submission(number).state is JobState.RUNNING
    (server.root / "results" / "local").unlink()
    assert server.over(client, number)["podium"]["attempt"] == 1
    assert len(server.judge.judged) == 1


def test_a_run_that_was_stored_before_the_server_died_is_concluded_and_not_judged_again(toy_root):
    first = Server(toy_root)
    client = first.person("ada")
    number = first.judged(client)["id"]
    first.close()
    again = Server(toy_root, judging=False)
    job = again.serving.database.queue.submission(number).job_id
    with again.serving.database.connections.writing() as rows:  # as it was between the run's file and its state
        rows("DELETE FROM runs")
        rows("UPDATE jobs SET state = 'running', ended_at = NULL WHERE id = ?", (job,))
    again.dispatcher.start()
    found = again.over(client, number)
    assert (found["job"]["status"], found["podium"]["attempt"]) == ("succeeded", 1)
    assert again.judge.judged == []
    again.close()


def test_what_ran_as_the_server_was_stopped_waits_and_is_judged_by_the_next(toy_root):
    first = Server(toy_root)
    client = first.person("ada")
    first.judge.free.clear()
    numbers = [first.sent(client, saying(score_ns=ns)) for ns in (1, 2)]
    until(lambda: first.judge.judged)
    first.judge.failures = 1  # as one that was ended
    threading.Timer(0.3, first.judge.free.set).start()
    first.dispatcher.stop()
    first.close()
    again = Server(toy_root)
    assert [again.over(client, number)["job"]["status"] for number in numbers] == ["succeeded"] * 2
    assert again.serving.database.queue.submission(numbers[0]).attempt == 2
    again.close()


def test_a_postgresql_that_goes_in_mid_run_costs_no_verdict(toy_root, monkeypatch):
    if programs() is None:
        pytest.skip("postgresql is not installed")
    pytest.importorskip("psycopg")
    cluster = Postgres()
    try:
        server = Server(toy_root, cluster.url)
        client = server.person("ada")
        server.judge.free.clear()
        numbers = [server.sent(client, saying(score_ns=ns)) for ns in (1, 2, 3)]
        until(lambda: server.judge.judged)
        cluster.stop()
        status, said = server.send(client)
        assert status == 503 and said["detail"].endswith("try again later")
        server.judge.free.set()
        time.sleep(0.3)
        cluster.start()
        assert [server.over(client, number)["job"]["status"] for number in numbers] == ["succeeded"] * 3
        assert len(server.judge.judged) == 3
        server.close()
    finally:
        cluster.close()


def test_a_sqlite_file_that_goes_and_comes_back_costs_no_verdict(server):
    client = server.person("ada")
    server.judge.free.clear()
    number = server.sent(client)
    until(lambda: server.judge.judged)
    path = server.root / "server.sqlite"
    path.rename(server.root / "elsewhere")
    assert server.send(client)[0] == 503
    assert server.ask("GET", "/health")[0] == 503
    server.judge.free.set()
    time.sleep(0.2)
    (server.root / "elsewhere").rename(path)
    assert server.over(client, number)["job"]["status"] == "succeeded"
    assert len(server.judge.judged) == 1


def test_two_cards_of_a_kind_share_a_queue(toy_root):
    server = Server(toy_root, judging=False)
    server.serving.cards = {"CPU": ("cpu", "cpu")}
    server.dispatcher.start()
    client = server.person("ada")
    numbers = [server.sent(client, saying(score_ns=ns)) for ns in range(1, 21)]
    assert {server.over(client, number)["job"]["status"] for number in numbers} == {"succeeded"}
    assert len(server.judge.judged) == len(set(server.judge.judged)) == 20
    server.close()


def test_those_who_wait_are_told_their_place_and_each_step_of_the_judge(server, monkeypatch):
    told = []
    monkeypatch.setattr(server.serving.hub, "publish", told.append)
    monkeypatch.setattr(Hub, "listeners", property(lambda hub: 1))
    client = server.person("ada")
    server.judge.free.clear()
    first = server.sent(client, saying(score_ns=1))
    until(lambda: server.judge.judged)
    second = server.sent(client, saying(score_ns=2))
    server.judge.free.set()
    server.over(client, second)
    until(lambda: [e for e in told if e.kind == "state" and e.submission == second and e.data.get("run")])
    states = [(event.submission, event.data["state"]) for event in told if event.kind == "state"]
    assert [state for number, state in states if number == first] == ["pending", "running", "succeeded"]
    assert any(event.kind == "step" and event.submission == first for event in told)
    assert any(event.kind == "record" and event.submission == first for event in told)
    assert not any(event.kind == "record" and event.submission == second for event in told)
    json.dumps([event.data for event in told])


def test_what_waits_for_a_listener_is_told_once_a_kind_and_submission_as_it_stands_last():
    async def listen():
        hub = Hub()
        with hub.subscribe() as listener:
            for number in range(6):
                hub.publish(Event("step", "double", number % 2, "ada", {"done": number}))
            hub.publish(Event("state", "double", 0, "ada", {"state": "failed", "error": "wrong"}))
            told = await listener.latest(1)
            assert [(each.kind, each.submission, each.data.get("done")) for each in told] == [
                ("step", 0, 4), ("step", 1, 5), ("state", 0, None),
            ]  # fmt: skip
            assert await listener.latest(0.01) == []
        assert json.loads(told[-1].for_others)["data"] == {"state": "over"}
        assert json.loads(told[-1].for_its_author)["data"]["error"] == "wrong"

    asyncio.run(listen())


def test_a_listener_that_is_too_slow_loses_the_oldest_events_alone():
    async def listen():
        hub = Hub(most=2, most_of_one=1)
        with hub.subscribe(submission=1, address="a") as listener:
            for number in range(1000):
                hub.publish(Event("step", "double", number % 2, "ada", {"done": number}))
            assert (await listener.next(1)).data["done"] == 999 - 2 * (MOST_WAITING - 1)
            with pytest.raises(TooManyListeners, match="from your address"), hub.subscribe(address="a"):
                pass
            late = hub.subscribe(address="c")
            with hub.subscribe(address="b"), pytest.raises(TooManyListeners, match="the most"), late:
                pass
        assert hub.listeners == 0

    asyncio.run(listen())


@pytest.mark.parametrize(
    ("model", "name"),
    [("NVIDIA H200", "H200"), ("NVIDIA H100 80GB HBM3", "H100"), ("AMD Instinct MI300X", "MI300X"), ("CPU", "CPU")],
)
def test_a_card_is_called_by_the_word_that_people_type(model, name):
    assert gpu_name(model) == name


def test_cards_of_one_model_are_one_gpu():
    here = [("cuda:0", "NVIDIA H200"), ("cuda:1", "NVIDIA H200")]
    assert cards(here, ()) == {"H200": ("cuda:0", "cuda:1")}
    assert cards(here, ("cuda:1", "cpu")) == {"H200": ("cuda:1",), "CPU": ("cpu",)}


@pytest.mark.slow(ci=True)
def test_on_a_cpu_the_judge_and_what_it_starts_have_a_lower_priority_than_the_server(toy_root):
    priorities = {}

    def started(judge):
        priorities["judge"] = os.getpriority(os.PRIO_PROCESS, judge._process.pid)

    reads = "import os\ndef custom_kernel(data):\n    print(f'worker {os.getpriority(os.PRIO_PROCESS, 0)}')\n"
    problem = catalog.load_problem(toy_root, "double")
    submission = catalog.submission_of(problem, f"{reads}    return data[0] * 2\n".encode(), "mine", "mine.py")
    request = Request(root=toy_root, problem="double", submission=submission, device="cpu", depth="verdict")
    run = judges.judge_apart(request, lambda line: None, started)
    wanted = min(os.getpriority(os.PRIO_PROCESS, 0) + judges.NICE, 19)
    assert priorities == {"judge": wanted} and f"worker {wanted}" in run.output, run.ending


def test_models_of_a_cluster_that_have_one_name_are_all_judged_on():
    def model(name):
        return SimpleNamespace(kind="cuda", name=name, slug=name.lower())

    found = by_name([(model("H100 PCIe"), 1), (model("H100 SXM"), 2), (model("H200"), 1)])
    assert found == {"H100": ("h100 pcie", "h100 sxm", "h100 sxm"), "H200": ("h200",)}
