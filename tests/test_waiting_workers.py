"""What a running submission cannot do to a worker that waits: the next of its own, or the judge's for null calls. Tried
in every isolation that this machine offers, and where nothing confines it."""

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_sandbox import CPU, HAVE_AN_OWN_UID, ISOLATIONS, ROOT, Inside, here_or_skipped

from harness import catalog
from harness.judge.session import Session
from harness.model import Isolation
from harness.model.isolation import FREE_UIDS
from harness.sandbox import syscalls
from harness.sandbox.scratch import scratch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a sandbox")

UNCONFINED = [
    pytest.param(
        Isolation(False, False, True, own_uid, False),
        id=f"process{', own uid' * own_uid}",
        marks=[] if own_uid == HAVE_AN_OWN_UID else pytest.mark.slow,
    )
    for own_uid in (True, False)
]


@pytest.fixture(params=[*ISOLATIONS, *UNCONFINED])
def isolation(request):
    return here_or_skipped(request.param)


ATTEMPTS = """
    import ctypes, json, os, sys, time
    workers, in_a_namespace, numbers = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name, *arguments):
        if libc.syscall(ctypes.c_long(numbers[name]), *arguments) < 0:
            raise OSError(ctypes.get_errno(), name)

    ours = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    theirs = (ctypes.c_size_t * 2)(id(ours), 8)

    def copied_by(name):
        return lambda pid: call(name, pid, ours, 1, theirs, 1, 0)

    def opened(name, how):
        return lambda pid: os.close(os.open(f"/proc/{pid}/{name}", how))

    attempts = {
        "read its memory": opened("mem", os.O_RDONLY),
        "write to its memory": opened("mem", os.O_RDWR),
        "write to its memory through a thread": lambda pid: opened(f"task/{pid}/mem", os.O_RDWR)(pid),
        "copy from its memory": copied_by("process_vm_readv"),
        "copy to its memory": copied_by("process_vm_writev"),
        "attach to it": lambda pid: call("ptrace", 16, pid, 0, 0),
        "take a file of it": lambda pid: call("pidfd_getfd", os.pidfd_open(pid), 1, 0),
        "open a file of it": lambda pid: os.close(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)),
        "read its environment": opened("environ", os.O_RDONLY),
        "read its address map": opened("maps", os.O_RDONLY),
        "go through its directory": lambda pid: os.listdir(f"/proc/{pid}/cwd/"),
    }
    signals = {
        "signal it": lambda pid: os.kill(pid, 0),
        "signal it through a descriptor": lambda pid: call("pidfd_send_signal", os.pidfd_open(pid), 0, 0, 0),
    }

    def done(pid, attempts):
        found = []
        for what, attempt in attempts.items():
            try:
                attempt(pid)
                found.append(what)
            except OSError:
                pass
        return found

    child = os.fork()
    if child == 0:
        time.sleep(600)
    seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    others = [pid for pid in seen if pid not in (os.getpid(), child)] if in_a_namespace else workers
    print(json.dumps([
        sorted({f"{what} ({pid})" for pid in others for what in done(pid, attempts)}),
        sorted({f"{what} ({pid})" for pid in others for what in done(pid, signals)}),
        done(child, attempts),
    ]))
    os.kill(child, 9)
    os.wait()
"""
CALLS = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "pidfd_send_signal")


@pytest.mark.slow(ci=True)
def test_a_running_submission_reaches_no_worker_that_waits_nor_the_first_process_of_its_namespace(isolation):
    problem = catalog.load_problem(ROOT, "kv_decode")
    with ExitStack() as stack:
        its_own, the_judges = (stack.enter_context(scratch(b"", isolation.new_uid())) for _ in range(2))
        workers = []
        for folder, fresh in ((its_own, False), (the_judges, True)):
            workers.append(Session(problem, CPU, folder, 1, fresh=fresh, isolation=isolation))
            stack.callback(workers[-1].kill)
        workers[-1].prepare()
        for waiting in workers[:-1]:
            waiting.leash.attach(60)
        while not all(b"Seccomp:\t2" in Path(f"/proc/{one.leash.pid}/status").read_bytes() for one in workers):
            time.sleep(0.01)  # confined by their last step
        numbers = {name: syscalls.number(name) for name in CALLS}
        facts = json.dumps([[one.leash.pid for one in workers], isolation.bubblewrap, numbers])
        with Inside(isolation, ATTEMPTS, facts, folder=its_own) as inside:
            done, signalled, to_its_child = json.loads(inside.printed())
        assert done == []
        assert signalled == [] or not isolation.confines
        assert {"read its memory", "read its environment"} <= set(to_its_child), "a control: the attempts can succeed"
        assert all(one.alive_at_rest() for one in workers)


SUBMISSION = """
import os, subprocess, sys
from pathlib import Path

for name in ("environ", "maps", "mem", "auxv"):
    with open(f"/proc/self/{name}", "rb") as file:
        pass
Path("/proc/self/comm").write_text("mine")
os.listdir("/proc/self/fd")
subprocess.run([sys.executable, "-I", "-S", "-c", "open('/proc/self/environ').read()"], check=True)


def custom_kernel(data):
    return data
"""


def test_once_it_loads_a_submission_a_worker_has_its_own_files_in_proc(isolation):
    """CUDA and profilers read them. They belong to root while a process is hidden from its own user."""
    problem = catalog.load_problem(ROOT, "kv_decode")
    with scratch(SUBMISSION.encode(), isolation.new_uid()) as folder:
        session = Session(problem, CPU, folder, 1, isolation=isolation)
        try:
            session.prepare()
            session.load(folder / "submission.py")
            session.finish()
        finally:
            session.kill()


@pytest.mark.parametrize("isolation", [each for each in ISOLATIONS if each.values[0].bubblewrap], indirect=True)
def test_the_first_process_of_a_namespace_has_no_directory_that_a_submission_can_fill(isolation):
    program = """
        import os
        print(os.listdir("/proc/1"))
        try:
            open("/proc/1/filled", "w")
        except OSError as error:
            print(error.strerror)
    """
    with Inside(isolation, program) as inside:
        assert inside.printed() in ("[]\nRead-only file system\n", "[]\nPermission denied\n")


def test_two_workers_of_a_judge_never_have_the_same_user_id():
    own = Isolation(False, True, True, True, False)
    given = [own.new_uid() for _ in range(FREE_UIDS * 3)]
    assert all(len(set(given[at : at + 8])) == 8 for at in range(len(given) - 8)) and len(set(given)) > FREE_UIDS // 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory to another user")
def test_a_user_id_is_not_given_again_while_a_worker_has_it_however_many_others_come_and_go():
    own = Isolation(False, True, True, True, False)
    uid = own.new_uid()
    with scratch(b"", uid):
        assert uid not in {own.new_uid() for _ in range(FREE_UIDS * 20)}
    assert uid in {own.new_uid() for _ in range(FREE_UIDS * 20)}


def test_a_submission_cannot_hide_its_files_from_a_judge_that_is_not_root(isolation):
    """What is hidden so does not count: a memfd, for example."""
    if not isolation.seccomp:
        pytest.skip("this tier has no filter of system calls")
    program = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        print([libc.prctl(4, value, 0, 0, 0) for value in (0, 1)], libc.prctl(3, 0, 0, 0, 0))
    """
    with Inside(isolation, program) as inside:
        assert inside.printed() == "[-1, 0] 1\n"
