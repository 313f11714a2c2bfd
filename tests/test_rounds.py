"""What the machine did while a process was timed: the judge's own work, the driver's gauges, what follows from both."""

import math
import os
import typing
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_judging import HONEST, HONEST_OF_SOME_LENGTH, judge

from harness.catalog.config import load_config
from harness.judge import anchor, trial
from harness.judge.anchor import Anchor
from harness.judge.sitting import Sitting
from harness.machine import amd_smi, gauges, nvidia_smi
from harness.machine.device import detect
from harness.model import Device, Manner, Round, Verdict

CHECKOUT = Path(__file__).resolve().parents[1]

H200 = Device(
    kind="cuda", name="x", slug="x", arch="sm_90", torch_device="cuda:0", memory_bytes=1 << 37, flush_bytes=1 << 28
)
NVIDIA_SMI = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
*query-compute-apps*) echo "17, /usr/bin/python3"; echo "4, kept to itself" ;;
*counters*) echo "0, {slow}, 0" ;;
*uuid,driver*) echo "GPU-1, 580.1, 1980, 3201, 700.00, [N/A]" ;;
*clocks.sm*) echo "345, 3201, 31, 76.5, P0" ;;
*) exit 6 ;;
esac
"""


@pytest.fixture
def nvidia_smi_says(tmp_path, monkeypatch):
    """Puts a program of that name on the path that says the card was slowed down for so many microseconds."""
    monkeypatch.setattr(nvidia_smi, "nvidia_name", lambda device: "GPU-1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def installed(slow=0):
        program = tmp_path / "nvidia-smi"
        program.write_text(NVIDIA_SMI.format(log=tmp_path / "asked", slow=slow))
        program.chmod(0o755)
        return tmp_path / "asked"

    return installed


def test_the_driver_s_words_are_taken_and_what_it_does_not_know_is_left_out(nvidia_smi_says):
    asked = nvidia_smi_says(slow=1500)
    assert gauges.identity(H200) == {
        "uuid": "GPU-1",
        "driver_version": "580.1",
        "clocks.max.sm": "1980",
        "clocks.max.mem": "3201",
        "enforced.power.limit": "700.00",
    }
    state = gauges.state(H200)
    assert state["clocks.sm"] == "345" and state["temperature.gpu"] == "31" and len(state) == 8
    assert all("--id=GPU-1" in line for line in asked.read_text().splitlines())
    assert gauges.others(H200, {17}) == ["kept to itself (4)"]


def test_a_card_that_was_too_hot_meanwhile_is_said_to_have_been_slowed_down(nvidia_smi_says):
    nvidia_smi_says(slow=0)
    before = gauges.state(H200)
    nvidia_smi_says(slow=2500)
    assert gauges.slowed(before, gauges.state(H200)) == "hw thermal slowdown for 2.5 ms"
    assert gauges.slowed(before, before) is None and gauges.slowed({}, {}) is None


MI300X = H200.model_copy(update={"kind": "rocm", "arch": "gfx942"})
AMD_SMI = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
"list "*) echo '[{{"gpu": 0, "bdf": "0000:0f:00.0", "uuid": "7eff-1", "kfd_id": 5}}]' ;;
"static "*) echo '[{{"gpu": 0, "driver": {{"name": "amdgpu", "version": "6.12"}}, "limit": {{"max_power": {{"value": 750, "unit": "W"}}}}}}]' ;;
*throttle*) echo '[{{"gpu": 0, "throttle": {{"ppt_accumulated": 9, "hbm_thermal_accumulated": {slow}, "prochot_accumulated": "N/A"}}}}]' ;;
"metric "*) echo 'WARNING: not in the group render'; echo '{{"gpu_data": [{{"gpu": 0, "power": {{"socket_power": {{"value": 142, "unit": "W"}}}},
    "clock": {{"gfx_0": {{"clk": {{"value": 2100, "unit": "MHz"}}, "min_clk": "N/A"}}, "gfx_1": {{"clk": "N/A"}}}}, "temperature": {{"hotspot": "N/A"}}}}]}}' ;;
"process "*) echo '[{{"gpu": 0, "process_list": [{{"process_info": {{"name": "python3", "pid": 4242}}}}, {{"process_info": "None"}}]}}]' ;;
*) exit 2 ;;
esac
"""  # noqa: E501


