"""Arranges to be woken while it is stopped: by a timer, a pipe, its parent's and its child's end, and its worker's parent.

gains nothing: each is refused
seen: 8 of 8 were refused
defence: the system call filter
timed: true
needs: compiler
at least ms: 20
"""

import ctypes
import subprocess
import time
from pathlib import Path

SOURCE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static char stack[65536];
static int ends(void *nothing) { (void) nothing; return 0; }
int refused(void) {
    int pipes[2], count = 0;
    timer_t timer;
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGCONT;
    if (pipe(pipes)) return -1;
    count += timer_create(CLOCK_MONOTONIC, &event, &timer) != 0;
    count += fcntl(pipes[0], F_SETSIG, SIGCONT) != 0;
    count += prctl(PR_SET_PDEATHSIG, SIGCONT) != 0;
    count += clone(ends, stack + sizeof stack, CLONE_VM | SIGCONT, 0) < 0;
    count += syscall(435, 0, 0) < 0;  /* clone3, whose flags no filter can read */
    count += kill(getppid(), SIGSTOP) != 0;
    count += syscall(SYS_tgkill, getppid(), getppid(), SIGCONT) != 0;
    count += ptrace(PTRACE_ATTACH, getppid(), 0, 0) != 0;
    close(pipes[0]);
    close(pipes[1]);
    return count;
}
"""
folder = Path.home()
(folder / "wakes.c").write_text(SOURCE)
subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "wakes.so", folder / "wakes.c"], check=True)
library = ctypes.CDLL(str(folder / "wakes.so"))


def custom_kernel(data):
    time.sleep(0.02)
    print(library.refused(), "of 8 were refused")
    return data[0] * 2
