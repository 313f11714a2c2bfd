"""A worker that is forked is confined as one that is started from nothing is, and gone when it should be."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from harness import catalog
from harness.errors import InfrastructureError
from harness.judge import entrant as entrants
from harness.judge import session as sessions
from harness.judge import worker_program
from harness.judge.emulation import EMULATION
from harness.machine.device import detect
from harness.model import NO_ISOLATION
from harness.sandbox import enclosure as enclosure_module
from harness.sandbox import forked, seccomp, tiers
from harness.sandbox.enclosure import Enclosure, warm_up
from harness.sandbox.program import Program
from harness.sandbox.scratch import scratch
from harness.wire.protocol import Channel
from tests.processes import alive, below, name_of

CHECKOUT = Path(__file__).resolve().parents[1]
CPU = detect(CHECKOUT, "cpu")
WARM = ("json", "textwrap")

ISOLATION = next((t for t in tiers.candidates(CPU) if not t.bubblewrap and tiers.holds(t, CPU)), NO_ISOLATION)
"""What bubblewrap starts is not forked."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a keeper")

STATE = """
    import json, os, resource, sys
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    names = "Groups NoNewPrivs Seccomp CapInh CapPrm CapEff CapBnd CapAmb SigBlk SigIgn Threads".split()
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    print(json.dumps({
        "status": {name: status[name].split() for name in names},
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "user": os.getuid() > 0,
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        "environment": {name: value for name, value in os.environ.items() if "podium-" not in value},
        "folder": os.path.basename(os.getcwd()),
        "leads a group": os.getpgrp() == os.getpid(),
        "leads a session": os.getsid(0) == os.getpid(),
        "arguments": sys.argv[1:],
        "flags": [sys.flags.no_user_site, sys.flags.safe_path, sys.flags.dont_write_bytecode],
        "stdin": sys.stdin.read(),
    }))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module of a text, which a program may be."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(text: str) -> str:
        (tmp_path / "the_program.py").write_text(textwrap.dedent(text))
        return "the_program"

    return make


@contextlib.contextmanager
def enclosed(*words: str, warm: tuple[str, ...] = WARM, device=CPU, **told: str):
    """`words` run by harness.sandbox.confined, whose output is a file."""
    with scratch(b"", ISOLATION.new_uid()) as folder:
        program = Program("harness.sandbox.confined", words)
        enclosure = Enclosure(program, ISOLATION, device, folder, environment=told, warm=warm)
        try:
            yield enclosure, folder
        finally:
            enclosure.kill()
            enclosure.close()
            enclosure.stdout.close()


def printed(*words: str, warm: tuple[str, ...], device=CPU, **told: str) -> str:
    with enclosed(*words, warm=warm, device=device, **told) as (enclosure, folder):
        status = enclosure.wait(60)
        assert status == 0, enclosure.stdout.read()
        return (folder / "work" / "printed").read_text()


def test_a_forked_process_is_in_the_state_of_one_started_from_nothing(module):
    name = module(STATE)
    forked_, fresh = (json.loads(printed(name, "a word", warm=warm)) for warm in (WARM, ()))
    assert forked_ == fresh
    assert forked_["status"]["NoNewPrivs"] == ["1"] and forked_["arguments"] == ["a word"]


def test_workers_that_are_told_different_things_share_a_server_and_each_is_told_its_own(module):
    name = module("import os\nprint(os.environ['PODIUM_EMULATE_WAVE_S'], os.environ['OMP_NUM_THREADS'])")
    words = [(limit, threads) for threads in ("1", "2") for limit in ("5", "60")]
    before = set(forked._servers.values())
    for limit, threads in words:
        told = {"PODIUM_EMULATE_WAVE_S": limit, "OMP_NUM_THREADS": threads}
        assert printed(name, warm=WARM, **told).split() == [limit, threads]
    assert len(set(forked._servers.values()) - before) == 2, "torch reads the number of threads when it is imported"


def test_a_worker_is_told_its_gpu_and_the_server_that_it_is_forked_from_knows_of_none(module):
    """So the server can start before torch has said which GPUs there are."""
    name = module("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])")
    gpus = [CPU.model_copy(update={"kind": "cuda", "torch_device": f"cuda:{number}"}) for number in (0, 3)]
    before = set(forked._servers.values())
    warm_up(WARM, {"MKL_NUM_THREADS": "3"})
    [server] = set(forked._servers.values()) - before
    assert [printed(name, warm=WARM, device=gpu, MKL_NUM_THREADS="3") for gpu in gpus] == ["0\n", "3\n"]
    assert set(forked._servers.values()) - before == {server}
    assert b"CUDA_VISIBLE" not in Path(f"/proc/{server.pid}/environ").read_bytes()


def test_a_server_that_nobody_asked_anything_is_ended_in_the_midst_of_its_imports(module, tmp_path):
    begun = tmp_path / "begun"
    name = module(f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)")
    server = forked.ForkServer((name,), {"PYTHONPATH": f"{CHECKOUT}:{tmp_path}"})
    while not begun.exists():
        assert server.is_usable(), "it ended before it imported anything"
        time.sleep(0.01)
    began = time.monotonic()
    server.close()
    assert not alive(server.pid) and time.monotonic() - began < forked.END_S / 2


def test_it_has_imported_what_the_server_has(module):
    name = module("import sys\nprint('fractions' in sys.modules)")
    assert printed(name, warm=("fractions",)) == "True\n" and printed(name, warm=("string",)) == "False\n"


@pytest.mark.parametrize(
    ("text", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("1 / 0", 1)]
)
def test_it_ends_with_the_status_that_it_has(module, text, status):
    with enclosed(module(text)) as (enclosure, _):
        assert enclosure.wait(60) == status
        assert (b"ZeroDivisionError" in enclosure.stdout.read()) == (status == 1)


def test_two_threads_may_wait_for_one_process_and_both_are_told(module, monkeypatch):
    """One awaits the process's answer, the other ends it: its descriptor is closed once."""
    both, select = threading.Barrier(2), forked.select.select

    def together(*arguments):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1)
        return select(*arguments)

    monkeypatch.setattr(forked, "select", SimpleNamespace(select=together))
    with enclosed(module("raise SystemExit(3)")) as (enclosure, _), ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(enclosure.wait, 60) for _ in range(2)]
        assert [wait.result() for wait in waits] == [3, 3]


