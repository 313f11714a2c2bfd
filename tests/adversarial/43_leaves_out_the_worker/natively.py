"""Does between the two stops nothing but its work, in C and into the shared memory, without any of the worker's own
steps.

gains nothing: only what the worker's own steps take, which the bound on a CPU allows for
seen: "made [1-9][0-9]* calls of its own"
defence: the judge's clock
timed: true
needs: compiler
at least ms: 5
"""

import ctypes
import subprocess
import sys
import time
from pathlib import Path

WORK_MS = 5
SOURCE = """
#include <signal.h>
#include <time.h>
#include <unistd.h>
static double ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}
void between_stops(const float *x, float *y, long n, double work_ms) {
    kill(getpid(), SIGSTOP);
    for (double until = ms() + work_ms; ms() < until;) ;
    for (long i = 0; i < n; i++) y[i] = 2 * x[i];
    kill(getpid(), SIGSTOP);
}
"""
folder = Path.home()
(folder / "between.c").write_text(SOURCE)
subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", folder / "between.so", folder / "between.c"], check=True)
between_stops = ctypes.CDLL(str(folder / "between.so")).between_stops
between_stops.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_double]
calls = sys.modules["harness.worker.calls"]
TensorSpec = sys.modules["harness.wire.arena"].TensorSpec
honestly = calls.Calls.between_stops
made = 0


def leave_out_the_worker(self, kernel, request, around, ready):
    global made
    if request["inputs"][0]["shape"] != [64, 64]:
        return honestly(self, kernel, request, around, ready)
    arena, tail = self.regions["arena"], request["tail"]
    x = arena.tensor(TensorSpec.from_json(request["inputs"][0]))
    y = arena.tensor(TensorSpec("float32", (64, 64), tail))
    ready(False)
    between_stops(x.data_ptr(), y.data_ptr(), x.numel(), WORK_MS)
    made += 1
    print(f"made {made} calls of its own")
    output = {"type": "Tensor", "dtype": "float32", "shape": [64, 64], "stride": [64, 1], "device": "cpu"}
    return {"several": False, "returned": 1, "outputs": [{**output, "offset": tail}]}


calls.Calls.between_stops = leave_out_the_worker


def custom_kernel(data):
    until = time.perf_counter() + WORK_MS / 1e3
    while time.perf_counter() < until:
        pass
    return data[0] * 2
