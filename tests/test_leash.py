"""Stopping a worker, seeing that all of it is stopped, and that it cannot wake itself: in every isolation here."""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial

import pytest
from test_sandbox import CONFINE, CPU, Inside, isolation  # noqa: F401

from harness.model import NO_ISOLATION, Isolation
from harness.sandbox import syscalls, waiter
from harness.sandbox.leash import Ended, Leash

PATIENCE_S = 300
"""What takes milliseconds on an idle machine has happened by then on a busy one."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a sandbox")


class OnALeash(Inside):
    """A confined program with the waiter for its parent, as the judge starts a worker."""

    def __init__(self, isolation, program, *arguments, pass_fds=()):  # noqa: F811
        seen, self._reported = os.pipe()
        super().__init__(isolation, program, *arguments, pass_fds=(self._reported, *pass_fds))
        os.close(self._reported)
        self.leash = Leash(seen, self.enclosure.pid)
        self.leash.attach(60)

    def command(self, *words):
        return [sys.executable, "-I", "-S", "-B", waiter.__file__, str(self._reported), waiter.ALL, *words]

    def __exit__(self, *_):
        super().__exit__(*_)
        self.leash.close()

    def await_line(self, expected):
        assert self.enclosure.stdout.readline().decode().strip() == expected


BUSY = """
    import os, threading
    def spin():
        while True:
            pass
    def child(left_alone):
        pid = os.fork()
        if pid == 0:
            if left_alone:  # its child, which has lost its parent
                if os.fork() != 0:
                    os._exit(0)
                os.setsid()
                os.setpgid(0, 0)
            os.write(1, b".")
            spin()
        if left_alone:
            os.waitpid(pid, 0)
    child(False)
    child(True)
    for _ in range(3):
        threading.Thread(target=spin, daemon=True).start()
    os.write(1, b".")
    spin()
"""


def spent_ns(leash):
    return {**leash.others(), leash.pid: leash.processor_ns()}


def all_computed(leash, before):
    """Whether each of these processes has computed some more."""
    return all(now > before[pid] for pid, now in spent_ns(leash).items())


def await_(happened):
    """Until it has, however busy the machine is."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stop_is_seen_when_all_threads_and_children_stand_still_and_so_they_stay(isolation):  # noqa: F811
    with OnALeash(isolation, BUSY) as inside:
        leash = inside.leash
        assert inside.enclosure.stdout.read(3) == b"..."
        for _ in range(3):
            leash.stop(PATIENCE_S)
            assert leash.await_others(PATIENCE_S) is not None and leash.stopped
            time.sleep(0.01)  # what the kernel books late
            before = spent_ns(leash)
            assert len(before) == 3
            time.sleep(0.1)
            assert spent_ns(leash) == before and not leash.ran_while_stopped()
            leash.resume()
            await_(partial(all_computed, leash, before))


def test_one_that_stops_itself_is_seen_to_and_goes_on_when_it_is_let(isolation):  # noqa: F811
    program = """
        import os, signal, time
        for _ in range(3):
            time.sleep(0.02)
            print(time.monotonic_ns(), flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
    """
    with OnALeash(isolation, program) as inside:
        began_ns = 0
        for _ in range(3):
            stopped_ns = inside.leash.await_stop(60)
            said_ns = int(inside.enclosure.stdout.readline())
            assert began_ns < said_ns < stopped_ns < time.monotonic_ns()
            assert not inside.leash.ran_while_stopped()
            began_ns = inside.leash.resume()
            assert inside.leash.stopped is False
        with pytest.raises(Ended):
            inside.leash.await_stop(60)


