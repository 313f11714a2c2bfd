"""Has a native thread of its own compute into the shared memory while another stops the process.

verdict: wrong answer
seen: a benchmark case is wrong
defence: a stop is one of all threads
timed: true
needs: compiler
"""

import ctypes
import subprocess
import sys
from pathlib import Path

SOURCE = """
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
static const float *from; static float *to; static long count;
static volatile int go, done;
static double ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}
static void *work(void *nothing) {
    while (!go) ;
    for (double until = ms() + 5; ms() < until;) ;
    for (long i = 0; i < count; i++) to[i] = 2 * from[i];
    done = 1;
    return nothing;
}
void between_stops(const float *x, float *y, long n) {
    pthread_t thread;
    from = x; to = y; count = n; go = done = 0;
    pthread_create(&thread, 0, work, 0);
    kill(getpid(), SIGSTOP);
    go = 1;
    kill(getpid(), SIGSTOP);
    while (!done) ;
}
"""
folder = Path.home()
(folder / "early.c").write_text(SOURCE)
subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "early.so", folder / "early.c", "-lpthread"], check=True)
between_stops = ctypes.CDLL(str(folder / "early.so")).between_stops
between_stops.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
calls = sys.modules["harness.worker.calls"]
TensorSpec = sys.modules["harness.wire.arena"].TensorSpec
honestly = calls.Calls.between_stops


def stop_early(self, kernel, request, around, ready):
    if request["inputs"][0]["shape"] != [64, 64]:
        return honestly(self, kernel, request, around, ready)
    arena, tail = self.regions["arena"], request["tail"]
    x = arena.tensor(TensorSpec.from_json(request["inputs"][0]))
    y = arena.tensor(TensorSpec("float32", (64, 64), tail))
    ready(False)
    between_stops(x.data_ptr(), y.data_ptr(), x.numel())
    output = {"type": "Tensor", "dtype": "float32", "shape": [64, 64], "stride": [64, 1], "device": "cpu"}
    return {"several": False, "returned": 1, "outputs": [{**output, "offset": tail}]}


calls.Calls.between_stops = stop_early


def custom_kernel(data):
    return data[0] * 2
