"""Has a child that nobody waits for compute into the shared memory and end before the judge looks, while
another keeps the judge from a processor.

verdict: wrong answer
seen: a benchmark case is wrong
defence: the worker's parent stops the group before it notes the time
timed: true
needs: compiler
"""

import ctypes
import subprocess
import sys
from pathlib import Path

SOURCE = """
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}
static void compute(const float *x, float *y, long n) {
    for (double until = ms() + WORK_MS; ms() < until;) ;
    for (long i = 0; i < n; i++) y[i] = 2 * x[i];
}
void between_stops(const float *x, float *y, long n) {
    static volatile int *words;
    if (!words) words = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    words[0] = words[1] = 0;
    for (int which = 0; which < 2; which++) {
        if (fork() == 0) {
            if (fork() == 0) {
                while (!words[0]) ;
                if (which == 0) compute(x, y, n), words[1] = 1;
                else while (!words[1]) ;
            }
            _exit(0);
        }
        wait(0);
    }
    kill(getpid(), SIGSTOP);
    words[0] = 1;
    kill(getpid(), SIGSTOP);
    while (!words[1]) ;
}
"""
folder = Path.home()
(folder / "early.c").write_text(SOURCE.replace("WORK_MS", "5"))
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