@pytest.fixture
def amd_smi_says(tmp_path, monkeypatch):
    """The same for amd-smi, which counts what slowed the card down in milliseconds."""
    monkeypatch.setattr(amd_smi, "pci_address", lambda device: "0000:0f:00.0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def says(script=AMD_SMI, slow=0):
        program = tmp_path / "amd-smi"
        program.write_text(script.format(log=tmp_path / "asked", slow=slow))
        program.chmod(0o755)
        return tmp_path / "asked"

    return says


def test_amd_s_words_are_taken_by_the_same_rules(amd_smi_says):
    asked = amd_smi_says(slow=0)
    assert gauges.identity(MI300X) == {
        "uuid": "7eff-1", "driver.name": "amdgpu", "driver.version": "6.12", "limit.max_power": "750"
    }  # fmt: skip
    before = gauges.state(MI300X)
    assert before == {
        "clock.gfx_0.clk": "2100", "power.socket_power": "142", "throttle.hbm_thermal_accumulated": "0"
    }  # fmt: skip
    assert gauges.others(MI300X, set()) == ["python3 (4242)"] and gauges.others(MI300X, {4242}) == []
    assert all("--gpu=0000:0f:00.0" in line for line in asked.read_text().splitlines())
    amd_smi_says(slow=12)
    assert gauges.slowed(before, gauges.state(MI300X)) == "hbm thermal for 12.0 ticks of the firmware"


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho what?\n", "#!/bin/sh\necho '[1]'\n"])
def test_an_amd_smi_that_fails_tells_nothing(amd_smi_says, script):
    amd_smi_says(script)
    assert gauges.identity(MI300X) == gauges.state(MI300X) == {} and gauges.others(MI300X, set()) == []


def test_without_the_program_or_on_another_device_nothing_is_known(tmp_path, monkeypatch, toy_root):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvidia_smi, "nvidia_name", lambda device: "GPU-1")
    assert gauges.identity(H200) == gauges.state(H200) == {} and gauges.others(H200, set()) == []
    assert gauges.state(detect(toy_root, "cpu")) == {}


def test_a_program_that_fails_or_hangs_tells_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(nvidia_smi, "nvidia_name", lambda device: "GPU-1")
    monkeypatch.setattr(nvidia_smi, "_TIMEOUT_S", 0.2)
    for script in ("exit 9", "exec sleep 5"):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        assert gauges.identity(H200) == {}


def test_the_judge_s_own_work_takes_time_on_this_machine(toy_root):
    own = Anchor(detect(toy_root, "cpu"), None)
    own.begin()
    ended = own.end_round(0.25)
    assert ended.copy_ns > 0 and ended.product_ns > 0 and ended.gauges == {} and ended.disturbed is None
    assert ended.others_share == 0.25


@pytest.mark.parametrize("tolerance, disturbed", [(0.05, True), (0.2, False), (None, False)])
def test_work_further_from_its_median_than_allowed_shows_a_disturbance(toy_root, monkeypatch, tolerance, disturbed):
    times = iter([100.0, 50.0] * 3 + [100.0, 55.0])
    monkeypatch.setattr(anchor, "_median_ns", lambda work, device: next(times))
    own = Anchor(detect(toy_root, "cpu"), tolerance)
    own.begin()
    assert [own.end_round(None).disturbed for _ in range(2)] == [None, None]
    words = own.end_round(None).disturbed
    assert (words is not None) == disturbed and (not disturbed or "matrix product took +10%" in words)


class Scripted(Anchor):
    """Finds a disturbance where it is told to."""

    script: typing.ClassVar[list[bool]] = []

    def end_round(self, others_share):
        return Round(copy_ns=1.0, product_ns=1.0, disturbed="it was hot" if self.script.pop(0) else None)


