"""Both generations of popcorn-cli, replayed: the requests that they make, and the exit code that they end with."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import urllib.parse
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from served import DOUBLE, RIGHT, TOKEN, Server, multipart, saying

from tests.conftest import lay_out

OLD, NEW, STREAM = "v1.3.23", "July 2026", "before June 2026"
FINAL = ("failed", "timed_out", "hacked")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A server that several tests ask."""
    server = Server(lay_out(tmp_path_factory.mktemp("kept")))
    yield server
    server.close()


def exit_code(generation, found, mode, gpu):
    """What the client ends with, by the answer to its last poll: the rules are those of its source."""
    job = found.get("job") or {}
    if (job.get("status") or ("done" if found["done"] else "pending")) in FINAL:
        return 1
    assert found["done"]
    if generation == OLD:
        return 0
    public = [run for run in found["runs"] if not run["secret"] and run["mode"].lower() == mode]
    if mode != "leaderboard":
        return 1 if any(not run["passed"] for run in public) else 0
    here = [run for run in found["runs"] if run["mode"] == "leaderboard" and run["runner"].lower() == gpu.lower()]
    ranked = any(not run["secret"] and run["passed"] and score(run["score"]) is not None for run in here)
    secret = [run for run in here if run["secret"]]
    return 0 if ranked and secret and all(run["passed"] for run in secret) else 1


def score(value):
    return float(value) if isinstance(value, int | float | str) else None


def submit(server, client, generation, source, mode="leaderboard", gpu="CPU", name="mine.py"):
    """`popcorn submit --no-tui`: the exit code, and the last thing that the client was told."""
    if generation == STREAM:
        return submit_as_stream(server, client, source, mode, gpu, name)
    body, kind = multipart(source, name)
    status, answer = server.ask("POST", f"/submission/double/{gpu}/{mode.lower()}", client, body, kind)
    if not 200 <= status < 300:
        return 1, answer["detail"]
    number = answer["details"]["id"]
    assert type(number) is int
    assert answer["runner_queue"] is None or type(answer["runner_queue"]["queued_jobs"]) is int
    found = server.over(client, number)
    return exit_code(generation, found, mode.lower(), gpu), found


def submit_as_stream(server, client, source, mode, gpu, name):
    body, kind = multipart(source, name)
    status, text = server.ask("POST", f"/double/{gpu}/{mode.lower()}", client, body, kind)
    if status != 200:
        return 1, text["detail"]
    kinds, event = [], None
    for message in text.split("\n\n")[:-1]:
        first, second = message.splitlines()
        event = json.loads(second.removeprefix("data:"))
        kinds.append(first.removeprefix("event:").strip())
        if kinds[-1] == "status":
            assert event["status"] == "processing" and isinstance(event["message"], str)
    assert set(kinds[:-1]) == {"status"}
    return (0 if kinds[-1] == "result" else 1), event


@pytest.mark.parametrize("generation", [OLD, NEW, STREAM])
@pytest.mark.parametrize("mode", ["test", "benchmark", "leaderboard", "Leaderboard"])
def test_what_is_accepted_ends_with_0_in_every_mode_and_generation(kept, generation, mode):
    assert submit(kept, kept.person("ada"), generation, RIGHT, mode)[0] == 0


@pytest.mark.parametrize("generation", [OLD, NEW, STREAM])
@pytest.mark.parametrize("mode", ["test", "leaderboard"])
@pytest.mark.parametrize(
    "verdict", ["wrong_answer", "compile_error", "runtime_error", "timeout", "integrity_violation"]
)
def test_what_is_not_accepted_ends_with_1_and_says_why(kept, generation, mode, verdict):
    code, told = submit(kept, kept.person("ada"), generation, saying(verdict=verdict), mode)
    assert code == 1
    said = told["detail"] if generation == STREAM else told["job"]["error"]
    assert f"the stand-in says {verdict.replace('_', ' ')}" in said and "\n" not in said