WAKERS = """
    import ctypes, json, os, signal, sys
    numbers = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    parent, read_end = os.getppid(), os.pipe()[0]
    me = os.getpid()
    event = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)  # struct sigevent: SIGEV_SIGNAL
    def call(name, *arguments):
        given = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
        found = libc.syscall(ctypes.c_long(numbers[name]), *given)
        if name == "clone" and found == 0:
            os._exit(0)
        return found
    information = (ctypes.c_int * 32)(signal.SIGCONT, 0, -1)  # siginfo_t: SI_QUEUE
    tried = {
        "timer_create": call("timer_create", 1, event, (ctypes.c_int * 1)()),
        "timerfd_create": call("timerfd_create", 1, 0),
        "F_SETSIG": call("fcntl", read_end, 10, signal.SIGCONT),
        "clone": call("clone", signal.SIGCONT, 0, 0, 0, 0),
        "PR_SET_PDEATHSIG": call("prctl", 1, signal.SIGCONT, 0, 0, 0),
        "io_setup": call("io_setup", 1, (ctypes.c_long * 1)()),
        "pidfd": call("pidfd_send_signal", os.pidfd_open(parent), 0, 0, 0),
        "pidfd of its own": call("pidfd_send_signal", os.pidfd_open(me), 0, 0, 0),
        "kill the waiter": call("kill", parent, 0),
        "kill its group": call("kill", -parent, 0),
        "kill everybody": call("kill", -1, 0),
        "tkill": call("tkill", parent, 0),
        "tgkill": call("tgkill", parent, parent, 0),
        "sigqueue": call("rt_sigqueueinfo", parent, signal.SIGCONT, information),
        "SIGCONT": call("kill", me, signal.SIGCONT),
        "SIGCONT to its group": call("kill", 0, signal.SIGCONT),
        "SIGCONT to a thread": call("tkill", me, signal.SIGCONT),
        "SIGCONT to a thread of its own": call("tgkill", me, me, signal.SIGCONT),
        "SIGCONT in a queue": call("rt_sigqueueinfo", me, signal.SIGCONT, information),
        "trace the waiter": call("ptrace", 16, parent, 0, 0),
    }
    controls = {
        "a child": call("clone", signal.SIGCHLD, 0, 0, 0, 0),
        "its own signal": call("kill", me, 0),
        "another signal at its parent's death": call("prctl", 1, signal.SIGKILL, 0, 0, 0),
        "a timer": libc.setitimer(0, (ctypes.c_long * 4)(0, 0, 1000, 0), None),
    }
    print(json.dumps([[name for name, found in each.items() if found != -1] for each in (tried, controls)]))
"""
CALLS = [
    "timer_create",
    "timerfd_create",
    "fcntl",
    "clone",
    "prctl",
    "io_setup",
    "pidfd_send_signal",
    "kill",
    "tkill",
    "tgkill",
    "rt_sigqueueinfo",
    "ptrace",
]


def test_it_cannot_arrange_to_be_woken_nor_signal_whoever_watches_it(isolation):  # noqa: F811
    numbers = json.dumps({name: syscalls.number(name) for name in CALLS})
    with OnALeash(isolation, WAKERS, numbers) as inside:
        done, controls = json.loads(inside.printed())
    assert done == []
    assert len(controls) == 4, "what is no way to wake is allowed"


WAKES_ITSELF = """
    import fcntl, signal, sys, os
    end = int(sys.argv[1])
    fcntl.fcntl(end, 10, signal.SIGCONT)  # F_SETSIG
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETFL, os.O_ASYNC)
    print("awake", flush=True)
    while True:
        pass
"""


