"""Leaves a child in a long system call when it has answered, to slow the calls that compute nothing.

gains nothing: they wait until it is stopped; after 0.1 s its call is void
seen: "[1-9][0-9]* left at work"
defence: all of a submission stands still before null calls, or its call is void
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
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
enum { MAPS = 4, SIZE = 1 << 24 };
static int told[2];
static char *region;
int start(void) {
    int file = memfd_create("pages", 0);
    if (pipe(told) || ftruncate(file, SIZE)) return -1;
    region = mmap(0, (long) MAPS * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < MAPS; i++)
        mmap(region + i * SIZE, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    if (fork() == 0)
        for (char go; read(told[0], &go, 1) == 1;) {
            madvise(region, (long) MAPS * SIZE, 22); /* MADV_POPULATE_READ */
            madvise(region, (long) MAPS * SIZE, MADV_DONTNEED);
        }
    return 0;
}
int work(void) { return write(told[1], "x", 1) == 1; }
"""
folder = Path.home()
(folder / "pages.c").write_text(SOURCE)
subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "pages.so", folder / "pages.c"], check=True)
library = ctypes.CDLL(str(folder / "pages.so"))
if library.start():
    raise OSError("there is no child to leave at work")
outputs = sys.modules["harness.worker.outputs"].Outputs
describe = outputs.describe
left = 0


def describe_and_leave(self, output):
    global left
    left += library.work()
    print(left, "left at work")
    time.sleep(0.001)
    return describe(self, output)


outputs.describe = describe_and_leave


def custom_kernel(data):
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
    return data[0] * 2
