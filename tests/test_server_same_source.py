"""One person's source is one entry of the board, whatever they call it; what was removed is on no page at once."""

import json

import pytest

pytest.importorskip("fastapi")

import served
from boards import Browser
from served import DOUBLE, TOKEN, Server, saying, until

from harness import catalog
from harness.server.store.rows import JobState


@pytest.fixture
def server(toy_root, monkeypatch):
    """Its stand-in judge judges the present files of the problem, so that its runs are ranked."""
    sha256, judged = catalog.load_problem(toy_root, "double").sha256, served.run_of
    monkeypatch.setattr(served, "run_of", lambda *words: judged(*words).model_copy(update={"problem_sha256": sha256}))
    server = Server(toy_root, double=DOUBLE, other=DOUBLE)
    yield server
    server.close()


def document(server):
    """The web's board as data; None where there is none yet."""
    page = Browser(server.port).get(f"/board/double/{device(server)}/board.json")
    return json.loads(page.text) if page.status == 200 else None


def board(server):
    """What it ranks: names, scores in ns, of how many runs."""
    found = document(server)
    return found and [(each["submission"], each["score_ns"], each["runs"]) for each in found["ranked"]]


def device(server):
    return next(server.root.glob("results/local/double/*/*.json")).parent.name


SAME = saying(score_ns=1000)


def test_the_same_bytes_under_another_name_are_one_entry_named_by_the_latest_name(server):
    ada, bob = server.person("ada"), server.person("bob")
    server.judged(ada, SAME, name="first.py")
    until(lambda: board(server) == [("ada.first", 1000.0, 1)])
    server.judged(ada, SAME, name="second.py")
    until(lambda: board(server) == [("ada.second", 1000.0, 2)])
    server.judged(ada, SAME, name="first.py")
    until(lambda: board(server) == [("ada.first", 1000.0, 3)])
    server.judged(bob, SAME, name="first.py")  # another person's is another entry
    until(lambda: sorted(board(server)) == [("ada.first", 1000.0, 3), ("bob.first", 1000.0, 1)])


def test_a_name_that_judges_another_source_since_is_an_entry_of_its_own(server):
    ada = server.person("ada")
    for name, ns in (("first.py", 1000), ("second.py", 1000), ("first.py", 800)):
        server.judged(ada, saying(score_ns=ns), name=name)
    until(lambda: board(server) == [("ada.first", 800.0, 1), ("ada.second", 1000.0, 2)])


def test_a_wrong_answer_is_not_left_behind_under_another_name(server, monkeypatch):
    ada = server.person("ada")
    judged = served.run_of
    wrong = iter((True, False))

    def run_of(request, times):
        words = {"verdict": "wrong_answer"} if next(wrong) else {"score_ns": 1000}
        told = request.submission.model_copy(update={"source": saying(**words).encode()})
        return judged(request.model_copy(update={"submission": told}), times).model_copy(
            update={"submission_sha256": request.submission.sha256}
        )

    monkeypatch.setattr(served, "run_of", run_of)
    server.judged(ada, SAME, name="first.py")
    number = server.judged(ada, SAME, name="second.py")["id"]
    assert server.serving.database.queue.submission(number).state is JobState.SUCCEEDED
    until(lambda: (document(server) or {}).get("runs") == 2)
    assert board(server) == []


def test_deleted_under_one_name_its_runs_go_on_counting_under_the_other(server):
    ada = server.person("ada")
    first = server.judged(ada, SAME, name="first.py")["id"]
    server.judged(ada, SAME, name="second.py")
    until(lambda: board(server) == [("ada.second", 1000.0, 2)])
    assert server.ask("DELETE", f"/user/submissions/{first}", ada)[0] == 200
    until(lambda: board(server) == [("ada.second", 1000.0, 2)])
    third = server.judged(ada, SAME, name="third.py")["id"]
    until(lambda: board(server) == [("ada.third", 1000.0, 3)])
    assert server.ask("DELETE", f"/user/submissions/{third}", ada)[0] == 200
    until(lambda: board(server) == [("ada.second", 1000.0, 3)])


def test_what_is_removed_is_on_no_page_at_once_though_its_file_is_still_there(server):
    ada, bob, anybody = server.person("ada"), server.person("bob"), Browser(server.port)
    cheat = server.judged(ada, saying(score_ns=10))
    server.judged(bob, SAME)
    until(lambda: board(server) == [("ada.mine", 10.0, 1), ("bob.mine", 1000.0, 1)])
    (run,) = cheat["podium"]["run_ids"]
    assert anybody.get(f"/run/{run}").status == 200
    (server.root / "results" / "removed").write_text("in the way")
    assert server.ask("DELETE", f"/admin/submissions/{cheat['id']}?reason=cheat", token=TOKEN)[0] == 503
    assert list(server.root.glob(f"results/local/double/*/{run}.json"))
    assert board(server) == [("bob.mine", 1000.0, 1)]
    where = f"/board/double/{device(server)}"
    pages = ["/", where, f"{where}?competition=double", f"{where}/feed.atom", "/feed.atom", f"{where}/records.csv"]
    assert [page for page in pages if "ada.mine" in anybody.get(page).text] == []
    assert anybody.get(f"{where}/badge/ada.mine.svg").status == 404
    assert [anybody.get(f"/run/{run}{kind}").status for kind in ("", "/run.json", "/samples.csv")] == [404] * 3