@pytest.mark.parametrize("generation", [OLD, NEW, STREAM])
def test_a_right_file_that_cannot_be_ranked_ends_with_1_on_the_leaderboard_and_says_why(kept, generation):
    client, source = kept.person("ada"), saying(unranked="interpreted")
    assert submit(kept, client, generation, source, "test")[0] == 0
    code, told = submit(kept, client, generation, source)
    assert code == 1
    assert "right, not ranked" in (told["detail"] if generation == STREAM else told["job"]["error"])


@pytest.mark.parametrize("generation", [OLD, NEW, STREAM])
def test_without_its_word_a_competition_takes_nothing_for_profiling_and_says_so(kept, generation):
    code, said = submit(kept, kept.person("ada"), generation, RIGHT, "profile")
    assert (code, said) == (1, "double does not allow profiling: run `podium profile` on a machine of your own")
    body, kind = multipart(RIGHT)
    assert kept.ask("POST", "/profile/double/CPU", kept.person("ada"), body, kind)[0] == 400


@pytest.fixture(scope="module")
def profiling(tmp_path_factory):
    """A server with a competition that allows profiling."""
    server = Server(lay_out(tmp_path_factory.mktemp("profiling")), double=f"{DOUBLE}profile: true\n")
    yield server
    server.close()


@pytest.mark.parametrize("generation", [OLD, NEW, STREAM])
def test_where_a_competition_allows_it_a_profile_comes_to_every_generation(profiling, generation):
    client = profiling.person("ada")
    code, told = submit(profiling, client, generation, RIGHT, "profile")
    assert code == 0
    if generation == STREAM:
        found = told["results"][0]["runs"]["profile.0"]
        archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(found["profile"]["trace"])))
        assert json.loads(archive.read("profile.json"))["parts"][0]["name"] == "aten::mul"
        result = found["run"]["result"]
    else:
        assert [run["mode"] for run in told["runs"]] == ["test", "profile"]
        result = told["runs"][1]["result"]
    assert type(result["benchmark-count"]) is int and result["benchmark.0.spec"] == "rows=4 cols=8"
    assert "aten::mul" in base64.b64decode(result["benchmark.0.report"]).decode()
    assert profiling.ask("GET", "/submissions/double/CPU") == (200, [])
    code, told = submit(profiling, client, generation, saying(verdict="wrong_answer"), "profile")
    assert code == 1


def test_nsight_compute_is_refused_in_a_sentence_where_profiling_is_allowed(profiling):
    body, kind = multipart(RIGHT)
    status, said = profiling.ask("POST", "/profile/double/CPU", profiling.person("ada"), body, kind)
    assert status == 400 and "no Nsight Compute" in said["detail"]


def test_the_fields_of_a_submission_have_the_types_that_the_client_reads(server):
    client = server.person("ada")
    found = server.judged(client)
    for key, kind in {
        "id": int,
        "leaderboard_id": int,
        "user_id": str,
        "done": bool,
        "code": str,
        "runs": list,
    }.items():
        assert type(found[key]) is kind, key
    assert found["leaderboard_name"] == "double" and found["file_name"] == "mine.py" and found["code"] == RIGHT
    assert [(run["mode"], run["secret"]) for run in found["runs"]] == [
        ("test", False), ("benchmark", False), ("leaderboard", False), ("leaderboard", True),
    ]  # fmt: skip
    assert [run["score"] for run in found["runs"]] == [None, None, 1e-6, None]
    tests, benchmarks = found["runs"][0]["result"], found["runs"][1]["result"]
    assert (tests["test-count"], tests["test.0.status"], tests["test.0.spec"]) == (1, "pass", "rows=4 cols=8")
    assert benchmarks["benchmark.0.mean"] == 1000 and benchmarks["benchmark.0.best"] == pytest.approx(900)
    assert found["runs"][3]["result"] is None


def test_a_wrong_answer_shows_the_report_of_its_test_case_and_no_run_after_it(server):
    found = server.judged(server.person("ada"), saying(verdict="wrong_answer"))
    assert [run["mode"] for run in found["runs"]] == ["test"]
    assert found["runs"][0]["result"]["test.0.error"] == "y: all elements are wrong"


