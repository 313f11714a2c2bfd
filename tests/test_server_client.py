"""`podium submit`, `podium status`, `podium user` and `podium serve`: what they print, and their exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

import served
from boards import Browser
from served import DOUBLE, RIGHT, Server, saying

from harness.server import client as clients
from harness.server.client import directives

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture
def server(toy_root, monkeypatch):
    server = Server(toy_root)
    monkeypatch.setattr(clients, "POLL_S", 0.02)
    monkeypatch.setenv("PODIUM_SERVER", server.url)
    monkeypatch.setenv("PODIUM_CLIENT_ID", server.person("ada"))
    monkeypatch.delenv("POPCORN_API_URL", raising=False)
    yield server
    server.close()


@pytest.fixture
def file(tmp_path):
    def write(source=RIGHT, name="mine.py"):
        (tmp_path / name).write_text(source)
        return str(tmp_path / name)

    return write


def serve(root, *words, **variables):
    """`podium serve` in a process of its own, once it answers: the process and its address."""
    command = [sys.executable, "-m", "harness", "--root", str(root), "serve", "--port", "0", "--device", "cpu", *words]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=os.environ | variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said = process.stderr.readline()
    found = re.search(r"(http://127\.0\.0\.1:\d+)/ serves", said)
    assert found, said + process.stderr.read()
    return process, found[1]


@pytest.mark.slow(ci=True)
def test_the_real_judge_judges_what_is_submitted_and_both_print_one_run(podium, toy_root, file, monkeypatch):
    (toy_root / "configs" / "competitions").mkdir()
    (toy_root / "configs" / "competitions" / "double.yml").write_text(f"{DOUBLE}profile: true\n")
    code, out, _ = podium("user", "add", "ada")
    assert code == 0
    monkeypatch.setenv("PODIUM_CLIENT_ID", out.removeprefix("cli_id: ").strip())
    process, url = serve(toy_root, PODIUM_ADMIN_TOKEN="0123456789abcdef")
    try:
        code, out, _ = podium("submit", file("x =\n", "broken.py"), "--mode", "test", "--server", url)
        assert code == 11 and "compile error" in out
        code, out, _ = podium("submit", file(), "--mode", "test", "--server", url, "--json")
        assert code == 0
        found = json.loads(out)
        assert found["run"]["ending"]["verdict"] == "accepted" and len(found["run"]["checks"]) == 2
        assert found["submission"]["podium"]["state"] == "succeeded"
        code, out, _ = podium("submit", file(), "--mode", "profile", "--server", url, "--json")
        assert code == 0 and any("mul" in part["name"] for part in json.loads(out)["run"]["profiles"][0]["parts"])
        assert podium("status", "3", "--server", url)[1].count("aten::mul") == 1
    finally:
        process.send_signal(signal.SIGINT)
        _, last = process.communicate(timeout=60)
    assert process.returncode == 0, last
    assert list(toy_root.glob(f"results/trials/double/*/{found['run']['id']}.json"))


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("accepted", 0), ("wrong_answer", 10), ("compile_error", 11), ("runtime_error", 12), ("timeout", 13),
     ("integrity_violation", 14)],
)  # fmt: skip
def test_submit_ends_with_the_exit_code_of_eval(server, podium, file, verdict, code):
    found, out, told = podium("submit", file(saying(verdict=verdict)))
    assert found == code
    assert f"the stand-in says {verdict.replace('_', ' ')}" in out
    assert len(re.findall(r"submission 1: (succeeded|failed|timed out|hacked)\n", told + out)) == 1
    assert podium("status", "1")[0] == code


def test_a_submission_that_is_right_and_has_no_rank_is_called_so_wherever_it_is_told(server, podium, file):
    told = podium("submit", file(saying(unranked="crowded")))
    shown, listed = podium("status", "1"), podium("status")
    assert told[0] == shown[0] == 0
    assert told[1].startswith("submission 1: right, not ranked\n") and "submission 1: right" not in told[2]
    assert shown[1].startswith("submission 1: right, not ranked: other processes took the processors")
    assert re.search(r"leaderboard +\W right, not ranked +\W right, not ranked: other", listed[1])
    assert max(map(len, listed[1].splitlines())) <= 120, "no terminal says how wide it is"
    assert not any(word in text for word in ("succeeded", "failed") for text in (told[1], shown[1], listed[1]))
    documents = [json.loads(podium("status", *words, "--json")[1]) for words in ((), ("1",))]
    assert documents[0]["submissions"][0]["podium"]["state"] == documents[1]["submission"]["podium"]["state"]
    ada = Browser(server.port).sign_in(os.environ["PODIUM_CLIENT_ID"])
    assert "Right, not ranked: " in ada.get("/submission/1").text
    assert "<td>right, not ranked</td>" in ada.get("/mine").text
    assert "Right, not ranked</span>" in Browser(server.port).get("/submission/1").text


def test_status_shows_the_report_that_tells_most_and_counts_the_others(server, podium, file, monkeypatch):
    judged = served.run_of

    def three_wrong(request, times=0):
        run = judged(request, times)
        reports = [run.checks[0].model_copy(update={"report": f"report {number}"}) for number in range(3)]
        ending = run.ending.model_copy(update={"detail": "rows=4 cols=8: report 1"})
        return run.model_copy(update={"checks": tuple(reports), "ending": ending})

    monkeypatch.setattr(served, "run_of", three_wrong)
    podium("submit", file(saying(verdict="wrong_answer")))
    _, out, _ = podium("status", "1")
    assert "report 1" in out and "2 more test cases are wrong: --json has every report." in out
    assert "report 0" not in out and "report 2" not in out
    assert "report 2" in podium("status", "1", "--json")[1]


def test_submit_shows_the_report_of_what_is_wrong_and_none_of_what_is_right(server, podium, file):
    for verdict, times in (("wrong_answer", 1), ("accepted", 0)):
        assert (
            podium("submit", file(saying(verdict=verdict, detail="seen-at-element-7")))[1].count("element-7") == times
        )


def test_json_is_one_document_with_the_run(server, podium, file):
    code, out, _ = podium("submit", file(), "--json")
    document = json.loads(out)
    assert code == 0 and document["submission"]["id"] == 1
    assert document["run"]["id"] == document["submission"]["podium"]["run_ids"][0]
    listed = json.loads(podium("status", "--json")[1])["submissions"]
    assert [each["id"] for each in listed] == [1]


def test_status_lists_what_waits_and_why_others_failed(server, podium, file):
    assert podium("status")[1] == "no submissions\n"
    podium("submit", file(saying(verdict="wrong_answer")))
    server.judge.free.clear()
    server.sent(server.person("ada"))
    _, out, _ = podium("status")
    assert "wrong answer: the stand-in says" in out and ("running" in out or "pending" in out)
    assert podium("status", "2")[0] == 0


def test_a_file_says_where_it_goes_as_popcorns_do(server, podium, file):
    (server.root / "configs" / "competitions" / "other.yml").write_text(DOUBLE)
    server.serving.load()
    code, out, err = podium("submit", file())
    assert (code, out) == (2, "") and "name one with --competition: double, other" in err
    path = file(f"#!POPCORN leaderboard other\n#!POPCORN gpu cpu\n{RIGHT}", "told.py")
    assert podium("submit", path)[0] == 0
    assert server.serving.database.queue.submission(1).competition == "other"
    assert podium("submit", path, "--competition", "dubble")[2].endswith("did you mean double?\n")
    with pytest.raises(Exception, match="2 GPUs"):
        directives(Path(file("#!POPCORN gpus H100 H200\n", "two.py")))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--server", "ftp://x"], 2, "is not the address of a server"),
        (["--server", "http://[::1"], 2, "is not the address of a server"),
        (["--server", "http://x:99999"], 2, "is not the address of a server"),
        (["--server", "http://127.0.0.1:9"], 30, "does not answer"),
        (["--gpu", "B200"], 2, "double is not judged on B200: it is judged on CPU"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_on_stdout(server, podium, file, words, code, said):
    found, out, err = podium("submit", file(), *words)
    assert (found, out) == (code, "") and said in err and "Traceback" not in err


def test_a_file_that_is_not_there_is_said_before_anybody_needs_an_id(podium, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PODIUM_CLIENT_ID", raising=False)
    assert "nosuch.py cannot be read" in podium("submit", "nosuch.py", "--server", "http://127.0.0.1:9")[2]
    assert "is not a regular file" in podium("submit", "/dev/null", "--server", "http://127.0.0.1:9")[2]


def test_without_an_id_and_without_a_server_it_is_said_how_to_get_them(server, podium, file, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "tmp"))
    monkeypatch.delenv("PODIUM_CLIENT_ID")
    assert "~/.popcorn.yaml has no cli_id" in podium("submit", file())[2]
    (tmp_path / "tmp" / ".popcorn.yaml").write_text(f"cli_id: '{server.person('ada')}'\n")
    assert podium("submit", file())[0] == 0
    monkeypatch.delenv("PODIUM_SERVER")
    code, _, err = podium("status")
    assert code == 2 and "PODIUM_SERVER" in err


def test_a_server_that_is_started_anew_in_mid_run_is_waited_for(server, podium, file, monkeypatch):
    refused = iter([True, True, False])
    ask = clients.Client.submission

    def shaky(self, number):
        if next(refused, False):
            raise clients.InfrastructureError("the server does not answer")
        return ask(self, number)

    monkeypatch.setattr(clients.Client, "submission", shaky)
    code, _, told = podium("submit", file())
    assert code == 0 and "the server does not answer; asking again" in told


def test_accounts_are_added_approved_listed_and_shut_on_the_command_line(server, podium):
    where = ("--database", str(server.root / "server.sqlite"))
    code, out, told = podium("user", "add", "Bob", *where)
    client = out.removeprefix("cli_id: ").strip()
    assert code == 0 and server.send(client)[0] == 202 and "bob" in told
    state = server.ask("GET", "/auth/init?provider=discord")[1]["state"]
    pending = json.loads(podium("user", "list", "--json", *where)[1])["pending"]
    assert podium("user", "approve", pending[0]["fingerprint"], "carl", *where)[0] == 0
    assert server.send(state)[0] == 202
    assert podium("user", "block", "carl", "--reason", "two accounts", *where)[0] == 0
    assert server.send(state) == (403, {"detail": "your account is blocked: two accounts"})
    assert "two accounts" in podium("user", "list", *where)[1]
    assert podium("user", "add", "../x", *where)[0] == 2
    assert podium("user", "approve", "0" * 12, "x", *where)[0] == 2


def test_a_cheat_is_removed_on_the_command_line_with_a_reason(server, podium, file):
    podium("submit", file())
    where = ("--database", str(server.root / "server.sqlite"))
    assert podium("user", "remove", "1", "--reason", "answers from\na table", *where)[0] == 0
    assert "removed by the organisers: answers from a table" in podium("status", "1")[1]
    assert podium("user", "remove", "7", "--reason", "x", *where)[0] == 2
    assert podium("user", "remove", "1", "--reason", " ", *where)[0] == 2


def test_serve_says_in_one_sentence_what_it_cannot(podium, toy_root, monkeypatch, server):
    other = ("--database", str(toy_root / "other.sqlite"))
    taken = podium("serve", "--port", str(server.port), "--device", "cpu", *other)
    assert taken[0] == 30 and "cannot be listened on: Address already in use" in taken[2]
    same = podium("serve", "--port", "0", "--device", "cpu", "--database", str(toy_root / "server.sqlite"))
    assert same[0] == 30 and "another server runs on this database" in same[2]
    gone = podium("serve", "--port", "0", "--database", "postgresql://nobody@127.0.0.1:9/x")
    assert gone[0] == 30 and "the database cannot be used now" in gone[2]
    monkeypatch.setenv("PODIUM_ADMIN_TOKEN", "short")
    assert "too short" in podium("serve", "--port", "0", *other)[2]
    (toy_root / "configs" / "competitions" / "double.yml").write_text("titel: Twice\nproblem: double\n")
    monkeypatch.delenv("PODIUM_ADMIN_TOKEN", raising=False)
    code, _, err = podium("serve", "--port", "0", "--device", "cpu", *other)
    assert code == 2 and "double.yml: unknown key titel: did you mean title?" in err


def test_strangers_sources_are_not_judged_where_nothing_confines_them(podium, toy_root, monkeypatch, server):
    from harness.model import NO_ISOLATION
    from harness.sandbox import tiers

    monkeypatch.setitem(tiers._found, "cpu", NO_ISOLATION)
    code, _, err = podium("serve", "--port", "0", "--device", "cpu", "--database", str(toy_root / "other.sqlite"))
    assert code == 30 and "nothing here can confine a submission" in err and "bubblewrap" in err


def test_without_the_extra_serve_says_what_to_type_and_other_verbs_do_not_care(toy_root):
    hide = "import sys; sys.modules['fastapi'] = sys.modules['uvicorn'] = None; from harness.cli import main; "
    hide += f"sys.exit(main(['--root', {str(toy_root)!r}, *sys.argv[1:]]))"
    done = subprocess.run([sys.executable, "-c", hide, "serve"], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "in a checkout: make serve, or: pip install -c constraints.txt '.[server]'" in done.stderr
    done = subprocess.run([sys.executable, "-c", hide, "problems"], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_verb_but_serve_imports_fastapi():
    words = (
        "import sys, harness.cli, harness; harness.evaluate; print('fastapi' in sys.modules, 'uvicorn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", words], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.stdout == "False False\n"


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize("answer", ["{}", "[1]", "null", '"x"', '[{"name": "a"}]', "<html>", ""])
def test_a_server_that_is_not_podiums_is_said_to_be_another(podium, file, monkeypatch, answer):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *words):
            pass

    monkeypatch.setenv("PODIUM_CLIENT_ID", "abc")
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for words in (["status"], ["status", "3"], ["submit", file()]):
            code, out, err = podium(*words, "--server", address)
            assert (code, out) == (30, "") and "is it Podium's address?" in err and "Traceback" not in err
        server.shutdown()
