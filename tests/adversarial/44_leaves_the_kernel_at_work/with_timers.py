"""Arms a thousand timers when it has answered, whose interrupts slow the calls that compute nothing.

gains nothing: no more is subtracted than one and a half times what null calls took when nothing of it lived
seen: 1000 timers
defence: the cap on what is subtracted is measured without the submission
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
#include <sys/timerfd.h>
enum { COUNT = 1000 };
static int timers[COUNT], made;
int arm(void) {
    while (made < COUNT && (timers[made] = timerfd_create(1, 0)) >= 0) made++;
    for (long i = 0; i < made; i++) {
        struct itimerspec when = {{0, 0}, {0, 2000000 + 5000 * i}};
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