def test_a_compile_error_is_in_the_compilers_diagnostics(server):
    found = server.judged(server.person("ada"), saying(verdict="compile_error", detail="line-3"))
    compilation = found["runs"][0]["diagnostics"]["compilation"]
    assert not compilation["success"] and "line-3" in compilation["stderr"]


def test_the_list_has_the_newest_first_and_its_limits(server):
    client = server.person("ada")
    numbers = [server.sent(client, saying(score_ns=1000 + i)) for i in range(3)]
    server.over(client, numbers[-1])
    status, found = server.ask("GET", "/user/submissions?leaderboard=double&limit=2", client)
    assert status == 200 and [each["id"] for each in found] == numbers[:0:-1]
    assert found[0]["runs"] == [{"gpu_type": "CPU", "score": pytest.approx(1.002e-6)}]
    for words in ("limit=0", "limit=101", "limit=ten", "offset=-1", "limit=99999999999999999999"):
        assert server.ask("GET", f"/user/submissions?{words}", client)[0] == 400, words
    assert server.ask("GET", "/user/submissions?leaderboard=other", client)[0] == 404


def test_a_submission_is_deleted_once_and_then_is_not_there(server):
    client = server.person("ada")
    number = server.judged(client)["id"]
    assert server.ask("DELETE", f"/user/submissions/{number}", client) == (
        200,
        {"status": "ok", "submission_id": number},
    )
    assert server.ask("GET", f"/user/submissions/{number}", client)[0] == 404
    assert server.ask("GET", "/submissions/double/CPU")[1] == []
    assert not list(server.root.glob("results/local/**/*.json"))


def test_boards_gpus_and_ranks_are_as_the_client_asks_for_them(server):
    ada, bob = server.person("ada"), server.person("bob")
    for client, ns in ((ada, 3000), (bob, 2000), (ada, 1000), (bob, 2500)):
        server.judged(client, saying(score_ns=ns))
    board = server.ask("GET", "/leaderboards")[1]
    assert [(each["name"], each["task"]) for each in board] == [("double", {})]
    assert isinstance(board[0]["description"], str)
    assert server.ask("GET", "/gpus/double") == (200, ["CPU"])
    ranked = server.ask("GET", "//submissions/double/cpu")[1]  # POPCORN_API_URL may end with a slash
    assert [(each["rank"], each["user_name"], each["submission_score"]) for each in ranked] == [
        (1, "ada", pytest.approx(1e-6)), (2, "bob", pytest.approx(2e-6)),
    ]  # fmt: skip
    assert server.ask("GET", "/submission_count/double/CPU") == (200, {"count": 4})
    assert server.ask("GET", f"/submission_count/double/CPU?user_id={ranked[0]['user_id']}")[1] == {"count": 2}
    assert server.ask("GET", "/runner_queue/cpu")[1]["queued_jobs"] == 0
    assert server.ask("GET", "/health") == (200, {"status": "ok"})


def test_an_id_of_register_is_of_use_once_it_is_approved(server):
    status, answer = server.ask("GET", "/auth/init?provider=github")
    assert status == 200
    status, refused = server.send(answer["state"])
    assert status == 401 and "waits for the organisers" in refused["detail"]
    print_ = refused["detail"].rpartition(" ")[2]
    server.serving.database.people.approve(print_, "Ada")
    assert server.judged(answer["state"])["done"]
    assert server.ask("GET", "/auth/init?provider=elsewhere")[0] == 400


