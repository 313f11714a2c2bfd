"""What a null call takes in one process more than the run's constant, on a device of which only null calls are known;
and that a process which makes null calls has loaded nothing of its submission."""

import subprocess
import sys
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from harness import catalog
from harness.catalog.config import load_config
from harness.errors import InfrastructureError
from harness.judge.clock import Answer, Void
from harness.judge.duel import duel
from harness.judge.evaluate import evaluate
from harness.judge.null_calls import Constants, constant
from harness.judge.null_worker import NullWorker
from harness.judge.offsets import CALLS, DROPPED, LEAST_SOUND, MOST_NS, Offsets
from harness.judge.pace import Pace
from harness.judge.reference import Reference
from harness.judge.reply import Fault
from harness.judge.session import Session
from harness.judge.sitting import Sitting, new_sitting
from harness.machine.device import detect
from harness.model import Case, Manner, Verdict
from harness.sandbox import tiers
from harness.wire.arena import Arena, layout
from harness.wire.tree import flatten
from harness.worker import calls

CHECKOUT = Path(__file__).parents[1]
CONSTANT_NS = 280e3
SMALL, LARGE, UNSEEN = (Case(parameters={"rows": rows}) for rows in (1, 1000, 2))
"""Of the last one no pour is known, as of most test cases: their memory may be any size."""


class Held(NamedTuple):
    """Data of a class that lies in a module."""

    tensor: torch.Tensor


class Device:
    """Null calls take `null_ns`; the first `void` of each measurement are void. `asked`: their cases."""

    def __init__(self, null_ns, void=0, encloses=True, measured=True):
        self.null_ns, self.void, self.encloses, self.asked = null_ns, void, encloses, []
        manners = {Manner.SANDWICH: constant(Manner.SANDWICH, [CONSTANT_NS] * 8)} if measured else {}
        self.constants = Constants(manners, pour_ns={SMALL.key: 9e3, LARGE.key: 90e3})

    @contextmanager
    def series(self, phase, case):
        assert phase == "null"
        self.left = self.void
        yield case

    def of(self, manner):
        assert manner is Manner.SANDWICH
        return "the sandwich"

    def put_null(self, session, case, clock):
        assert (session.loaded, clock) == (self.loaded_by_now, "the sandwich")
        self.asked.append(case)
        # The first calls of a process load code: they take longer, and say nothing.
        first = len(self.asked) % (DROPPED + CALLS) in range(1, DROPPED + 1)
        if first:
            return Answer(None, None, 9e6)
        self.left -= 1
        return Answer(None, None, self.null_ns, Void.SLOW_TO_ARM if self.left >= 0 else None)

    loaded_by_now = False


def process(device):
    return Offsets(device, device, [UNSEEN, LARGE, SMALL], device.series), SimpleNamespace(offset_ns=0.0, loaded=False)


@pytest.mark.parametrize(
    ("null_ns", "offset_ns"),
    [(281.4e3, 1.4e3), (278.6e3, -1.4e3), (CONSTANT_NS, 0.0), (CONSTANT_NS + 2 * MOST_NS, MOST_NS)],
    ids=["slower", "faster", "alike", "far too slow, which is cut off"],
)
def test_a_process_has_an_offset_of_what_its_own_null_calls_take_more(null_ns, offset_ns):
    device = Device(null_ns)
    offsets, session = process(device)
    offsets.find(session)
    assert session.offset_ns == pytest.approx(offset_ns)
    assert set(case.key for case in device.asked) == {SMALL.key}, "the case that is poured fastest"


@pytest.mark.parametrize(
    "device",
    [
        Device(290e3, void=CALLS - LEAST_SOUND + 1),
        Device(290e3, encloses=False),
        Device(290e3, measured=False),
    ],
    ids=["too many void", "the worker times itself", "no constant"],
)
def test_without_enough_null_calls_a_process_has_no_offset(device):
    offsets, session = process(device)
    offsets.find(session)
    assert session.offset_ns == 0.0


