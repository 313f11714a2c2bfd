"""What others take of the processors while a worker is timed, and what is made of it."""

import os
import subprocess
import sys
import time

import pytest
from test_judging import HONEST, judge

from harness.machine import neighbours
from harness.machine.neighbours import Crowding, Neighbours
from harness.render import document, timing, verdicts
from harness.sandbox import footprint

BUSY = "import os\nif os.fork():\n    os.wait()\nwhile True: pass\n"  # in a child of the process that is started


class Worker:
    """What a session tells of its worker."""

    def __init__(self, pid):
        self._pid = pid

    @property
    def processor_s(self):
        return footprint.processor_s(self._pid)


@pytest.fixture
def busy():
    with subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) as process:
        deadline = time.monotonic() + 30
        while footprint.processor_s(process.pid) < 0.2 and time.monotonic() < deadline:
            time.sleep(0.02)
        yield process.pid
        os.killpg(process.pid, 9)


def test_a_worker_s_own_work_is_not_others_and_anybody_else_s_is(busy):
    worker = Worker(busy)
    its_own, a_stranger_s = Neighbours([worker]), Neighbours([])
    before, start = worker.processor_s, time.monotonic()
    time.sleep(1)
    share = (worker.processor_s - before) / (time.monotonic() - start) / len(os.sched_getaffinity(0))
    assert share > 0
    assert a_stranger_s.crowding().others - its_own.crowding().others == pytest.approx(share, rel=0.5)


def test_the_judge_s_own_work_is_not_others():
    watching, before, start = Neighbours([]), time.process_time(), time.monotonic()
    while time.process_time() - before < 1 and time.monotonic() - start < 30:
        pass
    own = (time.process_time() - before) / (time.monotonic() - start) / len(os.sched_getaffinity(0))
    found = watching.crowding()
    assert own > 0 and found.others + found.idle == pytest.approx(1 - own, abs=own / 2)


def test_a_system_that_does_not_tell_is_not_crowded(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert Neighbours([]).crowding() is None


def test_a_run_that_was_timed_in_a_crowd_says_so(toy_root, monkeypatch):
    monkeypatch.setattr(neighbours.Neighbours, "crowding", lambda self: Crowding(0.6, 0.1))
    run = judge(toy_root, HONEST)
    assert {each.others_share for each in run.rounds} == {0.6} and "crowded" in run.measurements[0].labels
    shown = document.text([timing.rounds_of(run.rounds)])
    assert "60%" in shown and "other processes took" in shown
    assert "while other processes took up to 60% of the processors" in verdicts.verdict_line(run)


def test_where_there_is_room_nobody_disturbs():
    assert Crowding(0.6, 0.1).disturbs and not Crowding(0.1, 0.1).disturbs and not Crowding(0.6, 0.6).disturbs


BLOCKS = """
import resource, sys
import torch
from harness.judge.assembly import be_a_quiet_neighbour
be_a_quiet_neighbour(sys.argv[1])
def make():
    return [torch.ones(8 << 20, dtype=torch.uint8) for _ in range(4)]
make()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    make()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() >> 20)
"""


@pytest.mark.slow(ci=True)
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_the_judge_of_a_cpu_s_cases_uses_its_memory_again_from_call_to_call_and_that_of_a_gpu_s_gives_it_back():
    faulted = {
        kind: int(subprocess.check_output([sys.executable, "-c", BLOCKS, kind], text=True)) for kind in ("cpu", "cuda")
    }
    assert faulted["cpu"] < faulted["cuda"] / 4, faulted  # MiB, of the 320 that were written
