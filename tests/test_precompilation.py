"""Processes that compile ahead of the one that is judged: what they leave is there, and nothing else of them counts."""

import os
import textwrap
import time
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
from processes import below
from test_judging import HONEST, judge

from harness import catalog
from harness.judge import entrant, worker_program
from harness.judge.caches import HostCaches
from harness.judge.calls import Caller
from harness.judge.clock import StopClock
from harness.judge.emulation import EMULATION
from harness.judge.precompilation import Precompilation, compilers
from harness.judge.reference import Reference
from harness.judge.seeds import Seeds, new_master_seed
from harness.judge.session import Session
from harness.machine import processors
from harness.machine.device import detect
from harness.model import Verdict
from harness.sandbox import tiers
from harness.sandbox.scratch import scratch

PATIENCE_S = 300
KEEPS_WHAT_IT_COMPILES = """
    import pathlib
    def custom_kernel(data):
        x = data[0]
        (pathlib.Path.home() / f"{tuple(x.shape)}").touch()
        return x * 2
"""


@pytest.fixture
def precompilation(toy_root):
    """Makes one of a source, with the processors' clock in the place of a GPU's; and where the source keeps files."""
    with ExitStack() as stack:

        def precompilation(source, count=2):
            problem, device = catalog.load_problem(toy_root, "double"), detect(toy_root, "cpu")
            folder = stack.enter_context(scratch(textwrap.dedent(source).encode(), tiers.strongest(device).new_uid()))
            caller, seed = (
                Caller(Reference(problem, device), "x.py", device, HostCaches()),
                new_master_seed(),
            )
            cases = problem.cpu.test
            made = Precompilation(
                count,
                lambda: Session(problem, device, folder, 1, fresh=True),
                folder / "submission.py",
                cases,
                lambda phase, case: caller.series(Seeds(seed, phase, case), case),
                StopClock(),
                "cpu",
            )
            stack.callback(made.close)

            def call(session):
                with caller.series(Seeds(seed, "test", cases[0]), cases[0]) as series:
                    check, _ = caller.put(session, series, StopClock(), everything=True)
                    return check.verdict is Verdict.ACCEPTED

            def session():
                started = Session(problem, device, folder, 1)
                started.close = started.kill
                return started

            kept = {f"({case.parameters['rows']}, {case.parameters['cols']})" for case in cases}
            path = folder / "submission.py"
            return SimpleNamespace(made=made, home=folder / "work", kept=kept, call=call, session=session, path=path)

        yield precompilation


def await_(precompilation, happened):
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        precompilation.feed()
        time.sleep(0.01)


def test_what_a_submission_keeps_for_each_case_is_there_when_it_is_over_and_no_process_is(precompilation):
    before = below(os.getpid())  # fork servers
    one = precompilation(KEEPS_WHAT_IT_COMPILES)
    with closing(one.made):
        one.made.feed()
        time.sleep(0.1)
        assert not one.made.began and not one.kept & set(os.listdir(one.home)), "not before it has begun"
        one.made.begin()
        await_(one.made, lambda: one.kept <= set(os.listdir(one.home)))
    assert below(os.getpid()) <= before


def test_a_process_has_a_case_when_it_has_loaded_and_another_that_waits(precompilation):
    """The judge may be busy with a test case of its own, which compiles too, for as long as two take here."""
    one = precompilation(KEEPS_WHAT_IT_COMPILES, count=1)
    with closing(one.made):
        one.made.begin()
        one.made.feed()
        assert len(one.kept) == 2
        await_(SimpleNamespace(feed=lambda: None), lambda: one.kept <= set(os.listdir(one.home)))


@pytest.mark.parametrize(
    ("source", "wait_s"),
    [
        ("raise RuntimeError", 0),
        ("import os\nos._exit(3)", 0.5),
        pytest.param("while True:\n    pass", 1, marks=pytest.mark.slow(ci=True)),
        pytest.param("def custom_kernel(data):\n    while True:\n        pass", 1.5, marks=pytest.mark.slow(ci=True)),
        ("def custom_kernel(data):\n    while True:\n        pass", 0),
        pytest.param(
            "import os\ndef custom_kernel(data):\n    os.kill(os.getpid(), 9)", 1.5, marks=pytest.mark.slow(ci=True)
        ),
    ],
)
def test_one_that_fails_or_hangs_there_holds_nobody_up(precompilation, source, wait_s):
    before = below(os.getpid())  # fork servers
    one = precompilation(source)
    one.made.begin()
    one.made.feed()
    time.sleep(wait_s)
    one.made.feed()
    one.made.close()
    assert below(os.getpid()) <= before


BUILDS = """
    import os, pathlib, time
    from torch.utils.file_baton import FileBaton
    built = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "built"
    built.mkdir(parents=True, exist_ok=True)
    def custom_kernel(data):
        baton = FileBaton(str(built / "lock"))  # as torch.utils.cpp_extension has it
        if not baton.try_acquire():
            baton.wait()
        elif not (built / "done").exists() and not (built / "begun").exists():
            (built / "begun").touch()
            time.sleep(600)
        baton.release()
        return data[0] * 2
"""


