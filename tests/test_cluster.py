"""What happens to evaluations on a real cluster: two nodes of Ray's on loopback, in network and process namespaces of
their own, so that nothing reaches them and nothing of them stays. The scenes are in cluster_scene.py."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCENE_S = 1800


@pytest.fixture(scope="module")
def scenes(tmp_path_factory, request):
    """What the scenes found, by name."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: .venv/bin/python -m pip install -c constraints.txt -e '.[cluster]'")
    if not shutil.which("ip"):
        pytest.skip("iproute2 is not installed")
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"]).returncode:
        pytest.skip("Ray listens on all addresses, and here is no network namespace to keep it in: it takes root")
    from tests import conftest

    root, folder = tmp_path_factory.mktemp("root"), Path(tempfile.mkdtemp())  # a socket's path holds 107 bytes
    request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    for path, text in {
        "configs/eval.yml": conftest.EVAL_YML,
        "configs/devices/cpu.yml": conftest.CPU_YML,
        "problems/double/problem.yml": conftest.PROBLEM_YML,
        "problems/double/reference.py": conftest.REFERENCE_PY,
        "submissions/double/none": "",
        "results/none": "",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path in (folder, root, *root.parents[:2]):  # submissions are judged by users of their own
        path.chmod(path.stat().st_mode | 0o055)
    with open(folder / "log", "w") as log:
        chosen = os.environ.get("PODIUM_SCENES", "").split()  # for whoever works on one
        command = [*alone, sys.executable, "-m", "tests.cluster_scene", str(root), str(folder), *chosen]
        here = Path(__file__).parents[1]
        subprocess.run(command, stdout=log, stderr=log, timeout=SCENE_S, cwd=here, env=dict(os.environ), check=False)
    print((folder / "log").read_text())  # shown beside what fails
    found = folder / "found.json"
    assert found.exists()
    told = json.loads(found.read_text())
    assert set(chosen) <= set(told)  # or all tests of a scene without that name would be skipped
    return told


@pytest.fixture
def scene(scenes):
    def named(name):
        if os.environ.get("PODIUM_SCENES") and name not in scenes:
            pytest.skip("PODIUM_SCENES leaves it out")
        assert "failed" not in scenes[name], scenes[name]["failed"]
        return scenes[name]

    return named


def test_eval_over_the_cluster_stores_the_run_and_exits_as_eval_does(scene):
    found = scene("over_the_command_line")
    assert found["code"] == 0 and found["stored"] == 1
    ((verdict, where),) = found["runs"]
    assert verdict == "accepted" and where["attempt"] == 1
    assert "good: test 1 of 2" in found["err"]


def test_eval_by_ray_s_client_does_the_same_and_its_ctrl_c_leaves_no_judge(scene):
    found = scene("over_the_client")
    assert found["code"] == 0 and found["stored"] == 1, found["err"]
    ((verdict, where),) = found["runs"]
    assert verdict == "accepted" and where["attempt"] == 1
    assert "client: test 1 of 2" in found["err"]
    ended = found["interrupted"]
    assert ended["before"] >= 2
    assert ended["code"] in (130, -2) and ended["judges_gone"] and ended["stored"] == 0


def test_the_census_shows_both_nodes_with_their_versions_and_that_neither_is_calibrated(scene):
    found = scene("census")
    assert found["code"] == 0
    nodes = found["said"]["nodes"]
    assert len(nodes) == 2 and all(node["facts"]["code"] == found["said"]["code"] for node in nodes)
    assert all(any("never calibrated" in why for why in node["wrong"]) for node in nodes)


def test_whoever_has_another_token_gets_no_answer(scene):
    found = scene("strange")
    assert found["code"] == 30
    assert found["err"].startswith("error: the cluster at 127.0.0.1:6397 has another token than RAY_AUTH_TOKEN")
    assert found["join"].startswith("the cluster at 127.0.0.1:6397 has another token than RAY_AUTH_TOKEN")


def test_a_machine_that_is_a_node_does_not_join_a_second_time(scene):
    code, said = scene("strange")["twice"]
    assert code == 30 and said.startswith("this machine is a node already, of the cluster at 127.0.0.1:6397\n")


def test_a_node_with_other_code_is_named_although_its_machine_has_the_sender_s_checkout_too(scene):
    ((alive, wrong),) = scene("other_code")["first"]
    assert alive and any(why.startswith("other code than here") for why in wrong)


def test_a_node_that_died_is_shown_as_dead_until_it_has_joined_again(scene):
    found = scene("other_code")
    assert found["dead"] == [[False, ["it is dead"]]]
    ((alive, _),) = found["again"]
    assert alive


def test_a_worker_that_is_killed_is_followed_by_another_and_there_is_one_run(scene):
    found = scene("killed")
    assert (found["verdict"], found["attempt"], found["stored"]) == ("accepted", 2, 1)
    assert found["judges_gone"] and found["sha256"]


def test_after_three_lost_attempts_the_verdict_is_the_infrastructure_error_and_it_is_kept(scene):
    found = scene("lost")
    assert (found["verdict"], found["attempt"], found["stored"]) == ("infrastructure_error", 3, 1)
    assert "3 attempts were lost" in found["message"]


def test_a_worker_that_stops_and_comes_back_does_not_make_a_second_run(scene):
    found = scene("stopped")
    assert (found["verdict"], found["attempt"], found["stored"]) == ("accepted", 2, 1)
    assert any("nothing was heard of it" in line for line in found["lines"])
    assert found["judges_gone"]


def test_processes_that_stop_before_their_first_word_are_lost_attempts_and_the_next_judges(scene):
    found = scene("mute")
    assert (found["verdict"], found["attempt"], found["stored"]) == ("accepted", 3, 1)
    lost = [line for line in found["lines"] if "its process said nothing within 20 s of its start" in line]
    assert len(lost) == 2
    first, second, third = found["avoided"]  # nodes, which have said nothing of themselves
    assert first == [] and len(second) == len(third) == 1 and second != third
    assert found["judges_gone"]


def test_a_job_that_is_ended_leaves_no_judge_on_the_node(scene):
    found = scene("cancelled")
    assert found["before"] >= 2
    assert found["ended"] and found["judges_gone"] and found["stored"] == 0


def test_ctrl_c_leaves_no_judge_on_any_node_and_no_run(scene):
    found = scene("interrupted")
    assert found["before"] >= 2
    assert found["code"] in (130, -2) and found["judges_gone"] and found["stored"] == 0


def test_a_submission_reaches_no_port_of_ray_s_and_reads_neither_token_nor_session_nor_variables(scene):
    found = scene("confined")
    assert found["there"] and len(found["open_here"]) >= 5  # the same ports answer outside
    assert found["verdict"] == "accepted"
    assert "reached [] read [] named []" in found["output"]
    assert f"nice {found['nice']}\n" in found["output"]  # as without a cluster; Ray's own would be 15


def test_pins_that_no_node_has_are_said_with_each_node_s_reason(scene):
    found = scene("pinned")
    assert "no node of the cluster may judge" in found["nobody"]["error"]
    assert "pinned is 1.0" in found["nobody"]["error"]


def test_a_node_looks_at_the_pins_again_as_the_job_arrives_and_refuses_it(scene):
    found = scene("pinned")["refused"]
    assert any("the node refused it" in line for line in found["lines"])
    assert "no node of the cluster may judge" in found["error"]


def test_a_node_that_dies_is_followed_by_another(scene):
    found = scene("node_died")
    assert found["killed"] == 1
    assert found["verdicts"] == ["accepted", "accepted"]
    assert found["attempts"] == [1, 2] and found["stored"] == [1, 1]


def test_a_job_that_was_lost_on_a_node_goes_back_to_it_if_the_other_leaves(scene):
    found = scene("left_alone")
    assert found["verdicts"] == ["accepted", "accepted"] and found["stored"] == [1, 1], found["lines"]
    assert any("no other node may judge it; one that lost it may" in line for line in found["lines"])


def test_a_server_judges_on_the_cluster_and_on_a_node_that_joins_late_and_its_end_ends_its_judges(scene):
    found = scene("served")
    assert found["runners"] == found["nodes"] and found["late"], found["log"]
    assert found["submitted"] == 0 and "accepted" in found["said"]
    assert found["judging"] and found["code"] == 0 and found["judges_gone"], found["log"]


def test_a_server_s_log_has_where_a_job_is_judged_and_that_a_node_joins_or_leaves(scene):
    log = scene("served")["log"]
    assert re.search(r"submission 1, attempt 1: on the cluster: ada\.good: judged on \S+, ", log)
    assert re.search(r"the node \S+ \(127\.0\.0\.4\) has joined the cluster\n", log)
    assert re.search(r"the node \S+ \(127\.0\.0\.4\) has left the cluster: \S", log)


def test_one_that_is_deleted_while_it_is_judged_leaves_no_judge_on_the_node(scene):
    found = scene("served")
    assert found["deleted"] == [True, True, "failed"], found["log"]


def test_eval_says_that_its_head_is_gone_keeps_what_is_stored_and_judges_the_rest_when_there_is_another(scene):
    found = scene("head_died")
    assert found["judging"] and found["code"] == 30, found["said"]
    assert "error: the cluster at 127.0.0.1:6397 is lost" in found["said"]
    assert found["before"] == 1
    assert found["judges_gone"] and found["again"] == 0 and found["after"] == 2


def test_a_server_whose_head_dies_gives_every_submission_its_verdict_and_stores_each_run_once(scene):
    found = scene("head_died")
    assert found["running"] == 1 and found["codes"] == [0, 0, 0], [found["told"], found["log"]]
    assert found["runs"] and found["each"] == [1, 1, 1]
    assert found["ended"] == 0, found["log"]


def test_node_stop_ends_all_of_ray_s_processes(scene):
    assert scene("left") == {"stopped": 0, "ray": []}
