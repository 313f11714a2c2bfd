"""What popcorn-cli reads of each answer, field by field as its source declares them, for every request that it makes.

`test_server_popcorn` replays what the client decides by them.
"""

import json
import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest

pytest.importorskip("fastapi")

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter
from served import RIGHT, TOKEN, multipart, saying, until


def iso(text):
    assert datetime.fromisoformat(text).tzinfo is not None
    return text


class Read(BaseModel):
    """Strict: serde turns no text into a number. It ignores keys that it does not know."""

    model_config = ConfigDict(strict=True)


Moment = Annotated[str, AfterValidator(iso)]


class Compilation(Read):
    success: bool
    stdout: str
    stderr: str


class Diagnostics(Read):
    stdout: str
    stderr: str
    success: bool
    exit_code: int
    duration: float
    compilation: Compilation


class RunRead(Read):
    start_time: Moment
    end_time: Moment
    mode: Literal["test", "benchmark", "leaderboard", "profile"]
    secret: bool
    runner: str
    score: float | str | None
    passed: bool
    result: dict[str, str | int | float] | None
    diagnostics: Diagnostics | None


class Job(Read):
    status: str
    error: str | None
    last_heartbeat: str | None


class RunnerQueue(Read):
    runner: str
    gpu: str
    queued_jobs: int
    running_jobs: int
    available_runners: int
    status: str
    error: str | None


class Shown(Read):
    id: int
    leaderboard_id: int
    leaderboard_name: str
    file_name: str
    user_id: str
    submission_time: Moment
    done: bool
    code: str
    runs: list[RunRead]
    job: Job
    runner_queue: RunnerQueue | None


class Numbers(Read):
    id: int
    job_status_id: int


class Accepted(Read):
    details: Numbers
    runner_queue: RunnerQueue | None
    status: Literal["accepted"]


class Scored(Read):
    gpu_type: str
    score: float | None


class Listed(Read):
    id: int
    leaderboard_name: str
    file_name: str
    submission_time: Moment
    done: bool
    runs: list[Scored]


class Board(Read):
    name: str
    description: str
    task: dict[str, Any]


class Ranked(Read):
    submission_id: int
    rank: int
    submission_name: str
    submission_time: Moment
    submission_score: float
    leaderboard_name: str
    user_id: str
    user_name: str
    gpu_type: str


class Registered(Read):
    state: str


class Deleted(Read):
    status: Literal["ok"]
    submission_id: int


class Joined(Read):
    status: Literal["ok"]
    leaderboards: list[str]


class Count(Read):
    count: int


class Ok(Read):
    status: Literal["ok"]


