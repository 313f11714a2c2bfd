"""What an attacker tried on the server's pages, connections and streams, and what must not come of it."""

import json
import os
import socket
import time
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("fastapi")

import served
from boards import CASES, Browser, store
from served import DOUBLE, RIGHT, TOKEN, Server, multipart, saying

from harness import catalog
from harness.model import ProfiledCase, ProfiledPart
from harness.render import legible
from harness.server import guard, standings
from harness.server.board import data, pages, view
from harness.server.limits import network
from harness.server.store import Database

MOST_CPU_S = 8.0
"""Far below what each of these took before (17 s and more) and far above what it may take."""


@pytest.fixture
def started(toy_root, monkeypatch):
    """Starts a server whose stand-in judge judges the present files of the problem, so that its runs are ranked."""
    sha256, judged, servers = catalog.load_problem(toy_root, "double").sha256, served.run_of, []
    monkeypatch.setattr(served, "run_of", lambda *words: judged(*words).model_copy(update={"problem_sha256": sha256}))

    def start(**words):
        servers.append(Server(toy_root, **words))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(started):
    return started()


def until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


# Pages that cost.


@pytest.mark.parametrize("mark", ["\f", "\r", "\x1c", "\u2028", "\n"])
def test_sources_of_many_lines_of_any_kind_are_not_compared_line_by_line(server, mark):
    a, b = (store(server.root, name, tier="published", source="# " + mark.join(f"w{n}" for n in order))
            for name, order in (("up", range(100_000)), ("down", range(99_999, -1, -1))))  # fmt: skip
    anybody = Browser(server.port)
    page = anybody.get(f"/compare/{a.id}/{b.id}")
    assert page.status == 200 and "The sources have more than" in page.text
    assert "diff" not in json.loads(anybody.get(f"/compare/{a.id}/{b.id}/compare.json").text)


@pytest.mark.parametrize("mark", ["\f", "\r", "\x1c", "\u2028"])
def test_only_a_newline_ends_a_line_that_is_compared(mark):
    found = pages.difference(f"a{mark}b\nc\n", f"a{mark}b\r\nd\r\n", ("A", "B"))
    assert [(str(line)[1:], kind) for line, kind in found[3:]] == [
        (f"a‹U+{ord(mark):04X}›b", "same"), ("c", "del"), ("d", "add"),
    ]  # fmt: skip
    assert pages.why_not_compared(mark.join("ab" * 5000), "x") == ""
    assert "2,000 lines" in pages.why_not_compared("\n" * 2001, "x")


@pytest.mark.parametrize("source", ["." * 199_000, "\n " * 99_000, (" " * 499 + "\n.") * 390, ("." * 1999 + "\n") * 99])
def test_no_source_takes_long_to_colour(source):
    begun_s = time.thread_time()
    text = str(legible.highlighted(source))
    assert time.thread_time() - begun_s < MOST_CPU_S
    assert text.replace("<i></i>", "").strip() == source.strip()


def test_a_source_that_takes_long_to_colour_is_shown_without_colours(monkeypatch):
    assert "<b" in legible.highlighted("x = 1\n")
    monkeypatch.setattr(legible, "HIGHLIGHTED_S", -1.0)
    assert str(legible.highlighted("x = 1\n")) == "<i></i>x = 1"


def test_what_a_submission_calls_its_operators_is_text_on_its_page(server):
    part = ProfiledPart(name="<script>alert(1)</script>\x1b[2J", count=1.0, self_ns=1.0)
    profile = ProfiledCase(case=CASES[0], calls=3, call_ns=2.0, parts=(part,))
    run = store(server.root, "mine", profiles=(profile,))
    page = Browser(server.port).get(f"/run/{run.id}").text
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page and "\x1b" not in page


@pytest.fixture
def made(monkeypatch):
    """What is made anew of all of a board's runs, each time that it is."""
    found = []

    def counted(module, name):
        make = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *words: found.append(name) or make(*words))

    counted(standings, "_board")
    counted(data, "_board")
    counted(data, "_cases")
    return found


