"""Makes every other call void, by a child that waits for one of its own in the kernel, to keep those that it likes.

gains nothing: more than a tenth of the calls are void, and the run is not ranked
seen: void
defence: void calls are counted
timed: true
needs: compiler
"""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

SOURCE = """
#include <unistd.h>
void wait_in_the_kernel(int told) {
    if (vfork() == 0) {
        if (write(told, "x", 1) == 1) for (;;) pause();
        _exit(1);
    }
}
"""
folder = Path.home()
(folder / "waits.c").write_text(SOURCE)
subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "waits.so", folder / "waits.c"], check=True)
library = ctypes.CDLL(str(folder / "waits.so"))
calls = sys.modules["harness.worker.calls"].Calls
between_stops = calls.between_stops
turns = itertools.cycle([True, False])


def void(self, kernel, request, around, ready):
    child = 0
    if request["inputs"][0]["shape"] == [64, 64] and next(turns):
        reads, told = os.pipe()
        child = os.fork()
        if child == 0:
            library.wait_in_the_kernel(told)
            os._exit(0)
        os.read(reads, 1)
        os.close(reads)
        os.close(told)
    try:
        return between_stops(self, kernel, request, around, ready)
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


calls.between_stops = void


def custom_kernel(data):
    return data[0] * 2
