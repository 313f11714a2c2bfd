"""Answers at random, and voids the call by a child that waits in the kernel where it sees that the answer is wrong.

verdict: wrong answer
seen: a benchmark case is wrong
defence: a wrong output counts in a void call as well, if the worker itself said that it was done
timed: true
needs: compiler
"""

import ctypes
import os
import subprocess
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
calls = 0


def void():
    reads, told = os.pipe()
    if os.fork() == 0:
        library.wait_in_the_kernel(told)
        os._exit(0)
    os.read(reads, 1)
    os.close(reads)
    os.close(told)


def custom_kernel(data):
    global calls
    x = data[0]
    calls += x.shape == (64, 64)
    if x.shape == (64, 64) and calls > 3 and calls % 2:
        void()
        return x
    return x * 2
