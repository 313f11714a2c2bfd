"""What a confined process cannot do, tried in every isolation that this machine offers, as the user who runs this."""

import contextlib
import functools
import json
import os
import platform
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from harness.errors import InfrastructureError
from harness.machine.device import detect
from harness.model import Isolation
from harness.sandbox import (
    bubblewrap,
    enclosure,
    footprint,
    keeper,
    landlock,
    policy,
    privileges,
    seccomp,
    syscalls,
    tiers,
)
from harness.sandbox.enclosure import Enclosure
from harness.sandbox.scratch import scratch
from harness.verbs import eval as evaluation

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a sandbox")

ROOT = Path(__file__).resolve().parents[1]
CPU = detect(ROOT, "cpu")
HAVE_AN_OWN_UID = os.geteuid() == 0
ISOLATIONS = [
    pytest.param(
        Isolation(bubblewrap, paths, True, own_uid, False),
        id=f"{name}{', own uid' * own_uid}",
        marks=[] if own_uid == HAVE_AN_OWN_UID and name != "bubblewrap" else pytest.mark.slow,
    )
    for name, bubblewrap, paths in (("both", True, True), ("bubblewrap", True, False), ("landlock", False, True))
    for own_uid in (True, False)
]
"""Quick are the strongest with namespaces and the strongest without, which most machines have."""

CONFINE = "from harness.sandbox.confinement import confine_as_told\nconfine_as_told()\n"


@functools.cache
def holds(isolation):
    """Tried once for all tests."""
    return tiers.holds(isolation, CPU)


def here_or_skipped(isolation):
    if isolation not in set(tiers.candidates(CPU)):
        pytest.skip("bubblewrap is not installed, Landlock not in the kernel, or a user id of its own takes root")
    if not holds(isolation):
        pytest.skip("this isolation does not hold here: a container forbids it, or a directory is closed to others")
    return isolation


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request):
    return here_or_skipped(request.param)