def test_killed_it_leaves_nothing_and_the_server_goes_on(module):
    name = module("import os, time\nos.fork()\ntime.sleep(600)")
    with enclosed(name) as (enclosure, _):
        deadline = time.monotonic() + 60
        while len(started := below(os.getpid(), "podium-worker")) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        server = enclosure._process._server.pid
    assert len(started) == 2 and not any(map(alive, started))
    with enclosed(name) as (enclosure, _):
        assert enclosure._process._server.pid == server


def test_a_server_that_has_ended_is_an_error_with_what_it_kept_dead_and_the_next_one_is_new(module):
    name = module("import time\ntime.sleep(600)")
    with enclosed(name) as (enclosure, _):
        server = enclosure._process._server
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match=f"process {server.pid}.* has ended"):
            enclosure.wait(60)
        assert not alive(enclosure.pid)
    assert printed(module("print(1)"), warm=WARM) == "1\n"


def test_a_judge_that_is_killed_takes_its_server_along(tmp_path):
    program = f"""
        import time
        from harness.sandbox import forked
        with forked.server(("json",), {{"PYTHONPATH": {str(CHECKOUT)!r}}}):
            print("ready", flush=True)
            time.sleep(600)
    """
    judge = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
    )
    with judge:
        assert judge.stdout.readline() == "ready\n"
        (server,) = map(int, Path(f"/proc/{judge.pid}/task/{judge.pid}/children").read_text().split())
        judge.kill()
    deadline = time.monotonic() + 60
    while alive(server) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(server)