class Refused(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    detail: str


def read(kind, answer):
    """An answer as the client reads it. JSON has one kind of number."""
    status, body = answer
    TypeAdapter(kind).validate_json(json.dumps(body), strict=True)
    return status, body


def form(**parts):
    """The body that newer clients send to profile: the file, and their options as parts without file names."""
    edge = uuid.uuid4().hex
    text = "".join(
        f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts.items()
    )
    head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="mine.py"\r\n\r\n{RIGHT}\r\n'
    return f"{text}{head}--{edge}--\r\n".encode(), f"multipart/form-data; boundary={edge}"


@pytest.mark.parametrize("slash", ["", "/"])
def test_each_command_of_a_participant_reads_what_it_is_answered(kept, slash):
    """In the order of a person's day, with POPCORN_API_URL with and without a slash at its end."""
    client = kept.person("ada")

    def ask(kind, method, path, **words):
        status, found = read(kind, kept.ask(method, slash + path, client, **words))
        assert status == 200, (path, found)
        return found

    for provider in ("discord", "github"):  # register and reregister
        ask(Registered, "GET", f"/auth/init?provider={provider}")
    boards = ask(list[Board], "GET", "/leaderboards")  # the list that submit offers
    assert [each["name"] for each in boards] == ["double"]
    assert ask(list[str], "GET", "/gpus/double") == ["CPU"]
    body, kind = multipart(saying(score_ns=5))
    status, accepted = read(
        Accepted, kept.ask("POST", f"{slash}/submission/double/CPU/leaderboard", client, body, kind)
    )
    assert status == 202
    number = accepted["details"]["id"]
    kept.over(client, number)
    found = ask(Shown, "GET", f"/user/submissions/{number}")
    assert found["done"] and found["job"]["status"] == "succeeded"
    listed = ask(list[Listed], "GET", "/user/submissions?leaderboard=double&limit=50")
    assert listed[0]["id"] == number
    assert ask(list[Ranked], "GET", "/submissions/double/CPU?limit=10&offset=0")[0]["user_name"] == "ada"
    assert ask(Count, "GET", f"/submission_count/double/CPU?user_id={found['user_id']}")["count"] >= 1
    ask(RunnerQueue, "GET", "/runner_queue/CPU")
    ask(Ok, "GET", "/health")
    codes = kept.ask("POST", "/admin/invites", token=TOKEN, body={"leaderboards": ["double"], "count": 1})[1]["codes"]
    assert ask(Joined, "POST", "/user/join", body={"code": codes[0]})["leaderboards"] == ["double"]
    assert ask(Deleted, "DELETE", f"/user/submissions/{number}")["submission_id"] == number
    status, _ = read(Refused, kept.ask("GET", f"{slash}/user/submissions/{number}", client))
    assert status == 404


@pytest.mark.parametrize("mode", ["test", "benchmark", "leaderboard"])
@pytest.mark.parametrize(
    "verdict", ["accepted", "wrong_answer", "compile_error", "runtime_error", "timeout", "integrity_violation"]
)
def test_a_submission_is_read_in_every_mode_and_with_every_verdict(kept, mode, verdict):
    client = kept.person("ada")
    number = kept.sent(client, saying(verdict=verdict), mode=mode)
    kept.over(client, number)
    _, found = read(Shown, kept.ask("GET", f"/user/submissions/{number}", client))
    status = {"accepted": "succeeded", "timeout": "timed_out", "integrity_violation": "hacked"}.get(verdict, "failed")
    assert found["job"]["status"] == status and (found["job"]["error"] is None) == (verdict == "accepted")
    for run in found["runs"]:
        public = not run["secret"] and run["mode"] != "leaderboard"
        assert (run["result"] is not None) == (run["diagnostics"] is not None) == public
        assert run["runner"] == "CPU"
    assert all(run["passed"] for run in found["runs"]) == (verdict == "accepted" or not found["runs"])


def test_while_a_submission_waits_and_runs_its_state_is_a_text_that_ends_no_client(server):
    client = server.person("ada")
    server.judge.free.clear()
    first = server.sent(client, saying(score_ns=1))
    until(lambda: server.judge.judged)
    second = server.sent(client, saying(score_ns=2))
    told = {}
    for number in (first, second):
        _, found = read(Shown, server.ask("GET", f"/user/submissions/{number}", client))
        assert not found["done"] and found["runs"] == [] and found["job"]["error"] is None
        told[number] = found["job"]["status"]
        assert found["runner_queue"]["running_jobs"] == 1 and found["runner_queue"]["queued_jobs"] == 1
    assert told[first].startswith("running") and told[second] == "pending, number 1 in the queue"
    server.judge.free.set()


def test_each_command_of_an_administrator_is_answered_and_a_token_is_asked_for(server):
    client = server.person("ada")
    number = server.judged(client)["id"]
    folder = server.root / "configs" / "competitions"
    commands = [
        ("POST", "/admin/stop", None, 200), ("POST", "/admin/start", None, 200), ("GET", "/admin/stats", None, 200),
        ("GET", "/admin/stats?last_day_only=true", None, 200), ("GET", f"/admin/submissions/{number}", None, 200),
        ("POST", "/admin/leaderboards", {"directory": "double"}, 200),
        ("POST", "/admin/invites", {"leaderboards": ["double"], "count": 1}, 200),
        ("GET", "/admin/leaderboards/double/invites", None, 200), ("DELETE", "/admin/invites/NONE", None, 404),
        ("POST", "/admin/update-problems", {"repository": "a/b", "branch": "main", "force": False,
                                            "problem_set": "x", "visibility": "closed"}, 400),
        ("DELETE", f"/admin/submissions/{number}", None, 200), ("DELETE", "/admin/leaderboards/double", None, 400),
        ("DELETE", "/admin/leaderboards/double?force=true", None, 200),
    ]  # fmt: skip
    assert (folder / "double.yml").exists()
    for method, path, body, _ in commands:
        for token in (None, "wrong"):
            status, _ = read(Refused, server.ask(method, path, client, body, token=token))
            assert status == 401, path
    for method, path, body, wanted in commands:
        status, found = server.ask(method, path, token=TOKEN, body=body)
        assert status == wanted, (path, found)
        read(Ok if wanted == 200 else Refused, (status, found))


def test_what_is_refused_has_the_status_of_its_reason_and_one_sentence(server):
    client, other = server.person("ada"), server.person("eve")
    number = server.judged(client)["id"]

    def sent(source=RIGHT, name="mine.py", who=client, board="double", gpu="CPU", mode="test"):
        body, kind = multipart(source, name)
        return server.ask("POST", f"/submission/{board}/{gpu}/{mode}", who, body, kind)

    answers = [
        (400, sent(who=None)), (400, sent(mode="fast")), (400, sent(gpu="B200")), (400, sent(b"")),
        (400, sent(b"\xff")), (400, sent(name="mine.cu")), (400, sent(name="mine.zip")), (401, sent(who="nobody's")),
        (404, sent(board="other")), (413, sent("#" * 1_000_001)), (400, sent(mode="profile")),
        (400, server.ask("GET", "/user/submissions?limit=0", client)),
        (403, server.ask("GET", f"/user/submissions/{number}", other)),
        (403, server.ask("DELETE", f"/user/submissions/{number}", other)),
        (404, server.ask("GET", "/user/submissions/999", client)), (404, server.ask("GET", "/gpus/other")),
        (422, server.ask("POST", "/submission/double/CPU/test", client, *multipart(RIGHT, field="other"))),
        (404, server.ask("POST", "/user/join", client, {"code": "NONE"})),
        (400, server.ask("GET", "/auth/init?provider=elsewhere")),
    ]  # fmt: skip
    for wanted, answer in answers:
        status, found = read(Refused, answer)
        assert status == wanted, found
    server.serving.closed_because = "the organisers have stopped submissions for now"
    assert read(Refused, sent())[0] == 503


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"benchmark_index": "0", "ncu_kernel_name": "x", "ncu_kernel_name_base": "demangled", "ncu_launch_count": "5"},
    ],
)
def test_profiling_with_nsight_computes_options_is_refused_and_not_taken_for_a_board(kept, options):
    status, found = read(Refused, kept.ask("POST", "/profile/double/CPU", kept.person("ada"), *form(**options)))
    assert status == 400 and "profil" in found["detail"]


