"""`make bench-gpu` keeps to its time, and a step that fails costs no other."""

import json
import sys
import time

import pytest

from bench import gpu
from tests.processes import alive

NARRATION = [
    (2.0, "judging on NVIDIA H200, isolation: landlock"),
    (2.0, "triton_bf16: loading (limit 300 s)"),
    (5.0, "triton_bf16: test 1 of 2: batch_size=1"),
    (6.0, "triton_bf16: test 2 of 2: batch_size=4"),
    (9.0, "some warning of a library"),
    (9.5, "triton_bf16: calibrating the clock"),
    (10.0, "triton_bf16: pilot: batch_size=4"),
    (11.0, "triton_bf16: timing, process 1 of 5"),
    (12.0, "triton_bf16: timing, process 2 of 5"),
    (20.0, "triton_bf16: accepted, 18.0 s"),
    (20.5, "torch_bf16: loading (limit 300 s)"),
]


def test_the_phases_of_an_evaluation_add_up_to_its_time():
    spent = gpu.phases(NARRATION, 25.0)
    timed = {"calibrating": 0.5, "pilot": 1.0, "timing": 9.0}
    assert spent == {"start": 2.0, "loading": 7.5, "test": 4.5, **timed, "between": 0.5}
    assert sum(spent.values()) == 25.0


def test_an_evaluation_that_said_nothing_was_all_start():
    assert gpu.phases([], 3.0) == {"start": 3.0}


def test_it_is_known_whether_a_submission_is_right_when_it_is_to_be_timed():
    assert gpu.first_correct(NARRATION) == 9.5
    assert gpu.first_correct([line for line in NARRATION if "calibrating" not in line[1]]) == 10.0
    assert gpu.first_verdict(NARRATION) == 20.0


def test_a_wrong_answer_is_known_with_its_verdict():
    narration = [(1.0, "mine: test 1 of 2: n=1"), (4.0, "mine: wrong answer, 3.1 s")]
    assert gpu.first_correct(narration) == gpu.first_verdict(narration) == 4.0
    assert gpu.first_verdict(narration[:1]) is None


def step(name, limit_s=None, round_=1):
    return gpu.Step(name, (), limit_s, None, round_)


def test_no_step_gets_more_than_is_left():
    waiting = [step("e1", 50.0, 0), step("mla"), step("fmha"), step("others", round_=2)]
    assert gpu._limit(waiting, 400.0) == 50.0
    assert gpu._limit(waiting, 20.0) == 20.0
    assert gpu._limit(waiting[1:], 100.0) == 75.0, "1.5 times the half of its round"
    assert gpu._limit(waiting[2:], 25.0) == 25.0
    assert gpu._limit(waiting[3:], 10.0) == 10.0


def test_a_step_that_hangs_is_ended_with_all_it_started(tmp_path):
    told = tmp_path / "pid"
    ended = gpu._run(["sh", "-c", f"echo begun; sleep 600 & echo $! > {told}; wait"], 2.0)
    assert ended.how == "out of time" and ended.stdout == "begun\n"
    pid, deadline = int(told.read_text()), time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)  # killed, and not yet gone
    assert not alive(pid)


def test_a_step_that_fails_is_recorded_with_its_last_words():
    ended = gpu._run([sys.executable, "-c", "import sys; sys.exit('no such thing')"], 30)
    record = gpu._record(step("e1", 1.0), ended, set())
    assert (record["ended"], record["headline"], record["found"]) == ("exit 1", "no such thing", {})


def test_an_experiment_s_json_is_its_record():
    script = 'print(\'a table\'); print(\'{"headline": "so", "rows": []}\')'
    record = gpu._record(step("e1", 1.0), gpu._run([sys.executable, "-c", script], 30), set())
    assert (record["ended"], record["headline"], record["found"]["rows"]) == ("done", "so", [])


def test_what_was_not_measured_is_not_called_done():
    script = 'print(\'{"not_measured": "needs a GPU"}\')'
    record = gpu._record(step("e3", 1.0), gpu._run([sys.executable, "-c", script], 30), set())
    assert (record["ended"], record["headline"]) == ("not measured", "needs a GPU")


def test_every_problem_and_every_experiment_is_a_step(tmp_path):
    names = [s.name.partition(":")[0] for s in gpu._steps("cuda:0", tmp_path, tmp_path, None)]
    assert set(names) == {"constant", "e1", "e2", "e3", "e4", "e5", *gpu.catalog.problem_names(gpu.ROOT)}
    assert [s.name for s in gpu._steps("cuda:0", tmp_path, tmp_path, "e2")] == ["e2"]
    with pytest.raises(SystemExit, match="not e9"):
        gpu._steps("cuda:0", tmp_path, tmp_path, "e9")


def test_what_is_known_is_on_disk_after_each_step(tmp_path):
    record = {"step": "e1", "ended": "done", "seconds": 1.0, "headline": "so", "found": {}}
    (tmp_path / "mla/results/local").mkdir(parents=True)
    (tmp_path / "mla/results/local/run.json").write_text("{}")
    gpu._save(tmp_path, {"steps": [record]}, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == [record]
    assert (tmp_path / "summary.csv").read_text().splitlines() == ["step,ended,seconds,found", "e1,done,1.0,so"]
    with gpu.tarfile.open(tmp_path / "evaluations.tar.gz") as archive:
        assert archive.getnames() == ["mla/results/local/run.json"]