def test_whoever_asks_for_a_board_again_and_again_has_it_made_once_a_change(server, made):
    client, anybody = server.person("ada"), Browser(server.port)
    store(server.root, "mine")
    until(lambda: anybody.get("/board/double/test-1000").status == 200)
    for _ in range(3):
        for kind in ("board.json", "cases.csv"):
            assert anybody.get(f"/board/double/test-1000/{kind}").status == 200
        assert server.ask("GET", "/submissions/double/CPU") == (200, [])
        assert server.ask("GET", "/submission_count/double/CPU?user_id=1") == (200, {"count": 0})
    assert sorted(made) == ["_board", "_board", "_cases"]
    made.clear()
    number = server.judged(client)["id"]
    assert [each["user_name"] for each in server.ask("GET", "/submissions/double/CPU")[1]] == ["ada"]
    assert server.ask("GET", "/submission_count/double/CPU?user_id=1") == (200, {"count": 1})
    server.ask("DELETE", f"/user/submissions/{number}", client)
    assert server.ask("GET", "/submissions/double/CPU") == (200, [])
    assert server.ask("GET", "/submission_count/double/CPU") == (200, {"count": 0})
    assert made == ["_board", "_board"]


def test_a_board_that_takes_long_to_make_is_a_little_old_but_for_what_was_taken_off(server, monkeypatch):
    client = server.person("ada")
    first = server.judged(client, saying(score_ns=900))["id"]
    monkeypatch.setattr(standings, "SHORT_S", -1.0)
    monkeypatch.setattr(standings, "SHARE", 1e-9)
    asked = lambda: [each["submission_id"] for each in server.ask("GET", "/submissions/double/CPU")[1]]  # noqa: E731
    assert asked() == [first]
    server.judged(client, saying(score_ns=100))
    assert asked() == [first]
    server.ask("DELETE", f"/admin/submissions/{first}", token=TOKEN)
    assert first not in asked() and len(asked()) == 1


# Who is counted how.


def test_without_a_proxy_nobody_chooses_the_address_that_limits_go_by(server):
    found = [server.ask("GET", "/auth/init?provider=github", X_Forwarded_For=f"10.0.0.{n}")[0] for n in range(25)]
    assert found == [200] * 20 + [429] * 5


def test_a_proxy_on_this_machine_says_who_asks_where_the_server_was_told_of_it(started):
    server = started(behind_proxy=True)
    found = [server.ask("GET", "/auth/init?provider=github", X_Forwarded_For=f"10.0.0.{n}")[0] for n in range(25)]
    assert found == [200] * 25


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True), ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True), ("10.0.0.1", "10.0.0.2", False), ("unix", "unix", True),
    ],
)  # fmt: skip
def test_of_ipv6_a_whole_network_is_one_address(one, other, same):
    assert (network(one) == network(other)) is same


def test_a_registration_is_counted_for_its_ipv6_network(started):
    server = started(behind_proxy=True)
    found = [server.ask("GET", "/auth/init", X_Forwarded_For=f"2001:db8::{n:x}")[0] for n in range(25)]
    assert found == [200] * 20 + [429] * 5


def test_names_of_competitions_that_are_made_up_drive_no_board_out_of_memory(server):
    store(server.root, "mine")
    browser = Browser(server.port)
    until(lambda: browser.get("/board/double/test-1000").status == 200)
    view.forget()
    for name in ("", "double", *(f"made-up-{number}" for number in range(view.WHOLES + 5))):
        assert browser.get(f"/board/double/test-1000?competition={name}").status == 200
    assert len(view._kept) <= 3