def test_a_stream_is_events_of_one_line_each_and_its_result_has_what_older_clients_read(server):
    body, kind = multipart(RIGHT)
    status, text = server.ask("POST", "/double/CPU/leaderboard", server.person("ada"), body, kind)
    assert status == 200 and text.endswith("\n\n")
    events = [message.split("\n") for message in text[:-2].split("\n\n")]
    assert all(len(lines) == 2 and lines[0].startswith("event: ") and lines[1].startswith("data: ") for lines in events)
    kinds = [lines[0][7:] for lines in events]
    assert kinds[-1] == "result" and set(kinds[:-1]) == {"status"}
    for lines in events[:-1]:
        said = json.loads(lines[1][6:])
        assert said["status"] == "processing" and isinstance(said["elapsed_time"], float)
    last = json.loads(events[-1][1][6:])
    assert last["status"] == "success" and [type(each) for each in last["reports"]] == [str]
    (result,) = last["results"]
    assert result["success"] is True and result["error"] == ""
    assert set(result["system"]) == {"gpu", "device_count", "cpu", "runtime", "platform", "torch", "hostname"}
    assert set(result["runs"]) == {"test", "benchmark", "leaderboard"}
    for run in result["runs"].values():
        iso(run["start"]), iso(run["end"])
        assert run["run"]["success"] and run["run"]["passed"] and run["run"]["exit_code"] == 0
        assert all(type(value) is str for value in run["run"]["result"].values())
