"""Does the same work in C, and leaves all else to the worker.

timed: true
needs: compiler
at least ms: 5
"""

import ctypes
import subprocess
from pathlib import Path

import torch

WORK_MS = 5
SOURCE = """
#include <time.h>
static double ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}
void work(const float *x, float *y, long n, double work_ms) {
    for (double until = ms() + work_ms; ms() < until;) ;
    for (long i = 0; i < n; i++) y[i] = 2 * x[i];
}
"""
folder = Path.home()
(folder / "work.c").write_text(SOURCE)
subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", folder / "work.so", folder / "work.c"], check=True)
work = ctypes.CDLL(str(folder / "work.so")).work
work.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_double]


kept: dict = {}


def custom_kernel(data):
    x = data[0]
    y = kept.get(x.shape)
    if y is None:
        y = kept[x.shape] = torch.empty_like(x)
    work(x.data_ptr(), y.data_ptr(), x.numel(), WORK_MS)
    return y