def test_a_server_whose_judge_goes_before_it_is_answered_ends_without_a_word():
    ours, theirs = socket.socketpair()
    words = ["-m", "harness.sandbox.fork_server", str(theirs.fileno())]
    server = subprocess.Popen(
        [sys.executable, *words],
        cwd=CHECKOUT,
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    theirs.close()
    request = {"op": "start", "turn": 1, "targets": [1], "folder": "/", "environment": {}}
    program = {"module": "json", "words": [], "report_fd": None, "whom": ""}
    nothing = os.open(os.devnull, os.O_WRONLY)
    Channel(ours).send({**request, "settings": {"parent_pid": 0}, "program": program}, (nothing,))
    ours.close()
    os.close(nothing)
    said, _ = server.communicate(timeout=300)
    assert (server.returncode, said) == (0, b"")


def test_an_answer_whose_asker_was_interrupted_is_not_the_next_one_s(monkeypatch):
    """Ctrl-C between a question and its answer."""
    with forked.server(("calendar",), {"PYTHONPATH": str(CHECKOUT)}) as server:
        program = {"module": "json", "words": [], "report_fd": None, "whom": ""}
        request = {"op": "start", "targets": [1], "folder": "/", "environment": {}}
        nothing = os.open(os.devnull, os.O_WRONLY)
        receive = server._channel.receive

        def interrupted(*arguments, **options):
            monkeypatch.setattr(server._channel, "receive", receive)
            raise KeyboardInterrupt

        monkeypatch.setattr(server._channel, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.ask({**request, "settings": {"parent_pid": 0}, "program": program}, (nothing,))
        second = server.ask({**request, "settings": {"parent_pid": 0}, "program": program}, (nothing,))
        assert "status" in server.ask({"op": "collect", "pid": second["pid"]})
        os.close(nothing)


def test_a_server_that_is_stopped_is_given_up_and_the_next_worker_has_another(monkeypatch):
    around = {"PYTHONPATH": str(CHECKOUT)}
    with forked.server(("json",), around) as server:
        os.kill(server.pid, signal.SIGSTOP)
        monkeypatch.setattr(forked, "ANSWER_S", 0.2)
        with pytest.raises(InfrastructureError, match=r"gave no answer within 0\.2 s"):
            server.ask({"op": "collect", "pid": 1})
        assert server._process.wait(10) == -signal.SIGKILL
    with forked.server(("json",), around) as another:
        assert another is not server and another.is_usable()


def test_of_servers_without_work_the_oldest_are_ended(monkeypatch):
    monkeypatch.setattr(forked, "MOST_SERVERS", 2)
    around = {"PYTHONPATH": str(CHECKOUT)}
    names = ("json", "string", "fractions")
    with forked.server(("textwrap",), around) as leased:
        servers = []
        for name in names:
            with forked.server((name,), around) as server:
                servers.append(server)
        assert leased.is_usable(), "somebody is about to use it"
        assert [server.is_usable() for server in servers] == [False, True, True]
    with forked.server(("string",), around) as again:
        assert again is servers[1]


def test_where_the_user_id_is_the_judges_signals_to_the_server_are_refused_as_those_to_the_judge_are():
    without, with_server = (seccomp.program(True, pids, 0, 5) for pids in ((70001,), (70001, 70002)))
    named = [sum(step[3] == pid for step in with_server) for pid in (70001, 70002)]
    assert named[0] == named[1] > 0 and not any(step[3] == 70002 for step in without)


def test_no_signal_of_any_worker_reaches_a_server_or_the_judge_by_number_or_by_group():
    """A timed worker is not forked from the server, and could stop it: the next evaluation would wait forever."""
    with forked.server(("json",), {"PYTHONPATH": str(CHECKOUT)}) as server, scratch(b"", ISOLATION.new_uid()) as folder:
        rules = enclosure_module._policy(ISOLATION, CPU, folder, ())
        assert {os.getpid(), os.getpgrp(), server.pid} <= set(rules.judge_pids)
    refused = {step[3] for step in seccomp.program(True, (70001,), 0, 5)}
    assert {70001, 2**32 - 70001} <= refused


def test_eval_starts_the_server_in_the_process_that_judges_and_before_that_imports_torch():
    """For another project's problem `watch_over` forks that process. Its parent's server would be of no use to it."""
    program = """
        import sys
        from harness import cli
        from harness.judge import worker_program
        def tell(what):
            print(what, "torch" in sys.modules)
        cli.judging.watch_over = lambda problem: tell("watched over")
        worker_program.begin_to_import = lambda: tell("begun")
        for device in ("auto", "cpu"):
            cli.main(["eval", "kv_replicate", "/nonexistent.py", "--device", device])
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=CHECKOUT
    )
    assert found.stdout.splitlines() == ["watched over False", "begun False", "watched over True"], found.stderr


def test_the_server_that_eval_starts_is_the_one_of_a_gpu_s_first_worker(monkeypatch):
    gpu, begun = CPU.model_copy(update={"kind": "cuda", "torch_device": "cuda:0"}), []
    monkeypatch.setattr(worker_program, "warm_up", lambda *told: begun.append(told))
    monkeypatch.setattr(worker_program, "nvidia_driver_present", lambda: True)
    monkeypatch.setattr(worker_program.bubblewrap, "program", lambda: "/usr/bin/bwrap")
    worker_program.begin_to_import()
    assert begun == [], "bubblewrap may start the workers"
    monkeypatch.setattr(worker_program.bubblewrap, "program", lambda: None)
    worker_program.begin_to_import()
    [(modules, told)] = begun
    assert modules == worker_program.WARM["cuda"] and told == worker_program.environment(gpu, 1, EMULATION, None)


@pytest.mark.parametrize("kind", ["cpu", "cuda", "rocm"])
def test_a_worker_that_must_be_fresh_is_given_nothing_to_be_forked_with(monkeypatch, kind):
    given = []

    def enclosure(*_, warm, **__):
        given.append(warm)
        raise OSError

    monkeypatch.setattr(sessions, "Enclosure", enclosure)
    monkeypatch.setattr(sessions, "shareable_memory", lambda device: None)
    problem, device = catalog.load_problem(CHECKOUT, "kv_decode"), CPU.model_copy(update={"kind": kind})
    for fresh in (True, False):
        with pytest.raises(OSError):
            sessions.Session(problem, device, Path(), 1, fresh=fresh, isolation=NO_ISOLATION)
    assert given == [(), worker_program.WARM[kind]]


def test_on_a_gpu_a_process_that_is_timed_for_a_rank_is_never_forked(monkeypatch):
    started = []
    monkeypatch.setattr(entrants, "Session", lambda *a, fresh, **b: started.append(fresh) or MagicMock(printed=""))
    entrant = entrants.Entrant.__new__(entrants.Entrant)
    entrant.__dict__ |= dict.fromkeys(("_threads", "_emulation", "_isolation", "deadline", "_waiting"))
    entrant._reference, entrant._sampling = MagicMock(), MagicMock(fresh=True)
    entrant._device, entrant.folder, entrant.printed = MagicMock(kind="cuda"), Path(), ""
    with entrant.session(another_follows=True):  # the tests: only this one may be forked
        pass
    for _ in range(2):  # one that waited, and one that a disturbed process is repeated with
        with entrant.prepared(timed=True):
            pass
    assert started == [False, True, True]


def test_its_name_is_the_workers(module):
    with enclosed(module("import time\ntime.sleep(600)")) as (enclosure, _):
        deadline = time.monotonic() + 60
        while not below(enclosure.pid, "podium-worker") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert below(enclosure.pid, "podium-worker") and name_of(enclosure.pid) == "podium-keeper"