GOES_ON = r"""
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void *insist(void *nothing) {
    for (;;) kill(getpid(), SIGCONT);  /* a SIGSTOP that is on its way is lost */
}
int main(int count, char **words) {
    volatile long *counted = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(words[1]), 0);
    if (fork() == 0) {
        pthread_t thread;
        for (int i = 0; i < 4; i++) pthread_create(&thread, 0, insist, 0);
        write(1, ".", 1);
        for (;;) ++*counted;
    }
    pause();
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")
@pytest.mark.slow(ci=True)
def test_without_a_filter_a_child_that_goes_on_all_the_same_is_seen(tmp_path):
    program = tmp_path / "goes_on"
    (tmp_path / "goes_on.c").write_text(GOES_ON)
    subprocess.run(["cc", "-O1", "-pthread", "-o", program, tmp_path / "goes_on.c"], check=True)
    file = os.memfd_create("counted")
    os.ftruncate(file, 4096)
    start = f"import os\nos.execv({str(program)!r}, ['goes_on', {str(file)!r}])\n"
    with os.fdopen(file, "rb", buffering=0), OnALeash(NO_ISOLATION, start, pass_fds=(file,)) as inside:
        leash, went_on = inside.leash, 0
        assert inside.enclosure.stdout.read(1) == b"."
        deadline = time.monotonic() + PATIENCE_S
        while went_on < 3 and time.monotonic() < deadline:
            leash.stop(PATIENCE_S)
            rest, before = leash.await_others(), os.pread(file, 8, 0)
            time.sleep(0.002)
            if os.pread(file, 8, 0) != before:
                went_on += 1
                assert rest is None or leash.others_ran(rest)
            leash.resume()
        assert went_on == 3


@pytest.mark.parametrize("what", ["nothing", "goes on", "was going to end", "ends", "goes on for a moment", "is new"])
def test_what_becomes_of_a_child_at_rest_is_seen(what):
    program = """
        import os, signal, time
        def child(*end):
            pid = os.fork()
            if pid and end:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if pid == 0:
                if end:
                    os._exit(*end)
                os.write(1, b".")
                while True:
                    pass
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child(0)  # one that has ended and that nobody has waited for: it computes nothing any more
        child()
        child()
        time.sleep(600)
    """
    with OnALeash(NO_ISOLATION, program) as inside:
        leash = inside.leash
        assert inside.enclosure.stdout.read(2) == b".."
        leash.stop(PATIENCE_S)
        time.sleep(0.01)  # what the kernel books late
        rest = leash.await_others(PATIENCE_S)
        assert len(rest.spent_ns) == 3 and len(rest.ended) == 1
        one = next(iter(rest.spent_ns.keys() - rest.ended))
        if what == "is new":
            rest = replace(rest, spent_ns={pid: ns for pid, ns in rest.spent_ns.items() if pid != one})
        elif what == "was going to end":
            rest = replace(rest, spent_ns=rest.spent_ns | {2**22 + 1: 1})
        elif what == "ends":
            os.kill(one, signal.SIGKILL)
            await_(lambda: waiter.has_ended(one))
        elif what != "nothing":
            os.kill(one, signal.SIGCONT)
            time.sleep(0.01)
            if what == "goes on for a moment":
                os.kill(one, signal.SIGSTOP)
                await_(lambda: waiter.is_stopped(one))
        assert leash.others_ran(rest) is (what != "nothing")


def test_without_a_filter_one_that_wakes_itself_is_seen_to_have_run():
    ours, theirs = socket.socketpair()
    with ours, theirs, OnALeash(NO_ISOLATION, WAKES_ITSELF, theirs.fileno(), pass_fds=(theirs.fileno(),)) as inside:
        inside.await_line("awake")
        inside.leash.stop(PATIENCE_S)
        assert not inside.leash.ran_while_stopped()
        ours.send(b"x")
        await_(inside.leash.ran_while_stopped)


def test_one_that_goes_on_by_no_fault_of_its_own_is_seen_as_well():
    """Continued from outside for a moment and stopped again, so that nothing but the waiter's word tells."""
    with OnALeash(NO_ISOLATION, "import time\nprint('up', flush=True)\ntime.sleep(600)\n") as inside:
        inside.await_line("up")
        inside.leash.stop(PATIENCE_S)
        os.kill(inside.leash.pid, signal.SIGCONT)
        os.kill(inside.leash.pid, signal.SIGSTOP)
        await_(inside.leash.ran_while_stopped)


