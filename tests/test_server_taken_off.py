"""What is deleted by its author or removed by an administrator: off every board, and of no use if sent again."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from served import DOUBLE, TOKEN, Server, saying, until

from bench.stand_in import run_of
from harness.catalog import load_problem
from harness.records.store import Store
from harness.server import dispatcher as dispatching
from harness.server.store.rows import JobState


def ranked(server):
    """The scores, in nanoseconds, of popcorn-cli's board and of the web's."""
    listed = server.ask("GET", "/submissions/double/CPU")[1]
    problem = load_problem(server.root, "double")
    with Store(server.root).index() as index:
        entries = [entry for device in index.devices("double") for entry in index.standings(problem, device)]
    web = sorted(entry.score_ns for entry in entries if entry.ranked)
    return [round(each["submission_score"] * 1e9) for each in listed], web


def judged_as(server, client, *runs):
    """The numbers of submissions of the same bytes, whose runs the judge makes of these words."""
    numbers, plain = [], server.dispatcher._judge_apart
    for words in runs:

        def judge(request, narrate, started, words=words):
            told = request.submission.model_copy(update={"source": saying(**words).encode()})
            return run_of(request.model_copy(update={"submission": told}))

        server.dispatcher._judge_apart = judge
        numbers.append(server.judged(client)["id"])
    server.dispatcher._judge_apart = plain
    return numbers


def delete(server, client, number):
    return server.ask("DELETE", f"/user/submissions/{number}", client)


def remove(server, number, reason="cheat"):
    return server.ask("DELETE", f"/admin/submissions/{number}?reason={reason}", token=TOKEN)


def local(server):
    return list(server.root.glob("results/local/double/*/*.json"))


def removed(server):
    return list(server.root.glob("results/removed/double/*/*.json"))


def state(server, number):
    return server.serving.database.queue.submission(number).state


def removed_while_it_runs(server, client):
    """The number of one that is removed as the judge has it."""
    server.judge.free.clear()
    number = server.sent(client)
    until(lambda: server.judge.judged)
    assert remove(server, number)[0] == 200
    return number


def test_one_that_cannot_be_put_away_at_first_is_put_away_later_and_its_author_told(server, monkeypatch):
    monkeypatch.setattr(dispatching, "AGAIN_S", 0.01)
    told, client = [], server.person("ada")
    monkeypatch.setattr(server.serving.hub, "publish", told.append)
    number = removed_while_it_runs(server, client)
    (server.root / "results" / "removed").write_text("in the way")
    server.judge.free.set()
    until(lambda: state(server, number).over)
    (server.root / "results" / "removed").unlink()
    until(lambda: not local(server) and removed(server))
    until(lambda: [e for e in told if e.kind == "state" and e.data.get("run")])
    assert not [event for event in told if event.kind == "record"]


def test_a_server_that_starts_puts_away_what_the_last_one_did_not(toy_root):
    first = Server(toy_root)
    client = first.person("ada")
    number = first.judged(client)["id"]
    first.close()
    again = Server(toy_root, judging=False)
    again.serving.database.queue.remove(number, "cheat")  # and then the server was killed
    assert local(again)
    again.dispatcher.start()
    assert not local(again) and removed(again)
    again.close()


def test_what_an_administrator_could_not_put_away_is_tried_again_by_itself(server, monkeypatch):
    monkeypatch.setattr(dispatching, "SETTLE_S", 0.05)
    number = server.judged(server.person("ada"))["id"]
    (server.root / "results" / "removed").write_text("in the way")
    assert remove(server, number)[0] == 503
    (server.root / "results" / "removed").unlink()
    until(lambda: not local(server) and removed(server))


def test_nobody_deletes_their_disqualification(server):
    client = server.person("ada")
    wrong, right = judged_as(server, client, {"verdict": "wrong_answer"}, {"score_ns": 100})
    assert ranked(server) == ([], [])
    assert delete(server, client, wrong)[0] == 200
    assert ranked(server) == ([], [])
    assert delete(server, client, right)[0] == 200
    assert ranked(server) == ([], []) and not local(server)


def test_a_source_that_was_wrong_and_deleted_is_not_ranked_when_it_is_sent_again(server):
    client = server.person("ada")
    (wrong,) = judged_as(server, client, {"verdict": "wrong_answer"})
    assert delete(server, client, wrong)[0] == 200 and not local(server)
    judged_as(server, client, {"score_ns": 100})
    assert ranked(server) == ([], [])


def test_nobody_deletes_their_slow_runs_of_a_source(server):
    client = server.person("ada")
    slow, slower, fast = judged_as(server, client, {"score_ns": 900}, {"score_ns": 900}, {"score_ns": 50})
    assert ranked(server) == ([900], [900])
    assert delete(server, client, slow)[0] == delete(server, client, slower)[0] == 200
    assert ranked(server) == ([900], [900])
    listed = server.ask("GET", "/submissions/double/CPU")[1]
    assert [each["submission_id"] for each in listed] == [fast]
    assert delete(server, client, fast)[0] == 200
    assert ranked(server) == ([], []) and len(removed(server)) == 3


def test_a_removed_source_goes_with_all_its_submissions_and_is_not_taken_again(server):
    ada, bob = server.person("ada"), server.person("bob")
    number = server.judged(ada)["id"]
    other = server.judged(ada, name="other.py")["id"]
    others = server.judged(bob)["id"]
    honest = server.judged(bob, saying(score_ns=5000), name="honest.py")["id"]
    assert remove(server, number)[0] == 200
    queue = server.serving.database.queue
    found = [queue.submission(each).removed_because for each in (number, other, others, honest)]
    assert found == ["cheat", "cheat", "cheat", None]
    assert ranked(server) == ([5000], [5000]) and len(removed(server)) == 3
    for client in (ada, bob):
        status, answer = server.send(client, name="again.py")
        assert (status, answer["detail"]) == (403, "this source was removed from double: cheat")


def test_one_that_is_deleted_while_it_runs_is_not_judged_again(server):
    client = server.person("ada")
    server.judge.free.clear()
    number = server.sent(client, saying(unranked="crowded,", score_ns=1))
    until(lambda: server.judge.judged)
    assert delete(server, client, number)[0] == 200
    server.judge.free.set()
    until(lambda: state(server, number).over)
    assert state(server, number) is JobState.FAILED
    server.judged(client, saying(score_ns=2))
    assert len(server.judge.judged) == 2 and len(local(server)) == 1


def closed(server):
    text = f"{DOUBLE}closes: {(datetime.now(UTC) - timedelta(seconds=1)).isoformat()}\n"
    (server.root / "configs" / "competitions" / "double.yml").write_text(text)
    server.serving.load()


def test_after_the_deadline_nothing_is_deleted_though_the_competition_is_taken_down(server):
    client = server.person("ada")
    number = server.judged(client)["id"]
    closed(server)
    assert delete(server, client, number)[0] == 403
    assert server.ask("DELETE", "/admin/leaderboards/double?force=true", token=TOKEN)[0] == 200
    status, answer = delete(server, client, number)
    assert (status, answer["detail"]) == (403, "double has closed: its board stays as it is")
    Path(server.root / "configs" / "competitions" / "double.yml").unlink()
    status, answer = delete(server, client, number)
    assert status == 503 and answer["detail"].startswith("whether double has closed is not known")
    assert local(server)


@pytest.mark.slow(ci=True)
def test_what_waits_for_the_database_until_the_deadline_has_passed_is_refused(toy_root):
    closes = datetime.now(UTC) + timedelta(seconds=3)
    server = Server(toy_root, judging=False, double=f"{DOUBLE}closes: {closes.isoformat()}\n")
    client, answers = server.person("ada"), []
    try:
        other = server.serving.database.connections._open()  # as another process's
        other.execute("BEGIN IMMEDIATE")
        sender = threading.Thread(target=lambda: answers.append(server.send(client)))
        sender.start()
        threading.Event().wait((closes - datetime.now(UTC)).total_seconds() + 0.2)
        assert not answers
        other.execute("ROLLBACK")
        other.close()
        sender.join(60)
        ((status, answer),) = answers
        assert status == 400 and answer["detail"].startswith("double closed at ")
        assert server.serving.database.queue.waiting() == []
    finally:
        server.close()
