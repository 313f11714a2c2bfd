"""What strangers may try, and what the server says to it. Every answer is one plain sentence, and none is a 500."""

import base64
import re
import resource
import socket
import time
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("fastapi")

from served import DOUBLE, RIGHT, TOKEN, Server, multipart, raw, saying

from harness.server import guard
from harness.server.admission import file_called
from harness.server.competition import load, load_all
from harness.server.serving import Denied

NASTY = [
    "../../etc/passwd", "..\\..\\x.py", "/etc/passwd", "a\0b.py", "<script>alert(1)</script>.py", "\x1b[31mred.py",
    "a\r\nSet-Cookie: x=1.py", "\u202eyp.exe", "'; DROP TABLE users; --.py", "x" * 5000 + ".py", "", ".", "..", ".py",
    "-rf.py", "$(id).py", "\ud83d\ude00.py".encode("utf-16", "surrogatepass").decode("utf-16"), "a.py.sh", "a b.py",
]  # fmt: skip


@pytest.fixture
def started(toy_root):
    """Starts a server, which is closed at the end of the test."""
    servers = []

    def start(**words):
        servers.append(Server(toy_root, **words))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(started):
    return started()


def plain(answer):
    """The sentence of a refusal."""
    assert set(answer) == {"detail"} and isinstance(answer["detail"], str), answer
    assert answer["detail"].isprintable() and 3 < len(answer["detail"]) < 1500
    assert "Traceback" not in answer["detail"]
    return answer["detail"]


@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_file_name_is_refused_or_reduced_to_a_harmless_one(kept, name):
    client = kept.person("ada")
    before = {path for path in kept.root.rglob("*") if "server.sqlite" not in path.name}
    status, answer = kept.send(client, name=name.replace('"', "").replace("\r", "").replace("\n", ""))
    if status == 202:
        found = kept.over(client, answer["details"]["id"])
        assert re.fullmatch(r"[A-Za-z0-9_.-]+\.py", found["file_name"]) and ".." not in found["file_name"]
        new = {path for path in kept.root.rglob("*") if "server.sqlite" not in path.name} - before
        assert all(path.is_relative_to(kept.root / "results") for path in new)
    else:
        assert status in (400, 422)
        plain(answer)


@pytest.mark.parametrize("name", NASTY)
def test_no_name_of_a_file_leads_out_of_a_folder(name):
    try:
        found = file_called(name)
    except Denied as denied:
        assert denied.status == 400
    else:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.py", found)