def answered(connection):
    """The status and the body of what a connection is told that asks how the server is; status 0 if it is cut."""
    answer = b""
    try:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        while b"\r\n\r\n" not in answer or not answer.partition(b"\r\n\r\n")[2]:
            more = connection.recv(4096)
            if not more:
                return 0, ""
            answer += more
    except ConnectionError:
        return 0, ""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def test_connections_beyond_the_most_are_told_so_and_more_of_them_at_once_are_cut(started, monkeypatch):
    monkeypatch.setattr(guard, "MOST_LINGERING", 4)
    monkeypatch.setattr(guard, "LINGER_S", 30.0)
    server = started(most=5)
    client = server.person("ada")
    idle = [listening(server, "/live") for _ in range(5)]
    turned_away = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(7)]
    answers = [answered(connection) for connection in turned_away]
    assert [status for status, _ in answers] == [503] * 4 + [0] * 3
    assert "5 connections are open, which is the most" in answers[0][1]
    for connection in turned_away:
        connection.close()
    until(lambda: not server._uvicorn.config.http_protocol_class.lingering)
    status, said = server.send(client)
    assert status == 503 and "which is the most" in said["detail"]
    idle.pop().close()
    until(lambda: len(server._uvicorn.server_state.connections) == 4)
    assert server.send(client)[0] == 202
    for connection in idle:
        connection.close()


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_one_address_has_so_many_connections_and_a_proxy_more(started, monkeypatch, behind_proxy):
    monkeypatch.setattr(guard, "MOST_OF_ADDRESS", 3)
    server = started(behind_proxy=behind_proxy)
    held = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(4)]
    answers = [answered(connection) for connection in held]
    assert [status for status, _ in answers] == [200] * 3 + [200 if behind_proxy else 503]
    assert behind_proxy or "3 connections are open from your address" in answers[3][1]
    for connection in held:
        connection.close()
    until(lambda: not server._uvicorn.server_state.connections)
    assert server.ask("GET", "/health")[0] == 200


def listening(server, path, cookie=""):
    """An open stream."""
    connection = socket.create_connection(("127.0.0.1", server.port), 30)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_streams_of_nobody_in_particular_leave_those_of_accounts_their_places(server):
    client = server.person("ada")
    held = [listening(server, "/live") for _ in range(20)]
    assert server.ask("GET", "/live")[0] == 503
    body, kind = multipart(RIGHT)
    assert server.ask("POST", "/double/CPU/test", client, body, kind)[0] == 200
    for connection in held[:5]:
        connection.close()
    until(lambda: server.serving.hub.listeners == 15)
    server.serving.hub._most, server.serving.hub._most_of_one = 20, 100
    held.append(listening(server, "/live"))
    assert server.ask("GET", "/live")[0] == 503  # 16 of 20: the rest is for accounts
    assert server.ask("POST", "/double/CPU/test", client, body, kind)[0] == 200
    for connection in held:
        connection.close()


@pytest.mark.parametrize("number", [-1, 0, 99, 10**30])
def test_a_submission_that_is_not_there_has_no_stream(kept, number):
    assert kept.ask("GET", f"/live/submission/{number}")[0] == 404
    assert kept.serving.hub.listeners == 0


# Who sees what.