@pytest.mark.parametrize("who", ["itself", "a child"])
def test_one_that_cannot_be_stopped_in_time_is_not_taken_for_stopped(who):
    """Whoever waits for its vfork's child is deaf to all but SIGKILL, and that child is stopped."""
    program = f"""
        import ctypes, os, time
        def waits_in_the_kernel():
            libc, vfork = ctypes.CDLL(None), 0x4000 | 17  # CLONE_VFORK, SIGCHLD
            if libc.syscall(ctypes.c_long({syscalls.number("clone")}), ctypes.c_long(vfork), 0, 0, 0, 0) == 0:
                os.write(1, b"up\\n")
                time.sleep(600)
        if {who!r} == "itself" or os.fork() == 0:
            waits_in_the_kernel()
        time.sleep(600)
    """
    with OnALeash(NO_ISOLATION, program) as inside:
        inside.await_line("up")
        if who == "itself":
            with pytest.raises(TimeoutError):
                inside.leash.stop()
        else:
            inside.leash.stop(PATIENCE_S)
            assert inside.leash.await_others() is None


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_stop_is_noted_when_the_kernel_has_done_what_it_still_did_for_a_child(end):
    """A signal, SIGKILL too, reaches it when its system call ends."""
    program = f"""
        import mmap, os, signal, sys, time
        BIG = 8 << 20
        file = os.memfd_create("big")
        os.ftruncate(file, BIG)
        os.pwrite(file, b"x", 0)
        os.pwrite(file, b"y", BIG - 1)
        page = mmap.mmap(-1, BIG)
        page.write(bytes(BIG))
        child = os.fork()
        if child == 0:
            os.preadv(file, [page], 0)
            {end}
        while page[0] != ord("x"):
            pass
        if {end!r} != "os._exit(0)":
            os.kill(child, signal.SIGKILL)
        print(time.monotonic_ns(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        print("done" if page[BIG - 1] == ord("y") else "was not there", flush=True)
        time.sleep(600)
    """
    with OnALeash(NO_ISOLATION, program) as inside:
        noted_ns = inside.leash.await_stop(60)
        stand_still = inside.leash.others_at_rest() is not None
        stopped_ns = int(inside.enclosure.stdout.readline())
        if noted_ns - stopped_ns < waiter.BUSY_S * 1e9:  # or the waiter gave up, and the judge looks again
            assert stand_still
        else:
            assert inside.leash.await_others(60) is not None
        inside.leash.resume()
        inside.await_line("done")


LOOKS = """
    import os, signal, threading, time
    from harness.sandbox import waiter
    looked = []
    def look(child):
        time.sleep(0.02)
        looked.append(time.monotonic_ns())
        return FOUND
    waiter.others, waiter._is_busy, waiter._hurry = look, lambda pid: False, lambda: None
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    threading.Timer(0.3, os.kill, (child, signal.SIGCONT)).start()
    waiter._watch(child, write_end, True)
    records = [waiter.RECORD.unpack(record) for record in zip(*[iter(os.read(read_end, 4096))] * waiter.RECORD.size)
               for record in [bytes(record)]]
    stops = [at_ns for what, _, at_ns in records if what == waiter.STOPPED]
    print(len(stops) == 1 and stops[0] >= looked[0])
"""


@pytest.mark.parametrize(("found", "behind"), [("{1}", True), ("set()", False)])
def test_where_it_has_children_a_stop_is_noted_when_all_have_been_looked_at(found, behind):
    """What one of them ends in the kernel meanwhile would be in no time: with 900 that had ended a look took 70 ms."""
    program = textwrap.dedent(LOOKS).replace("FOUND", found)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == f"{behind}\n", done.stderr


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("os._exit(0)", 0),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 40)", -40),
    ],
)
def test_its_end_is_seen_and_how_it_ended(isolation, ending, status):  # noqa: F811
    with OnALeash(isolation, f"import os, signal\n{ending}\n") as inside:
        with pytest.raises(Ended):
            inside.leash.await_stop(60)
        assert inside.enclosure.wait(300) == status
        with pytest.raises(Ended):
            inside.leash.stop()
        assert inside.leash.processor_ns() == 0