def test_where_a_layer_works_at_all_an_isolation_with_it_holds():
    """A control without our code, lest a broken isolation shows as tests that are skipped."""
    possible = list(tiers.candidates(CPU))
    if landlock.abi() > 0 and syscalls.is_known():
        assert any(holds(isolation) for isolation in possible if isolation.landlock and not isolation.bubblewrap)
    try:
        everything = ["bwrap", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
        namespaces = subprocess.run(everything, stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        namespaces = False
    assert any(holds(isolation) for isolation in possible if isolation.bubblewrap) == namespaces


class Inside:
    """A Python program confined by `isolation`; `with` kills it at the end. `folder`: the directory of another."""

    def __init__(self, isolation: Isolation, program: str, *arguments: object, pass_fds=(), folder=None) -> None:
        self._stack = contextlib.ExitStack()
        self.folder = folder or self._stack.enter_context(scratch(b"", isolation.new_uid()))
        words = [sys.executable, "-s", "-P", "-B", "-c", CONFINE + textwrap.dedent(program), *map(str, arguments)]
        self.enclosure = Enclosure(self.command(*words), isolation, CPU, self.folder, pass_fds=pass_fds)

    def command(self, *words: str) -> list[str]:
        return [*words]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.enclosure.kill()
        self.enclosure.close()
        self.enclosure.stdout.close()
        self._stack.close()

    def printed(self) -> str:
        """All that it prints, once it has ended in good order."""
        printed = self.enclosure.stdout.read().decode()
        assert self.enclosure.wait(300) == 0, printed
        return printed


ATTEMPTS = """
    import ctypes, json, os, resource, signal, socket, sys
    from pathlib import Path
    judge, keeper, root, victim, tcp, udp, abstract, stream, datagram, status = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name, *arguments):
        numbers = json.loads(sys.argv[2])
        if libc.syscall(ctypes.c_long(numbers[name]), *arguments) < 0:
            raise OSError(ctypes.get_errno(), name)

    def connect(family, kind, address):
        with socket.socket(family, kind) as s:
            s.connect(address)
            s.send(b"x")

    def datagram_of_a_pair():
        pair = (ctypes.c_int * 2)()
        call("socketpair", 1, 2, 0, pair)
        socket.socket(fileno=pair[0]).sendto(b"x", datagram)

    def become_root():
        os.setuid(0)
        if int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16) == 0:
            raise PermissionError(1, "root in name only")

    proc = Path("/proc", str(judge))
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    theirs = (ctypes.c_size_t * 2)(id(judge), 8)
    attempts = {
        "read the judge's environment": lambda: (proc / "environ").read_bytes(),
        "read the judge's memory": lambda: (proc / "mem").open("rb").close(),
        "read the judge's address map": lambda: (proc / "maps").read_bytes(),
        "follow the judge's files": lambda: os.readlink(proc / "fd" / "0"),
        "open the judge's files": lambda: os.open(proc / "fd" / "0", os.O_RDONLY),
        "go through the judge's root": lambda: os.listdir(proc / "root"),
        "attach to the judge": lambda: call("ptrace", 16, judge, 0, 0),
        "copy from the judge's memory": lambda: call("process_vm_readv", judge, vector, 1, theirs, 1, 0),
        "signal the judge": lambda: os.kill(judge, 0),
        "signal the keeper": lambda: os.kill(keeper, 0),
        "starve the judge": lambda: os.setpriority(os.PRIO_PROCESS, judge, 19),
        "pin the judge": lambda: os.sched_setaffinity(judge, {0}),
        "limit the judge": lambda: resource.prlimit(judge, resource.RLIMIT_CORE, (0, 0)),
        **{f"list {name}": lambda name=name: os.listdir(Path(root, name))
           for name in ("problems", "submissions", "configs", "tests", "results")},
        "read the problem": lambda: Path(root, "problems/mla/problem.yml").read_bytes(),
        "read the judge's code": lambda: Path(root, "harness/judge/checked_call.py").read_bytes(),
        "read a file of the user's": lambda: Path(victim).read_bytes(),
        "read passwords": lambda: Path("/etc/shadow").read_bytes(),
        "overwrite a file of the user's": lambda: Path(victim).write_text("x"),
        "truncate a file of the user's": lambda: os.truncate(victim, 0),
        "remove a file of the user's": lambda: os.unlink(victim),
        "rename a file of the user's": lambda: os.rename(victim, victim + "x"),
        "write beside it": lambda: Path(victim + ".new").write_text("x"),
        "overwrite the submission": lambda: Path("../submission.py").write_text("x"),
        "replace the submission": lambda: os.rename(__import__("tempfile").mkstemp()[1], "../submission.py"),
        "write to /tmp": lambda: Path("/tmp/podium-test-litter").write_text("x"),
        "write to /": lambda: Path("/podium-test-litter").write_text("x"),
        "write to the harness": lambda: Path(root, "harness/worker/x.py").write_text("x"),
        "write to the kernel's settings": lambda: open("/proc/sys/kernel/core_pattern", "r+").close(),
        "ask the kernel to crash": lambda: open("/proc/sysrq-trigger", "r+").close(),
        "write to the devices' settings": lambda: open("/sys/kernel/mm/transparent_hugepage/enabled", "r+").close(),
        "connect over TCP": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", tcp)),
        "send over UDP": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", udp)),
        "open a raw socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "connect to an abstract socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + abstract),
        "connect to a socket file": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, stream),
        "send to a socket file": lambda: connect(socket.AF_UNIX, socket.SOCK_DGRAM, datagram),
        "send to a socket file from a pair": datagram_of_a_pair,
        "make a user namespace": lambda: call("unshare", 0x10000000),
        "mount": lambda: call("mount", b"none", b"/", b"tmpfs", 0, 0),
        "set up io_uring": lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(120)),
        "load a BPF program": lambda: call("bpf", 0, 0, 0),
        "set the clock": lambda: __import__("time").clock_settime(0, 0),
        "become root": become_root,
        "leave a shared memory segment": lambda: call("shmget", 0, 4096, 0o1600),
    }
    done = {}
    for what, attempt in attempts.items():
        try:
            attempt()
            done[what] = "done"
        except OSError as error:
            done[what] = error.strerror
    with __import__("contextlib").suppress(OSError):
        os.chmod(victim, 0)
    with __import__("contextlib").suppress(OSError):
        os.utime(victim, (0, 0))
    print(json.dumps(done))
"""
CALLS = ("ptrace", "process_vm_readv", "socketpair", "unshare", "mount", "io_uring_setup", "bpf", "shmget")


def test_none_of_the_things_that_a_confined_process_must_not_do_can_be_done(isolation, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("secret")
    victim.chmod(0o640)
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        abstract = f"podium-test-{os.getpid()}"
        unix = [stack.enter_context(socket.socket(socket.AF_UNIX, kind)) for kind in (1, 1, 2)]
        addresses = [f"\0{abstract}", str(tmp_path / "stream"), str(tmp_path / "datagram")]
        for listener, address in zip(unix, addresses):
            listener.bind(address)
        for listener in unix[:2]:
            listener.listen()
        listeners = [tcp, udp, *unix]
        for listener in listeners:
            listener.setblocking(False)
        facts = [os.getpid(), os.getppid(), str(ROOT), str(victim), tcp.getsockname()[1], udp.getsockname()[1]]
        numbers = {name: syscalls.number(name) for name in CALLS}
        facts += [abstract, *addresses[1:], str(victim.stat())]
        # Controls: what must fail inside succeeds out here, or nothing is shown.
        assert victim.read_text() == "secret" and os.listdir(f"/proc/{os.getpid()}/fd")
        with Inside(isolation, ATTEMPTS, json.dumps(facts), json.dumps(numbers)) as inside:
            done = json.loads(inside.printed())
        assert [what for what, how in done.items() if how == "done"] == []
        assert len(done) > 40
        for listener in (tcp, *unix[:2]):
            with pytest.raises(BlockingIOError):
                listener.accept()
        for listener in (udp, unix[2]):
            with pytest.raises(BlockingIOError):
                listener.recv(1)
    assert victim.read_text() == "secret" and victim.stat().st_mode & 0o777 == 0o640 and victim.stat().st_mtime > 0
    assert not Path("/tmp/podium-test-litter").exists() and not Path("/podium-test-litter").exists()


def test_a_confined_process_has_no_capability_dumps_no_core_and_no_program_gives_it_one(isolation):
    program = """
        import resource, subprocess
        print("Core:", *resource.getrlimit(resource.RLIMIT_CORE))
        print(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout)
    """
    with Inside(isolation, program) as inside:
        status = dict(line.split(":", 1) for line in inside.printed().splitlines() if ":" in line)
    assert status["Core"].split() == ["1", "1"], "a limit of 0 is none where dumps go to a program of the system's"
    search_alone = 1 << 2  # CAP_DAC_READ_SEARCH, where the interpreter lies in a directory closed to others
    assert int(status["CapPrm"], 16) in ({0, search_alone} if isolation.own_uid else {0})
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
    if isolation.own_uid:
        assert os.geteuid() not in map(int, status["Uid"].split())


def test_a_confined_process_can_do_what_submissions_need(isolation):
    program = """
        import ctypes, mmap, multiprocessing, os, socket, subprocess, sys, tempfile, threading
        import torch
        from pathlib import Path
        Path("c.c").write_text("int twice(int x) { return 2 * x; }")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "c.so", "c.c"], check=True)
        assert ctypes.CDLL("./c.so").twice(21) == 42
        a, b = socket.socketpair()
        socket.send_fds(a, [b"x"], [os.memfd_create("shared")])
        (fd,) = socket.recv_fds(b, 1, 1)[1]
        os.ftruncate(fd, 4096)
        mmap.mmap(fd, 4096)[0] = 1
        torch.set_num_threads(2)
        assert torch.ones(300, 300).mm(torch.ones(300, 300))[0, 0] == 300
        with tempfile.TemporaryDirectory() as folder:
            assert Path(folder).is_relative_to(os.getcwd())
        thread = threading.Thread(target=print, args=("thread",))
        thread.start()
        thread.join()
        if sys.argv[1] == "True":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
        for path in ("/proc/self/maps", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu/online"):
            Path(path).read_bytes()
        import harness.worker.main, harness.interpreter.installation, harness.hip.compilers, harness.hip
        print("all done")
    """
    shared_memory = isolation.bubblewrap or isolation.own_uid
    with Inside(isolation, program, shared_memory) as inside:
        assert inside.printed().endswith("all done\n")


DAEMON = """
    import os, sys, time
    started, tell = os.pipe()  # closed by exec: then the daemon is there
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", sys.argv[1]])
        os._exit(0)
    os.close(tell)
    os.wait()
    os.read(started, 1)
    print("started", flush=True)
    if sys.argv[2] == "stay":
        time.sleep(600)
"""


def sleepers(seconds: str) -> list[Path]:
    wanted = f"sleep\0{seconds}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if path.read_bytes() == wanted else []
    return found


@pytest.mark.parametrize("how", ["stay", "leave"])
def test_a_daemon_does_not_outlive_the_process(isolation, how):
    seconds = f"600.{os.getpid()}{how == 'stay':d}"
    with Inside(isolation, DAEMON, seconds, how) as inside:
        assert inside.enclosure.stdout.readline() == b"started\n"
        if how == "stay":
            assert len(sleepers(seconds)) == 1
        else:
            assert inside.enclosure.wait(300) == 0
            assert sleepers(seconds) == []
    assert sleepers(seconds) == []


def test_nothing_outlives_a_judge_that_is_killed(isolation, tmp_path):
    seconds = f"600.{os.getpid()}7"
    program = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from test_sandbox import *
with Inside({isolation!r}, DAEMON, {seconds!r}, "stay") as inside:
    print(inside.folder, inside.enclosure.stdout.readline(), flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    judge = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    assert judge.stdout is not None
    try:
        folder, said = judge.stdout.readline().split(maxsplit=1)
        assert "started" in said and len(sleepers(seconds)) == 1
    finally:
        judge.kill()
        judge.wait()
        judge.stdout.close()
    deadline = time.monotonic() + 300
    while sleepers(seconds) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleepers(seconds) == []
    assert Path(folder).is_dir()


@pytest.mark.parametrize(("end", "status"), [("os._exit(7)", 7), ("ctypes.string_at(0)", -signal.SIGSEGV)])
def test_how_the_process_ended_is_what_is_reported(isolation, end, status):
    with Inside(isolation, f"import ctypes, os\n{end}") as inside:
        assert inside.enclosure.wait(300) == status
        assert inside.enclosure.excess() is None


def test_a_fork_bomb_is_stopped_and_leaves_nothing(isolation, monkeypatch):
    """A bomb of at most 512: what stops it must come before that, but a machine survives it if nothing does."""
    monkeypatch.setattr("harness.sandbox.enclosure.TASKS", 100)
    monkeypatch.setattr("harness.sandbox.enclosure.TASKS_PER_CPU", 0)
    program = """
        import os, time
        for _ in range(9):
            try:
                if os.fork() == 0 and os.getpid() % 2:
                    os.setsid()
            except OSError:
                os.write(1, b"refused")
                break
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        if isolation.own_uid or os.geteuid():  # the kernel counts
            assert inside.enclosure.stdout.read(7) == b"refused"
        else:
            assert inside.enclosure.wait(300) == -signal.SIGKILL
            assert inside.enclosure.excess() == "had more than 100 processes and threads at once"
        tree = footprint.descendants(inside.enclosure.pid, footprint.process_table())
        assert len(tree) < 110
        inside.enclosure.kill()
        assert not any(Path(f"/proc/{pid}").exists() for pid in tree)


def test_a_process_that_takes_too_much_memory_is_ended_and_it_is_said_why(isolation, monkeypatch):
    monkeypatch.setattr("harness.sandbox.enclosure.SHARE_OF_MEMORY", 1e-2)
    program = """
        import os, time
        held = []
        for _ in range(8):
            if os.fork() == 0:
                break
        while len(held) < 5:
            held.append(b"x" * 10_000_000)
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert "memory" in (inside.enclosure.excess() or "")


@pytest.mark.slow(ci=True)
def test_a_page_that_many_share_counts_once(isolation, monkeypatch):
    """A hundred idle children of a process with 100 MB have 10 GB if each page counts for each; later 12 copy it."""
    monkeypatch.setattr("harness.sandbox.enclosure._max_memory_bytes", lambda: 1 << 30)
    program = """
        import os, time
        held = b"x" * 100_000_000
        for _ in range(100):
            if os.fork() == 0:
                time.sleep(600)
        time.sleep(2)
        print("alive", flush=True)
        for _ in range(12):
            if os.fork() == 0:
                its_own = bytearray(held)
                break
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.stdout.read(6) == b"alive\n"
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert inside.enclosure.excess() == "took more than 1.1 GB of memory"


def test_too_many_processes_are_not_taken_for_too_much_memory(monkeypatch):
    monkeypatch.setattr(footprint, "memory_bytes", lambda *_: (1 << 60, True))
    settings = {"max_tasks": 0, "max_memory_bytes": 1, "max_files": 1, "own_uid": -1, "judge_pid": 1, "folders": ["/"]}
    with subprocess.Popen(["sleep", "60"]) as other:
        assert keeper._excess(settings)[0] == "had more than 0 processes and threads at once"
        settings["max_tasks"] = 1000
        assert keeper._excess(settings) == ("took more than 0.0 GB of memory", keeper.MAX_SHARE_WHEN_COUNTING)
        monkeypatch.setattr(keeper, "MAX_MAPPINGS", 1)
        assert keeper._excess(settings)[0] == "had more than 1 mappings of memory at once"
        other.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_root_without_the_capability_to_look_into_others_counts_their_pages_and_files_all_the_same():
    """As in most containers. Of the files, those without a name: memfds and removed ones. Its parent's death is told to
    it afterwards as before."""
    program = """
        import ctypes, os, signal, struct, sys, tempfile, time
        from harness.sandbox import footprint
        libc, uid, judge = ctypes.CDLL(None), 60600, os.getppid()
        held = b"x" * 50_000_000
        told, tell = os.pipe()
        family = set()
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as privileges.show
                if not family:
                    os.write(os.memfd_create("x"), bytes(20_000_000))
                    removed = tempfile.TemporaryFile(dir="/tmp", buffering=0)
                    removed.write(bytes(10_000_000))
                os.write(tell, b"x")
                time.sleep(60)
            family.add(pid)
        for _ in family:
            os.read(told, 1)
        libc.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        header, sets = struct.pack("Ii", 0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(header, sets) == 0
        for index in (0, 1):
            sets[index] &= ~(1 << 19 | 1 << 21)  # CAP_SYS_PTRACE; CAP_SYS_ADMIN and CAP_PERFMON do on newer kernels
            sets[index + 3] &= ~(1 << 38 - 32)
        assert libc.capset(header, sets) == 0
        each = next(iter(family))
        told_by = ctypes.c_int()
        refused = footprint._proportional_bytes(each, -1) is None
        counted, exactly = footprint.memory_bytes(family, judge, uid, 60_000_000)
        in_memory = sum(size for pid in family for _, size in footprint._files_in_memory(pid, uid))
        removed = footprint.bytes_without_a_name(os.stat("/tmp").st_dev, family, uid)
        libc.prctl(2, ctypes.byref(told_by), 0, 0, 0)
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        print(refused, exactly, counted < 120_000_000, in_memory >= 20_000_000, removed >= 10_000_000)
        print(told_by.value == signal.SIGTERM, os.geteuid())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 6 + ["0"], done


def _anonymous_bytes() -> int:
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


def test_where_pages_cannot_be_counted_each_counts_for_all_that_map_it(monkeypatch):
    shared = b"x" * 50_000_000
    held = _anonymous_bytes()
    assert held > len(shared)
    family = []
    for _ in range(4):
        family.append(os.fork())
        if family[-1] == 0:
            time.sleep(60)
            os._exit(0)
    try:
        exact, counted = footprint.memory_bytes(set(family), 1, -1, 2 * held)
        assert counted and exact < 1.5 * held
        monkeypatch.setattr(footprint, "_proportional_bytes", lambda pid, uid: None)
        bound, counted = footprint.memory_bytes(set(family), 1, -1, 1 << 40)
        assert not counted
        assert bound > 3 * held
        assert footprint.memory_bytes(set(family), 1, -1, bound - 1) == (bound, True)
    finally:
        for pid in family:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize("kind", ["mapped", "in a directory of /dev/shm"])
def test_memory_that_several_may_share_counts_as_well(isolation, monkeypatch, kind):
    if kind != "mapped" and (isolation.bubblewrap or not isolation.own_uid):
        pytest.skip("it may not write to /dev/shm, or has one of its own")
    monkeypatch.setattr("harness.sandbox.enclosure.SHARE_OF_MEMORY", 1e-2)
    program = f"""
        import ctypes, mmap, os, time
        if {kind!r} == "mapped":
            ctypes.CDLL(None).prctl(15, b"\\xff", 0, 0, 0)  # PR_SET_NAME: no text
            held = mmap.mmap(-1, 400_000_000)
            for _ in range(40):
                held.write(bytes(10_000_000))
        else:
            os.makedirs("/dev/shm/podium-test-{os.getpid()}/deep")
            for i in range(40):
                with open(f"/dev/shm/podium-test-{os.getpid()}/deep/{{i}}", "wb") as file:
                    file.write(bytes(10_000_000))
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert "memory" in (inside.enclosure.excess() or "")
    assert not Path(f"/dev/shm/podium-test-{os.getpid()}").exists()


MAP_WITHOUT_HOLDING = """
        import ctypes
        def map_without_holding(fd):  # mmap.mmap keeps a copy of it open
            kinds = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
            function = ctypes.CFUNCTYPE(ctypes.c_void_p, *kinds)(("mmap", ctypes.CDLL(None)))
            assert function(None, 4096, 3, 1, fd, 0) != ctypes.c_void_p(-1).value  # PROT_READ | PROT_WRITE, MAP_SHARED
"""
HIDDEN_MEMORY = {
    "of a closed memfd": """
        for _ in range(40):
            fd = os.memfd_create("x")
            os.write(fd, bytes(10_000_000))
            map_without_holding(fd)
            os.close(fd)
    """,
    "of a removed file of /dev/shm": """
        fd = os.open("/dev/shm/podium-test", os.O_RDWR | os.O_CREAT)
        os.unlink("/dev/shm/podium-test")
        for _ in range(40):
            os.write(fd, bytes(10_000_000))
    """,
    "in no page table": """
        for _ in range(40):
            held.append(mmap.mmap(-1, 10_000_000))
            held[-1].write(bytes(10_000_000))
            held[-1].madvise(mmap.MADV_DONTNEED)
    """,
    "of page tables": """
        held.append(mmap.mmap(-1, 100_000 << 21, mmap.MAP_PRIVATE | MAP_NORESERVE, mmap.PROT_READ))
        held[-1].madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, 100_000 << 21, 1 << 21):
            held[-1][at]
    """,
}


@pytest.mark.slow(ci=True)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at a mapped file that nobody has open")
@pytest.mark.parametrize("kind", HIDDEN_MEMORY)
def test_memory_that_is_in_no_open_file_and_no_page_counts_as_well(isolation, monkeypatch, kind):
    if "/dev/shm" in kind and (isolation.bubblewrap or not isolation.own_uid):
        pytest.skip("it may not write to /dev/shm, or has one of its own")
    monkeypatch.setattr("harness.sandbox.enclosure.SHARE_OF_MEMORY", 1e-2)
    program = f"""
        import mmap, os, time
        held, MAP_NORESERVE = [], 0x4000
        {MAP_WITHOUT_HOLDING.strip()}
        {textwrap.indent(textwrap.dedent(HIDDEN_MEMORY[kind]), " " * 8).strip()}
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(60) == -signal.SIGKILL
        assert "of memory" in (inside.enclosure.excess() or "")


def test_one_process_alone_is_refused_too_much_memory(isolation, monkeypatch):
    monkeypatch.setattr("harness.sandbox.enclosure.SHARE_OF_MEMORY", 1e-2)
    program = """
        try:
            bytearray(2_000_000_000)
        except MemoryError:
            print("refused")
    """
    with Inside(isolation, program) as inside:
        assert inside.printed() == "refused\n"


def test_a_process_that_fills_the_disk_is_ended_and_it_is_said_why(isolation, monkeypatch):
    monkeypatch.setattr("harness.sandbox.enclosure.MAX_DISK_BYTES", 50_000_000)
    program = """
        import os, time
        for i in range(100):
            with open(f"{i}", "wb") as file:
                file.write(bytes(1_000_000))
                os.fsync(file.fileno())
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert inside.enclosure.excess() == "wrote more than 0.1 GB to disk"
    assert not inside.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at a mapped file that nobody has open")
def test_a_removed_file_that_is_mapped_and_closed_is_on_the_disk_all_the_same(isolation, monkeypatch):
    monkeypatch.setattr("harness.sandbox.enclosure.MAX_DISK_BYTES", 50_000_000)
    program = f"""
        import os, time
        {MAP_WITHOUT_HOLDING.strip()}
        for _ in range(10):
            fd = os.open("x", os.O_RDWR | os.O_CREAT)
            os.unlink("x")
            os.write(fd, bytes(10_000_000))
            os.fsync(fd)
            map_without_holding(fd)
            os.close(fd)
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(60) == -signal.SIGKILL
        assert inside.enclosure.excess() == "wrote more than 0.1 GB to disk"


def test_a_removed_file_that_many_processes_have_open_counts_once(tmp_path):
    """As tempfile's is in a pool of processes, which inherit it."""
    with tempfile.TemporaryFile(dir=tmp_path, buffering=0) as file:
        file.write(bytes(1_000_000))
        with subprocess.Popen(["sleep", "60"], pass_fds=(file.fileno(),)) as other:
            family, device = {os.getpid(), other.pid}, os.stat(tmp_path).st_dev
            once = footprint.bytes_without_a_name(device, {other.pid}, -1)
            assert 1_000_000 <= once <= footprint.bytes_without_a_name(device, family, -1) < once + 1_000_000
            other.kill()


@pytest.mark.slow
def test_files_are_counted_while_others_remove_theirs(isolation, tmp_path):
    for number in range(20_000):
        (tmp_path / f"{number}").touch()
    program = """
        import os, time
        open("started", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
        for i in range(17_000):
            open(f"{i}", "w").close()
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        work, deadline = inside.folder / "work", time.monotonic() + 300
        while not (work / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        for path in tmp_path.iterdir():
            path.unlink()
        (work / "go").touch()
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert inside.enclosure.excess() == "made more than 16,384 files"


@pytest.mark.slow
def test_files_in_shared_memory_are_counted(isolation):
    if not isolation.bubblewrap and not isolation.own_uid:
        pytest.skip("it may not write to /dev/shm")
    name = f"/dev/shm/podium-test-{os.getpid()}"
    program = f"""
        import os, time
        os.mkdir({name!r})
        for i in range(17_000):
            open(f"{name}/{{i}}", "w").close()
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert inside.enclosure.excess() == "made more than 16,384 files"
    assert not Path(name).exists()


def test_no_directory_in_shared_memory_is_too_deep_to_be_counted(isolation):
    if isolation.bubblewrap or not isolation.own_uid:
        pytest.skip("it may not write to /dev/shm, or has one of its own")
    name = f"/dev/shm/podium-test-{os.getpid()}"
    program = f"""
        import os, time
        os.mkdir({name!r})
        os.chdir({name!r})
        for _ in range(30):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert "cannot look into (File name too long)" in (inside.enclosure.excess() or "")
    assert not Path(name).exists()


@pytest.mark.slow(ci=True)
def test_open_files_are_counted_before_there_are_too_many_to_look_at(isolation, monkeypatch):
    program = """
        import os, resource, time
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for _ in range(110_000 // (most - 50) + 1):
            if os.fork() == 0:
                break
        try:
            while True:
                os.dup(0)
        except OSError:
            time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert inside.enclosure.excess() == "had more than 100,000 files open at once"


@pytest.mark.slow(ci=True)
def test_a_keeper_that_does_not_answer_is_killed_with_all_that_it_started(isolation, monkeypatch):
    monkeypatch.setattr("harness.sandbox.enclosure.KILL_S", 1.0)
    program = """
        import os, time
        os.fork()
        os.write(1, b"x")
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.stdout.read(1) == inside.enclosure.stdout.read(1) == b"x"
        pid = inside.enclosure._process.pid
        started = footprint.descendants(pid, footprint.process_table())
        os.kill(pid, signal.SIGSTOP)
        inside.enclosure.kill()
        deadline = time.monotonic() + 300
        while started & set(map(int, filter(str.isdigit, os.listdir("/proc")))) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(started) >= 2 and not started & set(map(int, filter(str.isdigit, os.listdir("/proc"))))


@pytest.mark.parametrize("ended", [False, True], ids=["command lives", "command has ended"])
def test_the_group_of_a_worker_that_the_command_has_started_dies_in_one_act(ended):
    """The tree is keeper, command, worker, bystander: the worker and what it has started are a group of their own."""
    worker = "import os, time; os.fork(); os.fork(); os.write(1, b'x'); time.sleep(60)"
    command = f"""
        import os, subprocess, sys, time
        os.setsid()
        subprocess.Popen([sys.executable, "-S", "-c", {worker!r}], process_group=0)
        time.sleep({0 if ended else 60})
    """
    program = f"""
        import ctypes, os, subprocess, sys, time
        from harness.sandbox import footprint, keeper
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, as the keeper
        child = subprocess.Popen([sys.executable, "-S", "-c", {textwrap.dedent(command)!r}], stdout=subprocess.PIPE)
        child.stdout.read(4)
        if {ended}:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        family = footprint.descendants(os.getpid(), footprint.process_table())
        keeper._kill_groups(child.pid)
        until = time.monotonic() + 300
        while (left := alive(family)) and time.monotonic() < until:
            time.sleep(0.01)
        keeper._kill_descendants()
        print(len(family), left)
    """
    alive = """
        def alive(family):
            states = {pid: footprint._state(pid)[0] for pid in family if os.path.exists(f"/proc/{pid}")}
            return [pid for pid, state in states.items() if state != b"Z"]
    """
    words = [sys.executable, "-c", textwrap.dedent(alive) + textwrap.dedent(program)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "5 []\n", done


def test_no_hole_is_made_in_shared_memory_and_none_of_it_is_written_out(isolation):
    if not isolation.seccomp:
        pytest.skip("without a filter of system calls")
    program = """
        import ctypes, mmap, os
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        fd = os.memfd_create("x")
        os.ftruncate(fd, 1 << 16)
        held = mmap.mmap(fd, 1 << 16)
        address = ctypes.addressof(ctypes.c_char.from_buffer(held))
        os.posix_fallocate(fd, 0, 1 << 16)
        print(libc.fallocate(fd, 3, 0, 4096), *(libc.madvise(address, 4096, advice) for advice in (9, 21, 4)))
    """
    with Inside(isolation, program) as inside:
        assert inside.printed() == "-1 -1 -1 0\n"


@pytest.mark.slow
def test_files_are_counted_while_some_of_them_come_and_go(isolation):
    program = """
        import os
        for i in range(17_000):
            open(f"{i}", "w").close()
        while True:
            for i in range(50):
                open(f"more {i}", "w").close()
            for i in range(50):
                os.unlink(f"more {i}")
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert inside.enclosure.excess() == "made more than 16,384 files"


def test_a_directory_that_cannot_be_counted_is_not_allowed(isolation):
    program = """
        import os, time
        for _ in range(30):  # until their names together are longer than any path may be
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        time.sleep(600)
    """
    with Inside(isolation, program) as inside:
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        assert "cannot look into (File name too long)" in (inside.enclosure.excess() or "")


@pytest.mark.parametrize("mode", [0o700, 0o000])
def test_directories_are_removed_however_deep_and_closed(mode):
    before = os.getcwd()
    with scratch(b"") as folder:
        try:
            os.chdir(folder / "work")
            for _ in range(3_000):
                os.mkdir("d")
                os.chdir("d")
            for _ in range(3_000):
                os.chdir("..")
                os.chmod("d", mode)
        finally:
            os.chdir(before)
    assert not folder.exists()


def test_shared_memory_left_behind_is_gone(isolation):
    name = f"podium-test-{os.getpid()}"
    program = f"""
        import os
        try:
            os.open("/dev/shm/{name}", os.O_CREAT | os.O_RDWR)
            os.makedirs("/dev/shm/{name}-directory/deep")
            print("left")
        except PermissionError:
            print("refused")
    """
    with Inside(isolation, program) as inside:
        assert inside.printed() == ("left\n" if isolation.bubblewrap or isolation.own_uid else "refused\n")
    assert not list(Path("/dev/shm").glob(f"{name}*"))


def test_a_link_is_not_shown_to_the_next_process_as_shared_memory(isolation, tmp_path):
    (tmp_path / "secret").write_text("secret")
    tmp_path.chmod(0o755)
    lay = """
        import contextlib, os, sys
        with contextlib.suppress(FileNotFoundError):
            os.rmdir("shm")
        os.symlink(sys.argv[1], "shm")
    """
    look = """
        import os
        print(os.path.exists("/dev/shm/secret"), os.path.islink("shm"))
    """
    with Inside(isolation, lay, tmp_path) as first:
        first.printed()
        with Inside(isolation, look, folder=first.folder) as second:
            assert second.printed() == "False True\n"


def test_other_processes_cannot_be_seen_from_a_process_namespace(isolation):
    if not isolation.bubblewrap:
        pytest.skip("Landlock hides what other processes hold, not that they are there")
    with Inside(isolation, "import os\nprint(sum(name.isdigit() for name in os.listdir('/proc')))") as inside:
        assert int(inside.printed()) <= 3


def test_a_thread_before_the_confinement_is_an_error(isolation):
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n" + CONFINE
    with scratch(b"", isolation.new_uid()) as folder:
        enclosure = Enclosure([sys.executable, "-c", program], isolation, CPU, folder)
        printed = enclosure.stdout.read()
        assert enclosure.wait(300) == 1 and b"a thread was started before" in printed
        enclosure.kill()
        enclosure.close()


@pytest.mark.parametrize("abi", [2, 5, 7])
def test_where_landlock_is_older_the_system_call_filter_makes_up_for_it(tmp_path, abi):
    """Signals before version 6, truncation before version 3, metadata always."""
    if not syscalls.is_known():
        pytest.skip("the filter does not know this machine's system calls")
    victim = tmp_path / "victim"
    victim.write_text("whole")
    victim.chmod(0o640)
    program = f"""
import os
from harness.sandbox import privileges, seccomp
privileges.drop_all(but_search=False)
if os.fork():  # whose child it is it may never signal
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
seccomp.restrict(True, ({os.getpid()},), {abi})
def tried(attempt):
    try:
        attempt()
        return "done"
    except OSError:
        return "refused"
print(tried(lambda: os.kill({os.getpid()}, 0)), tried(lambda: os.truncate({str(victim)!r}, 0)), end=" ")
print(tried(lambda: os.kill(os.getpid(), 0)), tried(lambda: os.chmod({str(victim)!r}, 0)), end=" ")
print(tried(lambda: os.kill(os.getppid(), 0)), flush=True)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    kill, truncate, kill_self, _, kill_parent = found.stdout.split()
    assert kill_parent == "refused"
    # Without capabilities an ordinary process may still signal one of its own user; this one is refused by number.
    assert kill == ("refused" if abi < 6 else "done") and kill_self == "done"
    assert truncate == ("refused" if abi < 3 else "done") and victim.read_text() == ("whole" if abi < 3 else "")
    assert victim.stat().st_mode & 0o777 == 0o640


def test_system_calls_have_the_numbers_of_this_machines_headers(tmp_path):
    if not syscalls.is_known():
        pytest.skip("not a machine of the table")
    names = [*syscalls._OLD, *syscalls._NEW]
    source = tmp_path / "numbers.c"
    lines = [f"#ifdef SYS_{name}\nPODIUM {name} SYS_{name}\n#endif" for name in names]
    source.write_text("#include <sys/syscall.h>\n" + "\n".join(lines))
    try:
        found = subprocess.run(["cc", "-E", "-P", str(source)], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no C compiler or no kernel headers")
    numbers = dict(line.split()[1:] for line in found.stdout.splitlines() if line.startswith("PODIUM"))
    assert len(numbers) > 50
    assert {name: syscalls.number(name) for name in numbers} == {name: int(n) for name, n in numbers.items()}


def answer_of_the_filter(name: str, *arguments: int) -> int:
    """What the kernel would answer to this system call: classic BPF on a struct seccomp_data (linux/filter.h)."""
    steps = seccomp.program(True, (1,), 0, 2)
    data = struct.pack("=IIQ6Q", syscalls.number(name), seccomp._AUDIT_ARCH[platform.machine()], 0,
                       *(*arguments, 0, 0, 0, 0, 0, 0)[:6])  # fmt: skip
    at = loaded = 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            loaded &= value
        else:
            at += yes if {0x15: loaded == value, 0x35: loaded >= value, 0x45: loaded & value}[code] else no


@pytest.mark.skipif(not syscalls.is_known(), reason="the numbers of its system calls are not known")
def test_the_filter_refuses_by_itself_what_other_layers_refuse_as_well():
    """Where those are missing, nothing else does."""
    allowed = seccomp._ALLOW
    new_namespaces = [(f"clone {flag:#x}", ("clone", flag)) for flag in (0x20000, *(1 << bit for bit in range(25, 31)))]
    names = "connect ptrace process_vm_readv pidfd_getfd unshare setns mount open_by_handle_at bpf keyctl add_key "
    names += "perf_event_open userfaultfd io_uring_setup timer_create timerfd_create shmget mq_open kexec_load "
    names += "init_module clone3"
    refused = [*((name, (name,)) for name in names.split()), *new_namespaces]
    assert [what for what, call in refused if answer_of_the_filter(*call) == allowed] == []
    needed = [("clone", 0x3D0F00), ("fcntl", 3, 3), ("madvise", 0, 0, 4), ("socket", 1, 1), ("kill", 77, 9)]
    assert [call for call in needed if answer_of_the_filter(*call) != allowed] == []


def test_every_jump_of_the_filter_lands_inside_it():
    if not syscalls.is_known():
        pytest.skip("not a machine of the table")
    for exposed in (True, False):
        program = seccomp.program(exposed, (1234,), 1, 4321)
        assert len(program) < 4096 and program[-1][0] == 0x06  # BPF_MAXINSNS, linux/bpf_common.h
        assert all(i + 1 + max(step[1], step[2]) < len(program) for i, step in enumerate(program[:-1]))


def test_sessions_at_once_find_the_isolation_once(monkeypatch):
    tried = []
    monkeypatch.setattr(tiers, "_found", {})
    monkeypatch.setattr(tiers, "attempted", lambda candidate, device: tried.append(candidate) or "")
    threads = [threading.Thread(target=tiers.strongest, args=(CPU,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tried) == len(list(tiers.candidates(CPU))[:1])


TIER = """
from pathlib import Path
from harness.machine.device import detect
from harness.sandbox import tiers
cpu = detect(Path.cwd(), "cpu")
print(tiers.strongest(cpu).tier, tiers.bubblewrap_refused(cpu))
"""


@pytest.mark.parametrize("links", [1, 2])
def test_a_virtual_environment_that_is_a_link_is_confined_as_any_other(tmp_path, links):
    best = next((candidate for candidate in tiers.candidates(CPU) if holds(candidate)), None)
    if best is None or not best.bubblewrap:
        pytest.skip("bubblewrap is not installed here, or does not hold")
    target = Path(sys.prefix)
    for number in range(links):
        link = tmp_path / f"venv{number}"
        link.symlink_to(target)
        target = link
    ran = subprocess.run(
        [target / "bin" / "python", "-c", TIER], cwd=ROOT, capture_output=True, text=True, env={**os.environ}
    )
    assert ran.stdout.strip() == best.tier, ran.stderr


def test_beneath_a_link_that_is_shown_nothing_is_shown_by_itself(tmp_path, monkeypatch):
    packages = tmp_path / "real" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    link = tmp_path / "venv"
    link.symlink_to(tmp_path / "real")
    monkeypatch.setattr(sys, "prefix", str(link))
    monkeypatch.setattr(sys, "path", [*sys.path, str(link / "lib" / "site-packages")])
    shown = [name for name in policy.readable(()) if name.startswith(str(tmp_path))]
    assert shown == [str(tmp_path / "real"), str(link)]


def test_bubblewrap_that_does_not_hold_is_said_with_its_own_words(monkeypatch):
    def attempted(candidate, device):
        return "bwrap: no such namespace" if candidate.bubblewrap else ""

    monkeypatch.setattr(tiers, "_found", {})
    monkeypatch.setattr(tiers, "_refused", {})
    monkeypatch.setattr(tiers, "attempted", attempted)
    monkeypatch.setattr(tiers.bubblewrap, "program", lambda: "/usr/bin/bwrap")
    told = []
    evaluation.isolation_tier(CPU, True, told.append)
    assert told[0] == "bubblewrap is installed and does not hold here: bwrap: no such namespace"
    monkeypatch.setattr(tiers, "_found", {})
    monkeypatch.setattr(tiers, "attempted", lambda candidate, device: "")
    assert tiers.bubblewrap_refused(CPU) == ""


def test_of_packages_around_an_installed_harness_a_link_to_somebody_s_files_is_not_shown(tmp_path, monkeypatch):
    packages, elsewhere = tmp_path / "venv" / "site-packages", tmp_path / "home"
    (packages / "harness").mkdir(parents=True)
    (packages / "torch").mkdir()
    elsewhere.mkdir()
    (packages / "mine").symlink_to(elsewhere)
    (packages / "linked").symlink_to(packages / "torch")
    monkeypatch.setattr(policy, "ROOT", packages)
    monkeypatch.setattr(policy.command, "installed", lambda: True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    shown = policy.readable(())
    assert str(packages / "torch") in shown and str(packages / "linked") in shown
    assert not {str(packages / "mine"), str(elsewhere), str(packages), str(packages / "harness")} & set(shown)


def test_the_current_directory_is_not_shown_for_being_on_pythonpath(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{other}")
    shown = policy.readable(())
    assert str(tmp_path) not in shown and str(other) in shown


def test_no_search_path_of_a_worker_names_the_work_directory(tmp_path, monkeypatch):
    """The next worker would load what a submission has left there, and so would its keeper, outside the sandbox."""
    given = {"LD_LIBRARY_PATH": ":/usr/lib;:.;lib:", "PYTHONPATH": ".:/usr/lib::lib", "PATH": ":/bin:."}
    for variable, text in given.items():
        monkeypatch.setenv(variable, text)
    found = enclosure._clean_environment(tmp_path)
    programs = f"{Path(sys.executable).parent}:/bin"
    assert [found[name] for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "PATH")] == [
        "/usr/lib", f"{policy.ROOT}:/usr/lib", programs
    ]  # fmt: skip
    monkeypatch.setenv("LD_LIBRARY_PATH", ":")
    assert "LD_LIBRARY_PATH" not in enclosure._clean_environment(tmp_path)


def test_a_directory_like_tmp_in_which_a_program_lies_is_not_shown(tmp_path, monkeypatch):
    everybody_s = tmp_path / "everybody's"
    everybody_s.mkdir()
    everybody_s.chmod(0o1777)
    (everybody_s / "somebody's").mkdir()
    monkeypatch.syspath_prepend(everybody_s)
    assert not any(name.startswith(str(everybody_s)) for name in policy.readable(()))
    everybody_s.chmod(0o755)
    assert str(everybody_s) in policy.readable(())


def test_bubblewrap_that_has_gone_since_is_the_machine_s_fault_and_said_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(bubblewrap, "program", lambda: None)
    with pytest.raises(InfrastructureError, match="bubblewrap has disappeared since this process started"):
        bubblewrap.command(["true"], None, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's limits")
def test_no_worker_comes_before_others_on_a_machine_whose_users_may(monkeypatch):
    limits = {resource.RLIMIT_RTPRIO: (0, 95), resource.RLIMIT_NICE: (40, 40)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, (1, 1)))
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(Path, "write_text", lambda self, text: None)
    privileges.limit(100, 1 << 30)
    assert limits[resource.RLIMIT_RTPRIO] == limits[resource.RLIMIT_NICE] == (0, 0)


def test_an_ended_process_is_waited_for_while_another_thread_collects_its_status():
    enclosure = object.__new__(Enclosure)
    enclosure._process = subprocess.Popen(["true"])
    enclosure._process._waitpid_lock.acquire()  # as the other thread's Popen.wait does
    threading.Timer(0.5, enclosure._process._waitpid_lock.release).start()
    assert enclosure.wait(300) == 0