@pytest.fixture
def scripted(monkeypatch, roomy):
    def scripted(*disturbed):
        monkeypatch.setattr(Scripted, "script", list(disturbed))
        monkeypatch.setattr(trial, "Anchor", Scripted)

    return scripted


def test_a_disturbed_process_is_timed_again_and_only_the_second_counts(toy_root, scripted):
    scripted(True, False, False)
    run = judge(toy_root, HONEST)
    assert [(each.kept, each.disturbed) for each in run.rounds] == [(False, "it was hot"), (True, None), (True, None)]
    assert run.ranked and all(len(m.samples_ns) == 2 for m in run.measurements)


def test_a_run_on_a_machine_that_stays_disturbed_is_accepted_and_not_ranked(toy_root, scripted):
    scripted(True, True, False)
    run = judge(toy_root, HONEST)
    assert run.ending.verdict is Verdict.ACCEPTED and run.unranked_because == "unstable" and not run.ranked


@pytest.mark.parametrize(("confidence", "processes"), [(0.5, 5), (0.9, 5), (0.93, 6), (0.95, 7), (0.99, 7)])
def test_how_many_processes_follow_is_decided_by_the_configured_confidence(confidence, processes):
    sampling = load_config(CHECKOUT).gpu
    entrant = SimpleNamespace(ranking="geom")
    asked = trial.Trial(entrant, H200, sampling, confidence, None, None)
    scores = [1000 * math.exp(0.0092 * z) for z in (-1.3, -0.6, 0.1, 0.5, 1.3)]  # a standard deviation of 0.92 %
    sittings = [{"case": Sitting(Manner.SANDWICH, elapsed_ns=[score] * 4)} for score in scores]
    assert asked._enough(sittings) == processes


@pytest.mark.parametrize(("spread", "processes"), [(0.001, 5), (0.015, 7), (0.05, 5), (0.09, 7), (0.2, 5)])
def test_none_follow_where_the_most_of_them_bring_it_neither_near_what_is_asked_nor_to_a_rank(spread, processes):
    asked = trial.Trial(SimpleNamespace(ranking="geom"), H200, load_config(CHECKOUT).gpu, 0.95, None, None)
    scores = [1000 * math.exp(spread * z) for z in (-1.3, -0.6, 0.1, 0.5, 1.3)]
    sittings = [{"case": Sitting(Manner.SANDWICH, elapsed_ns=[score] * 4)} for score in scores]
    assert asked._enough(sittings) == processes


@pytest.mark.parametrize(("spread", "processes"), [(0.001, 5), (0.1, 5), (0.12, 7), (0.15, 5)])
def test_processes_follow_where_cases_are_wide_that_agree_in_their_mean_by_chance(spread, processes):
    """Two cases, one slow where the other is fast: the scores are equal."""
    sampling = load_config(CHECKOUT).gpu
    asked = trial.Trial(SimpleNamespace(ranking="geom"), H200, sampling, 0.95, None, None)
    sittings = [
        {
            name: Sitting(Manner.SANDWICH, elapsed_ns=[1000 * math.exp(sign * spread * z)] * 4)
            for name, sign in (("a", 1), ("b", -1))
        }
        for z in (-1.3, -0.6, 0.1, 0.5, 1.3)
    ]
    assert asked._enough(sittings) == processes


def test_processes_are_added_where_the_first_differ_much_and_not_in_a_quick_look(toy_root, roomy, monkeypatch):
    monkeypatch.setattr(trial, "NEAR", math.inf)  # what is asked for here is out of reach
    config = toy_root / "configs" / "eval.yml"
    config.write_text(config.read_text().replace("  processes: 2", "  extra_processes: 2\n  processes: 2"))
    config.write_text(config.read_text().replace("  processes: 2", "  target_half_width: 1.0e-9\n  processes: 2"))
    run = judge(toy_root, HONEST_OF_SOME_LENGTH)
    assert all(len(m.samples_ns) == 4 for m in run.measurements) and len(run.rounds) == 4
    assert len(judge(toy_root, HONEST, quick=True).rounds) == 1