@pytest.mark.parametrize(
    "ends", ["waiter._end_as(SIGNAL)", "keeper._end_as(SIGNAL, False)", "keeper._end_as(CODE, True)"]
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, 32, 33, 40])
def test_who_stands_around_it_sends_itself_the_signal_that_it_ended_by_also_those_that_the_c_library_keeps(
    ends, number
):
    """As it is done, not what comes of it: a process may have been started with one of those two ignored."""
    ends = ends.replace("SIGNAL", str(int(number))).replace("CODE", str((128 + number) << 8))
    program = (
        f"from harness.sandbox import keeper, waiter\nos.kill = lambda pid, which: print(which, flush=True)\n{ends}\n"
    )
    done = subprocess.run([sys.executable, "-c", f"import os\n{program}"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{int(number)}\n", number), done.stderr


def test_its_end_does_not_keep_its_last_thread_from_ending():
    """The waiter comes before all others, and in the kernel it would wait awake for what that thread still does."""
    program = """
        import threading, time
        for _ in range(8):
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        print("up", flush=True)
        time.sleep(600)
    """
    processors = os.sched_getaffinity(0)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_stime
    for _ in range(5):
        os.sched_setaffinity(0, {min(processors)})
        try:
            inside = OnALeash(NO_ISOLATION, program)
        finally:
            os.sched_setaffinity(0, processors)
        with inside:
            inside.await_line("up")
            assert not waiter.is_stopped(inside.leash.pid)  # each thread has been looked at
            inside.leash.stop(PATIENCE_S)
            os.kill(inside.leash.pid, signal.SIGKILL)
            assert inside.enclosure.wait(300) == -signal.SIGKILL
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_stime - spent < 0.9, "a spell of such waiting is 0.95 s"


def test_a_program_that_cannot_be_started_is_an_end(tmp_path):
    seen, reported = os.pipe()
    program = [sys.executable, "-I", "-S", "-B", waiter.__file__, str(reported), waiter.ALL, "/no/such/program"]
    with os.fdopen(seen, "rb") as records:
        pid = os.posix_spawn(program[0], program, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, reported, reported)])
        os.close(reported)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 127
        said = [waiter.RECORD.unpack(records.read(waiter.RECORD.size))[0] for _ in range(2)]
        assert said == [waiter.STARTED, waiter.ENDED] and records.read() == b""


def test_it_dies_with_the_waiter(isolation):  # noqa: F811
    """Not by the worker's own doing: it is the keeper's."""
    with OnALeash(isolation, "import time\nprint('up', flush=True)\ntime.sleep(600)\n") as inside:
        inside.await_line("up")
        with open(f"/proc/{inside.leash.pid}/stat") as state:
            parent = int(state.read().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        assert inside.enclosure.wait(300) == -signal.SIGKILL
        with pytest.raises(Ended):
            inside.leash.await_stop(60)
        with contextlib.suppress(ProcessLookupError):
            os.kill(inside.leash.pid, 0)
            raise AssertionError("the worker lives")


def test_nobody_changes_the_priority_of_all_processes_of_the_judge_s_user():
    """In the tier where the worker's user is the judge's; its own priority it may lower."""
    program = f"""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
        refused = libc.setpriority(os.PRIO_USER, 0, 0), ctypes.get_errno()
        also = libc.syscall(ctypes.c_long({syscalls.number("ioprio_set")}), 3, 0, 2 << 13 | 4), ctypes.get_errno()
        print(refused, also, flush=True)
    """
    with Inside(Isolation(False, True, True, False, False), program) as inside:
        assert inside.printed() == "(-1, 1) (-1, 1)\n"


def test_no_file_is_made_to_send_signals_to_others(isolation):  # noqa: F811
    if not isolation.seccomp:
        pytest.skip("there is no filter")
    program = """
        import ctypes, errno, fcntl, os, struct
        reads, _ = os.pipe()
        def refused(what):
            try:
                what()
            except PermissionError:
                return True
        print(all((
            refused(lambda: fcntl.fcntl(reads, 8, os.getppid())),  # F_SETOWN
            refused(lambda: fcntl.fcntl(reads, 15, struct.pack("ii", 1, os.getppid()))),  # F_SETOWN_EX
            refused(lambda: fcntl.ioctl(reads, 0x8901, struct.pack("i", os.getppid()))),  # FIOSETOWN
            refused(lambda: fcntl.ioctl(reads, 0x8902, struct.pack("i", os.getppid()))),  # SIOCSPGRP
        )), flush=True)
    """
    with Inside(isolation, program) as inside:
        assert inside.printed() == "True\n"
