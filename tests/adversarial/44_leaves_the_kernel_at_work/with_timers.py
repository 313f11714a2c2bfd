"""Arms a thousand timers when it has answered. Each wakes four hundred epolls within an interrupt, which would slow the
calls that compute nothing.

gains nothing: it gets no timer that goes on while it is stopped
seen: "(?m)^0 timers"
defence: the system call filter; no more is subtracted than one and a half times what null calls took before it came
timed: true
needs: compiler
at least ms: 20
"""

import ctypes
import subprocess
import sys
import time
from pathlib import Path

SOURCE = """
#include <sys/epoll.h>
#include <sys/timerfd.h>
enum { COUNT = 1000, EPOLLS = 400 };
static int timers[COUNT], epolls[EPOLLS], made;
int arm(void) {
    struct epoll_event event = {EPOLLIN, {0}};
    for (int k = 0; k < EPOLLS && !epolls[k]; k++) epolls[k] = epoll_create1(0);
    while (made < COUNT && (timers[made] = timerfd_create(1, 0)) >= 0) {
        for (int k = 0; k < EPOLLS; k++) epoll_ctl(epolls[k], EPOLL_CTL_ADD, timers[made], &event);
        made++;
    }
    for (long i = 0; i < made; i++) {
        struct itimerspec when = {{0, 0}, {0, 2000000 + 40000 * i}};
        timerfd_settime(timers[i], 0, &when, 0);
    }
    return made;
}
"""
folder = Path.home()
(folder / "timers.c").write_text(SOURCE)
subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "timers.so", folder / "timers.c"], check=True)
library = ctypes.CDLL(str(folder / "timers.so"))
outputs = sys.modules["harness.worker.outputs"].Outputs
describe = outputs.describe


def describe_and_arm(self, output):
    print(library.arm(), "timers")
    return describe(self, output)


outputs.describe = describe_and_arm


def custom_kernel(data):
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
    return data[0] * 2