@pytest.mark.parametrize(
    "text", ["<b>", "%00", "%0d%0aX:%20y", "..%2f..%2f", "%ff%fe", "a" * 3000, "%1b[31m", "%E2%80%AE"]
)
def test_nasty_words_in_addresses_are_refused_in_a_sentence(kept, text):
    client = kept.person("ada")
    for method, path in [
        ("GET", f"/gpus/{text}"), ("GET", f"/submissions/double/{text}"), ("GET", f"/runner_queue/{text}"),
        ("GET", f"/submissions/{text}/CPU"), ("GET", f"/user/submissions/{text}"),
        ("GET", f"/user/submissions?leaderboard={text}"), ("GET", f"/auth/init?provider={text}"),
        ("DELETE", f"/user/submissions/{text}"), ("GET", f"/submission_count/double/CPU?user_id={text}"),
    ]:  # fmt: skip
        status, answer = kept.ask(method, path.replace("<", "%3C").replace(">", "%3E"), client)
        assert status in (200, 400, 404, 405, 422), (path, status)
        if status != 200 and isinstance(answer, dict):
            assert "\x1b" not in plain(answer)
    for path in (f"/submission/{text}/CPU/test", f"/submission/double/{text}/test", f"/submission/double/CPU/{text}"):
        status, answer = kept.send(client, path=path.replace("<", "%3C").replace(">", "%3E"))
        assert status in (400, 404, 405), (path, status)
    for path in ("/admin/leaderboards/", "/admin/invites/"):
        assert kept.ask("DELETE", path + text.replace("<", "%3C").replace(">", "%3E"), token=TOKEN)[0] in (404, 405)


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        (b"", 400, "the file is empty"), (b" \n", 400, "the file is empty"),
        (b"\xff\xfe", 400, "the file is not UTF-8 text"), (b"x = '\0'", 400, "null byte"),
        (b"#" * 1_000_001, 413, "longer than 1,000,000 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_source_is_refused(kept, source, status, said):
    found, answer = kept.send(kept.person("ada"), source)
    assert found == status and said in plain(answer)


def test_a_form_without_a_file_or_no_form_at_all_is_refused(server):
    client = server.person("ada")
    path = "/submission/double/CPU/test"
    body, kind = multipart(RIGHT, field="other")
    assert server.ask("POST", path, client, body, kind)[0] == 422
    assert server.ask("POST", path, client, {"file": RIGHT})[0] == 422
    assert server.ask("POST", path, client, b"file=x", "application/x-www-form-urlencoded")[0] == 422
    assert server.ask("POST", path, client, b"--x\r\nbroken", "multipart/form-data; boundary=x")[0] in (400, 422)
    assert server.ask("POST", path, client, b"", "multipart/form-data")[0] in (400, 422)
    for body in ({"code": 7}, {"code": "\0"}, {"code": "\ud800"}, {"code": "x" * 10**5}, {"kode": "x"}, []):
        status, answer = server.ask("POST", "/user/join", client, body)
        assert status in (404, 422) and plain(answer)


def test_100_mb_are_refused_before_they_are_sent_and_in_chunks_as_soon_as_it_is_too_much(server):
    client = server.person("ada")
    head = f"POST /submission/double/CPU/test HTTP/1.1\r\nHost: x\r\nX-Popcorn-Cli-Id: {client}\r\n"
    head += "Content-Type: multipart/form-data; boundary=x\r\n"
    answer = raw(server.port, f"{head}Content-Length: 100000000\r\n\r\n".encode())
    assert answer.status == 413 and b"1,200,000 bytes" in answer.body
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            while sent < 100_000_000:
                connection.sendall(chunk)
                sent += 0x10000
        except OSError:
            pass
    assert sent < 50_000_000
    assert server.judged(client)["done"]


def test_a_client_that_sends_a_byte_at_a_time_is_not_waited_for(started, monkeypatch):
    monkeypatch.setattr(guard, "HEAD_S", 0.5)
    server = started(body_s=0.5)
    client = server.person("ada")
    head = f"POST /submission/double/CPU/test HTTP/1.1\r\nHost: x\r\nX-Popcorn-Cli-Id: {client}\r\n"
    head += "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n"
    head += '--x\r\nContent-Disposition: form-data; name="file"; filename="a.py"\r\n\r\n'
    for data, answered in ((b"GET / HT", b""), (head.encode(), b"408")):
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall(data)
            begun, said = time.monotonic(), b""
            connection.settimeout(0.1)
            while time.monotonic() - begun < 30:
                try:
                    connection.sendall(b"x")
                    chunk = connection.recv(1000)
                    said += chunk
                    if not chunk:
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            else:
                raise AssertionError("it is still waited for")
        assert answered in said
    assert server.judged(client)["done"]


def test_wrong_and_stolen_tokens_are_of_no_use(server):
    ada = server.person("ada")
    number = server.judged(ada)["id"]
    for client, status in ((None, 400), ("", 400), ("x", 401), (ada[:-1], 401), (ada + "x", 401), (ada.upper(), 401),
                           ("ä", 401), ("x" * 5000, 401), ("' OR 1=1 --", 401)):  # fmt: skip
        found, answer = server.ask("GET", "/user/submissions", client)
        assert found == status, client
        plain(answer)
    for token in (None, "", "x", TOKEN[:-1], TOKEN + "x", ada):
        assert server.ask("GET", "/admin/stats", token=token)[0] == 401, token
    assert server.ask("GET", "/admin/stats", ada)[0] == 401
    assert (
        server.ask("GET", "/admin/stats", Authorization="Basic " + base64.b64encode(TOKEN.encode()).decode())[0] == 401
    )
    server.serving.admin_sha256 = None
    assert server.ask("GET", "/admin/stats", token=TOKEN)[0] == 401
    assert server.ask("GET", "/admin/stats", token="")[0] == 401
    server.serving.database.people.block("ada", "her id was stolen")
    assert server.ask("GET", f"/user/submissions/{number}", ada) == (
        403,
        {"detail": "your account is blocked: her id was stolen"},
    )


def test_no_id_and_no_token_is_logged_or_answered(server, capfd):
    client = server.person("ada")
    server.judged(client)
    server.judge.failures = 1
    for method, path in (("GET", "/user/submissions"), ("GET", f"/{client}"), ("POST", "/user/join")):
        server.ask(method, path, client)
    answers = [server.ask("GET", "/user/submissions/1", client), server.ask("GET", "/admin/stats", client, token=TOKEN)]
    streams = capfd.readouterr()
    for secret in (client, TOKEN):
        assert secret not in streams.out + streams.err + str(answers)


def test_anothers_submission_is_neither_shown_nor_deleted_by_its_number(server):
    ada, eve = server.person("ada"), server.person("eve")
    number = server.judged(ada, saying(verdict="wrong_answer"))["id"]
    for method, path in (("GET", ""), ("GET", "/run"), ("DELETE", "")):
        status, answer = server.ask(method, f"/user/submissions/{number}{path}", eve)
        assert status == 403 and plain(answer) == f"submission {number} is not yours"
    assert server.ask("GET", "/user/submissions", eve)[1] == []
    assert server.ask("GET", f"/user/submissions/{number}", ada)[0] == 200
    for number in (0, -1, 10**30, "1e3"):
        assert server.ask("GET", f"/user/submissions/{number}", eve)[0] in (404, 422)


def test_before_and_after_its_dates_a_competition_takes_nothing_and_its_board_stays(toy_root, started):
    now = datetime.now(UTC)

    def dated(**dates):
        return DOUBLE + "".join(f"{key}: {(now + delta).isoformat()}\n" for key, delta in dates.items())

    day = timedelta(days=1)
    server = started(early=dated(opens=day), late=dated(closes=-day), now=dated(opens=-day, closes=day))
    client = server.person("ada")
    status, answer = server.send(client, board="early")
    assert status == 400 and plain(answer).startswith("early opens at ")
    status, answer = server.send(client, board="late")
    assert status == 400 and plain(answer).startswith("late closed at ")
    number = server.judged(client, board="now")["id"]
    (toy_root / "configs" / "competitions" / "now.yml").write_text(dated(closes=-timedelta(seconds=1)))
    server.serving.load()
    status, answer = server.ask("DELETE", f"/user/submissions/{number}", client)
    assert status == 403 and "its board stays as it is" in plain(answer)
    assert [each["submission_id"] for each in server.ask("GET", "/submissions/now/CPU")[1]] == [number]


def test_what_was_accepted_before_the_deadline_gets_its_verdict_after_it(server):
    client = server.person("ada")
    server.judge.free.clear()
    number = server.sent(client)
    closed = f"{DOUBLE}closes: {datetime.now(UTC).isoformat()}\n"
    (server.root / "configs" / "competitions" / "double.yml").write_text(closed)
    server.serving.load()
    server.judge.free.set()
    assert server.over(client, number)["job"]["status"] == "succeeded"
    assert server.send(client)[0] == 400


def test_an_invited_competition_is_closed_to_others_and_limits_hold_for_each_person(started):
    text = "title: T\nproblem: double\nentry: invite\nlimits: {per_hour: 3, waiting: 2, bytes: 200}\n"
    server = started(closed=text)
    ada, eve = server.person("ada"), server.person("eve")
    status, answer = server.send(eve, board="closed")
    assert status == 403 and "join it with your code first" in plain(answer)
    (code,) = server.serving.database.people.invite(["closed"], 1)
    assert server.ask("POST", "/user/join", ada, {"code": code})[0] == 200
    assert server.ask("POST", "/user/join", eve, {"code": code})[0] == 404
    server.judge.free.clear()
    numbers = [server.sent(ada, saying(score_ns=ns), board="closed") for ns in (1, 2)]
    status, answer = server.send(ada, board="closed")
    assert status == 429 and "you have 2 in the queue" in plain(answer)
    server.judge.free.set()
    for number in numbers:
        server.over(ada, number)
    assert server.judged(ada, board="closed")["done"]
    status, answer = server.send(ada, board="closed")
    assert status == 429 and re.search(r"try again in 3[56]\d\d s", plain(answer))
    assert server.send(ada, "#" * 201, board="closed")[0] == 413


@pytest.mark.slow(ci=True)
def test_idle_streams_are_refused_beyond_a_limit_and_take_no_submission(server):
    client = server.person("ada")
    server.serving.hub._most, server.serving.hub._most_of_one = 3, 3
    server.judge.free.clear()
    body, kind = multipart(RIGHT)
    head = f"POST /double/CPU/test HTTP/1.1\r\nHost: x\r\nX-Popcorn-Cli-Id: {client}\r\n"
    head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    streams = []
    for _ in range(3):
        streams.append(socket.create_connection(("127.0.0.1", server.port), 30))
        streams[-1].sendall(head.encode() + body)
        assert b"event: status" in streams[-1].recv(4096) + streams[-1].recv(4096)
    before = len(server.serving.database.queue.of_user(1))
    status, answer = server.ask("POST", "/double/CPU/test", client, body, kind)
    assert status == 503 and "streams are open" in plain(answer)
    assert len(server.serving.database.queue.of_user(1)) == before == 3
    for stream in streams:
        stream.close()
    server.judge.free.set()
    until = time.monotonic() + 60
    while server.serving.hub.listeners:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert server.ask("POST", "/double/CPU/test", client, body, kind)[0] == 200


def test_a_full_disk_is_a_503_with_a_sentence_and_afterwards_all_goes_on(server):
    client = server.person("ada")
    server.judged(client)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        status, answer = server.send(client, "#" * 500_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 503 and "the database cannot be used now" in plain(answer)
    assert server.judged(client, "#" * 500_000)["done"]
    assert len(server.serving.database.queue.of_user(1)) == 2


def test_a_bug_of_ours_is_a_500_that_tells_nothing(server, capfd):
    def broken(*words):
        raise RuntimeError("the secret is 42")

    server.serving.gpus = broken
    status, answer = server.ask("GET", "/gpus/double")
    assert status == 500 and plain(answer) == "an error in the server: its log has the details"
    assert "the secret is 42" in capfd.readouterr().err


def test_registering_without_end_is_slowed_down_and_fills_no_table(server):
    found = [server.ask("GET", "/auth/init?provider=github")[0] for _ in range(25)]
    assert found == [200] * 20 + [429] * 5
    assert len(server.serving.database.people.pending()) == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("titel: x\nproblem: double\n", "unknown key titel: did you mean title?"),
        ("title: x\n", "problem is missing"),
        ("title: x\nproblem: dubble\n", "there is no dubble"),
        ("title: x\nproblem: double\nentry: all\n", "entry"),
        ("title: x\nproblem: double\nopens: 2026-01-02\n", "opens"),
        ("title: x\nproblem: double\nopens: 2026-01-02T00:00:00\n", "opens"),
        ("title: x\nproblem: double\nlimits: {per_hours: 1}\n", "limits.per_hours"),
        ("title: x\nproblem: double\nlimits: {bytes: 9999999}\n", "limits.bytes"),
        ("title: x\nproblem: double\nprofile: yes please\n", "profile"),
        ("title: x\nproblem: double\nprofile: 1\n", "profile"),
        ("title: x\nproblem: double\npins: {torch: 2.11}\n", "pins.torch"),
        ("title: x\nproblem: double\npins: {cuda: '13'}\n", "pins.cuda"),
        ("title: x\ntitle: y\nproblem: double\n", "given twice"),
        ("title: x\nproblem: double\nopens: 2026-01-02T00:00:00Z\ncloses: 2026-01-01T00:00:00Z\n", "later than opens"),
    ],
)
def test_a_competitions_file_is_read_strictly(toy_root, text, said):
    (toy_root / "configs" / "competitions").mkdir()
    (toy_root / "configs" / "competitions" / "x.yml").write_text(text)
    with pytest.raises(Exception, match=re.escape(said)):
        load_all(toy_root)


@pytest.mark.parametrize("name", ["../x", "X", "a b", "", "a/b", "<b>"])
def test_a_competitions_name_leads_to_no_other_file(toy_root, name):
    with pytest.raises(Exception, match="name has a-z"):
        load(toy_root, name)


@pytest.mark.parametrize(
    ("sources", "own", "before", "after"),
    [("own", True, False, False), ("deadline", True, False, True), ("always", True, True, True)],
)
def test_whose_sources_are_shown_is_the_competitions_choice(toy_root, sources, own, before, after):
    (toy_root / "configs" / "competitions").mkdir()
    closes = "2030-01-01T00:00:00Z"
    text = f"title: x\nproblem: double\nsources: {sources}\ncloses: {closes}\n"
    (toy_root / "configs" / "competitions" / "x.yml").write_text(text)
    found = load(toy_root, "x")
    early, late = datetime(2029, 12, 31, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
    assert found.shows_source(1, 1, early) is own
    assert (found.shows_source(1, 2, early), found.shows_source(1, None, late)) == (before, after)