def test_the_administrators_commands_do_what_they_say(server):
    client = server.person("ada")
    number = server.judged(client)["id"]

    def admin(method, path, body=None):
        return server.ask(method, f"/admin{path}", token=TOKEN, body=body)

    assert admin("POST", "/stop")[0] == 200
    status, refused = server.send(client)
    assert status == 503 and "stopped" in refused["detail"]
    assert admin("POST", "/start")[1]["accepting_jobs"] is True
    assert admin("GET", "/stats?last_day_only=true")[1]["stats"]["num_succeeded"] == 1
    assert admin("GET", f"/submissions/{number}")[1]["submission"]["user_name"] == "ada"
    codes = admin("POST", "/invites", {"leaderboards": ["double"], "count": 2})[1]["codes"]
    assert len(set(codes)) == 2
    assert server.ask("POST", "/user/join", client, {"code": codes[0]}) == (
        200, {"status": "ok", "leaderboards": ["double"]},
    )  # fmt: skip
    assert [each["user_name"] for each in admin("GET", "/leaderboards/double/invites")[1]["invites"]].count("ada") == 1
    assert admin("DELETE", f"/invites/{codes[1]}")[1]["leaderboards"] == ["double"]
    assert server.ask("POST", "/user/join", client, {"code": codes[1]})[0] == 404
    assert admin("POST", "/update-problems", {"repository": "x", "branch": "main", "force": False})[0] == 400
    assert admin("DELETE", "/leaderboards/double")[0] == 400
    assert admin("DELETE", "/leaderboards/double?force=true")[0] == 200
    assert server.send(client)[0] == 404
    assert admin("POST", "/leaderboards", {"directory": "problems/double"})[1]["leaderboard"] == "double"
    assert server.send(client)[0] == 202


@pytest.fixture
def inviting(toy_root):
    server = Server(toy_root, double=DOUBLE, invited=f"{DOUBLE}entry: invite\n")
    yield server
    server.close()


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_invite_codes_are_made_and_used_by_the_lines_of_the_page(inviting):
    text = (Path(__file__).resolve().parents[1] / "docs/server.md").read_text()
    make, join = re.findall(r"^\$ (curl .*)$", text, re.MULTILINE)
    client = inviting.person("ada")
    assert inviting.send(client, board="invited")[0] == 403

    def typed(line, **words):
        line = re.sub(r"https?://[a-z0-9.:]+(?=/)", inviting.url, line)
        for old, new in words.items():
            assert old in line
            line = line.replace(old, new)
        own = {**os.environ, "PODIUM_ADMIN_TOKEN": TOKEN}
        return json.loads(subprocess.run(["bash", "-ec", line], env=own, check=True, capture_output=True).stdout)

    codes = typed(make, kv_replicate="invited")["codes"]
    assert len(codes) == 20
    assert typed(join, **{"podium-…": client, "CODE": codes[0]}) == {"status": "ok", "leaderboards": ["invited"]}
    assert inviting.send(client, board="invited")[0] == 202


def test_a_removed_submission_leaves_the_board_and_its_author_is_told_the_reason(server):
    client = server.person("ada")
    number = server.judged(client)["id"]
    reason = urllib.parse.quote("answers from a table")
    assert server.ask("DELETE", f"/admin/submissions/{number}?reason={reason}", token=TOKEN)[0] == 200
    found = server.ask("GET", f"/user/submissions/{number}", client)[1]
    assert found["job"] | {"last_heartbeat": None} == {
        "status": "failed", "error": "removed by the organisers: answers from a table", "last_heartbeat": None,
    }  # fmt: skip
    (listed,) = server.ask("GET", "/user/submissions?leaderboard=double", client)[1]
    assert listed["podium"]["error"] == found["job"]["error"]  # whatever its verdict was
    assert server.ask("GET", "/submissions/double/CPU")[1] == []
    assert not list(server.root.glob("results/local/**/*.json"))
    assert len(list(server.root.glob("results/removed/**/*.json"))) == 1


def test_a_server_that_ends_tells_those_who_stream_that_their_submission_is_kept(server):
    import threading

    client = server.person("ada")
    server.judge.free.clear()
    found = []
    body, kind = multipart(RIGHT)
    asking = threading.Thread(
        target=lambda: found.append(server.ask("POST", "/double/CPU/test", client, body, kind)), daemon=True
    )
    asking.start()
    while not server.judge.judged:
        asking.join(0.02)
    server.serving.close()
    asking.join(60)
    (_, text), number = found[0], 1
    last = json.loads(text.strip().split("\n\n")[-1].splitlines()[1].removeprefix("data:"))
    assert last["status"] == "error" and f"submission {number} is kept" in last["detail"]
    assert server.send(client)[0] == 503
    server.judge.free.set()
    assert server.over(client, number)["job"]["status"] == "succeeded"