def test_as_many_void_calls_as_may_be_leave_the_offset_right():
    offsets, session = process(Device(281e3, void=CALLS - LEAST_SOUND))
    offsets.find(session)
    assert session.offset_ns == pytest.approx(1e3)


@pytest.mark.parametrize(
    ("later_ns", "less_ns"),
    [(280e3, 1.4e3), (281.4e3, 0.0), (289e3, 0.0)],
    ids=["faster, and so were the calls", "as before", "slower"],
)
def test_null_calls_after_the_process_s_end_can_only_lower_what_was_subtracted(later_ns, less_ns):
    device = Device(281.4e3)
    offsets, session = process(device)
    offsets.find(session)
    sitting = new_sitting(Pace(8, Manner.SANDWICH), device.constants, session.offset_ns, 1.0)
    sitting.elapsed_ns = [290e3] * 8
    device.null_ns, null = later_ns, SimpleNamespace(loaded=False)
    sitting.subtract_less(offsets.excess_ns(session.offset_ns, null))
    assert sitting.latency_ns == pytest.approx((290e3 - 281.4e3 + less_ns,) * 8)
    assert sitting.least_ns == pytest.approx(281.4e3 - less_ns)


def test_every_manner_s_constant_moves_with_the_process():
    constants = Device(0).constants
    constants.by_manner[Manner.GATED] = constant(Manner.GATED, [295e3] * 8)
    sitting = new_sitting(Pace(8, Manner.GATED), constants, 1.5e3, 1.0)
    assert sitting == Sitting(Manner.GATED, 296.5e3, least_ns=281.5e3, shortest_ns=1.0)