def test_how_a_trial_ended_is_its_authors_alone(server):
    client, anybody = server.person("ada"), Browser(server.port)
    ada = Browser(server.port).sign_in(client)
    streams = {who: listening(server, "/live", who.cookie or "") for who in (ada, anybody)}
    until(lambda: server.serving.hub.listeners == 2)
    wrong = saying(verdict="wrong_answer")
    trial, ranked = server.judged(client, wrong, mode="test")["id"], server.judged(client, wrong)["id"]
    assert anybody.get(f"/live/submission/{trial}").status == 404
    ends = {}
    for who, stream in streams.items():
        text = b""
        while text.count(b'"over"') + text.count(b'"failed"') < 2 or not text.endswith(b"\n\n\r\n"):
            text += stream.recv(4096)
        told = [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: ")]
        over = [event for event in told if event["data"].get("state") in ("over", "failed")]
        ends[who] = {event["submission"]: event["data"] for event in over}
        stream.close()
    assert ends[anybody][trial] == {"state": "over"}
    assert ends[anybody][ranked]["state"] == "failed" and "error" not in ends[anybody][ranked]
    assert all("wrong answer" in ends[ada][number]["error"] for number in (trial, ranked))


@pytest.mark.slow(ci=True)
def test_what_is_sent_to_another_competition_leaves_a_frozen_board_as_it_is(started):
    closes = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    server = started(aaa=f"{DOUBLE}closes: {closes}\n", bbb=DOUBLE)
    client, anybody = server.person("ada"), Browser(server.port)
    first = server.judged(client, saying(score_ns=500), board="aaa")["id"]
    run = server.serving.database.queue.runs(first)[-1]
    board = f"/board/double/{run.device}"
    until(lambda: "ada.mine" in anybody.get(f"{board}?competition=aaa").text)
    (server.root / "configs" / "competitions" / "aaa.yml").write_text(f"{DOUBLE}closes: 2001-01-01T00:00:00Z\n")
    server.serving.load()
    later = server.judged(client, saying(score_ns=900), board="bbb")["id"]
    other = server.serving.database.queue.runs(later)[-1].id
    until(lambda: other in anybody.get(f"{board}?competition=bbb").text)
    frozen = anybody.get(f"{board}?competition=aaa").text
    assert run.id in frozen and other not in frozen
    assert run.id not in anybody.get(f"{board}?competition=bbb").text


# Sessions.


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "http://a]b"])
def test_an_origin_that_is_none_is_another_site(kept, origin):
    client = kept.person("ada")
    assert Browser(kept.port).post("/sign-in", {"client": client}, Origin=origin).status == 403


def test_who_signs_in_again_gets_pages_whose_forms_work_and_the_session_before_ends(server):
    client = server.person("ada")
    run = store(server.root, "mine")
    ada = Browser(server.port).sign_in(client)
    before = ada.cookie
    addresses = ["/board/double/test-1000", f"/run/{run.id}"]
    until(lambda: ada.get(addresses[0]).status == 200)
    tags = [ada.get(address).headers["ETag"] for address in addresses]
    assert [ada.get(a, If_None_Match=tag).status for a, tag in zip(addresses, tags)] == [304, 304]
    ada.sign_in(client)
    assert ada.cookie != before
    answers = [ada.get(a, If_None_Match=tag) for a, tag in zip(addresses, tags)]
    assert [answer.status for answer in answers] == [200, 200]
    ada.cookie, now = before, ada.cookie
    assert ada.get("/mine").status == 303
    ada.cookie = now
    assert ada.get("/mine").status == 200


# The database.


def test_no_answer_says_where_the_database_is_or_what_it_said(server, monkeypatch, capfd):
    client = server.person("ada")
    browser = Browser(server.port).sign_in(client)
    os.rename(server.root / "server.sqlite", server.root / "gone.sqlite")
    server.serving.database.connections.own()
    answers = [server.ask("GET", path, client) for path in ("/health", "/user/submissions")]
    answers += [(browser.get(path).status, browser.get(path).text) for path in ("/mine", "/submission/1")]
    assert [status for status, _ in answers] == [503] * 4
    for _, said in answers:
        assert "database cannot be used now" in str(said).lower() and "sqlite" not in str(said)
    assert "server.sqlite any more" in capfd.readouterr().err  # whoever runs the server reads it in the log


@pytest.mark.parametrize("existing", [False, True])
def test_the_databases_files_are_its_owners_alone(tmp_path, existing):
    path = tmp_path / "podium.sqlite"
    mask = os.umask(0o022)
    try:
        if existing:
            Database(str(path)).close()
            for each in tmp_path.iterdir():
                each.chmod(0o644)
        database = Database(str(path))
        database.people.add("ada")
        modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
        database.close()
    finally:
        os.umask(mask)
    assert "podium.sqlite" in modes and set(modes.values()) == {0o600}, modes