@pytest.mark.slow(ci=True)
def test_a_build_that_was_ended_with_its_process_holds_no_later_one_up(precompilation):
    one = precompilation(BUILDS, count=1)
    one.made.begin()
    built = one.home / "cache" / "extensions" / "built"
    lock = built / "lock"
    await_(one.made, (built / "begun").exists)  # written behind the lock: the next process must not begin as this one
    one.made.close()
    assert lock.exists(), "a killed process leaves it"
    with closing(one.session()) as session:
        session.prepare()
        session.load(one.path)
        assert one.call(session)
    assert not lock.exists()


def test_one_that_never_began_ends_as_well(precompilation):
    before = below(os.getpid())  # fork servers
    precompilation(HONEST).made.close()
    assert below(os.getpid()) <= before


@pytest.fixture
def beside(monkeypatch):
    """A processor's cases are precompiled by one more process, from the first on, as a GPU's are that compile."""
    monkeypatch.setattr(entrant, "compilers", lambda kind: 1)
    monkeypatch.setattr(entrant, "SHARE_OF_MEMORY", 1)
    monkeypatch.setattr(entrant, "COMPILES_S", 0.0)
    monkeypatch.setattr(entrant, "WorkerClock", lambda: StopClock())


WANTS_IT_ALONE = """
    import fcntl, pathlib, secrets
    claims = pathlib.Path.home() / "claims"
    claims.mkdir(exist_ok=True)
    own = open(claims / secrets.token_hex(8), "w")
    fcntl.flock(own, fcntl.LOCK_EX)
    def is_claimed(path):
        try:
            fcntl.flock(open(path), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    calls = 0
    def custom_kernel(data):
        global calls
        calls += 1
        if calls > 2 and any(is_claimed(path) for path in claims.iterdir() if str(path) != own.name):
            raise MemoryError("another process has it")
        return data[0] * 2
"""


def test_a_submission_that_wants_the_device_for_itself_is_judged_again_alone(toy_root, roomy, beside, monkeypatch):
    said, asked = [], []
    made = entrant.Entrant.precompilation

    def precompilation(self, with_benchmarks):
        asked.append(made(self, with_benchmarks))
        begin = asked[-1].begin
        asked[-1].begin = lambda: (begin(), await_(asked[-1], lambda: any(p.loaded for p in asked[-1]._compilers)))
        return asked[-1]

    monkeypatch.setattr(entrant.Entrant, "precompilation", precompilation)
    run = judge(toy_root, WANTS_IT_ALONE, narrate=said.append)
    assert asked[0].began
    assert run.ending.verdict is Verdict.ACCEPTED, run.ending
    assert len([line for line in map(str, said) if "all tests run again, alone" in line]) == 1
    assert len(run.checks) == len(catalog.load_problem(toy_root, "double").cpu.test)


def test_what_is_wrong_is_wrong_beside_others_as_well(toy_root, roomy, beside):
    before = below(os.getpid())  # fork servers
    assert judge(toy_root, "def custom_kernel(data):\n    return data[0] * 3\n").ending.verdict is Verdict.WRONG_ANSWER
    raised = judge(toy_root, "def custom_kernel(data):\n    raise KeyError('a')\n")
    assert raised.ending.verdict is Verdict.RUNTIME_ERROR and "KeyError" in raised.ending.message
    assert judge(toy_root, HONEST).ending.verdict is Verdict.ACCEPTED
    assert below(os.getpid()) <= before


def test_on_a_processor_nothing_is_precompiled_and_few_processors_are_left_alone(monkeypatch):
    assert compilers("cpu") == 0
    found = []
    for count in (1, 2, 7, 8, 12, 16, 128):
        monkeypatch.setattr(processors, "share", lambda count=count: count)
        found.append(compilers("cuda"))
    assert found == [0, 0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("usable", "all_of_them", "nvidia", "amd", "share"),
    [
        (16, 16, 1, 0, 16),
        (64, 64, 4, 0, 16),
        (16, 16, 8, 0, 2),
        (8, 64, 8, 0, 8),  # a Slurm job with one of eight cards
        (2, 64, 0, 0, 2),
        (96, 96, 0, 8, 12),
        (4, 4, 8, 0, 1),
    ],
)
def test_a_judge_counts_on_its_card_s_part_of_the_processors(
    tmp_path, monkeypatch, usable, all_of_them, nvidia, amd, share
):
    for number in range(nvidia):
        (tmp_path / f"nvidia{number}").touch()
    (tmp_path / "nvidiactl").touch()
    for number in range(amd + 2):
        (tmp_path / "nodes" / str(number)).mkdir(parents=True)
        (tmp_path / "nodes" / str(number) / "gpu_id").write_text(f"{number and number - 1}\n")  # 0: a processor
    monkeypatch.setattr(processors, "_DEVICES", tmp_path)
    monkeypatch.setattr(processors, "_AMD_NODES", tmp_path / "nodes")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(usable)))
    monkeypatch.setattr(os, "cpu_count", lambda: all_of_them)
    assert processors.share() == share


def test_torch_compile_does_not_start_a_process_for_each_processor_of_the_host(toy_root, monkeypatch):
    problem, device = catalog.load_problem(toy_root, "double"), detect(toy_root, "cpu")
    found = []
    for count in (1, 3, 64):
        monkeypatch.setattr(processors, "share", lambda count=count: count)
        given = worker_program.environment(device, 1, EMULATION, problem.limits)
        found.append(given["TORCHINDUCTOR_COMPILE_THREADS"])
    assert found == ["1", "3", "4"]