def test_a_worker_finds_no_file_of_its_submission_s_folder_before_it_loads_it(tmp_path):
    """An earlier process may have left a module there, which would slow null calls."""
    program = f"""
import os, sys
sys.path.append({str(CHECKOUT)!r})
from harness.worker import main
worker = main.Worker(None, "cpu", 0)
worker._answer({{"op": "prepare"}})
assert not {{"", os.getcwd()}} & set(sys.path), sys.path
worker._answer({{"op": "load", "path": os.path.abspath("mine.py"), "alone": True}})
assert sys.path[0] == os.getcwd(), sys.path
"""
    (tmp_path / "mine.py").write_text("def custom_kernel(data): return data")
    done = subprocess.run([sys.executable, "-s", "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]


@pytest.mark.parametrize("sequence", ["armed", "bare"])
def test_a_null_call_imports_no_class_of_its_data(sequence, monkeypatch):
    """The class would come from a module that an earlier process of the submission could have written."""
    silent = SimpleNamespace(poison=lambda address: None, copy=None, open=lambda turn: None)
    made = calls.Calls("cpu", silent, words=silent)
    made.regions["arena"] = Arena.create(4096)
    monkeypatch.setattr(calls, "stopper", lambda: lambda: None)
    monkeypatch.setattr(made, "_module", lambda name: pytest.fail(f"{name} was imported"))
    tree, leaves = flatten(Held(torch.zeros(1)), None, (__name__,))
    request = {"null": 1, "turn": 1, "poison": 0, "events": False, "gated": False, "long": False}
    request |= {"tree": tree, "inputs": [spec.to_json() for spec in layout([leaves[0][1]])], "state": [], "tail": 0}
    getattr(made, sequence)(made.null(1), request, nullcontext, lambda waits: None)
    made.regions["arena"].close()


def test_a_timed_process_is_measured_before_it_loads_and_when_it_has_ended(toy_root, monkeypatch):
    source, steps = toy_root / "submissions" / "double" / "mine.py", told(monkeypatch)
    source.write_text("def custom_kernel(data): return data[0] * 2\n")
    problem = catalog.load_problem(toy_root, "double")

    monkeypatch.setattr(Offsets, "find", finding(steps, 2e3))
    monkeypatch.setattr(Offsets, "excess_ns", exceeding(steps, 500.0))
    submission = catalog.load_submission(problem, source)
    run = evaluate(problem, submission, detect(toy_root, "cpu"), load_config(toy_root), quick=True)
    assert run.score is not None
    assert steps == ["load", "end", "find", "load", "end", ("excess", 2e3)]
    assert [each.constant_ns for each in run.rounds] == [1.5e3], "its own offset reaches its calls, less the excess"


def test_a_process_s_null_calls_do_not_count_against_its_time(toy_root, monkeypatch):
    source, seen = toy_root / "submissions" / "double" / "mine.py", []
    source.write_text("def custom_kernel(data): return data[0] * 2\n")
    problem = catalog.load_problem(toy_root, "double")
    limited = problem.model_copy(update={"limits": problem.limits.model_copy(update={"ranked_s": 1234.0})})

    def find(self, session):
        seen.append(session.allowance.limit_s)

    monkeypatch.setattr(Offsets, "find", find)
    submission = catalog.load_submission(limited, source)
    run = evaluate(limited, submission, detect(toy_root, "cpu"), load_config(toy_root), quick=True)
    assert run.score is not None
    assert seen == [None]


def test_in_a_duel_both_are_measured_before_either_loads_and_when_both_have_ended(toy_root, monkeypatch):
    problem, steps = catalog.load_problem(toy_root, "double"), told(monkeypatch)
    lowered, subtract_less, sides = [], Sitting.subtract_less, []
    for name in ("one", "other"):
        source = toy_root / "submissions" / "double" / f"{name}.py"
        source.write_text("def custom_kernel(data): return data[0] * 2\n")
        sides.append(catalog.load_submission(problem, source))

    def subtracting(self, less_ns):
        subtract_less(self, less_ns)
        lowered.append((less_ns, self.least_ns))

    monkeypatch.setattr(Offsets, "find", finding(steps, 2e3, 2e3))
    monkeypatch.setattr(Offsets, "excess_ns", exceeding(steps, 200.0, 700.0))
    monkeypatch.setattr(Sitting, "subtract_less", subtracting)
    duel(problem, *sides, detect(toy_root, "cpu"), load_config(toy_root), pairs=1)
    assert steps[-8:] == ["find", "find", "load", "load", "end", "end", ("excess", 2e3), ("excess", 2e3)]
    cases = len(problem.cases_for("cpu").benchmark)
    assert sorted(lowered) == sorted([(200.0, 1800.0), (700.0, 1300.0)] * cases)


def test_a_null_worker_that_does_not_get_ready_is_nobodys_fault(toy_root, monkeypatch):
    problem, device = catalog.load_problem(toy_root, "double"), detect(toy_root, "cpu")

    def fails(self):
        raise Fault(Verdict.RUNTIME_ERROR, "the process was killed")

    monkeypatch.setattr(Session, "prepare", fails)
    null = NullWorker(Reference(problem, device), device, 1, None, False, tiers.strongest(device))
    with closing(null), pytest.raises(InfrastructureError, match="own worker failed: the process was killed"):
        null.ready()


def told(monkeypatch):
    """The steps of every session from here on: "load", and "end" if it had loaded a submission."""
    steps, load, kill, loaded = [], Session.load, Session.kill, set()

    def loading(self, *what, **how):
        steps.append("load")
        loaded.add(id(self))
        return load(self, *what, **how)

    def killing(self):
        if id(self) in loaded:
            loaded.remove(id(self))
            steps.append("end")
        kill(self)

    monkeypatch.setattr(Session, "load", loading)
    monkeypatch.setattr(Session, "kill", killing)
    return steps


def exceeding(steps, *excesses_ns):
    """In the place of `Offsets.excess_ns`: gives the next of these, for null calls of a worker that loads nothing."""
    left = list(excesses_ns)

    def excess_ns(self, offset_ns, null):
        assert null.alive_at_rest()
        steps.append(("excess", offset_ns))
        return left.pop(0)

    return excess_ns


def finding(steps, *offsets_ns):
    """In the place of `Offsets.find`: gives each session the next of these offsets."""
    left = list(offsets_ns)

    def find(self, session):
        steps.append("find")
        session.offset_ns = left.pop(0)

    return find
